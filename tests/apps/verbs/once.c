/*
 * The end of a WRITE is stored once. The owner looks at the last bytes until they have come, puts something else there at
 * once, and looks whether what came comes back. A WRITE that is one aligned value is never seen in parts.
 *
 *     once [ROUNDS]     for each length, 4,000 if it is not said
 */
#include "ends.h"

#define OTHER 0xc8
#define BYTES_MAX 70000
/* Looks behind each WRITE: a second store comes some nanoseconds after the first. */
#define LOOKS 60

static const uint32_t LENGTHS[] = {1, 2, 4, 8, 3, 12, 64, 1000, BYTES_MAX};
#define LENGTH_COUNT (sizeof LENGTHS / sizeof LENGTHS[0])

/* How many rounds the owner has seen; shared by both processes. */
static volatile uint32_t *seen;
static uint8_t *memory;

static uint8_t marker(uint32_t round)
{
    return round % 64 + 1;
}

/* The value at the end, of which all bytes are the same; 0 if they are not. */
static uint8_t value(const volatile uint8_t *at, uint32_t bytes)
{
    uint64_t word;
    switch (bytes) {
    case 8:
        word = *(const volatile uint64_t *)at;
        break;
    case 4:
        word = *(const volatile uint32_t *)at * 0x100000001u;
        break;
    case 2:
        word = *(const volatile uint16_t *)at * 0x1000100010001u;
        break;
    default:
        return *at;
    }
    return word == (word & 0xff) * 0x101010101010101u ? word & 0xff : 0;
}

/* What comes behind OTHER is OTHER again as soon as it is seen. The first that was seen. */
static uint8_t take(volatile uint8_t *at, uint32_t bytes)
{
    double end = now() + PATIENCE_SECONDS;
    for (uint32_t looks = 1;; looks++) {
        uint8_t found = value(at, bytes);
        if (found != OTHER) {
            at[bytes - 1] = OTHER;
            return found;
        }
        NEED(looks % 4096 || now() < end, "the WRITE does not come");
    }
}

static void own(struct end *end, uint32_t length, uint32_t rounds)
{
    /* The last byte lies at the end of a word. */
    uint8_t *start = memory + (8 - length % 8) % 8;
    uint8_t *last = start + length - 1;
    uint32_t unit = length == 2 || length == 4 || length == 8 ? length : 1;
    memset(memory, OTHER, BYTES_MAX);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, start, length, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, NULL);
    struct card peer = swap_cards(end, qp, (uintptr_t)start, mr->rkey);
    connect_qp(qp, &peer, ALL_ACCESS);
    *seen = 0;
    meet(end);
    uint32_t again = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        uint8_t found = take(last + 1 - unit, unit);
        bool comes_back = false;
        for (int look = 0; look < LOOKS; look++)
            comes_back |= *(volatile uint8_t *)last != OTHER;
        again += comes_back;
        NEED(found == marker(round), "%u bytes are seen in parts", unit);
        NEED(start[0] == (length == 1 ? OTHER : marker(round)), "the last byte is seen before the first");
        memset(last + 1 - unit, OTHER, unit);
        __atomic_store_n(seen, round + 1, __ATOMIC_RELEASE);
    }
    NEED(again == 0, "%u of %u WRITEs of %u bytes came twice", again, rounds, length);
    meet(end);
    NEED(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0, "cleaning up");
}

static void write_to_it(struct end *end, uint32_t length, uint32_t rounds)
{
    struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, length, ALL_ACCESS);
    NEED(mr, "ibv_reg_mr");
    struct ibv_qp *qp = make_qp(end, IBV_QPT_RC, NULL);
    struct card peer = swap_cards(end, qp, 0, 0);
    connect_qp(qp, &peer, ALL_ACCESS);
    meet(end);
    for (uint32_t round = 0; round < rounds; round++) {
        memset(memory, marker(round), length);
        struct ibv_sge piece = {(uintptr_t)memory, length, mr->lkey};
        struct ibv_send_wr wr = {
            .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
            .wr.rdma = {.remote_addr = peer.addr, .rkey = peer.rkey},
        }, *bad;
        NEED(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
        struct ibv_wc wc = completion(end->cq);
        NEED(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
        double patience = now() + PATIENCE_SECONDS;
        for (uint32_t looks = 1; __atomic_load_n(seen, __ATOMIC_ACQUIRE) != round + 1; looks++)
            NEED(looks % 4096 || now() < patience, "the owner does not see it");
    }
    meet(end);
    NEED(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0, "cleaning up");
}

int main(int count, char **words)
{
    uint32_t rounds = count > 1 ? strtoul(words[1], NULL, 10) : 4000;
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(seen != MAP_FAILED, "mmap");
    struct end end;
    pid_t child;
    bool owner = split(&end, &child);
    NEED(posix_memalign((void **)&memory, 4096, BYTES_MAX + 8) == 0, "posix_memalign");
    for (size_t i = 0; i < LENGTH_COUNT; i++) {
        snprintf(doing, sizeof doing, "%u bytes", LENGTHS[i]);
        if (owner)
            own(&end, LENGTHS[i], rounds);
        else
            write_to_it(&end, LENGTHS[i], rounds);
    }
    if (!owner)
        return 0;
    printf("%zu lengths, %u rounds each\n", LENGTH_COUNT, rounds);
    return finish(child);
}
