// SPDX-License-Identifier: GPL-2.0
/*
 * Memory windows: `windows COMMAND DEVICE DEVICE`. The second end binds them, the first is its peer, which says right
 * and wrong things about their keys.
 */
#define _GNU_SOURCE
#include "ends.h"

/* What windows of the tests cover: the end of a page, some whole ones, and the beginning of another. */
#define AT 5000
#define LENGTH 12345

struct window {
	enum ibv_mw_type type;
	struct ibv_mw *mw;
	/* Which peers use; of the first kind it is in mw. */
	uint32_t key;
};

/* The whole of an end's memory once more. */
static struct ibv_mr *region(struct end *end, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(end->pd, end->bytes, BYTES, access);

	CHECK(mr);
	return mr;
}

static struct window new_window(struct end *end, enum ibv_mw_type type)
{
	struct window window = { .type = type, .mw = ibv_alloc_mw(end->pd, type) };

	CHECK(window.mw);
	window.key = window.mw->rkey;
	return window;
}

static int post_bind(struct end *end, struct window *window, struct ibv_mr *mr, uint64_t addr,
		     uint64_t length, int access)
{
	struct ibv_mw_bind_info info = {
		.mr = mr, .addr = addr, .length = length, .mw_access_flags = access,
	};
	struct ibv_mw_bind bind = { .wr_id = 8, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr wr = request(8, IBV_WR_BIND_MW, NULL, 0);
	int err;

	if (window->type == IBV_MW_TYPE_1) {
		/* Without what ibv_bind_mw() looks at before. */
		err = window->mw->context->ops.bind_mw(end->qp, window->mw, &bind);
		window->key = window->mw->rkey;
		return err;
	}
	window->key = ibv_inc_rkey(window->key);
	wr.bind_mw.mw = window->mw;
	wr.bind_mw.rkey = window->key;
	wr.bind_mw.bind_info = info;
	return post(end, wr);
}

static void bind_as(struct end *end, struct window *window, struct ibv_mr *mr, int64_t at, uint64_t length,
		    int access)
{
	struct ibv_wc wc;

	CHECK(!post_bind(end, window, mr, (uintptr_t)end->bytes + at, length, access));
	wc = completion(end);
	CHECK(wc.wr_id == 8 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
}

/* Ends so, and the queue pair with it. */
static void bind_fails(struct end *a, struct end *b, struct window *window, struct ibv_mr *mr, int64_t at,
		       uint64_t length, int access)
{
	uint32_t key = window->key;

	connect_both(a, b);
	CHECK(!post_bind(b, window, mr, (uintptr_t)b->bytes + at, length, access));
	COMPLETES(b, 8, IBV_WC_MW_BIND_ERR);
	CHECK(state_of(b->qp) == IBV_QPS_ERR);
	window->key = key;
}

static struct ibv_send_wr keyed(struct ibv_send_wr wr, const struct window *window, struct end *peer,
				int64_t at)
{
	wr = remote(wr, peer, at);
	wr.wr.rdma.rkey = window->key;
	return wr;
}

static void reaches(struct end *a, struct end *b, const struct window *window)
{
	struct ibv_sge from = piece(a, 0, LENGTH), to = piece(a, 1 << 20, LENGTH), word = piece(a, 2 << 20, 8);
	struct ibv_send_wr add = request(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &word, 1);
	uint64_t *at = (void *)(b->bytes + 8192);
	uint64_t before;

	fill(a->bytes, LENGTH);
	memset(b->bytes, 0, BYTES);
	CHECK(!post(a, keyed(request(1, IBV_WR_RDMA_WRITE, &from, 1), window, b, AT)));
	CHECK(!post(a, keyed(request(2, IBV_WR_RDMA_READ, &to, 1), window, b, AT)));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	COMPLETES(a, 2, IBV_WC_SUCCESS);
	CHECK(!memcmp(b->bytes + AT, a->bytes, LENGTH) && !b->bytes[AT - 1] && !b->bytes[AT + LENGTH]);
	CHECK(!memcmp(a->bytes + (1 << 20), a->bytes, LENGTH));
	before = *at;
	add.wr.atomic.remote_addr = (uintptr_t)at;
	add.wr.atomic.rkey = window->key;
	add.wr.atomic.compare_add = 5;
	CHECK(!post(a, add));
	COMPLETES(a, 3, IBV_WC_SUCCESS);
	CHECK(*at == before + 5);
}

#define NOT_LET_IN(wr)                                                                          \
	refused_now(a, b, wr, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR, __LINE__)

/* Connected anew, when one of the second kind is bound no more. */
static void begin(struct end *a, struct end *b, struct window *window, struct ibv_mr *mr)
{
	connect_both(a, b);
	if (window->type == IBV_MW_TYPE_2)
		bind_as(b, window, mr, AT, LENGTH, ALL_ACCESS);
}

/* Around a window that is bound, each in a connection of its own, and at its end there is another one. */
static void lies_about(struct end *a, struct end *b, struct window *window, struct ibv_mr *mr)
{
	struct ibv_sge from = piece(a, 0, 16), longer = piece(a, 0, LENGTH + 1);
	const struct {
		enum ibv_wr_opcode opcode;
		struct ibv_sge *piece;
		int64_t at;
		uint32_t flip;
	} lies[] = {
		{ IBV_WR_RDMA_WRITE, &from, AT - 1, 0 },
		{ IBV_WR_RDMA_WRITE, &from, AT + LENGTH - 15, 0 },
		{ IBV_WR_RDMA_WRITE, &from, AT + LENGTH + (1 << 20), 0 },
		{ IBV_WR_RDMA_WRITE, &from, -(int64_t)(uintptr_t)b->bytes - 8, 0 },
		{ IBV_WR_RDMA_WRITE, &longer, AT, 0 },
		{ IBV_WR_RDMA_READ, &longer, AT, 0 },
		{ IBV_WR_RDMA_READ, &from, AT - 1, 0 },
		{ IBV_WR_RDMA_WRITE, &from, AT, 1 },
		{ IBV_WR_RDMA_WRITE, &from, AT, 0x80 },
		{ IBV_WR_RDMA_WRITE, &from, AT, 0x100 },
		{ IBV_WR_RDMA_READ, &from, AT, 0x80000000 },
	};
	struct ibv_send_wr lie;
	size_t i;

	for (i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		begin(a, b, window, mr);
		lie = keyed(request(1, lies[i].opcode, lies[i].piece, 1), window, b, lies[i].at);
		lie.wr.rdma.rkey ^= lies[i].flip;
		NOT_LET_IN(lie);
	}
	/* The region opens nothing to peers itself. */
	begin(a, b, window, mr);
	lie = keyed(request(1, IBV_WR_RDMA_WRITE, &from, 1), window, b, AT);
	lie.wr.rdma.rkey = mr->rkey;
	NOT_LET_IN(lie);
	/* And a window is no memory for requests of its owner. */
	begin(a, b, window, mr);
	from = piece(b, AT, 16);
	from.lkey = window->key;
	CHECK(!post(b, remote(request(5, IBV_WR_RDMA_WRITE, &from, 1), a, 0)));
	COMPLETES(b, 5, IBV_WC_LOC_PROT_ERR);
	begin(a, b, window, mr);
}

/* In the connection that there is; at its end there is another one. */
static void gone(struct end *a, struct end *b, const struct window *window, uint32_t key)
{
	struct ibv_sge from = piece(a, 0, 16);
	struct ibv_send_wr wr = keyed(request(1, IBV_WR_RDMA_WRITE, &from, 1), window, b, AT);

	wr.wr.rdma.rkey = key;
	NOT_LET_IN(wr);
	connect_both(a, b);
}

/* What one opens less than the other. */
static void accesses(struct end *a, struct end *b, struct window *window, struct ibv_mr *mr)
{
	struct ibv_sge word = piece(a, 0, 8);
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	static const int opens[] = {
		IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC,
	};
	int i, j;

	for (i = 0; i < 3; i++) {
		for (j = 0; j < 3; j++) {
			struct ibv_send_wr wr = request(1, opcodes[j], &word, 1);

			connect_both(a, b);
			bind_as(b, window, mr, 0, 4096, opens[i]);
			wr = keyed(wr, window, b, 0);
			/* Of atomics they stand elsewhere. */
			if (j == 2) {
				wr.wr.atomic.remote_addr = (uintptr_t)b->bytes;
				wr.wr.atomic.rkey = window->key;
				wr.wr.atomic.compare_add = 0;
			}
			if (i != j) {
				NOT_LET_IN(wr);
				continue;
			}
			CHECK(!post(a, wr));
			COMPLETES(a, 1, IBV_WC_SUCCESS);
		}
	}
	connect_both(a, b);
}

static void faults(struct end *a, struct end *b, struct window *window, struct ibv_mr *mr)
{
	struct ibv_mr *read_only = region(b, IBV_ACCESS_MW_BIND), *closed = region(b, ALL_ACCESS), *foreign;
	struct ibv_pd *pd = ibv_alloc_pd(b->context);
	struct window stranger = { .type = IBV_MW_TYPE_2 };

	CHECK(pd && !ibv_alloc_mw(pd, 3) && errno == EINVAL);
	foreign = ibv_reg_mr(pd, b->bytes, BYTES, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	stranger.mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(foreign && stranger.mw);
	stranger.key = stranger.mw->rkey;
	bind_fails(a, b, window, closed, AT, LENGTH, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, window, read_only, AT, LENGTH, IBV_ACCESS_REMOTE_WRITE);
	bind_fails(a, b, window, foreign, AT, LENGTH, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, window, mr, -1, LENGTH, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, window, mr, 0, BYTES + 1, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, window, mr, 1, -1ULL, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, &stranger, foreign, AT, LENGTH, IBV_ACCESS_REMOTE_READ);
	bind_fails(a, b, &stranger, mr, AT, LENGTH, IBV_ACCESS_REMOTE_READ);
	connect_both(a, b);
	CHECK(post_bind(b, window, NULL, 0, 1, IBV_ACCESS_REMOTE_READ));
	CHECK(!ibv_dealloc_mw(stranger.mw));
	CHECK(!ibv_dereg_mr(read_only) && !ibv_dereg_mr(closed) && !ibv_dereg_mr(foreign));
	CHECK(!ibv_dealloc_pd(pd));
}

/* Another connection of the same two. */
static void other_pair(struct end *a, struct end *b, struct end *a2, struct end *b2)
{
	*a2 = *a;
	*b2 = *b;
	a2->qp = new_qp(a2, a2->pd);
	b2->qp = new_qp(b2, b2->pd);
	connect_both(a2, b2);
}

static void first_kind(struct end *a, struct end *b)
{
	struct ibv_mr *mr = region(b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct window window = new_window(b, IBV_MW_TYPE_1);
	struct end a2, b2;
	uint32_t old;

	connect_both(a, b);
	gone(a, b, &window, window.key);
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS);
	reaches(a, b, &window);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	lies_about(a, b, &window, mr);
	other_pair(a, b, &a2, &b2);
	reaches(&a2, &b2, &window);
	/* A peer does not take it away. */
	{
		struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_INV, NULL, 0);

		wr.invalidate_rkey = window.key;
		NOT_LET_IN(wr);
		connect_both(a, b);
	}
	CHECK(!ibv_destroy_qp(a2.qp) && !ibv_destroy_qp(b2.qp));
	old = window.key;
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS);
	CHECK(window.key != old);
	gone(a, b, &window, old);
	reaches(a, b, &window);
	bind_as(b, &window, mr, 0, 0, 0);
	gone(a, b, &window, window.key);
	accesses(a, b, &window, mr);
	faults(a, b, &window, mr);
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS);
	CHECK(!ibv_dealloc_mw(window.mw));
	gone(a, b, &window, window.key);
	CHECK(!ibv_dereg_mr(mr));
	puts("first_kind=ok");
}

static void invalidate(struct end *end, uint32_t key, enum ibv_wc_status status)
{
	struct ibv_send_wr wr = request(9, IBV_WR_LOCAL_INV, NULL, 0);

	wr.invalidate_rkey = key;
	CHECK(!post(end, wr));
	COMPLETES(end, 9, status);
}

/* By whoever is not the one that has bound it, or when nobody has. */
static void no_invalidation(struct end *a, struct end *b, uint32_t key)
{
	struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_INV, NULL, 0);

	wr.invalidate_rkey = key;
	NOT_LET_IN(wr);
	connect_both(a, b);
	invalidate(b, key, IBV_WC_MW_BIND_ERR);
	connect_both(a, b);
}

static void taken_away_by_peer(struct end *a, struct end *b, struct window *window)
{
	struct ibv_send_wr wr = request(1, IBV_WR_SEND_WITH_INV, NULL, 0);
	struct ibv_wc wc;

	CHECK(!post_recv(b, 2, NULL, 0));
	wr.invalidate_rkey = window->key;
	CHECK(!post(a, wr));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	wc = RECEIVED(b, 2, 0, a->qp->qp_num);
	CHECK(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == window->key);
	gone(a, b, window, window->key);
}

static void second_kind(struct end *a, struct end *b)
{
	struct ibv_mr *mr = region(b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct window window = new_window(b, IBV_MW_TYPE_2);
	struct end a2, b2;
	struct ibv_sge from = piece(a, 0, 16);
	struct ibv_send_wr wr;

	connect_both(a, b);
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS);
	reaches(a, b, &window);
	lies_about(a, b, &window, mr);
	/* Bound is bound. */
	CHECK(!post_bind(b, &window, mr, (uintptr_t)b->bytes, LENGTH, ALL_ACCESS));
	COMPLETES(b, 8, IBV_WC_MW_BIND_ERR);
	begin(a, b, &window, mr);
	reaches(a, b, &window);
	/* For others of the same owner there is none. */
	other_pair(a, b, &a2, &b2);
	gone(&a2, &b2, &window, window.key);
	no_invalidation(&a2, &b2, window.key);
	reaches(a, b, &window);
	no_invalidation(a, b, window.key ^ 1);
	begin(a, b, &window, mr);
	no_invalidation(a, b, window.key ^ 0x100);
	no_invalidation(a, b, mr->rkey);
	/* All of these began anew, and so it is bound no more. */
	gone(a, b, &window, window.key);
	begin(a, b, &window, mr);
	invalidate(b, window.key, IBV_WC_SUCCESS);
	gone(a, b, &window, window.key);
	no_invalidation(a, b, window.key);
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS);
	reaches(a, b, &window);
	taken_away_by_peer(a, b, &window);
	accesses(a, b, &window, mr);
	faults(a, b, &window, mr);
	/* Addresses from 0 on. */
	bind_as(b, &window, mr, AT, LENGTH, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	fill(a->bytes, 16);
	wr = keyed(request(1, IBV_WR_RDMA_WRITE, &from, 1), &window, b, 0);
	wr.wr.rdma.remote_addr = LENGTH - 16;
	CHECK(!post(a, wr));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	CHECK(!memcmp(b->bytes + AT + LENGTH - 16, a->bytes, 16));
	wr.wr.rdma.remote_addr++;
	NOT_LET_IN(wr);
	connect_both(a, b);
	/* It goes with its queue pair. */
	bind_as(&b2, &window, mr, AT, LENGTH, ALL_ACCESS);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	reaches(&a2, &b2, &window);
	CHECK(!ibv_destroy_qp(a2.qp) && !ibv_destroy_qp(b2.qp));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_mw(window.mw));
	puts("second_kind=ok");
}

/* Bound, with one of either kind older and newer than its region, and nobody takes anything away. */
static void left(struct end *a, struct end *b)
{
	struct window first = new_window(b, IBV_MW_TYPE_1), second;
	struct ibv_mr *mr = region(b, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);

	second = new_window(b, IBV_MW_TYPE_2);
	connect_both(a, b);
	bind_as(b, &first, mr, AT, LENGTH, ALL_ACCESS);
	bind_as(b, &second, mr, AT, LENGTH, ALL_ACCESS);
	reaches(a, b, &second);
	puts("left=ok");
	exit(0);
}

int main(int count, char **words)
{
	static const struct test_command commands[] = {
		{ "first_kind", first_kind },
		{ "second_kind", second_kind },
		{ "left", left },
	};

	return run_command(commands, sizeof(commands) / sizeof(*commands), count, words);
}
