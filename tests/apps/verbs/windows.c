/*
 * Memory windows, and regions that are registered anew, seen from another process: what a window
 * opens and for whom, and that a peer's key goes on as long as the manual pages let it hope.
 */
#include "ends.h"

#define BYTES 4096
/* The window. */
#define AT 64
#define LENGTH 128

static uint8_t *memory;

/* The peer writes on a connection of its own for each look: a refusal ends it. */
struct question {
    bool more;
    bool on_second;
    uint32_t rkey;
    uint64_t addr;
    uint32_t length;
};

/* The owner's queue pairs of this round: the window belongs to the first. */
static struct ibv_qp *first, *second;

static void connect_both(struct end *end)
{
    first = make_qp(end, IBV_QPT_RC, NULL);
    second = make_qp(end, IBV_QPT_RC, NULL);
    struct ibv_qp *both[] = {first, second};
    for (int i = 0; i < 2; i++) {
        struct card peer = swap_cards(end, both[i], 0, 0);
        connect_qp(both[i], &peer, ALL_ACCESS);
    }
    meet(end);
}

static void disconnect_both(struct end *end)
{
    meet(end);
    NEED(ibv_destroy_qp(first) == 0 && ibv_destroy_qp(second) == 0, "ibv_destroy_qp");
}

/* What the peer's write came to; the pair must be made anew after a refusal. */
static enum ibv_wc_status ask(struct end *end, bool on_second, uint32_t rkey, uint64_t offset,
                              uint32_t length)
{
    struct question question = {true, on_second, rkey, (uintptr_t)memory + offset, length};
    memset(memory, 0, BYTES);
    tell(end, &question, sizeof question);
    enum ibv_wc_status status;
    hear(end, &status, sizeof status);
    for (uint64_t i = 0; i < BYTES; i++) {
        bool inside = i >= offset && i < offset + length && status == IBV_WC_SUCCESS;
        NEED(memory[i] == (inside ? 7 : 0), "byte %lu is %d", i, memory[i]);
    }
    return status;
}

static void answer(struct end *end)
{
    for (;;) {
        struct question question;
        hear(end, &question, sizeof question);
        if (!question.more)
            return;
        struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
        NEED(mr, "ibv_reg_mr");
        struct ibv_sge piece = {(uintptr_t)memory, question.length, mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE},
                           *bad;
        wr.wr.rdma.remote_addr = question.addr;
        wr.wr.rdma.rkey = question.rkey;
        NEED(ibv_post_send(question.on_second ? second : first, &wr, &bad) == 0, "posting");
        struct ibv_wc wc = completion(end->cq);
        tell(end, &wc.status, sizeof wc.status);
        NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    }
}

static void round_over(struct end *end)
{
    struct question none = {0};
    tell(end, &none, sizeof none);
    disconnect_both(end);
}

/* Binds a type 2 window and says what became of it. */
static enum ibv_wc_status bind_type_2(struct end *end, struct ibv_mw *mw, struct ibv_mr *mr,
                                      uint32_t rkey, uint64_t length, int access)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = mr, .addr = (uintptr_t)memory + AT, .length = length, .mw_access_flags = access};
    NEED(ibv_post_send(first, &wr, &bad) == 0, "posting the binding");
    return completion(end->cq).status;
}

static void own_windows(struct end *end, struct ibv_mr *mr)
{
    static const struct {
        const char *name;
        bool on_second;
        int64_t offset;
        uint32_t length;
        int access;
        enum ibv_wc_status expected;
    } LOOKS[] = {
        {"all of it", false, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS},
        {"one byte before", false, AT - 1, 8, IBV_ACCESS_REMOTE_WRITE, IBV_WC_REM_ACCESS_ERR},
        {"one byte behind", false, AT + LENGTH - 7, 8, IBV_ACCESS_REMOTE_WRITE,
         IBV_WC_REM_ACCESS_ERR},
        {"on another queue pair", true, AT, 8, IBV_ACCESS_REMOTE_WRITE, IBV_WC_REM_ACCESS_ERR},
        {"without the right", false, AT, 8, IBV_ACCESS_REMOTE_READ, IBV_WC_REM_ACCESS_ERR},
    };
    for (size_t i = 0; i < sizeof LOOKS / sizeof LOOKS[0]; i++) {
        snprintf(doing, sizeof doing, "type 2 window: %s", LOOKS[i].name);
        connect_both(end);
        struct ibv_mw *mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2);
        NEED(mw, "ibv_alloc_mw");
        uint32_t rkey = ibv_inc_rkey(mw->rkey);
        NEED(bind_type_2(end, mw, mr, rkey, LENGTH, LOOKS[i].access) == IBV_WC_SUCCESS, "bind");
        NEED(ibv_dereg_mr(mr) == EBUSY, "a region with a window was deregistered");
        enum ibv_wc_status status =
            ask(end, LOOKS[i].on_second, rkey, (uint64_t)LOOKS[i].offset, LOOKS[i].length);
        NEED(status == LOOKS[i].expected, "%s", ibv_wc_status_str(status));
        round_over(end);
        NEED(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
    }

    strcpy(doing, "an invalidated window");
    connect_both(end);
    struct ibv_mw *mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_2);
    NEED(mw, "ibv_alloc_mw");
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    NEED(bind_type_2(end, mw, mr, rkey, LENGTH, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS, "bind");
    NEED(ask(end, false, rkey, AT, 8) == IBV_WC_SUCCESS, "it does not open");
    struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey}, *bad;
    NEED(ibv_post_send(first, &wr, &bad) == 0, "posting the invalidation");
    NEED(completion(end->cq).status == IBV_WC_SUCCESS, "the invalidation");
    NEED(ask(end, false, rkey, AT, 8) == IBV_WC_REM_ACCESS_ERR, "it still opens");
    round_over(end);
    NEED(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");

    strcpy(doing, "a type 1 window that was bound again");
    connect_both(end);
    mw = ibv_alloc_mw(end->pd, IBV_MW_TYPE_1);
    NEED(mw, "ibv_alloc_mw");
    struct ibv_mw_bind bind = {.bind_info = {.mr = mr, .addr = (uintptr_t)memory + AT,
                                             .length = LENGTH,
                                             .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
    NEED(ibv_bind_mw(first, mw, &bind) == 0, "ibv_bind_mw");
    NEED(completion(end->cq).status == IBV_WC_SUCCESS, "the binding");
    rkey = mw->rkey;
    NEED(ask(end, true, rkey, AT, 8) == IBV_WC_SUCCESS, "a type 1 window is for all");
    NEED(ibv_bind_mw(first, mw, &bind) == 0, "ibv_bind_mw");
    NEED(completion(end->cq).status == IBV_WC_SUCCESS && mw->rkey != rkey, "the second binding");
    NEED(ask(end, true, rkey, AT, 8) == IBV_WC_REM_ACCESS_ERR, "the former key still opens");
    NEED(ask(end, false, mw->rkey, AT, 8) == IBV_WC_SUCCESS, "the new key does not open");
    round_over(end);
    NEED(ibv_dealloc_mw(mw) == 0, "ibv_dealloc_mw");
}

static void own_reregistered(struct end *end, struct ibv_mr *mr)
{
    uint32_t rkey = mr->rkey;
    struct ibv_pd *other = ibv_alloc_pd(end->context);
    NEED(other, "ibv_alloc_pd");
    strcpy(doing, "a region that was registered anew");
    connect_both(end);
    NEED(ask(end, false, rkey, 0, 8) == IBV_WC_SUCCESS, "before");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access) == 0, "access");
    NEED(ask(end, false, rkey, 8, 8) == IBV_WC_SUCCESS, "after a change of access");
    NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0, "domain");
    NEED(mr->pd == other && ibv_dealloc_pd(other) == EBUSY, "it is not in the other domain");
    NEED(ask(end, true, rkey, 0, 8) == IBV_WC_REM_ACCESS_ERR, "in another domain");
    NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, end->pd, NULL, 0, 0) == 0, "domain");
    NEED(ask(end, false, rkey, 0, 8) == IBV_WC_SUCCESS, "in its domain again");
    NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 1024, 0) == 0, "less");
    NEED(mr->length == 1024 && ask(end, false, rkey, 1016, 8) == IBV_WC_SUCCESS, "its last word");
    NEED(ask(end, false, rkey, 1017, 8) == IBV_WC_REM_ACCESS_ERR, "one byte behind it");
    NEED(mr->rkey == rkey && mr->lkey == rkey, "the keys have changed");
    round_over(end);

    strcpy(doing, "re-registrations that are refused");
    static const struct {
        int flags;
        size_t length;
        int access;
        int error;
    } WRONG[] = {
        {0, 0, 0, EINVAL},
        {8, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_TRANSLATION, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_PD, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_ACCESS, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL},
        {IBV_REREG_MR_CHANGE_ACCESS, 0, 1 << 19, EINVAL},
        {IBV_REREG_MR_CHANGE_TRANSLATION, 64, IBV_ACCESS_LOCAL_WRITE, EINVAL},
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) {
        errno = 0;
        int result =
            ibv_rereg_mr(mr, WRONG[i].flags, NULL, memory, WRONG[i].length, WRONG[i].access);
        NEED(result == IBV_REREG_MR_ERR_INPUT && errno == WRONG[i].error, "%zu: %d", i, result);
    }
    connect_both(end);
    NEED(ask(end, false, rkey, 0, 8) == IBV_WC_SUCCESS, "a refusal has changed something");
    round_over(end);
    NEED(ibv_dealloc_pd(other) == 0, "ibv_dealloc_pd");
}

int main(void)
{
    struct end end;
    pid_t child;
    enum { ROUNDS = 9 };
    bool owner = split(&end, &child);
    NEED(posix_memalign((void **)&memory, 4096, BYTES) == 0, "posix_memalign");
    memset(memory, owner ? 0 : 7, BYTES);
    if (!owner) {
        for (int i = 0; i < ROUNDS; i++) {
            connect_both(&end);
            answer(&end);
            disconnect_both(&end);
        }
        return 0;
    }
    struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, BYTES, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    own_windows(&end, mr);
    own_reregistered(&end, mr);
    NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    printf("done\n");
    return finish(child);
}
