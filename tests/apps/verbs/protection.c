/*
 * What a peer must not be able to do with memory, tried from another process by every one-sided
 * operation: the completion that IBTA 9.9.3 and ibv_poll_cq(3) name, and no byte written, at
 * either end.
 *
 * Each trial has queue pairs of its own, because a refusal ends a reliable connection. Around the
 * region lie bytes that are the owner's and not registered for the peer.
 */
#include "ends.h"

#define GUARD 4096
#define REGION 64
#define MEMORY (2 * GUARD + REGION)
#define OURS 0xa5
#define THEIRS 0x5a

enum { WRITE = 1, WRITE_IMM = 2, READ = 4, CAS = 8, ADD = 16 };
#define ATOMIC (CAS | ADD)
#define CHANGES (WRITE | WRITE_IMM | ATOMIC)
#define ALL (CHANGES | READ)

static const struct {
    int bit;
    const char *name;
    enum ibv_wr_opcode opcode;
    int right;
} OPERATIONS[] = {
    {WRITE, "write", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
    {WRITE_IMM, "write with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_ACCESS_REMOTE_WRITE},
    {READ, "read", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
    {CAS, "compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC},
    {ADD, "fetch and add", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC},
};
#define OPERATION_COUNT (sizeof OPERATIONS / sizeof OPERATIONS[0])

/* How the owner's region, or the peer's own memory, is made or unmade. */
enum {
    OTHER_DOMAIN = 1,      /* registered in another domain than the queue pair's */
    DESTROYED = 2,         /* deregistered before the peer comes */
    REREGISTERED_LESS = 4, /* registered anew without the right, by the same key */
    NO_REGION_RIGHT = 8,   /* registered without the right */
    NO_PAIR_RIGHT = 16,    /* the queue pair without the right */
    LOCAL_KEY_WRONG = 32,  /* the peer's own key is wrong */
    LOCAL_KEY_SHORT = 64,  /* the peer's own memory ends one byte too early */
    LOCAL_KEY_EARLY = 128, /* it begins one byte too early */
    LOCAL_READ_ONLY = 256, /* the peer's own memory may not be written */
    LOCAL_OTHER_DOMAIN = 512,
    PAIR_NOT_READY = 1024, /* the owner's queue pair stays in INIT */
};

static const struct trial {
    const char *name;
    int operations;
    enum ibv_wc_status expected;
    int how;
    uint32_t key_change;
    int64_t offset;
} TRIALS[] = {
    /* First that these trials would notice: what is allowed works, and changes bytes. */
    {"nothing wrong", ALL, IBV_WC_SUCCESS, 0, 0, 0},
    {"key of another generation", ALL, IBV_WC_REM_ACCESS_ERR, 0, 0x1, 0},
    {"key of another place", ALL, IBV_WC_REM_ACCESS_ERR, 0, 0x100, 0},
    {"key with another highest bit", ALL, IBV_WC_REM_ACCESS_ERR, 0, 0x80000000, 0},
    {"key of a destroyed region", ALL, IBV_WC_REM_ACCESS_ERR, DESTROYED, 0, 0},
    {"key of a region registered anew with less", ALL, IBV_WC_REM_ACCESS_ERR, REREGISTERED_LESS,
     0, 0},
    {"one byte before the region", WRITE | WRITE_IMM | READ, IBV_WC_REM_ACCESS_ERR, 0, 0, -1},
    {"one byte behind the region", WRITE | WRITE_IMM | READ, IBV_WC_REM_ACCESS_ERR, 0, 0,
     REGION - 7},
    {"the word before the region", ALL, IBV_WC_REM_ACCESS_ERR, 0, 0, -8},
    {"the word behind the region", ALL, IBV_WC_REM_ACCESS_ERR, 0, 0, REGION},
    {"an address that wraps", WRITE | READ, IBV_WC_REM_ACCESS_ERR, 0, 0, INT64_MIN},
    {"a region without the right", ALL, IBV_WC_REM_ACCESS_ERR, NO_REGION_RIGHT, 0, 0},
    {"a queue pair without the right", ALL, 0 /* see expected() */, NO_PAIR_RIGHT, 0, 0},
    {"a region of another domain", ALL, IBV_WC_REM_ACCESS_ERR, OTHER_DOMAIN, 0, 0},
    {"an address that is not aligned", ATOMIC, IBV_WC_REM_INV_REQ_ERR, 0, 0, 4},
    {"a queue pair that is not ready", ALL, IBV_WC_RETRY_EXC_ERR, PAIR_NOT_READY, 0, 0},
    {"a wrong local key", ALL, IBV_WC_LOC_PROT_ERR, LOCAL_KEY_WRONG, 0, 0},
    {"local memory that ends too early", ALL, IBV_WC_LOC_PROT_ERR, LOCAL_KEY_SHORT, 0, 0},
    {"local memory that begins too late", ALL, IBV_WC_LOC_PROT_ERR, LOCAL_KEY_EARLY, 0, 0},
    {"local memory that takes no answer", READ | ATOMIC, IBV_WC_LOC_PROT_ERR, LOCAL_READ_ONLY, 0,
     0},
    {"local memory of another domain", ALL, IBV_WC_LOC_PROT_ERR, LOCAL_OTHER_DOMAIN, 0, 0},
};
#define TRIAL_COUNT (sizeof TRIALS / sizeof TRIALS[0])

/* An operation that the queue pair does not take is an invalid request, whatever its key. */
static enum ibv_wc_status expected(const struct trial *trial)
{
    return trial->how & NO_PAIR_RIGHT ? IBV_WC_REM_INV_REQ_ERR : trial->expected;
}

static uint8_t *memory;

static bool untouched(uint8_t byte)
{
    for (size_t i = 0; i < MEMORY; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

static struct ibv_pd *domain(struct end *end, bool other)
{
    return other ? ibv_alloc_pd(end->context) : end->pd;
}

static void own(struct end *end, const struct trial *trial, int right)
{
    int less = ALL_ACCESS & ~right;
    struct ibv_pd *pd = domain(end, trial->how & OTHER_DOMAIN);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory + GUARD, REGION,
                                   trial->how & NO_REGION_RIGHT ? less : ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    uint32_t rkey = mr->rkey;
    if (trial->how & REREGISTERED_LESS) {
        NEED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, less) == 0,
             "ibv_rereg_mr");
        NEED(mr->rkey == rkey, "the key has changed");
    }
    if (trial->how & DESTROYED)
        NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, NULL);
    struct card peer = swap_cards(end, qp, (uintptr_t)memory + GUARD, rkey);
    int rights = trial->how & NO_PAIR_RIGHT ? less : ALL_ACCESS;
    if (trial->how & PAIR_NOT_READY)
        NEED(to_init(qp, rights) == 0, "to INIT");
    else
        connect_qp(qp, &peer, rights);
    /* A receive for the immediate data. It must not be taken by a write that is refused. */
    struct ibv_recv_wr receive = {.wr_id = 7}, *bad;
    NEED(ibv_post_recv(qp, &receive, &bad) == 0, "ibv_post_recv");
    meet(end);
    /* The peer tries, and tells its status. */
    enum ibv_wc_status status;
    hear(end, &status, sizeof status);
    bool changed = status == IBV_WC_SUCCESS && right != IBV_ACCESS_REMOTE_READ;
    NEED(untouched(OURS) != changed, changed ? "nothing was written" : "memory was written");
    memset(memory, OURS, MEMORY);
    bool refused = status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR;
    if (refused) {
        await_state(qp, IBV_QPS_ERR);
        struct ibv_wc wc = completion(end->cq);
        NEED(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR, "the receive ended with %s",
             ibv_wc_status_str(wc.status));
        struct ibv_async_event event;
        NEED(ibv_get_async_event(end->context, &event) == 0, "ibv_get_async_event");
        enum ibv_event_type wanted =
            status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
        NEED(event.event_type == wanted && event.element.qp == qp, "event %s",
             ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    } else {
        await_state(qp, trial->how & PAIR_NOT_READY ? IBV_QPS_INIT : IBV_QPS_RTS);
    }
    NEED(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    if (!(trial->how & DESTROYED))
        NEED(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    if (pd != end->pd)
        NEED(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
}

/* The peer's own 8 bytes are at the beginning of its region. */
static void attack(struct end *end, const struct trial *trial, enum ibv_wr_opcode opcode)
{
    struct ibv_pd *pd = domain(end, trial->how & LOCAL_OTHER_DOMAIN);
    int access = trial->how & LOCAL_READ_ONLY ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE;
    int late = trial->how & LOCAL_KEY_EARLY ? 1 : 0;
    size_t length = trial->how & LOCAL_KEY_SHORT ? 7 : 8;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory + GUARD + late, length, access);
    NEED(mr, "ibv_reg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, NULL);
    struct card peer = swap_cards(end, qp, 0, 0);
    connect_qp(qp, &peer, 0);
    meet(end);
    struct ibv_sge piece = {(uintptr_t)memory + GUARD, 8, mr->lkey};
    if (trial->how & LOCAL_KEY_WRONG)
        piece.lkey ^= 0x100;
    uint64_t addr = peer.addr + (uint64_t)trial->offset;
    if (trial->offset == INT64_MIN)
        addr = UINT64_MAX - 3;
    uint32_t rkey = peer.rkey ^ trial->key_change;
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &piece, .num_sge = 1, .opcode = opcode}, *bad;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
        /* It would succeed, and change the bytes. */
        wr.wr.atomic.compare_add = 0x0101010101010101 * (uint64_t)OURS;
        wr.wr.atomic.swap = 1;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    NEED(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
    struct ibv_wc wc = completion(end->cq);
    NEED(wc.wr_id == 1 && wc.status == expected(trial), "%s, not %s",
         ibv_wc_status_str(wc.status), ibv_wc_status_str(expected(trial)));
    bool answered = wc.status == IBV_WC_SUCCESS && opcode != IBV_WR_RDMA_WRITE &&
                    opcode != IBV_WR_RDMA_WRITE_WITH_IMM;
    NEED(untouched(THEIRS) != answered, answered ? "no answer" : "the peer's memory was written");
    memset(memory, THEIRS, MEMORY);
    await_state(qp, wc.status == IBV_WC_SUCCESS ? IBV_QPS_RTS : IBV_QPS_ERR);
    tell(end, &wc.status, sizeof wc.status);
    NEED(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0, "cleaning up");
    if (pd != end->pd)
        NEED(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
}

/*
 * Guesses. On an unreliable connection a write with a wrong key is dropped without a word (IBTA
 * 9.8.3), so that one connection serves for all: the other 255 generations of the region's place,
 * the generation's place everywhere near, and random numbers. The right key proves that the
 * connection would have carried them.
 */
static void guess(struct end *end, bool owner)
{
    enum { RANDOM = 20000 };
    struct ibv_mr *mr = ibv_reg_mr(end->pd, memory + GUARD, REGION, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_UC, NULL);
    struct card peer = swap_cards(end, qp, (uintptr_t)memory + GUARD, mr->rkey);
    connect_qp(qp, &peer, ALL_ACCESS);
    meet(end);
    if (owner) {
        meet(end);
        NEED(untouched(OURS), "a guessed key opened the region");
        meet(end);
        double limit = now() + PATIENCE_SECONDS;
        while (memory[GUARD + 7] != THEIRS)
            NEED(now() < limit, "the right key opened nothing");
    } else {
        struct ibv_sge piece = {(uintptr_t)memory + GUARD, 8, mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE},
                           *bad;
        wr.wr.rdma.remote_addr = peer.addr;
        srandom(4);
        for (uint32_t i = 0; i < 255 + 2000 + RANDOM; i++) {
            uint32_t key = (uint32_t)random() << 1 ^ (uint32_t)random();
            if (i < 255)
                key = peer.rkey ^ (i + 1);
            else if (i < 255 + 2000)
                key = peer.rkey + ((i - 254) << 8);
            if (key == peer.rkey)
                continue;
            wr.wr.rdma.rkey = key;
            NEED(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
            struct ibv_wc wc = completion(end->cq);
            NEED(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
        }
        meet(end);
        meet(end);
        wr.wr.rdma.rkey = peer.rkey;
        NEED(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
        completion(end->cq);
    }
    meet(end);
    NEED(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0, "cleaning up");
}

int main(void)
{
    struct end end;
    pid_t child;
    bool owner = split(&end, &child);
    NEED(posix_memalign((void **)&memory, 4096, MEMORY) == 0, "posix_memalign");
    memset(memory, owner ? OURS : THEIRS, MEMORY);
    int tried = 0;
    for (size_t i = 0; i < TRIAL_COUNT; i++) {
        const struct trial *trial = &TRIALS[i];
        for (size_t j = 0; j < OPERATION_COUNT; j++) {
            if (!(trial->operations & OPERATIONS[j].bit))
                continue;
            snprintf(doing, sizeof doing, "%s: %s", trial->name, OPERATIONS[j].name);
            if (owner)
                own(&end, trial, OPERATIONS[j].right);
            else
                attack(&end, trial, OPERATIONS[j].opcode);
            tried++;
        }
    }
    strcpy(doing, "guessing");
    guess(&end, owner);
    if (!owner)
        return 0;
    printf("%d trials\n", tried);
    return finish(child);
}
