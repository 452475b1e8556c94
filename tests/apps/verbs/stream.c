/*
 * The client sends for ever over a reliable connection, and the server receives for ever. When the
 * connection fails the client says how, how long after its last success, and that everything else
 * was flushed; it ends with status 0 then. pair.h has the options.
 */
#include "pair.h"

enum { DEPTH = 4, FLOWING = 100 };

/* Of a receive: completions with an error do not say what they are of. */
#define RECEIVE (1ULL << 63)

static struct pair pair;

static void post_receive(uint64_t slot) {
    char *place = pair.memory + (size_t)pair.options.bytes * slot;
    struct ibv_sge list = {(uintptr_t)place, pair.options.bytes, pair.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = RECEIVE | slot, .sg_list = &list, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(pair.qp, &wr, &bad) == 0, "ibv_post_recv");
}

static void post_send(uint64_t number) {
    struct ibv_sge list = {(uintptr_t)pair.memory, pair.options.bytes, pair.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = number, .sg_list = &list, .num_sge = 1,
                             .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(pair.qp, &wr, &bad) == 0, "ibv_post_send");
}

static void receive(void) {
    for (;;) {
        struct ibv_wc wc[16];
        int count = completions(&pair, wc, 16);
        for (int i = 0; i < count; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
            post_receive(wc[i].wr_id & ~RECEIVE);
        }
    }
}

static void send_until_it_fails(void) {
    uint64_t posted = 0, ended = 0, last = now_us();
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    while (status == IBV_WC_SUCCESS || ended < posted) {
        while (status == IBV_WC_SUCCESS && posted < ended + DEPTH) {
            post_send(posted++);
        }
        struct ibv_wc wc[DEPTH];
        int count = completions(&pair, wc, DEPTH);
        for (int i = 0; i < count; i++) {
            if (wc[i].wr_id & RECEIVE) {
                CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR, "a receive: %s",
                      ibv_wc_status_str(wc[i].status));
                continue;
            }
            CHECK(wc[i].wr_id == ended, "request %llu ended instead of %llu",
                  (unsigned long long)wc[i].wr_id, (unsigned long long)ended);
            ended++;
            if (status != IBV_WC_SUCCESS) {
                CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR, "%s after the failure",
                      ibv_wc_status_str(wc[i].status));
            } else if (wc[i].status != IBV_WC_SUCCESS) {
                status = wc[i].status;
                printf("status %d after %llu us\n", status, (unsigned long long)(now_us() - last));
            } else {
                last = now_us();
            }
            if (ended == FLOWING) {
                printf("flowing\n");
            }
        }
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(pair.qp, &attr, IBV_QP_STATE, &init) == 0, "ibv_query_qp");
    CHECK(attr.qp_state == IBV_QPS_ERR, "the queue pair is in state %d", attr.qp_state);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    pair.options = (struct options){.kind = IBV_QPT_RC, .bytes = 4000, .receives = 64,
                                    .timeout = 14, .retries = 7};
    parse_options(&pair.options, count, words);
    create(&pair, (size_t)pair.options.bytes * pair.options.receives, DEPTH);
    for (uint64_t slot = 0; slot < pair.options.receives; slot++) {
        post_receive(slot);
    }
    join(&pair);
    if (pair.options.server == NULL) {
        receive();
    }
    send_until_it_fails();
    take_down(&pair);
    return 0;
}
