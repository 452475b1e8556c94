/*
 * What the verbs programs share: two processes that find each other by TCP, as perftest's do, and
 * join a queue pair each; and bytes that both can compute.
 *
 *   PROGRAM -p PORT -g GID-INDEX [OPTION VALUE]... [SERVER]
 *
 *   -d NAME   the device; default: the first
 *   -c KIND   RC (default), UC or UD
 *   -n COUNT  operations of each side
 *   -s SEED   of lengths, kinds and bytes
 *   -b BYTES  the longest message
 *   -r COUNT  receives that are posted at a time
 *   -T CODE   timeout of the queue pair: 4.096 us times two to this (IBTA 9.7.6.1.3)
 *   -R COUNT  repetitions of the queue pair
 *   -e 1      sleep until an event comes, instead of polling
 *
 * A program that finds something wrong says what and ends with status 1.
 */
#ifndef SLUICE_VERBS_PAIR_H
#define SLUICE_VERBS_PAIR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

enum { GRH_BYTES = 40, QKEY = 0x01020304 };

struct options {
    const char *device, *server;
    int port, gid_index;
    enum ibv_qp_type kind;
    uint64_t count, seed;
    uint32_t bytes, receives;
    int timeout, retries;
    bool events;
};

/* What one side tells the other. Both run on processors with the same order of bytes. */
struct introduction {
    uint32_t qpn, psn, rkey, mtu;
    uint64_t address, seed, count;
    union ibv_gid gid;
};

struct pair {
    struct options options;
    int socket;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory;
    struct introduction own, peer;
};

__attribute__((noreturn, format(printf, 1, 2))) UNUSED static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    /* Not exit: the peer must see an end, and whatever hangs in a destructor must not hide this. */
    fflush(stdout);
    _exit(1);
}

#define CHECK(condition, ...)     \
    do {                          \
        if (!(condition)) {       \
            fail(__VA_ARGS__);    \
        }                         \
    } while (0)

UNUSED static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ULL + time.tv_nsec / 1000;
}

/* ---- bytes that both sides know ---------------------------------------- */

/* SplitMix64: the number at a place of a sequence. */
UNUSED static uint64_t mix(uint64_t seed, uint64_t place) {
    uint64_t mixed = seed + (place + 1) * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
}

UNUSED static unsigned char byte_at(uint64_t seed, uint64_t place) {
    return mix(seed, place / 8) >> (place % 8 * 8);
}

UNUSED static void fill(uint64_t seed, uint64_t start, char *into, size_t length) {
    size_t done = 0;
    for (; done < length && (start + done) % 8 != 0; done++) {
        into[done] = byte_at(seed, start + done);
    }
    for (; done + 8 <= length; done += 8) {
        uint64_t word = mix(seed, (start + done) / 8);
        memcpy(into + done, &word, 8);
    }
    for (; done < length; done++) {
        into[done] = byte_at(seed, start + done);
    }
}

/* Ends the program unless the bytes are those of the place. */
UNUSED static void compare(uint64_t seed, uint64_t start, const char *found, size_t length,
                           const char *what, uint64_t number) {
    for (size_t at = 0; at < length; at++) {
        if ((unsigned char)found[at] != byte_at(seed, start + at)) {
            fail("%s %llu: byte %zu of %zu is %#x and should be %#x", what,
                 (unsigned long long)number, at, length, (unsigned char)found[at],
                 byte_at(seed, start + at));
        }
    }
}

/* ---- the two processes ------------------------------------------------- */

UNUSED static void parse_options(struct options *options, int count, char **words) {
    int letter;
    while ((letter = getopt(count, words, "p:g:d:c:n:s:b:r:T:R:e:")) != -1) {
        switch (letter) {
        case 'p': options->port = atoi(optarg); break;
        case 'g': options->gid_index = atoi(optarg); break;
        case 'd': options->device = optarg; break;
        case 'n': options->count = strtoull(optarg, NULL, 0); break;
        case 's': options->seed = strtoull(optarg, NULL, 0); break;
        case 'b': options->bytes = strtoul(optarg, NULL, 0); break;
        case 'r': options->receives = strtoul(optarg, NULL, 0); break;
        case 'T': options->timeout = atoi(optarg); break;
        case 'R': options->retries = atoi(optarg); break;
        case 'e': options->events = atoi(optarg); break;
        case 'c':
            options->kind = strcmp(optarg, "UC") == 0   ? IBV_QPT_UC
                            : strcmp(optarg, "UD") == 0 ? IBV_QPT_UD
                                                        : IBV_QPT_RC;
            break;
        default: fail("an option that nobody knows");
        }
    }
    options->server = words[optind];
}

static int listen_and_accept(int port) {
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int one = 1, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0, "socket: %s", strerror(errno));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 1) == 0,
          "port %d: %s", port, strerror(errno));
    int connection = accept(listener, NULL, NULL);
    CHECK(connection >= 0, "accept: %s", strerror(errno));
    close(listener);
    return connection;
}

static int connect_to(const char *server, int port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    CHECK(getaddrinfo(server, service, &hints, &found) == 0, "no address of %s", server);
    int connection = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connection >= 0 && connect(connection, found->ai_addr, found->ai_addrlen) == 0,
          "connecting to %s: %s", server, strerror(errno));
    freeaddrinfo(found);
    return connection;
}

UNUSED static void tell(struct pair *pair, const void *bytes, size_t length) {
    CHECK(write(pair->socket, bytes, length) == (ssize_t)length, "the peer is gone (write)");
}

UNUSED static void hear(struct pair *pair, void *bytes, size_t length) {
    ssize_t got = recv(pair->socket, bytes, length, MSG_WAITALL);
    CHECK(got == (ssize_t)length, "the peer is gone (read)");
}

/* Returns when the peer is here too. */
UNUSED static void meet(struct pair *pair, char mark) {
    char other;
    tell(pair, &mark, 1);
    hear(pair, &other, 1);
    CHECK(other == mark, "the peer is at '%c', not at '%c'", other, mark);
}

static void open_device(struct pair *pair) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL, "no devices: %s", strerror(errno));
    for (int i = 0; i < count && pair->context == NULL; i++) {
        const char *wanted = pair->options.device;
        if (wanted == NULL || strcmp(wanted, ibv_get_device_name(list[i])) == 0) {
            pair->context = ibv_open_device(list[i]);
        }
    }
    CHECK(pair->context != NULL, "no such device among %d", count);
    ibv_free_device_list(list);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(pair->context, 1, &port) == 0, "ibv_query_port");
    pair->own.mtu = port.active_mtu;
    CHECK(ibv_query_gid(pair->context, 1, pair->options.gid_index, &pair->own.gid) == 0,
          "no GID %d", pair->options.gid_index);
}

/* Everything up to INIT, for so many bytes of memory and requests at a time. */
UNUSED static void create(struct pair *pair, size_t memory, uint32_t depth) {
    open_device(pair);
    pair->pd = ibv_alloc_pd(pair->context);
    CHECK(pair->pd != NULL, "ibv_alloc_pd: %s", strerror(errno));
    pair->memory = mmap(NULL, memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pair->memory != MAP_FAILED, "no memory");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC;
    pair->mr = ibv_reg_mr(pair->pd, pair->memory, memory, access);
    CHECK(pair->mr != NULL, "ibv_reg_mr: %s", strerror(errno));
    if (pair->options.events) {
        pair->channel = ibv_create_comp_channel(pair->context);
        CHECK(pair->channel != NULL, "ibv_create_comp_channel: %s", strerror(errno));
    }
    uint32_t receives = pair->options.receives;
    pair->cq = ibv_create_cq(pair->context, depth + receives, NULL, pair->channel, 0);
    CHECK(pair->cq != NULL, "ibv_create_cq: %s", strerror(errno));
    struct ibv_qp_init_attr init = {
        .send_cq = pair->cq,
        .recv_cq = pair->cq,
        .cap = {.max_send_wr = depth, .max_recv_wr = receives, .max_send_sge = 3,
                .max_recv_sge = 2, .max_inline_data = 16},
        .qp_type = pair->options.kind,
        .sq_sig_all = 1,
    };
    pair->qp = ibv_create_qp(pair->pd, &init);
    CHECK(pair->qp != NULL, "ibv_create_qp: %s", strerror(errno));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (pair->options.kind == IBV_QPT_UD) {
        attr.qkey = QKEY;
        mask |= IBV_QP_QKEY;
    } else {
        attr.qp_access_flags = access;
        mask |= IBV_QP_ACCESS_FLAGS;
    }
    int error = ibv_modify_qp(pair->qp, &attr, mask);
    CHECK(error == 0, "INIT: %s", strerror(error));
}

static struct ibv_ah_attr way_to_peer(const struct pair *pair) {
    return (struct ibv_ah_attr){
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid = pair->peer.gid, .sgid_index = pair->options.gid_index, .hop_limit = 64},
    };
}

/* Introduces the two and brings the queue pair to RTS. Receives should be posted before. */
UNUSED static void join(struct pair *pair) {
    const struct options *options = &pair->options;
    pair->socket = options->server ? connect_to(options->server, options->port)
                                   : listen_and_accept(options->port);
    int one = 1;
    setsockopt(pair->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pair->own.qpn = pair->qp->qp_num;
    pair->own.seed = options->seed;
    pair->own.count = options->count;
    /* Close to the end of the numbers, so that they wrap. */
    pair->own.psn = 0xffff80 | (mix(options->seed, 99) & 0x7f);
    pair->own.address = (uintptr_t)pair->memory;
    pair->own.rkey = pair->mr->rkey;
    tell(pair, &pair->own, sizeof pair->own);
    hear(pair, &pair->peer, sizeof pair->peer);

    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask = IBV_QP_STATE;
    if (options->kind != IBV_QPT_UD) {
        attr.path_mtu = pair->own.mtu < pair->peer.mtu ? pair->own.mtu : pair->peer.mtu;
        attr.dest_qp_num = pair->peer.qpn;
        attr.rq_psn = pair->peer.psn;
        attr.ah_attr = way_to_peer(pair);
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    }
    if (options->kind == IBV_QPT_RC) {
        attr.max_dest_rd_atomic = 16;
        attr.min_rnr_timer = 6;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    int error = ibv_modify_qp(pair->qp, &attr, mask);
    CHECK(error == 0, "RTR: %s", strerror(error));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = pair->own.psn};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (options->kind == IBV_QPT_RC) {
        attr.timeout = options->timeout;
        attr.retry_cnt = options->retries;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 16;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    error = ibv_modify_qp(pair->qp, &attr, mask);
    CHECK(error == 0, "RTS: %s", strerror(error));
    meet(pair, 'r');
}

/* What has completed; with -e not before something has, but for events that came too early. */
UNUSED static int completions(struct pair *pair, struct ibv_wc *into, int most) {
    int count = ibv_poll_cq(pair->cq, most, into);
    if (count == 0 && pair->channel != NULL) {
        CHECK(ibv_req_notify_cq(pair->cq, 0) == 0, "ibv_req_notify_cq");
        count = ibv_poll_cq(pair->cq, most, into);
        if (count == 0) {
            struct ibv_cq *cq;
            void *context;
            CHECK(ibv_get_cq_event(pair->channel, &cq, &context) == 0, "ibv_get_cq_event: %s",
                  strerror(errno));
            ibv_ack_cq_events(cq, 1);
            count = ibv_poll_cq(pair->cq, most, into);
        }
    }
    CHECK(count >= 0, "ibv_poll_cq: %d", count);
    return count;
}

UNUSED static void take_down(struct pair *pair) {
    CHECK(ibv_destroy_qp(pair->qp) == 0, "ibv_destroy_qp");
    CHECK(ibv_destroy_cq(pair->cq) == 0, "ibv_destroy_cq");
    if (pair->channel != NULL) {
        CHECK(ibv_destroy_comp_channel(pair->channel) == 0, "ibv_destroy_comp_channel");
    }
    CHECK(ibv_dereg_mr(pair->mr) == 0, "ibv_dereg_mr");
    CHECK(ibv_dealloc_pd(pair->pd) == 0, "ibv_dealloc_pd");
    CHECK(ibv_close_device(pair->context) == 0, "ibv_close_device");
    close(pair->socket);
}
#endif
