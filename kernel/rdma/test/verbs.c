// SPDX-License-Identifier: GPL-2.0
/*
 * Programs on the distribution's libibverbs, for the tests: `verbs COMMAND DEVICE DEVICE`. Every one
 * ends with status 0 if all was as it should be; what was not is said on standard output.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "ends.h"

/* Of one length, by all operations, from several pieces to several that are cut elsewhere. */
static void one_length(struct end *a, struct end *b, uint32_t length)
{
	uint32_t cut = length ? random_number() % length : 0;
	struct ibv_sge from[2] = { piece(a, 3, cut), piece(a, 5 + cut, length - cut) };
	struct ibv_sge to[3] = { piece(b, 1, length / 3), piece(b, 7 + length / 3, length / 3),
				 piece(b, 100 + length, length - 2 * (length / 3)) };
	uint8_t *sent = malloc(length + 1);
	struct ibv_wc wc;
	int imm;

	CHECK(sent);
	for (imm = 0; imm < 2; imm++) {
		fill(a->bytes, 2 * length + 200);
		memset(b->bytes, 0, 2 * length + 200);
		memcpy(sent, a->bytes + 3, cut);
		memcpy(sent + cut, a->bytes + 5 + cut, length - cut);
		CHECK(!post_recv(b, 1, to, 3));
		CHECK(!post(a, request(2, imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, from, 2)));
		COMPLETES(a, 2, IBV_WC_SUCCESS);
		wc = completion(b);
		CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(wc.byte_len == length && wc.src_qp == a->qp->qp_num);
		CHECK(!!(wc.wc_flags & IBV_WC_WITH_IMM) == imm);
		CHECK(!imm || wc.imm_data == htobe32(0x12345678));
		CHECK(!memcmp(b->bytes + 1, sent, length / 3));
		CHECK(!memcmp(b->bytes + 7 + length / 3, sent + length / 3, length / 3));
		CHECK(!memcmp(b->bytes + 100 + length, sent + 2 * (length / 3),
			      length - 2 * (length / 3)));
		CHECK(b->bytes[0] == 0 && b->bytes[99 + length] == 0);

		memset(b->bytes, 0, 2 * length + 200);
		if (imm)
			CHECK(!post_recv(b, 3, NULL, 0));
		CHECK(!post(a, remote(request(4, imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
					      from, 2), b, 11)));
		COMPLETES(a, 4, IBV_WC_SUCCESS);
		if (imm) {
			wc = completion(b);
			CHECK(wc.wr_id == 3 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
			CHECK(wc.byte_len == length && wc.imm_data == htobe32(0x12345678));
		}
		CHECK(!memcmp(b->bytes + 11, sent, length));
		CHECK(b->bytes[10] == 0 && b->bytes[11 + length] == 0);
	}
	fill(b->bytes, length + 20);
	memset(a->bytes, 0, 2 * length + 200);
	CHECK(!post(a, remote(request(5, IBV_WR_RDMA_READ, from, 2), b, 13)));
	wc = completion(a);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ);
	CHECK(!memcmp(a->bytes + 3, b->bytes + 13, cut));
	CHECK(!memcmp(a->bytes + 5 + cut, b->bytes + 13 + cut, length - cut));
	free(sent);
}

/* Many of several kinds under way, which end in order. */
static void many(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 70000), to = piece(b, 0, 70000), back = piece(a, 1 << 20, 9000);
	int round, i;

	fill(a->bytes, 70000);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 16; i++)
			CHECK(!post_recv(b, i, &to, 1));
		for (i = 0; i < 16; i++) {
			CHECK(!post(a, remote(request(3 * i, IBV_WR_RDMA_READ, &back, 1), b, 0)));
			CHECK(!post(a, request(3 * i + 1, IBV_WR_SEND, &from, 1)));
			CHECK(!post(a, remote(request(3 * i + 2, IBV_WR_RDMA_WRITE, &from, 1), b,
					      1 << 20)));
		}
		for (i = 0; i < 48; i++)
			COMPLETES(a, i, IBV_WC_SUCCESS);
		for (i = 0; i < 16; i++)
			COMPLETES(b, i, IBV_WC_SUCCESS);
		CHECK(!memcmp(a->bytes, b->bytes, 70000));
		CHECK(!memcmp(a->bytes, b->bytes + (1 << 20), 70000));
	}
}

/* What a READ brings is sent by the request behind it, which waits for that. */
static void fence(struct end *a, struct end *b)
{
	struct ibv_sge back = piece(a, 0, 9000), to = piece(b, 1 << 20, 9000);
	struct ibv_send_wr wr;
	int round;

	for (round = 0; round < 10; round++) {
		fill(b->bytes, 9000);
		memset(a->bytes, 0, 9000);
		CHECK(!post_recv(b, 3, &to, 1));
		CHECK(!post(a, remote(request(1, IBV_WR_RDMA_READ, &back, 1), b, 0)));
		wr = request(2, IBV_WR_SEND, &back, 1);
		wr.send_flags |= IBV_SEND_FENCE;
		CHECK(!post(a, wr));
		COMPLETES(a, 1, IBV_WC_SUCCESS);
		COMPLETES(a, 2, IBV_WC_SUCCESS);
		COMPLETES(b, 3, IBV_WC_SUCCESS);
		CHECK(!memcmp(b->bytes, b->bytes + (1 << 20), 9000));
	}
}

static void transfers(struct end *a, struct end *b)
{
	static const uint32_t lengths[] = { 0, 1, 2, 8, 63, 64, 4095, 4096, 32767, 32768, 32769,
					    65536, 262144, 1000003 };
	size_t i;

	connect_both(a, b);
	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		one_length(a, b, lengths[i]);
		one_length(b, a, lengths[i]);
	}
	many(a, b);
	fence(a, b);
	puts("transfers=ok");
}

/* A completion that is waited for, of a peer that sends later; and of errors. */
static void waits(struct end *a, struct end *b)
{
	struct ibv_sge sge = piece(b, 0, 100);
	struct pollfd wait = { .fd = b->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *unused;
	int round;

	connect_both(a, b);
	for (round = 0; round < 200; round++) {
		CHECK(!post_recv(b, 1, &sge, 1));
		CHECK(!ibv_req_notify_cq(b->cq, round & 1));
		if (round % 50 == 0)
			usleep(100000);
		CHECK(poll(&wait, 1, 0) == 0);
		struct ibv_sge from = piece(a, 0, 100);
		struct ibv_send_wr wr = request(2, IBV_WR_SEND, &from, 1);

		wr.send_flags |= round & 1 ? IBV_SEND_SOLICITED : 0;
		CHECK(!post(a, wr));
		CHECK(poll(&wait, 1, 90000) == 1);
		CHECK(!ibv_get_cq_event(b->channel, &cq, &unused) && cq == b->cq);
		ibv_ack_cq_events(cq, 1);
		COMPLETES(b, 1, IBV_WC_SUCCESS);
		COMPLETES(a, 2, IBV_WC_SUCCESS);
	}
	/* What is not solicited does not wake who waits for that. */
	CHECK(!post_recv(b, 1, &sge, 1) && !ibv_req_notify_cq(b->cq, 1));
	CHECK(!post(a, request(2, IBV_WR_SEND, NULL, 0)));
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	CHECK(poll(&wait, 1, 50) == 0);
	COMPLETES(b, 1, IBV_WC_SUCCESS);
	/* An error does. */
	CHECK(!post_recv(b, 1, &sge, 1) && !to_state(b->qp, IBV_QPS_ERR));
	CHECK(poll(&wait, 1, 90000) == 1);
	CHECK(!ibv_get_cq_event(b->channel, &cq, &unused));
	ibv_ack_cq_events(cq, 1);
	COMPLETES(b, 1, IBV_WC_WR_FLUSH_ERR);
	puts("waits=ok");
}

/* Where Linux has all memory on x86-64, but for machines that choose another place at random. */
#define KERNEL_ADDRESS 0xffff888000100000ULL

static void remote_lies(struct end *a, struct end *b)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	struct ibv_mr *weak = ibv_reg_mr(b->pd, b->bytes, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_pd *other = ibv_alloc_pd(b->context);
	struct ibv_mr *foreign = ibv_reg_mr(other, b->bytes, BYTES, ALL_ACCESS);
	struct ibv_mr *gone = ibv_reg_mr(b->pd, b->bytes, BYTES, ALL_ACCESS);
	uint32_t gone_key = gone->rkey;
	struct ibv_sge sge = piece(a, 0, 100000);
	struct ibv_send_wr wr;
	int i, bit;

	CHECK(weak && other && foreign && gone && !ibv_dereg_mr(gone));
	fill(a->bytes, BYTES);
	for (i = 0; i < 2; i++) {
		const struct ibv_send_wr good = remote(request(1, opcodes[i], &sge, 1), b, 0);
		const enum ibv_wc_status denied = IBV_WC_REM_ACCESS_ERR;

		for (bit = 0; bit < 32; bit += 5) {
			wr = good;
			wr.wr.rdma.rkey ^= 1U << bit;
			REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		}
		wr = good;
		wr.wr.rdma.rkey = gone_key;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		/* The kernel's, for its own memory. */
		wr.wr.rdma.rkey = 0;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr.wr.rdma.remote_addr = KERNEL_ADDRESS;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr.wr.rdma.remote_addr = good.wr.rdma.remote_addr;
		wr.wr.rdma.rkey = weak->rkey;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr.wr.rdma.rkey = foreign->rkey;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		REFUSED(remote(good, b, -1), ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		REFUSED(remote(good, b, BYTES - 99999), ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		wr = good;
		wr.wr.rdma.remote_addr = UINT64_MAX - 50000;
		REFUSED(wr, ALL_ACCESS, denied, IBV_EVENT_QP_ACCESS_ERR);
		/* The key would do, the queue pair does not. */
		REFUSED(good, IBV_ACCESS_LOCAL_WRITE | (i ? IBV_ACCESS_REMOTE_WRITE
							  : IBV_ACCESS_REMOTE_READ),
			denied, IBV_EVENT_QP_ACCESS_ERR);
	}
	CHECK(!ibv_dereg_mr(weak) && !ibv_dereg_mr(foreign) && !ibv_dealloc_pd(other));
	puts("remote_lies=ok");
}

/* More completions than a queue has room for. */
static void overflow(struct end *a)
{
	struct pollfd wait = { .fd = a->context->async_fd, .events = POLLIN };
	struct ibv_cq *cq = new_cq(a, 1);
	struct end small = *a;
	struct ibv_async_event event;
	struct ibv_wc wc;

	CHECK(cq->cqe == 1);
	small.cq = cq;
	small.qp = new_qp(&small, a->pd);
	CHECK(!to_init(small.qp, 0) && !to_state(small.qp, IBV_QPS_ERR));
	CHECK(!post(&small, request(1, IBV_WR_SEND, NULL, 0)));
	CHECK(!post(&small, request(2, IBV_WR_SEND, NULL, 0)));
	do {
		CHECK(poll(&wait, 1, 90000) == 1);
		CHECK(!ibv_get_async_event(a->context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_PORT_ACTIVE);
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	COMPLETES(&small, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(!ibv_destroy_qp(small.qp) && !ibv_destroy_cq(cq));
}

/* Faults of this side's, and of its own receives. */
static void local_faults(struct end *a, struct end *b)
{
	struct ibv_mr *constant = ibv_reg_mr(b->pd, b->bytes, BYTES, 0);
	struct ibv_sge good = piece(a, 0, 64), bad = good, to = piece(b, 0, 63);
	int i;

	CHECK(constant);
	for (i = 0; i < 5; i++) {
		connect_both(a, b);
		bad = good;
		if (i == 0)
			bad.lkey ^= 1;
		else if (i < 3)
			bad.addr = (uintptr_t)a->bytes + (i == 1 ? BYTES - 63 : -1);
		else
			/* By which the kernel names its own memory, and what could be that. */
			bad.lkey = 0;
		if (i == 4)
			bad.addr = KERNEL_ADDRESS;
		CHECK(!post(a, remote(request(1, IBV_WR_RDMA_WRITE, &good, 1), b, 0)));
		CHECK(!post(a, remote(request(2, IBV_WR_RDMA_WRITE, &bad, 1), b, 0)));
		CHECK(!post(a, remote(request(3, IBV_WR_RDMA_WRITE, &good, 1), b, 0)));
		COMPLETES(a, 1, IBV_WC_SUCCESS);
		COMPLETES(a, 2, IBV_WC_LOC_PROT_ERR);
		COMPLETES(a, 3, IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(a->qp) == IBV_QPS_ERR);
	}
	/* A receive that is too small, and one that may not be written to. */
	connect_both(a, b);
	CHECK(!post_recv(b, 1, &to, 1) && !post_recv(b, 2, &to, 1));
	CHECK(!post(a, request(3, IBV_WR_SEND, &good, 1)));
	COMPLETES(b, 1, IBV_WC_LOC_LEN_ERR);
	COMPLETES(b, 2, IBV_WC_WR_FLUSH_ERR);
	COMPLETES(a, 3, IBV_WC_REM_INV_REQ_ERR);
	event_is(b, IBV_EVENT_QP_REQ_ERR);
	connect_both(a, b);
	to = piece(b, 0, 64);
	to.lkey = constant->lkey;
	CHECK(!post_recv(b, 1, &to, 1));
	CHECK(!post(a, request(3, IBV_WR_SEND, &good, 1)));
	COMPLETES(b, 1, IBV_WC_LOC_PROT_ERR);
	COMPLETES(a, 3, IBV_WC_REM_OP_ERR);
	event_is(b, IBV_EVENT_QP_FATAL);
	CHECK(!ibv_dereg_mr(constant));
	for (i = 0; i < 2; i++) {
		connect_both(a, b);
		to.lkey = 0;
		to.addr = i ? KERNEL_ADDRESS : (uintptr_t)b->bytes;
		CHECK(!post_recv(b, 1, &to, 1));
		CHECK(!post(a, request(3, IBV_WR_SEND, &good, 1)));
		COMPLETES(b, 1, IBV_WC_LOC_PROT_ERR);
		COMPLETES(a, 3, IBV_WC_REM_OP_ERR);
		event_is(b, IBV_EVENT_QP_FATAL);
	}
	/* More than the queues have room for; too many pieces; what the device does not do. */
	connect_both(a, b);
	struct ibv_sge five[5] = { good, good, good, good, good };

	for (i = 0; i < DEPTH; i++)
		CHECK(!post_recv(b, i, &good, 1));
	CHECK(post_recv(b, i, &good, 1) == ENOMEM);
	CHECK(post(a, request(1, IBV_WR_SEND, five, 5)) == EINVAL);
	CHECK(post(a, request(1, IBV_WR_LOCAL_INV, five, 1)) != 0);
	overflow(a);
	puts("local_faults=ok");
}

/* Receiver not ready, for a while and for good; a queue pair that is not ready; nobody. */
static void not_ready(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 64), to = piece(b, 0, 64);

	connect_both(a, b);
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	CHECK(!post(a, request(2, IBV_WR_SEND, &from, 1)));
	usleep(50000);
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0);
	CHECK(!post_recv(b, 3, &to, 1) && !post_recv(b, 4, &to, 1));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	COMPLETES(b, 3, IBV_WC_SUCCESS);
	COMPLETES(b, 4, IBV_WC_SUCCESS);
	connect_with(a, b, ALL_ACCESS, 2);
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	COMPLETES(a, 1, IBV_WC_RNR_RETRY_EXC_ERR);

	/* The peer comes later: in INIT first. It may stand still, and is waited for, for seconds. */
	CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_state(b->qp, IBV_QPS_RESET));
	CHECK(!to_init(a->qp, ALL_ACCESS) && !to_rtr(a->qp, b->qp->qp_num));
	CHECK(!to_rts_patient(a->qp, 7, 22));
	CHECK(!to_init(b->qp, ALL_ACCESS) && !post_recv(b, 3, &to, 1));
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	usleep(20000);
	CHECK(!to_rtr(b->qp, a->qp->qp_num));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	COMPLETES(b, 3, IBV_WC_SUCCESS);

	/* It never comes. */
	CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_state(b->qp, IBV_QPS_RESET));
	CHECK(!to_init(a->qp, ALL_ACCESS) && !to_rtr(a->qp, b->qp->qp_num) && !to_rts(a->qp, 7));
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	COMPLETES(a, 1, IBV_WC_RETRY_EXC_ERR);
	/* There is no such queue pair, and no such host. */
	for (int i = 0; i < 2; i++) {
		CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_init(a->qp, ALL_ACCESS));
		CHECK(!to_rtr(a->qp, i ? 31 << 19 | 77 : b->qp->qp_num ^ 0x4321) && !to_rts(a->qp, 7));
		CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
		COMPLETES(a, 1, IBV_WC_RETRY_EXC_ERR);
	}
	/* It goes to ERR with the connection there. */
	connect_both(a, b);
	CHECK(!to_state(b->qp, IBV_QPS_ERR));
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	COMPLETES(a, 1, IBV_WC_RETRY_EXC_ERR);
	/* It is destroyed. */
	connect_both(a, b);
	CHECK(!ibv_destroy_qp(b->qp));
	CHECK(!post(a, request(1, IBV_WR_SEND, &from, 1)));
	COMPLETES(a, 1, IBV_WC_RETRY_EXC_ERR);
	b->qp = new_qp(b, b->pd);
	puts("not_ready=ok");
}

/* States by the book (IBTA 10.3.1). */
static void states(struct end *a, struct end *b)
{
	struct ibv_sge sge = piece(a, 0, 8);
	struct ibv_wc wc;

	CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_state(b->qp, IBV_QPS_RESET));
	CHECK(post_recv(a, 1, &sge, 1) == EINVAL);
	CHECK(post(a, request(1, IBV_WR_SEND, &sge, 1)) == EINVAL);
	CHECK(to_rtr(a->qp, b->qp->qp_num) && to_rts(a->qp, 7));
	CHECK(!to_init(a->qp, ALL_ACCESS));
	CHECK(to_init(a->qp, IBV_ACCESS_MW_BIND) == EINVAL);
	CHECK(to_rts(a->qp, 7));
	CHECK(!post_recv(a, 1, &sge, 1));
	CHECK(post(a, request(2, IBV_WR_SEND, &sge, 1)) == EINVAL);
	CHECK(!to_rtr(a->qp, b->qp->qp_num));
	CHECK(post(a, request(2, IBV_WR_SEND, &sge, 1)) == EINVAL);
	CHECK(!to_rts(a->qp, 7) && state_of(a->qp) == IBV_QPS_RTS);
	CHECK(to_init(a->qp, ALL_ACCESS) == EINVAL);
	CHECK(!to_state(a->qp, IBV_QPS_ERR) && state_of(a->qp) == IBV_QPS_ERR);
	COMPLETES(a, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(!post(a, request(2, IBV_WR_SEND, &sge, 1)) && !post_recv(a, 3, &sge, 1));
	COMPLETES(a, 2, IBV_WC_WR_FLUSH_ERR);
	COMPLETES(a, 3, IBV_WC_WR_FLUSH_ERR);
	CHECK(to_rts(a->qp, 7) == EINVAL);
	/* What was not taken goes with the reset. */
	CHECK(!post_recv(a, 4, &sge, 1) && !to_state(a->qp, IBV_QPS_RESET));
	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0);

	/* SQD: what is posted waits, and who wants to hears that nothing is under way. */
	connect_both(a, b);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	CHECK(!ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	event_is(a, IBV_EVENT_SQ_DRAINED);
	CHECK(!post(a, remote(request(5, IBV_WR_RDMA_WRITE, &sge, 1), b, 0)));
	usleep(20000);
	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0);
	CHECK(!to_state(a->qp, IBV_QPS_RTS));
	COMPLETES(a, 5, IBV_WC_SUCCESS);
	puts("states=ok");
}

/* Keys say nothing of each other, and memory counts as locked. */
static void limits(struct end *a, struct end *b)
{
	struct rlimit limit = { 1 << 20, 1 << 20 };
	struct ibv_mr *mrs[64];
	uint8_t *pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t steps = 0;
	int i;

	(void)b;
	for (i = 0; i < 64; i++) {
		mrs[i] = ibv_reg_mr(a->pd, a->bytes, 4096, ALL_ACCESS);
		CHECK(mrs[i] && mrs[i]->rkey);
		if (i && mrs[i]->rkey - mrs[i - 1]->rkey < 1 << 16)
			steps++;
	}
	/* One in 65536 of random ones. */
	CHECK(steps < 3);
	for (i = 0; i < 64; i++)
		CHECK(!ibv_dereg_mr(mrs[i]));
	CHECK(!ibv_reg_mr(a->pd, a->bytes, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	/* Nothing is mapped behind the first page. */
	CHECK(pages != MAP_FAILED && !munmap(pages + 4096, 4096));
	CHECK(!ibv_reg_mr(a->pd, pages, 2 * 4096, ALL_ACCESS) && errno == EFAULT);
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit) && !setuid(65534));
	CHECK(!ibv_reg_mr(a->pd, a->bytes, BYTES, ALL_ACCESS) && errno == ENOMEM);
	puts("limits=ok");
}

/* Sends without an end, for who kills it or takes its device away. */
static void load(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 100000);
	struct ibv_wc wc;
	int posted = 0;

	connect_both(a, b);
	puts("loading");
	fflush(stdout);
	for (;;) {
		while (posted < DEPTH &&
		       !post(a, remote(request(1, posted & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
					       &from, 1), b, 0)))
			posted++;
		int count = ibv_poll_cq(a->cq, 1, &wc);

		if (count > 0 && wc.status == IBV_WC_SUCCESS) {
			posted--;
			continue;
		}
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		/* The device may go between the two. */
		if (count == 0 && !ibv_query_qp(a->qp, &attr, IBV_QP_STATE, &init) &&
		    attr.qp_state == IBV_QPS_RTS)
			continue;
		puts("load_ended=ok");
		/* The device may be gone. */
		exit(0);
	}
}

int main(int count, char **words)
{
	static const struct test_command commands[] = {
		{ "transfers", transfers }, { "waits", waits },
		{ "remote_lies", remote_lies }, { "local_faults", local_faults },
		{ "not_ready", not_ready }, { "states", states }, { "limits", limits },
		{ "load", load },
	};

	return run_command(commands, sizeof(commands) / sizeof(*commands), count, words);
}
