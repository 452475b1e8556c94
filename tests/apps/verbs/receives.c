/*
 * Messages to receives that cannot take them, from another process: what each end's completion
 * says (IBTA 9.9.3, ibv_poll_cq(3)), and that no byte of the message arrives.
 */
#include "ends.h"

#define BYTES 4096
#define MESSAGE 1000

static uint8_t *memory;

static bool all(uint8_t byte)
{
    for (size_t i = 0; i < BYTES; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

enum fault { NOTHING, SHORT, WRONG_KEY, BEYOND, READ_ONLY, OTHER_DOMAIN, DESTROYED, FAULTS };

static const struct {
    const char *name;
    enum ibv_wc_status receiver, sender;
} EXPECTED[FAULTS] = {
    [NOTHING] = {"nothing wrong", IBV_WC_SUCCESS, IBV_WC_SUCCESS},
    [SHORT] = {"one byte too short", IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR},
    [WRONG_KEY] = {"a wrong key", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
    [BEYOND] = {"one byte beyond the region", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
    [READ_ONLY] = {"memory that may not be written", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
    [OTHER_DOMAIN] = {"memory of another domain", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
    [DESTROYED] = {"memory that was deregistered", IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
};

static void receive(struct end *end, enum fault fault, bool shared)
{
    memset(memory, 0, BYTES);
    struct ibv_pd *pd = fault == OTHER_DOMAIN ? ibv_alloc_pd(end->context) : end->pd;
    int access = fault == READ_ONLY ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, fault == BEYOND ? MESSAGE - 1 : BYTES, access);
    NEED(mr, "ibv_reg_mr");
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = shared ? ibv_create_srq(end->pd, &init) : NULL;
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, srq);
    struct card peer = swap_cards(end, qp, 0, 0);
    connect_qp(qp, &peer, 0);
    struct ibv_sge piece = {(uintptr_t)memory, fault == SHORT ? MESSAGE - 1 : MESSAGE, mr->lkey};
    piece.lkey ^= fault == WRONG_KEY ? 0x100 : 0;
    struct ibv_recv_wr wr = {.wr_id = 5, .sg_list = &piece, .num_sge = 1}, *bad;
    NEED((shared ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0,
         "posting the receive");
    if (fault == DESTROYED)
        NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    meet(end);
    struct ibv_wc wc = completion(end->cq);
    NEED(wc.wr_id == 5 && wc.status == EXPECTED[fault].receiver, "%s",
         ibv_wc_status_str(wc.status));
    meet(end);
    NEED(all(0) != (fault == NOTHING), "bytes of the message");
    await_state(qp, fault == NOTHING ? IBV_QPS_RTS : IBV_QPS_ERR);
    NEED(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    NEED(!srq || ibv_destroy_srq(srq) == 0, "ibv_destroy_srq");
    NEED(fault == DESTROYED || ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    NEED(pd == end->pd || ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
}

static void send_message(struct end *end, enum fault fault)
{
    memset(memory, 9, BYTES);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, MESSAGE, 0);
    NEED(mr, "ibv_reg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, NULL);
    struct card peer = swap_cards(end, qp, 0, 0);
    connect_qp(qp, &peer, 0);
    meet(end);
    struct ibv_sge piece = {(uintptr_t)memory, MESSAGE, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    NEED(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
    struct ibv_wc wc = completion(end->cq);
    NEED(wc.status == EXPECTED[fault].sender, "%s", ibv_wc_status_str(wc.status));
    meet(end);
    NEED(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0, "cleaning up");
}

int main(void)
{
    struct end end;
    pid_t child;
    bool owner = split(&end, &child);
    NEED(posix_memalign((void **)&memory, 4096, BYTES) == 0, "posix_memalign");
    for (int round = 0; round < 2 * FAULTS; round++) {
        enum fault fault = round % FAULTS;
        bool shared = round >= FAULTS;
        snprintf(doing, sizeof doing, "%s%s", EXPECTED[fault].name, shared ? ", shared" : "");
        if (owner)
            receive(&end, fault, shared);
        else
            send_message(&end, fault);
    }
    if (!owner)
        return 0;
    printf("%d receives\n", 2 * FAULTS);
    return finish(child);
}
