// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pairs that a host outside asks before they have a peer, and while they are made and destroyed; and one whose
 * receive is late, behind answers which that host does not take. It does what this program says:
 *
 *   unready DEVICE OTHER_DEVICE SLOT
 *
 * unready KIND NUMBER QPN ADDRESS KEY BELL
 *                          0: one request for that queue pair; 1: READs, whose bytes are not taken, and a SEND; 2: the
 *                          bytes are taken; and behind 0 and 1 a SEND to the queue pair BELL
 */
#include "ends.h"

#define SEND_BYTES 64
#define LIVES 100

enum kind { ASK, READ, TAKE };

static struct end late, early;
/* Of the same devices: a SEND to one says that all before it has come. The host outside has the first. */
static struct end bell, own_bell, ringer;
static uint32_t liar;

static void ready(struct ibv_qp *qp, uint32_t peer)
{
	CHECK(!to_init(qp, ALL_ACCESS) && !to_rtr(qp, peer) && !to_rts(qp, 7));
}

static void say(enum kind kind)
{
	static int number;
	struct ibv_sge to = piece(&bell, BYTES - SEND_BYTES, SEND_BYTES);

	if (kind != TAKE)
		CHECK(!post_recv(&bell, 8, &to, 1));
	printf("unready %d %d %u %llu %u %u\n", kind, number++, late.qp->qp_num,
	       (unsigned long long)(uintptr_t)late.bytes, late.mr->rkey, bell.qp->qp_num);
	fflush(stdout);
}

static void liar_has_asked(void)
{
	COMPLETES(&bell, 8, IBV_WC_SUCCESS);
}

static void peer_has_asked(void)
{
	struct ibv_sge from = piece(&ringer, 0, 8), to = piece(&own_bell, BYTES - 8, 8);

	CHECK(!post_recv(&own_bell, 9, &to, 1) && !post(&ringer, request(9, IBV_WR_SEND, &from, 1)));
	COMPLETES(&ringer, 9, IBV_WC_SUCCESS);
	COMPLETES(&own_bell, 9, IBV_WC_SUCCESS);
}

static void untouched(void)
{
	size_t at;

	for (at = SEND_BYTES; at < BYTES - SEND_BYTES; at++)
		CHECK(late.bytes[at] == 0x5a);
}

static void prepare(void)
{
	struct ibv_sge to = piece(&late, 0, SEND_BYTES);

	CHECK(!to_init(late.qp, ALL_ACCESS) && !post_recv(&late, 3, &to, 1));
}

/* The peer's request is done when there is a connection, whoever else has asked, and whoever was first. */
static void waits_for_its_peer(enum ibv_qp_state state, int liar_first)
{
	struct ibv_sge from = piece(&early, 0, SEND_BYTES);

	CHECK(!to_state(late.qp, IBV_QPS_RESET) && !to_state(early.qp, IBV_QPS_RESET));
	CHECK(!to_init(early.qp, ALL_ACCESS) && !to_rtr(early.qp, late.qp->qp_num));
	CHECK(!to_rts_patient(early.qp, 7, 22));
	if (state == IBV_QPS_INIT)
		prepare();
	if (liar_first) {
		say(ASK);
		liar_has_asked();
	}
	CHECK(!post(&early, request(1, IBV_WR_SEND, &from, 1)));
	peer_has_asked();
	if (!liar_first) {
		say(ASK);
		liar_has_asked();
	}
	CHECK(state_of(late.qp) == state);
	untouched();
	if (state == IBV_QPS_RESET)
		prepare();
	CHECK(!to_rtr(late.qp, early.qp->qp_num) && !to_rts(late.qp, 7));
	COMPLETES(&early, 1, IBV_WC_SUCCESS);
	COMPLETES(&late, 3, IBV_WC_SUCCESS);
	CHECK(late.bytes[0] == early.bytes[0]);
	untouched();
}

static void comes_and_goes(void)
{
	int life;

	for (life = 0; life < LIVES; life++) {
		CHECK(!ibv_destroy_qp(late.qp));
		late.qp = new_qp(&late, late.pd);
		say(ASK);
		if (life % 2)
			CHECK(!to_init(late.qp, ALL_ACCESS));
		if (life % 3 == 2)
			CHECK(!to_state(late.qp, IBV_QPS_RESET));
		if (life % 8 == 7)
			liar_has_asked();
		CHECK(!ibv_destroy_qp(late.qp));
		if (life % 8 != 7)
			liar_has_asked();
		late.qp = new_qp(&late, late.pd);
	}
	untouched();
}

/* Its READY is behind the NOT_YET that it is about. */
static void has_a_receive_late(void)
{
	struct ibv_sge to = piece(&late, 0, SEND_BYTES);

	ready(late.qp, liar);
	say(READ);
	liar_has_asked();
	CHECK(!post_recv(&late, 3, &to, 1));
	say(TAKE);
	COMPLETES(&late, 3, IBV_WC_SUCCESS);
	untouched();
}

int main(int count, char **words)
{
	int round;

	if (count != 4)
		return 2;
	liar = strtoul(words[3], NULL, 0) << 19;
	open_end(&late, words[1]);
	open_end(&early, words[2]);
	memset(late.bytes, 0x5a, BYTES);
	memset(early.bytes, 0x77, BYTES);
	bell = own_bell = late;
	ringer = early;
	bell.qp = new_qp(&late, late.pd);
	own_bell.qp = new_qp(&late, late.pd);
	ringer.qp = new_qp(&early, early.pd);
	ready(bell.qp, liar | 1);
	connect_both(&own_bell, &ringer);
	for (round = 0; round < 20; round++)
		waits_for_its_peer(round & 1 ? IBV_QPS_INIT : IBV_QPS_RESET, round & 2);
	comes_and_goes();
	has_a_receive_late();
	CHECK(!ibv_destroy_qp(bell.qp) && !ibv_destroy_qp(own_bell.qp) && !ibv_destroy_qp(ringer.qp));
	close_end(&late);
	close_end(&early);
	puts("unready=ok");
	return 0;
}
