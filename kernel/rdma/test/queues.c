// SPDX-License-Identifier: GPL-2.0
/*
 * A program that lies in the queues that it has mapped: `queues COMMAND DEVICE DEVICE`. Its own queue pair ends;
 * two others of its go on, as do those of other programs, and the kernel.
 *
 *   lies   one lie after the other
 *   answers  has the answers of what it creates go where they cannot be written
 *   storm  rewrites all of its queues without an end, while it posts; ends when the device does
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include <rdma/ib_user_verbs.h>

#include "../provider/queues.h"
#include "ends.h"

static struct end c, d;

/* The two others. */
static void others_go_on(void)
{
	struct ibv_sge from = piece(&c, 0, 5000), to = piece(&d, 0, 5000);

	fill(c.bytes, 5000);
	memset(d.bytes, 0, 5000);
	CHECK(!post_recv(&d, 7, &to, 1));
	CHECK(!post(&c, request(8, IBV_WR_SEND, &from, 1)));
	COMPLETES(&c, 8, IBV_WC_SUCCESS);
	COMPLETES(&d, 7, IBV_WC_SUCCESS);
	CHECK(!memcmp(c.bytes, d.bytes, 5000));
}

static void call_send(struct end *end)
{
	struct ibv_send_wr *bad;

	ibv_cmd_post_send(end->qp, NULL, &bad);
}

static struct sluice_rdma_send *place_of(struct fast_qp *qp, uint32_t position)
{
	return (void *)(qp->sends + (size_t)(position & qp->send_mask) * qp->send_bytes);
}

/* Connected, and nothing under way. */
static void fresh(struct end *a, struct end *b)
{
	struct ibv_sge sge = piece(a, 0, 8);

	connect_both(a, b);
	CHECK(!post(a, remote(request(1, IBV_WR_RDMA_WRITE, &sge, 1), b, 0)));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
}

/* It was said; the queue pair ends, and works again when it was reset. */
static void is_found_out(struct end *liar, struct end *a, struct end *b)
{
	struct ibv_wc wc;

	event_is(liar, IBV_EVENT_QP_FATAL);
	CHECK(state_of(liar->qp) == IBV_QPS_ERR);
	others_go_on();
	to_fast_qp(a->qp)->words->send_tail = to_fast_qp(a->qp)->send_tail;
	to_fast_qp(b->qp)->words->receive_tail = to_fast_qp(b->qp)->receive_tail;
	CHECK(!to_state(a->qp, IBV_QPS_RESET) && !to_state(b->qp, IBV_QPS_RESET));
	CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0 && ibv_poll_cq(b->cq, 1, &wc) == 0);
	fresh(a, b);
}

static void tails(struct end *a, struct end *b)
{
	static const uint32_t jumps[] = { DEPTH + 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xffffffc0 };
	struct fast_qp *liar = to_fast_qp(a->qp);
	size_t i;

	for (i = 0; i < sizeof(jumps) / sizeof(*jumps); i++) {
		fresh(a, b);
		liar->words->send_tail = liar->send_tail + jumps[i];
		call_send(a);
		is_found_out(a, a, b);
	}
	puts("tails=ok");
}

static void places(struct end *a, struct end *b)
{
	struct ibv_sge sge = piece(a, 0, 8);
	struct fast_qp *liar = to_fast_qp(a->qp);
	struct sluice_rdma_send *place;
	int i, j;

	for (i = 0; i < 14; i++) {
		static const uint32_t opcodes[] = { 7, 8, 10, 0x20, 0x21, 0xf0, 0xffffffff };
		static const uint32_t counts[] = { 5, 17, 0xffffffff };
		static const uint32_t flags[] = { 1 << 3, 1 << 4, 0xffffffff };

		fresh(a, b);
		place = place_of(liar, liar->send_tail);
		memset(place, 0, liar->send_bytes);
		place->wr_id = 1;
		place->opcode = IBV_WR_RDMA_WRITE;
		place->remote_addr = (uintptr_t)b->bytes;
		place->rkey = b->mr->rkey;
		place->sges = 1;
		place->sge[0].addr = sge.addr;
		place->sge[0].length = sge.length;
		place->sge[0].lkey = sge.lkey;
		if (i < 7) {
			place->opcode = opcodes[i];
		} else if (i < 10) {
			place->sges = counts[i - 7];
		} else if (i < 13) {
			place->flags = flags[i - 10];
		} else {
			place->sges = 4;
			for (j = 0; j < 4; j++)
				place->sge[j].length = 0xffffffff;
		}
		liar->words->send_tail = liar->send_tail + 1;
		call_send(a);
		is_found_out(a, a, b);
	}
	puts("places=ok");
}

/* Bytes that stand in the request itself: of any memory, which may change when the call has returned. */
static void inlined(struct end *a, struct end *b)
{
	static const uint32_t lengths[] = { 0, 1, 8, 63, 99, 100 };
	struct ibv_qp_init_attr init = {
		.send_cq = a->cq,
		.recv_cq = a->cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 100 },
		.qp_type = IBV_QPT_RC,
	};
	uint8_t bytes[200], sent[200];
	struct ibv_sge to = piece(b, 0, 200), from[2];
	struct end own = *a;
	struct ibv_send_wr wr;
	size_t i;

	own.qp = ibv_create_qp(a->pd, &init);
	CHECK(own.qp && init.cap.max_inline_data == 100);
	connect_both(&own, b);
	for (i = 0; i < 2 * sizeof(lengths) / sizeof(*lengths); i++) {
		uint32_t length = lengths[i / 2], cut = length / 3;

		fill(bytes, sizeof(bytes));
		memset(b->bytes, 0, 300);
		memcpy(sent, bytes, cut);
		memcpy(sent + cut, bytes + 50, length - cut);
		from[0] = (struct ibv_sge){ .addr = (uintptr_t)bytes, .length = cut };
		from[1] = (struct ibv_sge){ .addr = (uintptr_t)bytes + 50, .length = length - cut };
		wr = request(2, i & 1 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, from, 2);
		wr = i & 1 ? remote(wr, b, 0) : wr;
		wr.send_flags |= IBV_SEND_INLINE;
		CHECK(i & 1 || !post_recv(b, 1, &to, 1));
		CHECK(!post(&own, wr));
		memset(bytes, 0, sizeof(bytes));
		COMPLETES(&own, 2, IBV_WC_SUCCESS);
		if (!(i & 1))
			RECEIVED(b, 1, length, own.qp->qp_num);
		CHECK(!memcmp(b->bytes, sent, length) && b->bytes[length] == 0);
	}
	/* More than it has room for, and what brings bytes back. */
	from[0].length = 101;
	wr = request(2, IBV_WR_SEND, from, 1);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(post(&own, wr) == EINVAL);
	from[0].length = 8;
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(post(&own, wr) == EINVAL);
	for (i = 0; i < 3; i++) {
		struct fast_qp *liar = to_fast_qp(own.qp);
		struct sluice_rdma_send *place = place_of(liar, liar->send_tail);

		memset(place, 0, liar->send_bytes);
		place->opcode = i == 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND;
		place->flags = IBV_SEND_INLINE;
		place->sges = i == 0 ? 101 : i == 1 ? 0xffffffff : 8;
		liar->words->send_tail = liar->send_tail + 1;
		call_send(&own);
		is_found_out(&own, &own, b);
	}
	CHECK(!ibv_destroy_qp(own.qp));
	init.cap.max_inline_data = 257;
	CHECK(!ibv_create_qp(a->pd, &init));
	puts("inlined=ok");
}

/* What a message finds that comes for a receive. */
static void receives(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 64), to = piece(b, 0, 64);
	struct fast_qp *liar = to_fast_qp(b->qp);
	struct sluice_rdma_receive *place;
	struct ibv_wc wc;
	int i;

	for (i = 0; i < 6; i++) {
		fresh(a, b);
		place = (void *)(liar->receives +
				 (size_t)(liar->receive_tail & liar->receive_mask) * liar->receive_bytes);
		if (i < 3) {
			liar->words->receive_tail = liar->receive_tail + (DEPTH + 1) * (i == 0) - i;
		} else {
			CHECK(!post_recv(b, 1, &to, 1));
			place->sges = i == 3 ? 5 : i == 4 ? 0xffffffff : 4;
			for (int j = 0; i == 5 && j < 4; j++)
				place->sge[j].length = 0xffffffff;
		}
		CHECK(!post(a, request(2, IBV_WR_SEND, &from, 1)));
		wc = completion(a);
		CHECK(wc.wr_id == 2 && (wc.status != IBV_WC_SUCCESS) == (i != 5));
		/* The message may be refused first. */
		struct pollfd wait = { .fd = b->context->async_fd, .events = POLLIN };
		struct ibv_async_event event;

		do {
			CHECK(poll(&wait, 1, 90000) == 1);
			CHECK(!ibv_get_async_event(b->context, &event));
			ibv_ack_async_event(&event);
		} while (event.event_type != IBV_EVENT_QP_FATAL);
		CHECK(event.element.qp == b->qp && state_of(b->qp) == IBV_QPS_ERR);
		others_go_on();
		liar->words->receive_tail = liar->receive_tail;
	}
	connect_both(a, b);
	CHECK(!post_recv(b, 1, &to, 1) && !post(a, request(2, IBV_WR_SEND, &from, 1)));
	COMPLETES(b, 1, IBV_WC_SUCCESS);
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	puts("receives=ok");
}

/* What the kernel has written is overwritten: it does not read it. */
static void overwritten(struct end *a, struct end *b)
{
	struct fast_cq *cq = to_fast_cq(a->cq);
	struct fast_qp *qp = to_fast_qp(a->qp);
	struct ibv_sge sge = piece(a, 0, 8);
	int round;

	for (round = 0; round < 100; round++) {
		fresh(a, b);
		memset((void *)cq->places, random_number(), (cq->mask + 1) * sizeof(*cq->places));
		cq->words->tail = random_number();
		qp->words->send_head = random_number();
		qp->words->receive_head = random_number();
		qp->words->send_call = random_number();
		/* Nobody to be called, and the next is in any case. */
		qp->words->receive_call = random_number();
		cq->words->attended = 0;
		struct sluice_rdma_send *place = place_of(qp, qp->send_tail);

		memset(place, 0, qp->send_bytes);
		place->wr_id = 9;
		place->flags = IBV_SEND_SIGNALED;
		place->opcode = IBV_WR_RDMA_WRITE;
		place->remote_addr = (uintptr_t)b->bytes;
		place->rkey = b->mr->rkey;
		place->sges = 1;
		place->sge[0].addr = sge.addr;
		place->sge[0].length = sge.length;
		place->sge[0].lkey = sge.lkey;
		/* Not one of what was there until now. */
		cq->words->tail = cq->head;
		__atomic_store_n(&qp->words->send_tail, ++qp->send_tail, __ATOMIC_RELEASE);
		call_send(a);
		COMPLETES(a, 9, IBV_WC_SUCCESS);
	}
	others_go_on();
	puts("overwritten=ok");
}

/* More was taken than there ever was: the queue is full for good, which is told. */
static void completions(struct end *a)
{
	static const uint32_t jumps[] = { 1, 0x80000000, 0xfffffff0 };
	struct pollfd wait = { .fd = a->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	struct end small = *a;
	int i;

	for (i = 0; i < 3; i++) {
		small.cq = ibv_create_cq(a->context, 4, NULL, NULL, 0);
		CHECK(small.cq);
		small.qp = new_qp(&small, a->pd);
		to_fast_cq(small.cq)->words->head = jumps[i];
		CHECK(!to_init(small.qp, 0) && !to_state(small.qp, IBV_QPS_ERR));
		CHECK(!post(&small, request(1, IBV_WR_SEND, NULL, 0)));
		do {
			CHECK(poll(&wait, 1, 90000) == 1);
			CHECK(!ibv_get_async_event(a->context, &event));
			ibv_ack_async_event(&event);
		} while (event.event_type != IBV_EVENT_CQ_ERR);
		CHECK(event.element.cq == small.cq);
		CHECK(!ibv_destroy_qp(small.qp) && !ibv_destroy_cq(small.cq));
	}
	others_go_on();
	puts("completions=ok");
}

/* Only what it was given, as a whole, shared, and not to be run. */
static void mappings(struct end *a)
{
	size_t page = 4096, bytes = to_fast_qp(a->qp)->bytes;
	int fd = a->context->cmd_fd, i;
	struct ibv_qp *gone;
	void *at;

	for (i = 0; i < 64; i++) {
		CHECK(mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, i * page) == MAP_FAILED);
		CHECK(mmap(NULL, 1 << 30, PROT_READ, MAP_SHARED, fd, i * page) == MAP_FAILED);
		CHECK(mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_SHARED, fd, i * page) == MAP_FAILED);
	}
	/* What is mapped stays when the queue has gone, and nobody looks at it. */
	gone = new_qp(a, a->pd);
	at = to_fast_qp(gone)->words;
	bytes = to_fast_qp(gone)->bytes;
	to_fast_qp(gone)->words = NULL;
	CHECK(!ibv_destroy_qp(gone));
	memset(at, 0xff, bytes);
	CHECK(!munmap(at, bytes));
	others_go_on();
	puts("mappings=ok");
}

static atomic_int storm_over;

static void *rewrite(void *arg)
{
	struct end *end = arg;
	struct fast_qp *qp = to_fast_qp(end->qp);
	struct fast_cq *cq = to_fast_cq(end->cq);
	uint32_t seed = 99;

	while (!storm_over) {
		uint32_t *words = (uint32_t *)qp->words;
		size_t at;

		seed = seed * 1664525 + 1013904223;
		at = (seed >> 4) % (qp->bytes / 4);
		words[at] = seed & 1 ? seed : words[at] + 1;
		/* Small numbers do more. */
		qp->words->send_tail += seed >> 30;
		qp->words->receive_tail += seed >> 31;
		words = (uint32_t *)cq->words;
		words[(seed >> 6) % (cq->bytes / 4)] = seed >> 3;
	}
	return NULL;
}

/* Rewrites all of it, while it posts; so many rounds, or until the device is gone. */
static void rounds(struct end *a, struct end *b, int count)
{
	struct ibv_sge sge = piece(a, 0, 8);
	struct ibv_send_wr wr = remote(request(1, IBV_WR_RDMA_WRITE, &sge, 1), b, 0), *bad_wr;
	struct ibv_recv_wr *bad_recv;
	pthread_t thread;
	struct ibv_wc wc;
	int round, i;

	CHECK(!pthread_create(&thread, NULL, rewrite, a));
	for (round = 0; round != count; round++) {
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		if (ibv_query_qp(a->qp, &attr, IBV_QP_STATE, &init))
			break;
		to_state(a->qp, IBV_QPS_RESET);
		to_init(a->qp, ALL_ACCESS);
		to_rtr(a->qp, b->qp->qp_num);
		to_rts(a->qp, 7);
		for (i = 0; i < 20; i++) {
			/* Whatever they say. */
			(void)!ibv_post_send(a->qp, &wr, &bad_wr);
			ibv_cmd_post_send(a->qp, NULL, &bad_wr);
			ibv_cmd_post_recv(a->qp, NULL, &bad_recv);
			ibv_cmd_poll_cq(a->cq, 1, &wc);
		}
		if (count > 0 && round % 16 == 0)
			others_go_on();
	}
	storm_over = 1;
	pthread_join(thread, NULL);
}

static void open_others(struct end *a, struct end *b)
{
	open_end(&c, ibv_get_device_name(a->context->device));
	open_end(&d, ibv_get_device_name(b->context->device));
	connect_both(&c, &d);
	CHECK(to_fast_qp(a->qp)->words && to_fast_cq(a->cq)->words);
}

static void lies_of(struct end *a, struct end *b)
{
	int status;
	pid_t child;

	open_others(a, b);
	tails(a, b);
	places(a, b);
	receives(a, b);
	inlined(a, b);
	overwritten(a, b);
	completions(a);
	mappings(a);
	/* A child has what its parent has mapped. */
	child = fork();
	if (!child) {
		memset(to_fast_qp(a->qp)->words, 0x55, to_fast_qp(a->qp)->bytes);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	others_go_on();
	rounds(a, b, 100);
	others_go_on();
	close_end(&c);
	close_end(&d);
	puts("lies=ok");
}

/* A command with its words; with what the module asks for behind them, if it creates something. */
static int command(struct end *end, uint32_t number, const void *words, size_t bytes, int creates,
		   size_t answer_bytes)
{
	struct sluice_rdma_ask ask = { .queues = SLUICE_RDMA_QUEUES };
	size_t all = sizeof(struct ib_uverbs_cmd_hdr) + bytes + (creates ? sizeof(ask) : 0);
	struct ib_uverbs_cmd_hdr header = {
		.command = number,
		.in_words = all / 4,
		.out_words = answer_bytes / 4,
	};
	uint8_t buffer[256];

	memcpy(buffer, &header, sizeof(header));
	memcpy(buffer + sizeof(header), words, bytes);
	memcpy(buffer + sizeof(header) + bytes, &ask, sizeof(ask));
	return write(end->context->cmd_fd, buffer, all) == (ssize_t)all ? 0 : errno;
}

/* What a creation answers: the kernel's part, and behind it the module's. */
struct cq_answer {
	struct ib_uverbs_create_cq_resp kernels;
	struct sluice_rdma_cq_answer modules;
};

struct qp_answer {
	struct ib_uverbs_create_qp_resp kernels;
	struct sluice_rdma_qp_answer modules;
};

static int create_cq(struct end *end, void *answer)
{
	struct ib_uverbs_create_cq words = {
		.response = (uintptr_t)answer,
		.cqe = 100,
		.comp_channel = -1,
	};

	return command(end, IB_USER_VERBS_CMD_CREATE_CQ, &words, sizeof(words), 1,
		       sizeof(struct cq_answer));
}

static int create_qp(struct end *end, void *answer)
{
	struct ib_uverbs_create_qp words = {
		.response = (uintptr_t)answer,
		.pd_handle = end->pd->handle,
		.send_cq_handle = end->cq->handle,
		.recv_cq_handle = end->cq->handle,
		.max_send_wr = DEPTH,
		.max_recv_wr = DEPTH,
		.max_send_sge = 4,
		.max_recv_sge = 4,
		.max_inline_data = 64,
		.qp_type = IBV_QPT_RC,
	};

	return command(end, IB_USER_VERBS_CMD_CREATE_QP, &words, sizeof(words), 1,
		       sizeof(struct qp_answer));
}

/* Memory that the module has made for programs to map. */
static int shared_count(void)
{
	FILE *file = fopen("/proc/vmallocinfo", "r");
	char line[512];
	int count = 0;

	CHECK(file);
	while (fgets(line, sizeof(line), file))
		count += strstr(line, "sr_shared") != NULL;
	fclose(file);
	return count;
}

/* The answer is cut at each word, in front of it and behind it. */
static void cut(struct end *end, int (*create)(struct end *, void *), uint8_t *page, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at += 8) {
		CHECK(create(end, page + 4096 - at) == EFAULT);
		CHECK(create(end, page - 8 - at) == EFAULT);
	}
}

/* Nothing is left of what could not be told of, and the next one is as any. */
static void answers(struct end *a, struct end *b)
{
	uint8_t *pages = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ib_uverbs_destroy_cq destroy_cq = { 0 };
	struct ib_uverbs_destroy_qp destroy_qp = { 0 };
	struct ib_uverbs_destroy_cq_resp told;
	struct cq_answer cq = { 0 };
	struct qp_answer qp = { 0 };
	int round, count;

	CHECK(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE));
	open_others(a, b);
	count = shared_count();
	CHECK(count > 0);
	destroy_cq.response = destroy_qp.response = (uintptr_t)&told;
	for (round = 0; round < 20; round++) {
		cut(a, create_cq, pages + 4096, sizeof(cq));
		cut(a, create_qp, pages + 4096, sizeof(qp));
		CHECK(shared_count() == count);
		CHECK(!create_cq(a, &cq) && cq.modules.queues == SLUICE_RDMA_QUEUES);
		CHECK(!create_qp(a, &qp) && qp.modules.queues == SLUICE_RDMA_QUEUES);
		CHECK(shared_count() == count + 2);
		destroy_cq.cq_handle = cq.kernels.cq_handle;
		destroy_qp.qp_handle = qp.kernels.qp_handle;
		CHECK(!command(a, IB_USER_VERBS_CMD_DESTROY_CQ, &destroy_cq, sizeof(destroy_cq), 0, 8));
		CHECK(!command(a, IB_USER_VERBS_CMD_DESTROY_QP, &destroy_qp, sizeof(destroy_qp), 0, 4));
		CHECK(shared_count() == count);
		others_go_on();
	}
	close_end(&c);
	close_end(&d);
	munmap(pages, 3 * 4096);
	puts("answers=ok");
}

static void storm(struct end *a, struct end *b)
{
	puts("storming");
	fflush(stdout);
	rounds(a, b, -1);
	/* It is memory as any, whatever has become of the device. */
	memset(to_fast_qp(a->qp)->words, 0xff, to_fast_qp(a->qp)->bytes);
	memset(to_fast_cq(a->cq)->words, 0xff, to_fast_cq(a->cq)->bytes);
	puts("storm_ended=ok");
	exit(0);
}

int main(int count, char **words)
{
	static const struct test_command commands[] = {
		{ "lies", lies_of },
		{ "answers", answers },
		{ "storm", storm },
	};

	return run_command(commands, sizeof(commands) / sizeof(*commands), count, words);
}
