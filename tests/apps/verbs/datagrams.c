/*
 * Unreliable connections and datagrams, in both directions at once: whatever comes must be what
 * was sent, whole. How much came is printed, and the harness judges that. pair.h has the options.
 *
 * Messages go in batches; between them both sides wait for each other (by TCP) and then for what
 * is still on its way. A message's number is its immediate data, and everything else follows from
 * it. Messages that are written have a slot for themselves for several batches.
 */
#include "pair.h"

#include <poll.h>

enum { BATCH = 32, SLOTS = 4 * BATCH, QUIET_US = 20000 };

static struct pair pair;
static uint32_t slot_bytes;
static size_t inbox, outbox;
static uint64_t sent, ended, came;
static struct ibv_ah *address;

static uint32_t length_of(uint64_t seed, uint64_t number) {
    uint64_t choice = mix(seed, number);
    uint32_t length = choice & 1 ? choice >> 8 & 127 : (choice >> 8) % (pair.options.bytes + 1);
    return length < 1 ? 1 : length > pair.options.bytes ? pair.options.bytes : length;
}

/* Every other message of an unreliable connection is written. */
static bool is_written(uint64_t number) {
    return pair.options.kind == IBV_QPT_UC && number % 2 == 1;
}

static void post_receive(uint64_t slot) {
    char *place = pair.memory + inbox + (size_t)slot_bytes * slot;
    memset(place, 0xdd, slot_bytes);
    struct ibv_sge list = {(uintptr_t)place, slot_bytes, pair.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &list, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(pair.qp, &wr, &bad) == 0, "ibv_post_recv");
}

static void post_send(uint64_t number) {
    char *place = pair.memory + outbox + (size_t)slot_bytes * (number % BATCH);
    uint32_t length = length_of(pair.own.seed, number);
    fill(pair.own.seed, number << 24, place, length);
    struct ibv_sge list = {(uintptr_t)place, length, pair.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = number, .sg_list = &list, .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(number)}, *bad;
    if (is_written(number)) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.wr.rdma.remote_addr = pair.peer.address + (size_t)slot_bytes * (number % SLOTS);
        wr.wr.rdma.rkey = pair.peer.rkey;
    } else if (pair.options.kind == IBV_QPT_UD) {
        wr.wr.ud.ah = address;
        wr.wr.ud.remote_qpn = pair.peer.qpn;
        wr.wr.ud.remote_qkey = QKEY;
    }
    int error = ibv_post_send(pair.qp, &wr, &bad);
    CHECK(error == 0, "ibv_post_send: %s", strerror(error));
}

static void message_came(const struct ibv_wc *wc) {
    CHECK(wc->wc_flags & IBV_WC_WITH_IMM, "a message without immediate data");
    uint64_t number = ntohl(wc->imm_data);
    CHECK(number < pair.peer.count, "a message %#llx", (unsigned long long)number);
    uint32_t length = length_of(pair.peer.seed, number);
    bool datagram = pair.options.kind == IBV_QPT_UD;
    uint32_t around = datagram ? GRH_BYTES : 0;
    CHECK(wc->byte_len == length + around, "message %llu has %u bytes and should have %u",
          (unsigned long long)number, wc->byte_len, length + around);
    CHECK(wc->opcode == (is_written(number) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV),
          "message %llu came as %d", (unsigned long long)number, wc->opcode);
    char *place = is_written(number) ? pair.memory + (size_t)slot_bytes * (number % SLOTS)
                                     : pair.memory + inbox + (size_t)slot_bytes * wc->wr_id + around;
    compare(pair.peer.seed, number << 24, place, length, "message", number);
    if (datagram) {
        CHECK(wc->src_qp == pair.peer.qpn, "a datagram of QP %#x", wc->src_qp);
        CHECK(wc->wc_flags & IBV_WC_GRH, "a datagram without GRH");
    }
    came++;
    post_receive(wc->wr_id);
}

/* Whether there was anything. */
static bool look(void) {
    struct ibv_wc wc[16];
    int count = ibv_poll_cq(pair.cq, 16, wc);
    CHECK(count >= 0, "ibv_poll_cq: %d", count);
    for (int i = 0; i < count; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS, "%s (%d)", ibv_wc_status_str(wc[i].status),
              wc[i].status);
        if (wc[i].opcode & IBV_WC_RECV) {
            message_came(&wc[i]);
        } else {
            CHECK(wc[i].wr_id == ended, "message %llu ended instead of %llu",
                  (unsigned long long)wc[i].wr_id, (unsigned long long)ended);
            ended++;
        }
    }
    return count > 0;
}

static bool heard(void) {
    struct pollfd watched = {pair.socket, POLLIN, 0};
    return poll(&watched, 1, 0) == 1;
}

static void batch(void) {
    for (int i = 0; i < BATCH && sent < pair.own.count; i++) {
        post_send(sent++);
    }
    while (ended < sent) {
        look();
    }
    char mark = 'b';
    tell(&pair, &mark, 1);
    while (!heard()) {
        look();
    }
    hear(&pair, &mark, 1);
    CHECK(mark == 'b', "the peer is at '%c'", mark);
    uint64_t last = now_us();
    while (now_us() - last < QUIET_US) {
        if (look()) {
            last = now_us();
        }
    }
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    pair.options = (struct options){.kind = IBV_QPT_UC, .count = 320, .seed = 1, .bytes = 4096,
                                    .receives = SLOTS};
    parse_options(&pair.options, count, words);
    pair.options.seed = pair.options.seed * 2 + (pair.options.server != NULL);
    slot_bytes = (pair.options.bytes + GRH_BYTES + 63) / 64 * 64;
    inbox = (size_t)slot_bytes * SLOTS;
    outbox = inbox + (size_t)slot_bytes * pair.options.receives;
    create(&pair, outbox + (size_t)slot_bytes * BATCH, BATCH);
    for (uint64_t slot = 0; slot < pair.options.receives; slot++) {
        post_receive(slot);
    }
    join(&pair);
    if (pair.options.kind == IBV_QPT_UD) {
        struct ibv_ah_attr way = way_to_peer(&pair);
        address = ibv_create_ah(pair.pd, &way);
        CHECK(address != NULL, "ibv_create_ah: %s", strerror(errno));
    }
    while (sent < pair.own.count) {
        batch();
    }
    meet(&pair, 'e');
    if (address != NULL) {
        CHECK(ibv_destroy_ah(address) == 0, "ibv_destroy_ah");
    }
    take_down(&pair);
    printf("came: %llu of %llu\n", (unsigned long long)came, (unsigned long long)pair.peer.count);
    return 0;
}
