// SPDX-License-Identifier: GPL-2.0
/*
 * What requests cost, for bench/kernel: `figures NAME DEVICE DEVICE`, one process with both ends. In a guest whose
 * nanosecond is one instruction (QEMU's -icount shift=0) the processor's clock counts instructions. Each
 * figure is a line: figure NAME OPERATION BYTES WHAT VALUE
 */
#include <x86intrin.h>

#include "ends.h"

#define ROUNDS 301
/* Requests under way where many are. */
#define UNDER_WAY 32
#define AT_ONCE 16

static const char *name;

static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
} operations[] = {
	{ "send", IBV_WR_SEND },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "read", IBV_WR_RDMA_READ },
};

static void figure(const char *operation, uint32_t bytes, const char *what, double value)
{
	printf("figure %s %s %u %s %.0f\n", name, operation, bytes, what, value);
}

static int by_size(const void *a, const void *b)
{
	uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

	return (first > second) - (first < second);
}

static double median(uint64_t *values, int count)
{
	qsort(values, count, sizeof(*values), by_size);
	return values[count / 2];
}

/* By its address where the device is known by addresses (rxe), the last that it has. */
static void to_peer(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 1,
		.ah_attr = { .dlid = 1, .port_num = 1 },
	};
	struct ibv_port_attr port;
	union ibv_gid gid;
	int i;

	CHECK(!ibv_query_port(end->context, 1, &port));
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		attr.path_mtu = port.active_mtu;
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 1;
		for (i = 0; i < port.gid_tbl_len; i++) {
			/* One of IPv4. */
			if (ibv_query_gid(peer->context, 1, i, &gid) || gid.raw[10] != 0xff)
				continue;
			attr.ah_attr.grh.sgid_index = i;
			attr.ah_attr.grh.dgid = gid;
		}
	}
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
						     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
						     IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 18;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 16;
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One at a time: what the call takes that posts, the one that finds the completion, and all in between. */
static void one_by_one(struct end *a, struct end *b, int operation, uint32_t bytes, int count)
{
	static uint64_t posts[ROUNDS], polls[ROUNDS], wholes[ROUNDS], receives[ROUNDS];
	struct ibv_sge from = piece(a, 0, bytes), to = piece(b, 0, bytes);
	int is_send = operations[operation].opcode == IBV_WR_SEND, round, found;
	uint64_t start, posted, before, after;
	struct ibv_wc wc;

	for (round = 0; round < count; round++) {
		struct ibv_send_wr wr = request(1, operations[operation].opcode, &from, 1), *bad;

		wr = is_send ? wr : remote(wr, b, 0);
		start = __rdtsc();
		if (is_send)
			CHECK(!post_recv(b, 1, &to, 1));
		receives[round] = __rdtsc() - start;
		start = __rdtsc();
		CHECK(!ibv_post_send(a->qp, &wr, &bad));
		posted = __rdtsc();
		do {
			before = __rdtsc();
			found = ibv_poll_cq(a->cq, 1, &wc);
			after = __rdtsc();
		} while (!found);
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
		if (is_send)
			COMPLETES(b, 1, IBV_WC_SUCCESS);
		wholes[round] = __rdtsc() - start;
		posts[round] = posted - start;
		polls[round] = after - before;
	}
	figure(operations[operation].name, bytes, "post", median(posts, count));
	figure(operations[operation].name, bytes, "poll", median(polls, count));
	figure(operations[operation].name, bytes, "whole", median(wholes, count));
	if (is_send)
		figure(operations[operation].name, bytes, "receive", median(receives, count));
}

/* What a call takes that finds a completion which was there already. */
static void found(struct end *a, struct end *b, int operation, uint32_t bytes)
{
	static uint64_t polls[ROUNDS];
	struct ibv_sge from = piece(a, 0, bytes), to = piece(b, 0, bytes);
	int is_send = operations[operation].opcode == IBV_WR_SEND, count = 0, i;
	struct ibv_send_wr wr = request(1, operations[operation].opcode, &from, 1), *bad;
	struct ibv_wc wc;

	wr = is_send ? wr : remote(wr, b, 0);
	while (count + AT_ONCE <= ROUNDS) {
		for (i = 0; i < AT_ONCE; i++) {
			CHECK(!is_send || !post_recv(b, 1, &to, 1));
			CHECK(!ibv_post_send(a->qp, &wr, &bad));
		}
		COMPLETES(a, 1, IBV_WC_SUCCESS);
		for (i = 1; i < AT_ONCE;) {
			uint64_t start = __rdtsc();
			int took = ibv_poll_cq(a->cq, 1, &wc);

			CHECK(took >= 0 && (!took || wc.status == IBV_WC_SUCCESS));
			polls[count] = __rdtsc() - start;
			i += took;
			count += took;
		}
		for (i = 0; is_send && i < AT_ONCE; i++)
			COMPLETES(b, 1, IBV_WC_SUCCESS);
	}
	figure(operations[operation].name, bytes, "found", median(polls, count));
}

/* Takes what there is. How many. */
static int take(struct end *end)
{
	struct ibv_wc wcs[AT_ONCE];
	int found = ibv_poll_cq(end->cq, AT_ONCE, wcs), i;

	CHECK(found >= 0);
	for (i = 0; i < found; i++)
		CHECK(wcs[i].status == IBV_WC_SUCCESS);
	return found;
}

/* Many under way: what each takes, with all that is done for it at both ends. */
static void many(struct end *a, struct end *b, int operation, uint32_t bytes, int count)
{
	struct ibv_sge from = piece(a, 0, bytes), to = piece(b, 0, bytes);
	int is_send = operations[operation].opcode == IBV_WR_SEND, posted = 0, done = 0, received = 0, i;
	struct ibv_send_wr wr = request(1, operations[operation].opcode, &from, 1), *bad;
	uint64_t start;

	wr = is_send ? wr : remote(wr, b, 0);
	for (i = 0; is_send && i < DEPTH; i++)
		CHECK(!post_recv(b, 1, &to, 1));
	start = __rdtsc();
	while (done < count || (is_send && received < count)) {
		while (posted < count && posted - done < UNDER_WAY &&
		       (!is_send || posted - received < DEPTH)) {
			CHECK(!ibv_post_send(a->qp, &wr, &bad));
			posted++;
		}
		done += take(a);
		for (i = is_send ? take(b) : 0; i; i--) {
			received++;
			CHECK(!post_recv(b, 1, &to, 1));
		}
	}
	figure(operations[operation].name, bytes, "many", (double)(__rdtsc() - start) / count);
	/* The receives that are left. */
	CHECK(!to_state(b->qp, IBV_QPS_RESET) && !to_state(a->qp, IBV_QPS_RESET));
}

int main(int count, char **words)
{
	static const uint32_t lengths[] = { 2, 8, 4096, 65536, 1 << 20 };
	struct end a, b;
	size_t i, j;

	if (count != 4)
		return 2;
	name = words[1];
	open_end(&a, words[2]);
	open_end(&b, words[3]);
	for (i = 0; i < 3; i++) {
		for (j = 0; j < sizeof(lengths) / sizeof(*lengths); j++) {
			CHECK(!to_state(a.qp, IBV_QPS_RESET) && !to_state(b.qp, IBV_QPS_RESET));
			CHECK(!to_init(a.qp, ALL_ACCESS) && !to_init(b.qp, ALL_ACCESS));
			to_peer(&a, &b);
			to_peer(&b, &a);
			one_by_one(&a, &b, i, lengths[j], lengths[j] > 4096 ? 21 : ROUNDS);
			if (lengths[j] <= 4096)
				found(&a, &b, i, lengths[j]);
			many(&a, &b, i, lengths[j], lengths[j] > 4096 ? 64 : 2000);
		}
	}
	close_end(&a);
	close_end(&b);
	printf("figures=%s\n", name);
	return 0;
}
