// SPDX-License-Identifier: GPL-2.0
/*
 * Programs on the distribution's libibverbs, for the tests: `services COMMAND DEVICE DEVICE`. What the
 * device does besides the transfers of `verbs.c`: atomics, UC, shared receive queues, datagrams, groups.
 */
#define _GNU_SOURCE
#include "ends.h"

#define MTU 4096

static uint64_t *word(struct end *end, size_t at)
{
	return (uint64_t *)(end->bytes + at);
}

static struct ibv_send_wr atomic(uint64_t wr_id, int swaps, struct ibv_sge *sge, struct end *peer,
				 int64_t at, uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr wr = request(
		wr_id, swaps ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD, sge, 1);

	wr.wr.atomic.remote_addr = (uintptr_t)peer->bytes + at;
	wr.wr.atomic.rkey = peer->mr->rkey;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	return wr;
}

/* A word in the memory becomes `b` where it should, and what it was comes back. */
static void one_atomic(struct end *a, struct end *b, int swaps, uint64_t before, uint64_t compare_add,
		       uint64_t swap, uint64_t after)
{
	struct ibv_sge back = piece(a, 24, 8);
	struct ibv_wc wc;

	*word(b, 56) = ~before;
	*word(b, 64) = before;
	*word(b, 72) = ~before;
	*word(a, 24) = 0;
	CHECK(!post(a, atomic(1, swaps, &back, b, 64, compare_add, swap)));
	wc = completion(a);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
	CHECK(wc.opcode == (swaps ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD));
	CHECK(*word(a, 24) == before && *word(b, 64) == after);
	CHECK(*word(b, 56) == ~before && *word(b, 72) == ~before);
}

/* Many, with other requests between them, while the memory's owner does the same. */
static void many_atomics(struct end *a, struct end *b)
{
	struct ibv_sge back = piece(a, 64, 8), bytes = piece(a, 4096, 5000);
	uint64_t last = 0;
	int round, i;

	*word(b, 0) = 0;
	for (round = 0; round < 100; round++) {
		for (i = 0; i < 16; i++) {
			CHECK(!post(a, atomic(3 * i, 0, &back, b, 0, 1, 0)));
			CHECK(!post(a, remote(request(3 * i + 1, IBV_WR_RDMA_READ, &bytes, 1), b, 4096)));
			CHECK(!post(a, remote(request(3 * i + 2, IBV_WR_RDMA_WRITE, &bytes, 1), b, 9192)));
			__atomic_fetch_add(word(b, 0), 1ULL << 32, __ATOMIC_SEQ_CST);
		}
		for (i = 0; i < 48; i++) {
			COMPLETES(a, i, IBV_WC_SUCCESS);
			__atomic_fetch_add(word(b, 0), 1ULL << 32, __ATOMIC_SEQ_CST);
		}
		/* What the last of them found. */
		CHECK((uint32_t)*word(a, 64) == (uint32_t)(16 * round + 15));
		CHECK(*word(a, 64) >= last);
		last = *word(a, 64);
	}
	CHECK(*word(b, 0) == ((uint64_t)(100 * 64) << 32 | 1600));
}

static void atomics(struct end *a, struct end *b)
{
	struct ibv_mr *weak = ibv_reg_mr(b->pd, b->bytes, BYTES,
					 ALL_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC);
	/* The memory begins at an odd address. */
	struct ibv_mr *odd = ibv_reg_mr(b->pd, b->bytes + 1, 4096, ALL_ACCESS);
	struct ibv_sge back = piece(a, 24, 8), wrong = piece(a, 24, 9);
	int swaps;

	CHECK(weak && odd);
	connect_both(a, b);
	one_atomic(a, b, 0, 5, 7, 0, 12);
	one_atomic(a, b, 0, UINT64_MAX, 2, 99, 1);
	one_atomic(a, b, 0, 1, UINT64_MAX, 0, 0);
	one_atomic(a, b, 1, 5, 5, 1ULL << 63, 1ULL << 63);
	one_atomic(a, b, 1, 5, 6, 1ULL << 63, 5);
	many_atomics(a, b);
	CHECK(post(a, atomic(1, 0, &wrong, b, 64, 1, 0)) == EINVAL);
	for (swaps = 0; swaps < 2; swaps++) {
		const struct ibv_send_wr good = atomic(1, swaps, &back, b, 64, 1, 2);
		const enum ibv_wc_status denied = IBV_WC_REM_ACCESS_ERR;
		struct ibv_send_wr wr = good;

		fill(b->bytes, 4096);
		wr.wr.atomic.rkey ^= 16;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr.wr.atomic.rkey = weak->rkey;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		REFUSED(good, ALL_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr = atomic(1, swaps, &back, b, BYTES - 7, 1, 2);
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr = atomic(1, swaps, &back, b, -8, 1, 2);
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr = atomic(1, swaps, &back, b, 68, 1, 2);
		REFUSED(wr, ALL_ACCESS, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
		wr = atomic(1, swaps, &back, b, 1, 1, 2);
		wr.wr.atomic.rkey = odd->rkey;
		REFUSED(wr, ALL_ACCESS, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
	}
	CHECK(!ibv_dereg_mr(weak) && !ibv_dereg_mr(odd));
	puts("atomics=ok");
}

/* A peer cannot take away memory that a program has registered. */
static void invalidates(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 64);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_INV, NULL, 0);
	int i;

	for (i = 0; i < 2; i++) {
		wr.invalidate_rkey = b->mr->rkey ^ i;
		REFUSED(wr, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	}
	connect_both(a, b);
	CHECK(!post(a, remote(request(1, IBV_WR_RDMA_WRITE, &from, 1), b, 0)));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	puts("invalidates=ok");
}

/* What leaves behind something that nobody answers is behind it with the peer as well. */
static void arrives(const uint8_t *at, uint8_t value)
{
	time_t until = time(NULL) + 90;

	while (__atomic_load_n(at, __ATOMIC_ACQUIRE) != value && time(NULL) < until)
		usleep(1000);
	CHECK(__atomic_load_n(at, __ATOMIC_ACQUIRE) == value);
}

static void uc_messages(struct end *a, struct end *b)
{
	static const uint32_t lengths[] = { 0, 1, 63, 4096, 32769, 100003 };
	size_t i;
	int imm;

	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		struct ibv_sge from = piece(a, 3, lengths[i]), to = piece(b, 5, lengths[i]);
		struct ibv_wc wc;

		for (imm = 0; imm < 2; imm++) {
			fill(a->bytes, lengths[i] + 8);
			memset(b->bytes, 0, lengths[i] + 8);
			CHECK(!post_recv(b, 1, &to, 1));
			CHECK(!post(a, request(2, imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, &from, 1)));
			COMPLETES(a, 2, IBV_WC_SUCCESS);
			wc = RECEIVED(b, 1, lengths[i], a->qp->qp_num);
			CHECK(!!(wc.wc_flags & IBV_WC_WITH_IMM) == imm);
			CHECK(!memcmp(a->bytes + 3, b->bytes + 5, lengths[i]));
		}
		fill(a->bytes, lengths[i] + 8);
		CHECK(!post_recv(b, 3, NULL, 0));
		CHECK(!post(a, remote(request(4, IBV_WR_RDMA_WRITE, &from, 1), b, 1 << 20)));
		CHECK(!post(a, remote(request(5, IBV_WR_RDMA_WRITE_WITH_IMM, &from, 1), b, 5)));
		COMPLETES(a, 4, IBV_WC_SUCCESS);
		COMPLETES(a, 5, IBV_WC_SUCCESS);
		wc = RECEIVED(b, 3, lengths[i], a->qp->qp_num);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(0x12345678));
		CHECK(!memcmp(a->bytes + 3, b->bytes + 5, lengths[i]));
		CHECK(!memcmp(a->bytes + 3, b->bytes + (1 << 20), lengths[i]));
	}
}

/* What is wrong is lost, nobody is told, and what comes behind it arrives. */
static void uc_losses(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 50000), to = piece(b, 0, 50000), small = piece(b, 0, 49999);
	struct ibv_sge mark = piece(a, 1 << 20, 1);
	struct ibv_send_wr bad = remote(request(2, IBV_WR_RDMA_WRITE, &from, 1), b, 0);
	uint8_t *flag = b->bytes + (2 << 20);
	uint8_t round;

	*flag = 0;
	for (round = 1; round < 20; round++) {
		fill(a->bytes, 50000);
		memset(b->bytes, 0, 50000);
		/* No receive. */
		CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
		bad.wr.rdma.rkey = b->mr->rkey ^ 4;
		CHECK(!post(a, bad));
		bad.wr.rdma.rkey = b->mr->rkey;
		bad.wr.rdma.remote_addr = (uintptr_t)b->bytes + BYTES - 49999;
		CHECK(!post(a, bad));
		a->bytes[1 << 20] = round;
		CHECK(!post(a, remote(request(3, IBV_WR_RDMA_WRITE, &mark, 1), b, 2 << 20)));
		COMPLETES(a, 1, IBV_WC_SUCCESS);
		COMPLETES(a, 2, IBV_WC_SUCCESS);
		COMPLETES(a, 2, IBV_WC_SUCCESS);
		COMPLETES(a, 3, IBV_WC_SUCCESS);
		arrives(flag, round);
		CHECK(b->bytes[0] == 0 && !memcmp(b->bytes, b->bytes + 1, 49999));
		/* One that is too small ends with an error, the next is another message's. */
		CHECK(!post_recv(b, 4, &small, 1) && !post_recv(b, 5, &to, 1));
		CHECK(!post(a, request(6, IBV_WR_SEND, &from, 1)));
		CHECK(!post(a, request(7, IBV_WR_SEND, &from, 1)));
		COMPLETES(a, 6, IBV_WC_SUCCESS);
		COMPLETES(a, 7, IBV_WC_SUCCESS);
		COMPLETES(b, 4, IBV_WC_LOC_LEN_ERR);
		RECEIVED(b, 5, 50000, a->qp->qp_num);
		CHECK(!memcmp(a->bytes, b->bytes, 50000));
	}
}

static void uc(struct end *a, struct end *b)
{
	struct ibv_sge good = piece(a, 0, 64), bad = good;

	change_kind(a, IBV_QPT_UC);
	change_kind(b, IBV_QPT_UC);
	CHECK(!to_init(a->qp, IBV_ACCESS_REMOTE_WRITE) && !to_init(b->qp, IBV_ACCESS_REMOTE_WRITE));
	CHECK(!to_rtr_uc(a->qp, b->qp->qp_num) && !to_rtr_uc(b->qp, a->qp->qp_num));
	CHECK(!to_rts_psn(a->qp) && !to_rts_psn(b->qp));
	uc_messages(a, b);
	uc_messages(b, a);
	uc_losses(a, b);
	/* What wants an answer is not for it. */
	CHECK(post(a, remote(request(1, IBV_WR_RDMA_READ, &good, 1), b, 0)) != 0);
	CHECK(post(a, atomic(1, 0, &good, b, 0, 1, 1)) != 0);
	CHECK(post(a, request(1, IBV_WR_SEND_WITH_INV, NULL, 0)) != 0);
	/* A fault of this side's stops what it sends, and nothing else. */
	bad.lkey ^= 1;
	CHECK(!post(a, request(1, IBV_WR_SEND, &bad, 1)));
	CHECK(!post(a, request(2, IBV_WR_SEND, &good, 1)));
	COMPLETES(a, 1, IBV_WC_LOC_PROT_ERR);
	COMPLETES(a, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK(state_of(a->qp) == IBV_QPS_SQE);
	uc_messages(b, a);
	CHECK(!to_state(a->qp, IBV_QPS_RTS));
	uc_messages(a, b);
	puts("uc=ok");
}

static int post_srq(struct ibv_srq *srq, uint64_t wr_id, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sge, .num_sge = 1 }, *bad;

	return ibv_post_srq_recv(srq, &wr, &bad);
}

static void set_limit(struct ibv_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };

	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &attr) && attr.max_wr == 16 && attr.max_sge == 2);
}

static int has_event(struct end *end)
{
	struct pollfd wait = { .fd = end->context->async_fd, .events = POLLIN };

	return poll(&wait, 1, 0) == 1;
}

static void srq_event_is(struct end *end, struct ibv_srq *srq)
{
	struct pollfd wait = { .fd = end->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	do {
		CHECK(poll(&wait, 1, 90000) == 1);
		CHECK(!ibv_get_async_event(end->context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_COMM_EST);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
}

/* Two connections whose receives are from one queue. */
static void shared(struct end *a, struct end *b)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(b->pd, &init);
	struct end a2 = *a, b2 = *b, *from[2] = { a, &a2 };
	struct ibv_srq_attr attr;
	uint32_t turns[2] = { 0, 0 };
	struct ibv_sge sge;
	struct ibv_wc wc;
	int round, i;

	CHECK(srq);
	CHECK(!ibv_destroy_qp(b->qp));
	b->qp = new_qp_of(b, b->pd, IBV_QPT_RC, srq);
	a2.qp = new_qp(a, a->pd);
	b2.qp = new_qp_of(b, b->pd, IBV_QPT_RC, srq);
	connect_both(a, b);
	connect_both(&a2, &b2);
	sge = piece(b, 0, 64);
	CHECK(post_recv(b, 1, &sge, 1) == EINVAL);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 16; i++) {
			sge = piece(b, 10000 * i, 10000);
			CHECK(!post_srq(srq, i, &sge));
		}
		CHECK(post_srq(srq, i, &sge) == ENOMEM);
		set_limit(srq, 5);
		for (i = 0; i < 16; i++) {
			a->bytes[20000 * i] = i;
			sge = piece(a, 20000 * i, 1 + (i * 631) % 10000);
			CHECK(!post(from[i & 1], request(i, IBV_WR_SEND, &sge, 1)));
		}
		turns[0] = 0;
		turns[1] = 1;
		for (i = 0; i < 16; i++) {
			wc = completion(b);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id < 16);
			/* Of each connection in order, and each in memory of its own. */
			uint32_t *turn = &turns[wc.qp_num == b2.qp->qp_num];

			CHECK(wc.src_qp == from[*turn & 1]->qp->qp_num);
			CHECK(wc.byte_len == 1 + (*turn * 631) % 10000);
			CHECK(b->bytes[10000 * wc.wr_id] == *turn);
			*turn += 2;
		}
		for (i = 0; i < 16; i++)
			CHECK(completion(a).status == IBV_WC_SUCCESS);
		srq_event_is(b, srq);
		CHECK(!has_event(b));
		CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
	}
	/* Fewer than that are there already. */
	set_limit(srq, 1);
	srq_event_is(b, srq);
	/* Both find none, and both are told when there are some. */
	sge = piece(a, 0, 8);
	CHECK(!post(a, request(1, IBV_WR_SEND, &sge, 1)));
	CHECK(!post(&a2, request(2, IBV_WR_SEND, &sge, 1)));
	usleep(50000);
	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0);
	sge = piece(b, 0, 8);
	CHECK(!post_srq(srq, 7, &sge) && !post_srq(srq, 7, &sge));
	CHECK(completion(a).status == IBV_WC_SUCCESS && completion(a).status == IBV_WC_SUCCESS);
	CHECK(completion(b).wr_id == 7 && completion(b).wr_id == 7);
	/* One of them ends; what is in the queue is the other's. */
	CHECK(!post_srq(srq, 8, &sge));
	CHECK(!to_state(b->qp, IBV_QPS_ERR));
	event_is(b, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(ibv_poll_cq(b->cq, 1, &wc) == 0);
	sge = piece(a, 0, 8);
	CHECK(!post(&a2, request(2, IBV_WR_SEND, &sge, 1)));
	COMPLETES(&a2, 2, IBV_WC_SUCCESS);
	COMPLETES(&b2, 8, IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(a2.qp) && !ibv_destroy_qp(b2.qp));
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(!ibv_destroy_qp(b->qp) && !ibv_destroy_srq(srq));
	b->qp = NULL;
	puts("srq=ok");
}

static union ibv_gid own_gid(struct end *end)
{
	union ibv_gid gid;

	CHECK(!ibv_query_gid(end->context, 1, 0, &gid));
	return gid;
}

static struct ibv_ah *to_group_or_port(struct end *end, const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = { .dlid = 0xc001, .port_num = 1 };
	struct ibv_ah *ah;

	attr.is_global = !!gid;
	if (gid)
		attr.grh.dgid = *gid;
	attr.grh.hop_limit = 64;
	ah = ibv_create_ah(end->pd, &attr);
	CHECK(ah);
	return ah;
}

static struct ibv_send_wr datagram(uint64_t wr_id, struct ibv_sge *sge, struct ibv_ah *ah, uint32_t number,
				   uint32_t qkey)
{
	struct ibv_send_wr wr = request(wr_id, IBV_WR_SEND, sge, 1);

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = number;
	wr.wr.ud.remote_qkey = qkey;
	return wr;
}

static void one_datagram(struct end *a, struct end *b, uint32_t length, int imm, int routed)
{
	union ibv_gid from = own_gid(a), to = own_gid(b);
	struct ibv_ah *ah = to_group_or_port(a, routed ? &to : NULL);
	struct ibv_sge sge = piece(a, 7, length), place[2] = { piece(b, 100, 17), piece(b, 200, MTU + GRH) };
	struct ibv_send_wr wr;
	uint8_t whole[GRH + MTU];
	struct ibv_wc wc;

	fill(a->bytes, MTU + 7);
	memset(b->bytes, 0xee, 2 * MTU);
	CHECK(!post_recv(b, 1, place, 2));
	wr = datagram(2, &sge, ah, b->qp->qp_num, QKEY);
	wr.opcode = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
	CHECK(!post(a, wr));
	/* It is not asked for any more. */
	CHECK(!ibv_destroy_ah(ah));
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	wc = RECEIVED(b, 1, GRH + length, a->qp->qp_num);
	CHECK(wc.opcode == IBV_WC_RECV && !!(wc.wc_flags & IBV_WC_WITH_IMM) == imm);
	CHECK(!imm || wc.imm_data == htobe32(0x12345678));
	memcpy(whole, b->bytes + 100, 17);
	memcpy(whole + 17, b->bytes + 200, GRH + length - 17);
	CHECK(!memcmp(whole + GRH, a->bytes + 7, length));
	CHECK(!!(wc.wc_flags & IBV_WC_GRH) == routed);
	if (routed)
		CHECK(whole[0] == 0x60 && !memcmp(whole + 8, &from, 16) && !memcmp(whole + 24, &to, 16));
	CHECK(b->bytes[117] == 0xee && b->bytes[200 + GRH + length - 17] == 0xee);
}

/* What comes behind them finds the receives that they did not get. */
static void lost_datagrams(struct end *a, struct end *b)
{
	struct ibv_ah *ah = to_group_or_port(a, NULL);
	struct ibv_sge sge = piece(a, 0, 100), to = piece(b, 0, 200), small = piece(b, 0, GRH + 99);
	struct ibv_sge other_place = piece(b, 4096, 200);
	struct end other = *b;

	other.qp = new_qp_of(b, b->pd, IBV_QPT_UD, NULL);
	to_datagrams(other.qp);
	/* No receive: behind it one that another queue pair gets. */
	CHECK(!post_recv(&other, 1, &other_place, 1));
	CHECK(!post(a, datagram(1, &sge, ah, b->qp->qp_num, QKEY)));
	CHECK(!post(a, datagram(2, &sge, ah, other.qp->qp_num, QKEY)));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	RECEIVED(&other, 1, GRH + 100, a->qp->qp_num);
	CHECK(!post_recv(b, 2, &small, 1) && !post_recv(b, 3, &to, 1));
	/* Another key; nobody; no host; one of another kind. */
	CHECK(!post(a, datagram(3, &sge, ah, b->qp->qp_num, QKEY ^ 1)));
	CHECK(!post(a, datagram(4, &sge, ah, b->qp->qp_num ^ 0x3333, QKEY)));
	CHECK(!post(a, datagram(5, &sge, ah, 31 << 19 | 77, QKEY)));
	/* Too much for its receive, and the right one, which says which key by not saying one. */
	CHECK(!post(a, datagram(6, &sge, ah, b->qp->qp_num, QKEY)));
	CHECK(!post(a, datagram(7, &sge, ah, b->qp->qp_num, 1U << 31)));
	COMPLETES(a, 3, IBV_WC_SUCCESS);
	COMPLETES(a, 4, IBV_WC_SUCCESS);
	COMPLETES(a, 5, IBV_WC_SUCCESS);
	COMPLETES(a, 6, IBV_WC_SUCCESS);
	COMPLETES(a, 7, IBV_WC_SUCCESS);
	COMPLETES(b, 2, IBV_WC_LOC_LEN_ERR);
	RECEIVED(b, 3, GRH + 100, a->qp->qp_num);
	CHECK(!ibv_destroy_qp(other.qp));
	/* What cannot be sent. */
	sge = piece(a, 0, MTU + 1);
	CHECK(post(a, datagram(1, &sge, ah, b->qp->qp_num, QKEY)) == EINVAL);
	sge = piece(a, 0, 8);
	sge.lkey ^= 1;
	CHECK(!post(a, datagram(1, &sge, ah, b->qp->qp_num, QKEY)));
	COMPLETES(a, 1, IBV_WC_LOC_PROT_ERR);
	CHECK(state_of(a->qp) == IBV_QPS_SQE && !to_state(a->qp, IBV_QPS_RTS));
	CHECK(!ibv_destroy_ah(ah));
}

static void datagrams(struct end *a, struct end *b)
{
	static const uint32_t lengths[] = { 0, 1, 8, 63, 64, 1000, 4095, MTU };
	struct ibv_ah *ah = to_group_or_port(a, NULL);
	struct ibv_sge sge = piece(a, 0, MTU), to = piece(b, 0, MTU + GRH);
	int round, i;

	change_kind(a, IBV_QPT_UD);
	change_kind(b, IBV_QPT_UD);
	to_datagrams(a->qp);
	to_datagrams(b->qp);
	for (i = 0; i < 8; i++)
		for (round = 0; round < 4; round++) {
			one_datagram(a, b, lengths[i], round & 1, !!(round & 2));
			one_datagram(b, a, lengths[i], round & 1, !!(round & 2));
		}
	/* More than a ring has room for, with receives for all. */
	for (round = 0; round < 10; round++) {
		for (i = 0; i < DEPTH; i++)
			CHECK(!post_recv(b, i, &to, 1));
		for (i = 0; i < DEPTH; i++)
			CHECK(!post(a, datagram(i, &sge, ah, b->qp->qp_num, QKEY)));
		for (i = 0; i < DEPTH; i++) {
			COMPLETES(a, i, IBV_WC_SUCCESS);
			RECEIVED(b, i, MTU + GRH, a->qp->qp_num);
		}
	}
	CHECK(!ibv_destroy_ah(ah));
	lost_datagrams(a, b);
	puts("datagrams=ok");
}

/* A queue pair is in 64 groups at most; to be in one of them once more takes no place. */
static void many_groups(struct end *end, union ibv_gid group)
{
	int i;

	group.raw[14] = 0x77;
	for (i = 0; i < 64; i++) {
		group.raw[15] = i;
		CHECK(!ibv_attach_mcast(end->qp, &group, 0xc001));
	}
	group.raw[15] = 64;
	CHECK(ibv_attach_mcast(end->qp, &group, 0xc001) == ENOMEM);
	/* By another LID, as uverbs itself knows what is attached by one. */
	group.raw[15] = 5;
	CHECK(!ibv_attach_mcast(end->qp, &group, 0xc002));
	CHECK(!ibv_detach_mcast(end->qp, &group, 0xc001));
	group.raw[15] = 64;
	CHECK(ibv_attach_mcast(end->qp, &group, 0xc001) == ENOMEM);
	group.raw[15] = 5;
	CHECK(!ibv_detach_mcast(end->qp, &group, 0xc002));
	group.raw[15] = 64;
	CHECK(!ibv_attach_mcast(end->qp, &group, 0xc001));
	for (i = 0; i <= 64; i++) {
		group.raw[15] = i;
		CHECK(i == 5 || !ibv_detach_mcast(end->qp, &group, 0xc001));
	}
}

/* A group has members of both devices; who sends is one. */
static void groups(struct end *a, struct end *b)
{
	union ibv_gid group = { .raw = { 0xff, 0x0e, [14] = 0x12, 0x34 } }, others = group;
	struct ibv_sge sge = piece(a, 0, 500), to = piece(b, 0, 1000), own = piece(a, 4096, 1000);
	struct ibv_ah *ah, *other_ah;
	struct end b2 = *b;
	int round;

	others.raw[15]++;
	change_kind(a, IBV_QPT_UD);
	change_kind(b, IBV_QPT_UD);
	b2.qp = new_qp_of(b, b->pd, IBV_QPT_UD, NULL);
	to_datagrams(a->qp);
	to_datagrams(b->qp);
	to_datagrams(b2.qp);
	ah = to_group_or_port(a, &group);
	other_ah = to_group_or_port(a, &others);
	CHECK(!ibv_attach_mcast(b->qp, &group, 0xc001) && !ibv_attach_mcast(a->qp, &group, 0xc001));
	CHECK(!ibv_attach_mcast(b2.qp, &others, 0xc001));
	for (round = 0; round < 20; round++) {
		fill(a->bytes, 500);
		CHECK(!post_recv(b, 1, &to, 1) && !post_recv(a, 2, &own, 1));
		CHECK(!post(a, datagram(3, &sge, ah, 0xffffff, QKEY)));
		/* In either order. */
		CHECK(completion(a).status == IBV_WC_SUCCESS);
		CHECK(completion(a).status == IBV_WC_SUCCESS);
		RECEIVED(b, 1, GRH + 500, a->qp->qp_num);
		CHECK(!memcmp(b->bytes + 24, &group, 16));
		CHECK(!memcmp(b->bytes + GRH, a->bytes, 500));
		CHECK(!memcmp(a->bytes + 4096 + GRH, a->bytes, 500));
	}
	/* Who has left hears nothing, and its receive is for who writes to it. */
	CHECK(!ibv_detach_mcast(b->qp, &group, 0xc001) && ibv_detach_mcast(b->qp, &group, 0xc001));
	CHECK(!post_recv(b, 1, &to, 1) && !post_recv(&b2, 4, &to, 1) && !post_recv(a, 2, &own, 1));
	CHECK(!post(a, datagram(3, &sge, ah, 0xffffff, QKEY)));
	CHECK(completion(a).status == IBV_WC_SUCCESS && completion(a).status == IBV_WC_SUCCESS);
	CHECK(!post(a, datagram(3, &sge, other_ah, 0xffffff, QKEY)));
	COMPLETES(a, 3, IBV_WC_SUCCESS);
	RECEIVED(&b2, 4, GRH + 500, a->qp->qp_num);
	CHECK(!post(a, datagram(3, &sge, ah, b->qp->qp_num, QKEY)));
	COMPLETES(a, 3, IBV_WC_SUCCESS);
	RECEIVED(b, 1, GRH + 500, a->qp->qp_num);
	many_groups(b, group);
	CHECK(!ibv_detach_mcast(a->qp, &group, 0xc001) && ibv_destroy_qp(b2.qp) == EBUSY);
	CHECK(!ibv_detach_mcast(b2.qp, &others, 0xc001) && !ibv_destroy_qp(b2.qp));
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(other_ah));
	puts("groups=ok");
}

int main(int count, char **words)
{
	static const struct test_command commands[] = {
		{ "atomics", atomics }, { "invalidates", invalidates }, { "uc", uc },
		{ "srq", shared }, { "datagrams", datagrams }, { "groups", groups },
	};

	return run_command(commands, sizeof(commands) / sizeof(*commands), count, words);
}
