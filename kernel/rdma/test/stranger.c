// SPDX-License-Identifier: GPL-2.0
/*
 * What comes to datagrams' queue pairs and to UC from a host that lies: `stranger DEVICE SLOT`. For each lie
 * it says on standard output "stranger NUMBER QPN ADDRESS RKEY" when it is ready; the liar's queue pair has the
 * number SLOT << 19 | (100 + NUMBER). Nobody is told of a lie. Behind it comes a message as it should be,
 * with NUMBER as its immediate data, and that one finds the receive. The order of `trials` is that of
 * tests/tests/window_kernel/stranger.rs.
 */
#define _GNU_SOURCE

#include "ends.h"

#define LENGTH 100
#define RECEIVE (2 << 20)
#define RECEIVE_BYTES 1000

enum outcome {
	/* Nothing is seen of it. */
	LOST,
	/* It ends a receive that is too small for it. */
	LONG,
	/* It is taken for what it says. */
	TAKEN,
	/* What this side sends meanwhile ends well. */
	SENT,
};

static const struct {
	enum ibv_qp_type type;
	enum outcome outcome;
} trials[] = {
	{ IBV_QPT_UD, LOST }, /* more than a datagram carries */
	{ IBV_QPT_UD, LOST }, /* an answer is waited for */
	{ IBV_QPT_UD, LOST }, /* more of one */
	{ IBV_QPT_UD, LOST }, /* other operations, and what is none */
	{ IBV_QPT_UD, LOST }, /* other Q_Keys */
	{ IBV_QPT_UD, LOST }, /* groups that it is not in, and what is no group */
	{ IBV_QPT_UD, LOST }, /* numbers of nobody, of other hosts, with a connection's bits */
	{ IBV_QPT_UD, LOST }, /* answers to what it has not asked */
	{ IBV_QPT_UD, LONG }, /* more than its receive has room for */
	{ IBV_QPT_UD, TAKEN }, /* addresses of others, in both kinds at once */
	{ IBV_QPT_UD, LOST }, /* a flood */
	{ IBV_QPT_UC, LOST }, /* what wants an answer, and what is no operation */
	{ IBV_QPT_UC, LOST }, /* an answer is waited for, or another connection is meant */
	{ IBV_QPT_UC, LOST }, /* more of nothing */
	{ IBV_QPT_UC, LOST }, /* more than was said */
	{ IBV_QPT_UC, LOST }, /* more than any message has, and pieces of nothing */
	{ IBV_QPT_UC, LOST }, /* a message without its end */
	{ IBV_QPT_UC, LOST }, /* WRITEs to what is not its */
	{ IBV_QPT_UC, LONG }, /* more than its receive has room for */
	{ IBV_QPT_UC, SENT }, /* answers, errors, data for who waits for none */
	{ IBV_QPT_UD, LOST }, /* connection managers' datagrams of all kinds, and a flood of them */
};

static void prepare(struct end *end, enum ibv_qp_type type, uint32_t stranger)
{
	if (type != IBV_QPT_UC) {
		change_kind(end, type);
		to_datagrams(end->qp);
		return;
	}
	change_kind(end, type);
	CHECK(!to_init(end->qp, IBV_ACCESS_REMOTE_WRITE));
	CHECK(!to_rtr_uc(end->qp, stranger) && !to_rts_psn(end->qp));
}

/* The next completion, however long what floods this host keeps it from that. */
static struct ibv_wc next_completion(struct end *end)
{
	time_t until = time(NULL) + 300;
	struct ibv_wc wc;
	int count;

	for (;;) {
		count = ibv_poll_cq(end->cq, 1, &wc);
		if (count || time(NULL) >= until)
			break;
		usleep(1000);
	}
	CHECK(count == 1);
	return wc;
}

static void is_good(struct end *end, const struct ibv_wc *wc, uint32_t stranger, size_t number, int grh)
{
	size_t at;

	CHECK(wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV);
	CHECK(wc->byte_len == (uint32_t)(LENGTH + grh) && wc->src_qp == stranger);
	CHECK((wc->wc_flags & IBV_WC_WITH_IMM) && wc->imm_data == (uint32_t)number);
	for (at = grh; at < LENGTH + (size_t)grh; at++)
		CHECK(end->bytes[RECEIVE + at] == 0x11);
}

/* All but the receive. */
static void untouched(const struct end *end)
{
	size_t at;

	for (at = 0; at < BYTES; at++)
		if (at < RECEIVE || at >= RECEIVE + RECEIVE_BYTES)
			CHECK(end->bytes[at] == 0x5a);
}

static void one(struct end *end, size_t number, uint32_t slot)
{
	uint32_t stranger = slot << 19 | (100 + number);
	struct ibv_sge from = piece(end, 0, LENGTH), to = piece(end, RECEIVE, RECEIVE_BYTES);
	struct ibv_sge small = piece(end, RECEIVE, 200);
	enum outcome outcome = trials[number].outcome;
	int grh = trials[number].type == IBV_QPT_UD ? GRH : 0;
	struct ibv_wc wc;

	memset(end->bytes, 0x5a, BYTES);
	prepare(end, trials[number].type, stranger);
	if (outcome == LONG || outcome == TAKEN)
		CHECK(!post_recv(end, 7, outcome == LONG ? &small : &to, 1));
	CHECK(!post_recv(end, 8, &to, 1));
	printf("stranger %zu %u %llu %u\n", number, end->qp->qp_num,
	       (unsigned long long)(uintptr_t)end->bytes, end->mr->rkey);
	fflush(stdout);
	if (outcome == SENT) {
		CHECK(!post(end, request(1, IBV_WR_SEND, &from, 1)));
		wc = next_completion(end);
		CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	}
	if (outcome == LONG || outcome == TAKEN) {
		wc = next_completion(end);
		CHECK(wc.wr_id == 7);
		CHECK(wc.status == (outcome == LONG ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS));
		CHECK(outcome == LONG || (wc.wc_flags & IBV_WC_GRH));
	}
	wc = next_completion(end);
	CHECK(wc.wr_id == 8);
	is_good(end, &wc, stranger, number, grh);
	CHECK(state_of(end->qp) == IBV_QPS_RTS);
	CHECK(ibv_poll_cq(end->cq, 1, &wc) == 0);
	untouched(end);
}

int main(int count, char **words)
{
	struct end end;
	size_t i;

	if (count != 3)
		return 2;
	open_end(&end, words[1]);
	for (i = 0; i < sizeof(trials) / sizeof(*trials); i++)
		one(&end, i, strtoul(words[2], NULL, 0));
	close_end(&end);
	puts("stranger=ok");
	return 0;
}
