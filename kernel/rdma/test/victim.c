// SPDX-License-Identifier: GPL-2.0
/*
 * One end of connections whose other end lies: `victim DEVICE SLOT`. For each it says on standard output
 * "victim NUMBER QPN ADDRESS RKEY" when it is ready; the liar's queue pair has the number SLOT << 19 |
 * (100 + NUMBER), and both first packet numbers are 0xfffff0. Everything it expects is in `trials`, in the
 * order of the lies in tests/tests/window_kernel/victim.rs.
 */
#define _GNU_SOURCE

#include "ends.h"

#define LENGTH 100
#define RECEIVE (2 << 20)

enum outcome {
	/* The lie is ignored, and what is right comes behind it. */
	IGNORED,
	/* The first time it is not. */
	ONCE,
	/* As the responder: an event, and the receive is flushed. */
	INVALID,
	ACCESS,
	/* As the requester: the request ends so. */
	BAD_RESPONSE,
	/* It ends well. */
	WELL,
};

static const struct {
	/* What the victim asks for; -1: nothing. */
	int opcode;
	enum outcome outcome;
} trials[] = {
	{ -1, INVALID }, /* more than was said, at once */
	{ -1, INVALID }, /* and in a second piece */
	{ -1, INVALID }, /* another request in the middle of a message */
	{ -1, INVALID }, /* a second piece of nothing */
	{ -1, INVALID }, /* an atomic with bytes */
	{ -1, ACCESS }, /* an invalidation of memory that is a program's */
	{ -1, INVALID }, /* what is no operation */
	{ -1, INVALID }, /* a READ with bytes */
	{ -1, INVALID }, /* more than any message has */
	{ -1, INVALID }, /* more READs than there may be */
	{ -1, ACCESS }, /* a WRITE whose end is outside */
	{ -1, ACCESS }, /* one around the end of all addresses */
	{ -1, IGNORED }, /* another packet number, another connection, none */
	{ IBV_WR_RDMA_READ, BAD_RESPONSE }, /* it has ended, says the responder, without bytes */
	{ IBV_WR_RDMA_READ, BAD_RESPONSE }, /* bytes with a gap */
	{ IBV_WR_RDMA_READ, BAD_RESPONSE }, /* too many */
	{ IBV_WR_RDMA_READ, BAD_RESPONSE }, /* none of them, for ever */
	{ IBV_WR_SEND, BAD_RESPONSE }, /* bytes for a SEND */
	{ IBV_WR_SEND, BAD_RESPONSE }, /* a status that is none */
	{ IBV_WR_SEND, WELL }, /* answers about others, and then the right one */
	{ IBV_WR_RDMA_READ, WELL }, /* not yet, behind a part of the bytes */
	{ -1, ONCE }, /* an atomic that comes again and again */
	{ -1, INVALID }, /* one that is not aligned */
	{ -1, ACCESS }, /* one at the end of the memory */
	{ -1, INVALID }, /* more of them than there may be */
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, BAD_RESPONSE }, /* it has ended, without what was there */
	{ IBV_WR_ATOMIC_CMP_AND_SWP, BAD_RESPONSE }, /* too much was there */
	{ IBV_WR_ATOMIC_CMP_AND_SWP, BAD_RESPONSE }, /* and nothing */
};

static void expect(struct end *end, enum outcome outcome)
{
	struct ibv_wc wc;

	switch (outcome) {
	case IGNORED:
	case ONCE:
		wc = completion(end);
		CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.byte_len == LENGTH);
		CHECK(state_of(end->qp) == IBV_QPS_RTS);
		CHECK(*(uint64_t *)end->bytes == 0x5a5a5a5a5a5a5a5a + (outcome == ONCE));
		return;
	case INVALID:
	case ACCESS:
		event_is(end, outcome == INVALID ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_ACCESS_ERR);
		COMPLETES(end, 7, IBV_WC_WR_FLUSH_ERR);
		break;
	case BAD_RESPONSE:
		COMPLETES(end, 1, IBV_WC_BAD_RESP_ERR);
		COMPLETES(end, 7, IBV_WC_WR_FLUSH_ERR);
		break;
	case WELL:
		COMPLETES(end, 1, IBV_WC_SUCCESS);
		CHECK(state_of(end->qp) == IBV_QPS_RTS);
		return;
	}
	CHECK(state_of(end->qp) == IBV_QPS_ERR);
}

/* The liar may write to the receive, and a READ's bytes are its to say; all else stays. */
static void untouched(const struct end *end)
{
	size_t at;

	for (at = LENGTH; at < BYTES; at++)
		if (at < RECEIVE || at >= RECEIVE + 1000)
			CHECK(end->bytes[at] == 0x5a);
}

int main(int count, char **words)
{
	struct end end;
	struct ibv_wc wc;
	size_t i;

	if (count != 3)
		return 2;
	open_end(&end, words[1]);
	for (i = 0; i < sizeof(trials) / sizeof(*trials); i++) {
		uint32_t liar = strtoul(words[2], NULL, 0) << 19 | (100 + i);
		struct ibv_sge from = piece(&end, 0, LENGTH), to = piece(&end, RECEIVE, 1000);

		memset(end.bytes, 0x5a, BYTES);
		CHECK(!to_state(end.qp, IBV_QPS_RESET) && !to_init(end.qp, ALL_ACCESS));
		CHECK(!to_rtr(end.qp, liar) && !to_rts(end.qp, 7) && !post_recv(&end, 7, &to, 1));
		printf("victim %zu %u %llu %u\n", i, end.qp->qp_num,
		       (unsigned long long)(uintptr_t)end.bytes, end.mr->rkey);
		fflush(stdout);
		if (trials[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
		    trials[i].opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			from.length = 8;
		if (trials[i].opcode >= 0)
			CHECK(!post(&end, request(1, trials[i].opcode, &from, 1)));
		expect(&end, trials[i].outcome);
		CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0);
		untouched(&end);
	}
	close_end(&end);
	puts("victim=ok");
	return 0;
}
