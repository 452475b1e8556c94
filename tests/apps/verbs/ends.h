/*
 * What the verbs programs share: two processes with a device each, that tell each other what a
 * connection needs over a socket of their own, and end with status 1 at the first surprise.
 */
#ifndef SLUICE_APPS_VERBS_ENDS_H
#define SLUICE_APPS_VERBS_ENDS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Every wait ends after this; the harness has its own limit too. */
#define PATIENCE_SECONDS 20

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
                    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

/* The process, and what it was doing when something was wrong. */
static const char *role = "alone";
static char doing[200] = "beginning";

#define NEED(condition, ...) do {                                                      \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: %s: %s: ", __FILE__, __LINE__, role, doing);        \
            fprintf(stderr, __VA_ARGS__);                                               \
            fprintf(stderr, " (errno %d)\n", errno);                                    \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* A process's device and what hangs on it. */
struct end {
    int peer;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    union ibv_gid gid;
};

/* What one tells the other. */
struct card {
    uint32_t qpn;
    uint32_t rkey;
    uint64_t addr;
    union ibv_gid gid;
};

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static inline void open_end(struct end *end)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0], "no device");
    end->context = ibv_open_device(list[0]);
    NEED(end->context, "ibv_open_device");
    ibv_free_device_list(list);
    end->pd = ibv_alloc_pd(end->context);
    end->cq = ibv_create_cq(end->context, 256, NULL, NULL, 0);
    NEED(end->pd && end->cq, "no domain or completion queue");
    NEED(ibv_query_gid(end->context, 1, 0, &end->gid) == 0, "ibv_query_gid");
}

/* Two processes; each opens the device for itself. True in the first one, "owner". */
static inline bool split(struct end *end, pid_t *child)
{
    int sockets[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
    *child = fork();
    NEED(*child >= 0, "fork");
    bool owner = *child != 0;
    role = owner ? "owner" : "peer";
    end->peer = sockets[owner ? 0 : 1];
    close(sockets[owner ? 1 : 0]);
    struct timeval patience = {PATIENCE_SECONDS, 0};
    setsockopt(end->peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    open_end(end);
    return owner;
}

static inline void tell(struct end *end, const void *what, size_t bytes)
{
    NEED(write(end->peer, what, bytes) == (ssize_t)bytes, "the other end is gone");
}

static inline void hear(struct end *end, void *what, size_t bytes)
{
    ssize_t got = recv(end->peer, what, bytes, MSG_WAITALL);
    NEED(got == (ssize_t)bytes, "the other end is gone or silent");
}

/* Nobody goes on before the other has come here. */
static inline void meet(struct end *end)
{
    char turn = 'x';
    tell(end, &turn, 1);
    hear(end, &turn, 1);
}

static inline struct card swap_cards(struct end *end, struct ibv_qp *qp, uint64_t addr,
                                     uint32_t rkey)
{
    struct card own = {qp->qp_num, rkey, addr, end->gid}, other;
    tell(end, &own, sizeof own);
    hear(end, &other, sizeof other);
    return other;
}

static inline struct ibv_qp *make_qp(struct end *end, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .srq = srq, .qp_type = type, .sq_sig_all = 1,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2,
                .max_inline_data = 32},
    };
    struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
    NEED(qp, "ibv_create_qp");
    return qp;
}

static inline int to_init(struct ibv_qp *qp, int access)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access,
                               .qkey = 0x1234};
    int last = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last);
}

static inline int to_rtr(struct ibv_qp *qp, const struct card *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 4}},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type != IBV_QPT_UC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (qp->qp_type == IBV_QPT_UD)
        mask = IBV_QP_STATE;
    return ibv_modify_qp(qp, &attr, mask);
}

static inline int to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 3,
                               .rnr_retry = 3, .max_rd_atomic = 4};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type != IBV_QPT_UC && qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &attr, mask);
}

static inline void connect_qp(struct ibv_qp *qp, const struct card *peer, int access)
{
    NEED(to_init(qp, access) == 0, "to INIT");
    NEED(to_rtr(qp, peer) == 0, "to RTR");
    NEED(to_rts(qp) == 0, "to RTS");
}

/* The next completion. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    double end = now() + PATIENCE_SECONDS;
    int got;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
        NEED(now() < end, "no completion comes");
    NEED(got == 1, "ibv_poll_cq says %d", got);
    return wc;
}

static inline void await_state(struct ibv_qp *qp, enum ibv_qp_state wanted)
{
    double end = now() + PATIENCE_SECONDS;
    for (;;) {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        NEED(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0, "ibv_query_qp");
        if (attr.qp_state == wanted)
            return;
        NEED(now() < end, "the queue pair stays in state %d, not %d", attr.qp_state, wanted);
        usleep(1000);
    }
}

/* The owner's last word: the peer's status is the program's. */
static inline int finish(pid_t child)
{
    int status = 0;
    NEED(waitpid(child, &status, 0) == child, "waitpid");
    NEED(WIFEXITED(status), "the peer was killed by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

#endif
