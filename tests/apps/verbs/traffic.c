/*
 * A reliable connection with every kind of request in both directions at once, each byte of which
 * is checked. pair.h has the options.
 *
 * Both sides know the requests of each other: kind, length and bytes follow from the seed and the
 * request's number. Each side has in the other one's reach an area to read, slots to write to,
 * and counters for atomics. It says how far it has checked by the immediate data of a write, its
 * credit. A request is not followed by more than WINDOW others before it is checked.
 */
#include "pair.h"

enum {
    WINDOW = 32,
    DEPTH = 4 * WINDOW,
    WORDS = 8,
    /* Every so many requests comes one that the receiver notices. */
    NOTICED = 8,
    SOURCE_BYTES = 1 << 18,
    READ_SEED = 0x7ead,
    KINDS_SEED = 0x4b1d,
};

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, FETCH_ADD, COMPARE_SWAP, CREDIT };

static const char *const NAMES[] = {"send",  "send with immediate", "write", "write with immediate",
                                    "read",  "fetch and add",       "compare and swap"};

/* One request, as both sides compute it. */
struct request {
    enum kind kind;
    uint32_t length;
    /* READ: where in the source area. Atomics: which word. */
    uint32_t place;
    uint64_t add, swap;
    /* COMPARE_SWAP: whether it compares with what is there. */
    bool fits;
};

/* What lies where in a side's memory; offsets are the same on both sides. */
struct layout {
    size_t source, slots, inbox, outbox, words, reply, credit, bytes;
};

static struct pair pair;
static struct layout at;
static uint32_t slot_bytes;
/* Own requests: posted and completed; what the peer has checked. */
static uint64_t posted, completed, granted;
/* The peer's requests that were checked. */
static uint64_t checked, noticed;
/* What the peer's words must hold, and what our own must. */
static uint64_t theirs[WORDS], ours[WORDS];
/* Values that atomics must return. */
static uint64_t expected[WINDOW];
/* Request numbers in the order in which they must complete; CREDIT_MARK for credit. */
static uint64_t order[DEPTH], order_put, order_taken;
static uint64_t counts[CREDIT];

#define CREDIT_MARK UINT64_MAX
/* Of an immediate: the rest is how far the peer has come. */
#define CREDIT_FLAG 0x80000000u

static struct request request_of(uint64_t seed, uint64_t number, uint64_t count) {
    uint64_t choice = mix(seed ^ KINDS_SEED, number * 3), more = mix(seed ^ KINDS_SEED, number * 3 + 1);
    struct request request = {.kind = choice % CREDIT};
    if (number % NOTICED == NOTICED - 1 || number + 1 == count) {
        request.kind = choice & 64 ? SEND_IMM : WRITE_IMM;
    }
    uint32_t longest = pair.options.bytes;
    switch (choice >> 8 & 3) {
    case 0: request.length = more % 65; break;
    /* About a packet's length. */
    case 1: request.length = (256u << (more % 5)) - 4 + (more >> 8) % 9; break;
    default: request.length = more % (longest + 1); break;
    }
    if (request.length > longest) {
        request.length = longest;
    }
    /* What an empty read or write does is for other tests. */
    if (request.length == 0 && request.kind != SEND && request.kind != SEND_IMM) {
        request.length = 1;
    }
    uint64_t third = mix(seed ^ KINDS_SEED, number * 3 + 2);
    if (request.kind == READ) {
        request.place = third % (SOURCE_BYTES - request.length);
    } else if (request.kind == FETCH_ADD || request.kind == COMPARE_SWAP) {
        request.place = third % WORDS;
        request.length = 8;
        request.fits = third >> 32 & 1;
        request.add = request.swap = more;
    }
    return request;
}

static bool notifies(enum kind kind) {
    return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

/* What the word holds afterwards. */
static uint64_t apply(const struct request *request, uint64_t before) {
    if (request->kind == FETCH_ADD) {
        return before + request->add;
    }
    return request->fits ? request->swap : before;
}

static void lay_out(void) {
    slot_bytes = (pair.options.bytes + 63) / 64 * 64 + 64;
    size_t end = 0;
    at.source = end, end += SOURCE_BYTES;
    at.slots = end, end += (size_t)slot_bytes * WINDOW;
    at.inbox = end, end += (size_t)slot_bytes * pair.options.receives;
    at.outbox = end, end += (size_t)slot_bytes * WINDOW;
    at.words = end, end += 8 * WORDS;
    at.reply = end, end += 8 * WINDOW;
    at.credit = end, end += 8;
    at.bytes = end;
}

/* ---- requests of our own ----------------------------------------------- */

static void post(struct ibv_send_wr *wr, uint64_t mark) {
    order[order_put++ % DEPTH] = mark;
    wr->wr_id = mark;
    struct ibv_send_wr *bad;
    int error = ibv_post_send(pair.qp, wr, &bad);
    CHECK(error == 0, "ibv_post_send: %s", strerror(error));
}

/* Cuts the memory into up to three pieces. */
static int pieces(struct ibv_sge *list, uint64_t address, uint32_t length, uint64_t number) {
    int count = 1 + number % 3;
    uint32_t piece = length / count;
    for (int i = 0; i < count; i++) {
        uint32_t bytes = i + 1 < count ? piece : length - piece * (count - 1);
        list[i] = (struct ibv_sge){address, bytes, pair.mr->lkey};
        address += bytes;
    }
    return count;
}

static void post_request(uint64_t number) {
    struct request request = request_of(pair.own.seed, number, pair.own.count);
    char *place = pair.memory + at.outbox + (size_t)slot_bytes * (number % WINDOW);
    struct ibv_sge list[3];
    struct ibv_send_wr wr = {.sg_list = list, .imm_data = htonl((uint32_t)number)};
    uint64_t base = pair.peer.address;
    switch (request.kind) {
    case SEND:
    case SEND_IMM:
        fill(pair.own.seed, number << 24, place, request.length);
        wr.opcode = request.kind == SEND ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
        break;
    case WRITE:
    case WRITE_IMM:
        fill(pair.own.seed, number << 24, place, request.length);
        wr.opcode = request.kind == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.wr.rdma.remote_addr = base + at.slots + (size_t)slot_bytes * (number % WINDOW);
        wr.wr.rdma.rkey = pair.peer.rkey;
        break;
    case READ:
        memset(place, 0xee, request.length);
        wr.opcode = IBV_WR_RDMA_READ;
        wr.wr.rdma.remote_addr = base + at.source + request.place;
        wr.wr.rdma.rkey = pair.peer.rkey;
        break;
    default: {
        uint64_t *word = &theirs[request.place];
        expected[number % WINDOW] = *word;
        wr.opcode =
            request.kind == FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.remote_addr = base + at.words + 8 * request.place;
        wr.wr.atomic.rkey = pair.peer.rkey;
        wr.wr.atomic.compare_add = request.kind == FETCH_ADD ? request.add
                                   : request.fits            ? *word
                                                             : ~*word;
        wr.wr.atomic.swap = request.swap;
        *word = apply(&request, *word);
        place = pair.memory + at.reply + 8 * (number % WINDOW);
        list[0] = (struct ibv_sge){(uintptr_t)place, 8, pair.mr->lkey};
        wr.num_sge = 1;
    }
    }
    if (wr.num_sge == 0) {
        wr.num_sge = pieces(list, (uintptr_t)place, request.length, number);
    }
    counts[request.kind]++;
    post(&wr, number);
}

/* Tells the peer how many of its requests were checked. */
static void post_credit(void) {
    uint32_t word = (uint32_t)checked;
    memcpy(pair.memory + at.credit, &word, sizeof word);
    struct ibv_sge list = {(uintptr_t)pair.memory + at.credit, sizeof word, pair.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &list,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                             .imm_data = htonl(CREDIT_FLAG | word),
                             /* The memory is used again at once. */
                             .send_flags = IBV_SEND_INLINE};
    wr.wr.rdma.remote_addr = pair.peer.address + at.credit + sizeof word;
    wr.wr.rdma.rkey = pair.peer.rkey;
    post(&wr, CREDIT_MARK);
}

static void request_ended(const struct ibv_wc *wc) {
    CHECK(wc->wr_id == order[order_taken % DEPTH], "request %llu ended instead of %llu",
          (unsigned long long)wc->wr_id, (unsigned long long)order[order_taken % DEPTH]);
    order_taken++;
    if (wc->wr_id == CREDIT_MARK) {
        return;
    }
    uint64_t number = wc->wr_id;
    CHECK(number == completed, "request %llu ended twice", (unsigned long long)number);
    completed++;
    struct request request = request_of(pair.own.seed, number, pair.own.count);
    if (request.kind == READ) {
        compare(pair.peer.seed ^ READ_SEED, request.place,
                pair.memory + at.outbox + (size_t)slot_bytes * (number % WINDOW), request.length,
                "read", number);
    } else if (request.kind == FETCH_ADD || request.kind == COMPARE_SWAP) {
        uint64_t found;
        memcpy(&found, pair.memory + at.reply + 8 * (number % WINDOW), 8);
        CHECK(found == expected[number % WINDOW], "%s %llu returned %#llx instead of %#llx",
              NAMES[request.kind], (unsigned long long)number, (unsigned long long)found,
              (unsigned long long)expected[number % WINDOW]);
    }
}

/* ---- the peer's requests ----------------------------------------------- */

static void post_receive(uint64_t slot) {
    uint64_t address = (uintptr_t)pair.memory + at.inbox + (size_t)slot_bytes * slot;
    memset((char *)(uintptr_t)address, 0xdd, slot_bytes);
    uint32_t first = slot_bytes / 3;
    struct ibv_sge list[2] = {{address, first, pair.mr->lkey},
                              {address + first, slot_bytes - first, pair.mr->lkey}};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = list, .num_sge = 2}, *bad;
    int error = ibv_post_recv(pair.qp, &wr, &bad);
    CHECK(error == 0, "ibv_post_recv: %s", strerror(error));
}

static void check_slot(uint64_t number, const struct request *request) {
    compare(pair.peer.seed, number << 24,
            pair.memory + at.slots + (size_t)slot_bytes * (number % WINDOW), request->length,
            NAMES[request->kind], number);
}

/* A message of the peer's came: everything that it asked for before is done. */
static void message_came(const struct ibv_wc *wc) {
    struct request request;
    for (;; checked++) {
        CHECK(checked < pair.peer.count, "a message too many");
        request = request_of(pair.peer.seed, checked, pair.peer.count);
        if (notifies(request.kind)) {
            break;
        }
        if (request.kind == WRITE) {
            check_slot(checked, &request);
        } else if (request.kind != READ) {
            ours[request.place] = apply(&request, ours[request.place]);
        }
    }
    bool write = request.kind == WRITE_IMM;
    enum ibv_wc_opcode opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    CHECK(wc->opcode == opcode, "message %llu (%s) came as %d", (unsigned long long)checked,
          NAMES[request.kind], wc->opcode);
    CHECK(wc->byte_len == request.length, "%s %llu has %u bytes and should have %u",
          NAMES[request.kind], (unsigned long long)checked, wc->byte_len, request.length);
    bool with_immediate = wc->wc_flags & IBV_WC_WITH_IMM;
    CHECK(with_immediate == (request.kind != SEND) &&
              (!with_immediate || ntohl(wc->imm_data) == (uint32_t)checked),
          "%s %llu has the immediate %#x (%d)", NAMES[request.kind], (unsigned long long)checked,
          ntohl(wc->imm_data), with_immediate);
    if (write) {
        check_slot(checked, &request);
    } else {
        compare(pair.peer.seed, checked << 24, pair.memory + at.inbox + (size_t)slot_bytes * wc->wr_id,
                request.length, NAMES[request.kind], checked);
    }
    checked++;
    noticed++;
    post_receive(wc->wr_id);
}

static void credit_came(uint32_t value) {
    CHECK(value > granted && value <= posted, "credit for %u requests of %llu after that for %llu",
          value, (unsigned long long)posted, (unsigned long long)granted);
    granted = value;
}

/* ------------------------------------------------------------------------ */

/* As long as something is missing, something will come. */
static bool unfinished(void) {
    return completed < pair.own.count || granted < pair.own.count || checked < pair.peer.count ||
           order_taken < order_put;
}

static void transfer(void) {
    uint64_t told = 0;
    while (unfinished()) {
        while (posted < pair.own.count && posted < granted + WINDOW && posted < completed + WINDOW &&
               order_put - order_taken < DEPTH / 2) {
            post_request(posted++);
        }
        struct ibv_wc wc[16];
        int count = completions(&pair, wc, 16);
        for (int i = 0; i < count; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS, "%s (%d) for %#llx after %llu requests",
                  ibv_wc_status_str(wc[i].status), wc[i].status, (unsigned long long)wc[i].wr_id,
                  (unsigned long long)completed);
            CHECK(wc[i].qp_num == pair.qp->qp_num, "a completion of QP %#x", wc[i].qp_num);
            uint32_t immediate = wc[i].wc_flags & IBV_WC_WITH_IMM ? ntohl(wc[i].imm_data) : 0;
            if (!(wc[i].opcode & IBV_WC_RECV)) {
                request_ended(&wc[i]);
            } else if (immediate & CREDIT_FLAG) {
                credit_came(immediate & ~CREDIT_FLAG);
                post_receive(wc[i].wr_id);
            } else {
                message_came(&wc[i]);
            }
        }
        if (told < checked && order_put - order_taken < DEPTH) {
            post_credit();
            told = checked;
        }
    }
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    pair.options = (struct options){.kind = IBV_QPT_RC, .count = 1000, .seed = 1, .bytes = 16384,
                                    .receives = 2 * WINDOW, .timeout = 18, .retries = 7};
    parse_options(&pair.options, count, words);
    /* Two sides with one seed would not notice what is mixed up. */
    pair.options.seed = pair.options.seed * 2 + (pair.options.server != NULL);
    CHECK(pair.options.bytes < SOURCE_BYTES && pair.options.bytes < 1 << 24, "-b is too large");
    CHECK(pair.options.count < CREDIT_FLAG, "-n is too large");
    lay_out();
    create(&pair, at.bytes, DEPTH);
    fill(pair.options.seed ^ READ_SEED, 0, pair.memory + at.source, SOURCE_BYTES);
    for (uint64_t slot = 0; slot < pair.options.receives; slot++) {
        post_receive(slot);
    }
    join(&pair);
    transfer();
    /* The peer may still be waiting for an acknowledgement of ours, which is not this program's
     * business to send. */
    meet(&pair, 'e');
    for (int word = 0; word < WORDS; word++) {
        uint64_t found;
        memcpy(&found, pair.memory + at.words + 8 * word, 8);
        CHECK(found == ours[word], "word %d is %#llx and should be %#llx", word,
              (unsigned long long)found, (unsigned long long)ours[word]);
    }
    take_down(&pair);
    for (int kind = 0; kind < CREDIT; kind++) {
        printf("%s: %llu\n", NAMES[kind], (unsigned long long)counts[kind]);
    }
    printf("verified: %llu requests, %llu messages came\n", (unsigned long long)completed,
           (unsigned long long)noticed);
    return 0;
}
