// SPDX-License-Identifier: GPL-2.0
/*
 * Requests that are built call by call: `extended COMMAND DEVICE DEVICE`, with EXTENDED=1. That they do what
 * others do is shown by `verbs` and `services` with the same variable.
 */
#define _GNU_SOURCE
#include "ends.h"

static struct ibv_qp_ex *of(struct end *end)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);

	CHECK(qp);
	return qp;
}

/* Nothing of what was built before is there: the next request is the next completion. */
static void nothing_was_posted(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 8);

	CHECK(!post(a, remote(request(99, IBV_WR_RDMA_WRITE, &from, 1), b, 0)));
	COMPLETES(a, 99, IBV_WC_SUCCESS);
}

/* A batch with one that is wrong, wherever it stands. */
static void all_or_none(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 8), many[5] = { from, from, from, from, from };
	struct ibv_qp_ex *qp = of(a);
	int wrong, at, i;

	for (wrong = 0; wrong < 5; wrong++) {
		for (at = 0; at < 3; at++) {
			ibv_wr_start(qp);
			qp->wr_flags = IBV_SEND_SIGNALED;
			for (i = 0; i < 3; i++) {
				qp->wr_id = i;
				if (i == at && wrong == 0)
					ibv_wr_local_inv(qp, 1);
				else if (i == at && wrong == 1)
					ibv_wr_atomic_fetch_add(qp, b->mr->rkey, 8, 1);
				else
					ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->bytes);
				if (i == at && wrong == 1)
					ibv_wr_set_sge(qp, from.lkey, from.addr, 4);
				else if (i == at && wrong == 2)
					ibv_wr_set_sge_list(qp, 5, many);
				else if (i == at && wrong == 3)
					ibv_wr_set_inline_data(qp, a->bytes, BYTES);
				else if (i == at && wrong == 4)
					ibv_wr_set_ud_addr(qp, NULL, 1, 1);
				else
					ibv_wr_set_sge(qp, from.lkey, from.addr, from.length);
			}
			CHECK(ibv_wr_complete(qp));
			nothing_was_posted(a, b);
		}
	}
	ibv_wr_start(qp);
	ibv_wr_set_sge(qp, from.lkey, from.addr, from.length);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->bytes);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	CHECK(!ibv_wr_complete(qp));
	nothing_was_posted(a, b);
}

/* More than there is room for, of the queue and of a batch. */
static void too_many(struct end *a, struct end *b)
{
	struct ibv_sge from = piece(a, 0, 8);
	struct ibv_qp_ex *qp = of(a);
	int round, i;

	for (round = 0; round < 3; round++) {
		ibv_wr_start(qp);
		for (i = 0; i < 100 * DEPTH; i++) {
			ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->bytes);
			ibv_wr_set_sge(qp, from.lkey, from.addr, from.length);
		}
		CHECK(ibv_wr_complete(qp) == ENOMEM);
		nothing_was_posted(a, b);
	}
}

/* All of a batch, in order; bytes in requests are those of the moment in which they were named. */
static void batches(struct end *a, struct end *b)
{
	struct ibv_qp_ex *qp = of(a);
	struct ibv_data_buf pieces[3];
	int round, i;

	for (round = 0; round < 100; round++) {
		memset(b->bytes, 0, 4096);
		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		for (i = 0; i < 32; i++) {
			qp->wr_id = i;
			memset(a->bytes, i + 1, 48);
			ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->bytes + 64 * i);
			pieces[0] = (struct ibv_data_buf){ a->bytes, 7 };
			pieces[1] = (struct ibv_data_buf){ a->bytes + 9, 0 };
			pieces[2] = (struct ibv_data_buf){ a->bytes + 7, 41 };
			if (i % 2)
				ibv_wr_set_inline_data(qp, a->bytes, 48);
			else
				ibv_wr_set_inline_data_list(qp, 3, pieces);
			memset(a->bytes, 0xee, 48);
		}
		CHECK(!ibv_wr_complete(qp));
		for (i = 0; i < 32; i++)
			COMPLETES(a, i, IBV_WC_SUCCESS);
		for (i = 0; i < 2048; i++)
			CHECK(b->bytes[i] == (i % 64 < 48 ? i / 64 + 1 : 0));
	}
}

static void not_offered(struct end *end)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = end->pd,
	};
	struct ibv_cq_init_attr_ex queue = { .cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };

	init.qp_type = IBV_QPT_RC;
	init.send_ops_flags = IBV_QP_EX_WITH_TSO;
	CHECK(!ibv_create_qp_ex(end->context, &init) && errno == EOPNOTSUPP);
	init.qp_type = IBV_QPT_UC;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	CHECK(!ibv_create_qp_ex(end->context, &init) && errno == EOPNOTSUPP);
	init.qp_type = IBV_QPT_UD;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!ibv_create_qp_ex(end->context, &init) && errno == EOPNOTSUPP);
	CHECK(!ibv_create_cq_ex(end->context, &queue) && errno == EOPNOTSUPP);
}

static void built(struct end *a, struct end *b)
{
	struct ibv_qp_ex *qp = of(a);
	struct ibv_send_wr *bad;
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, NULL, 0);

	not_offered(a);
	/* Before it is connected. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	connect_both(a, b);
	all_or_none(a, b);
	too_many(a, b);
	/* By turns with the other way to post. */
	CHECK(!ibv_post_send(a->qp, &wr, &bad));
	CHECK(!post_recv(b, 2, NULL, 0));
	COMPLETES(a, 1, IBV_WC_SUCCESS);
	COMPLETES(b, 2, IBV_WC_SUCCESS);
	batches(a, b);
	puts("built=ok");
}

int main(int count, char **words)
{
	static const struct test_command commands[] = { { "built", built } };

	return run_command(commands, sizeof(commands) / sizeof(*commands), count, words);
}
