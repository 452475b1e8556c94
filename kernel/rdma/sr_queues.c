// SPDX-License-Identifier: GPL-2.0
/*
 * Queues of programs that are mapped into them (docs/kernel.md, "Mapped queues"). A program posts by writing a place
 * and a tail. What is taken from there is copied once and then checked as what a call posts: a program that says what
 * cannot be has its queue pair in ERR, and nobody else hears of it.
 */
#include <linux/log2.h>

#include "sr.h"

#define WORDS_BYTES ALIGN(sizeof(struct sluice_rdma_qp_words), 64)

static struct sluice_rdma_qp_words *words(const struct sr_qp *qp)
{
	return qp->shared->memory;
}

static u32 send_bytes(const struct sr_qp *qp)
{
	return sizeof(struct sluice_rdma_send) +
	       max_t(u32, qp->cap.max_send_sge * sizeof(struct sluice_rdma_sge),
		     ALIGN(qp->cap.max_inline_data, 16));
}

static u32 receive_bytes(u32 sges)
{
	return sizeof(struct sluice_rdma_receive) + sges * sizeof(struct sluice_rdma_sge);
}

/* Of a queue pair whose program asks for it; not of datagrams, which name address handles by their numbers. */
int sr_queues_create(struct sr_qp *qp, struct ib_udata *udata)
{
	struct sluice_rdma_qp_answer answer = { .queues = SLUICE_RDMA_QUEUES };
	u64 bytes = WORDS_BYTES;
	int err;

	/* What a call posts is in pieces. */
	if (!sr_shared_is_asked(udata) || !sr_is_connected(qp) || udata->outlen < sizeof(answer))
		return qp->cap.max_inline_data ? -EINVAL : 0;
	if (qp->cap.max_inline_data) {
		qp->inline_bytes = kvcalloc(qp->cap.max_send_wr, qp->cap.max_inline_data,
					    GFP_KERNEL_ACCOUNT);
		if (!qp->inline_bytes)
			return -ENOMEM;
	}
	answer.send_at = bytes;
	answer.send_places = roundup_pow_of_two(qp->cap.max_send_wr);
	answer.send_bytes = send_bytes(qp);
	bytes += (u64)answer.send_places * answer.send_bytes;
	if (!qp->srq) {
		answer.receive_at = bytes;
		answer.receive_places = roundup_pow_of_two(qp->rq.size);
		answer.receive_bytes = receive_bytes(qp->rq.sges_max);
		bytes += (u64)answer.receive_places * answer.receive_bytes;
	}
	qp->shared = sr_shared_new(udata, bytes);
	if (IS_ERR(qp->shared)) {
		err = PTR_ERR(qp->shared);
		qp->shared = NULL;
		return err;
	}
	qp->send_at = answer.send_at;
	qp->send_mask = answer.send_places - 1;
	if (!qp->srq) {
		qp->rq.shared = qp->shared;
		qp->rq.at = answer.receive_at;
		qp->rq.mask = answer.receive_places - 1;
	}
	WRITE_ONCE(words(qp)->send_call, SLUICE_RDMA_NOBODY);
	answer.offset = sr_shared_offset(qp->shared);
	answer.bytes = qp->shared->bytes;
	return ib_copy_to_udata(udata, &answer, sizeof(answer));
}

void sr_queues_end(struct sr_qp *qp)
{
	if (!qp->shared)
		return;
	/* Who has it mapped hears by his calls what has become of it. */
	WRITE_ONCE(words(qp)->send_call, SLUICE_RDMA_NOBODY);
	WRITE_ONCE(words(qp)->receive_call, SLUICE_RDMA_NOBODY);
}

void sr_queues_reset(struct sr_qp *qp)
{
	if (!qp->shared)
		return;
	WRITE_ONCE(words(qp)->send_call, SLUICE_RDMA_NOBODY);
	WRITE_ONCE(words(qp)->receive_call, SLUICE_RDMA_LOOKS);
	/* Whatever it has posted, it was before. */
	qp->send_taken = READ_ONCE(words(qp)->send_tail);
	qp->send_shift = qp->send_taken - (u32)qp->sq_posted;
	qp->lied = false;
	sr_queues_freed(qp);
}

void sr_queues_freed(struct sr_qp *qp)
{
	if (qp->shared)
		smp_store_release(&words(qp)->send_head, (u32)qp->sq_head + qp->send_shift);
}

bool sr_queues_has_posts(const struct sr_qp *qp)
{
	return !qp->lied && READ_ONCE(words(qp)->send_tail) != qp->send_taken;
}

void sr_queues_say(struct sr_qp *qp, u32 call)
{
	WRITE_ONCE(words(qp)->send_call, call);
}

/* It says what cannot be. */
static void lies(struct sr_qp *qp)
{
	qp->lied = true;
	sr_qp_fail(qp);
	sr_qp_event(qp, IB_EVENT_QP_FATAL);
}

/* The bytes stand in the place itself, and are the request's own from here on. */
static int post_inline(struct sr_qp *qp, struct ib_send_wr *wr, const void *from, u32 bytes)
{
	u32 at = qp->sq_posted % qp->cap.max_send_wr;
	struct sr_wqe *wqe = &qp->sq[at];
	int err;

	/* An answer has its bytes in memory, and a window has none. */
	if (bytes > qp->cap.max_inline_data || wr->opcode == IB_WR_RDMA_READ ||
	    wr->opcode == IB_WR_BIND_MW || wr->opcode == IB_WR_LOCAL_INV || sr_is_atomic(wr->opcode))
		return -EINVAL;
	wr->num_sge = 0;
	err = sr_post_one(qp, wr);
	if (err)
		return err;
	wqe->inlined = true;
	wqe->length = bytes;
	wqe->bytes = qp->inline_bytes + (size_t)at * qp->cap.max_inline_data;
	memcpy(wqe->bytes, from, bytes);
	return 0;
}

static int post(struct sr_qp *qp, const struct sluice_rdma_send *from)
{
	bool inlined;
	struct ib_sge sges[SR_SGES_MAX];
	union {
		struct ib_rdma_wr rdma;
		struct ib_atomic_wr atomic;
		struct sr_bind_wr bind;
	} request = {};
	struct ib_send_wr *wr = &request.rdma.wr;
	struct sluice_rdma_sge copied[SR_SGES_MAX];
	struct sluice_rdma_send send;
	u32 i;

	/* It may be changed at any moment: nothing of it is read twice. */
	memcpy(&send, from, sizeof(send));
	barrier();
	inlined = send.flags & IB_SEND_INLINE;
	if (!inlined && send.sges > qp->cap.max_send_sge)
		return -EINVAL;
	memcpy(copied, from->sge, inlined ? 0 : send.sges * sizeof(*copied));
	barrier();
	for (i = 0; !inlined && i < send.sges; i++) {
		sges[i].addr = copied[i].addr;
		sges[i].length = copied[i].length;
		sges[i].lkey = copied[i].lkey;
	}
	wr->wr_id = send.wr_id;
	wr->sg_list = sges;
	wr->num_sge = send.sges;
	wr->opcode = send.opcode;
	wr->send_flags = send.flags;
	wr->ex.invalidate_rkey = send.imm;
	if (sr_is_atomic(send.opcode)) {
		request.atomic.remote_addr = send.remote_addr;
		request.atomic.compare_add = send.compare_add;
		request.atomic.swap = send.swap;
		request.atomic.rkey = send.rkey;
	} else if (send.opcode == IB_WR_BIND_MW) {
		request.bind.addr = send.remote_addr;
		request.bind.length = send.compare_add;
		request.bind.access = send.swap;
		request.bind.lkey = send.imm;
		request.bind.rkey = send.rkey;
	} else {
		request.rdma.remote_addr = send.remote_addr;
		request.rdma.rkey = send.rkey;
	}
	return inlined ? post_inline(qp, wr, from->sge, send.sges) : sr_post_one(qp, wr);
}

void sr_queues_take(struct sr_qp *qp)
{
	u32 bytes = send_bytes(qp), tail, count;
	void *first = qp->shared->memory + qp->send_at;

	/* What a program may not post yet stays where it is. */
	if (qp->lied || qp->state < IB_QPS_RTS)
		return;
	tail = smp_load_acquire(&words(qp)->send_tail);
	count = tail - qp->send_taken;
	/* More than what has ended left room for. */
	if (count > sr_post_room(qp)) {
		lies(qp);
		return;
	}
	for (; count; count--) {
		if (post(qp, first + (size_t)(qp->send_taken & qp->send_mask) * bytes)) {
			lies(qp);
			return;
		}
		qp->send_taken++;
		qp->device->taken++;
		qp->device->worked++;
	}
}

bool sr_queues_want_receives(struct sr_qp *qp)
{
	if (!qp->shared)
		return false;
	WRITE_ONCE(words(qp)->receive_call, SLUICE_RDMA_NOBODY);
	/* Said first, looked then; who posts does it the other way round. */
	smp_mb();
	return true;
}

void sr_queues_have_receives(struct sr_qp *qp)
{
	if (qp->shared && qp->state != IB_QPS_ERR)
		WRITE_ONCE(words(qp)->receive_call, SLUICE_RDMA_LOOKS);
}

void sr_queues_look(struct sr_qp *qp)
{
	if (qp->rq.lied && !qp->lied)
		lies(qp);
}

/* Receives, for sr_rq.c; behind its lock. How many there are. */
u32 sr_queues_receives(struct sr_rq *rq)
{
	struct sluice_rdma_qp_words *queue = rq->shared->memory;
	u32 count = smp_load_acquire(&queue->receive_tail) - (u32)rq->head;

	if (count > rq->mask + 1)
		rq->lied = true;
	return rq->lied ? 0 : count;
}

void sr_queues_take_receive(struct sr_rq *rq, struct sr_rwqe *to)
{
	struct sluice_rdma_qp_words *queue = rq->shared->memory;
	struct sluice_rdma_receive *from = rq->shared->memory + rq->at +
					   (size_t)((u32)rq->head & rq->mask) *
						   receive_bytes(rq->sges_max);
	struct sluice_rdma_sge copied[SR_SGES_MAX];
	struct sluice_rdma_receive receive;
	u32 i;

	memcpy(&receive, from, sizeof(receive));
	barrier();
	to->wr_id = receive.wr_id;
	to->length = 0;
	to->sge_count = 0;
	if (receive.sges > rq->sges_max)
		rq->lied = true;
	else
		to->sge_count = receive.sges;
	memcpy(copied, from->sge, to->sge_count * sizeof(*copied));
	barrier();
	for (i = 0; i < to->sge_count; i++) {
		to->sges[i].addr = copied[i].addr;
		to->sges[i].len = copied[i].length;
		to->sges[i].lkey = copied[i].lkey;
		to->length += copied[i].length;
	}
	if (to->length > SR_MESSAGE_BYTES_MAX)
		rq->lied = true;
	rq->head++;
	smp_store_release(&queue->receive_head, (u32)rq->head);
}

/* All that are there are dropped, and what it has said is forgotten. */
void sr_queues_clear_receives(struct sr_rq *rq)
{
	struct sluice_rdma_qp_words *queue = rq->shared->memory;

	rq->head = READ_ONCE(queue->receive_tail);
	rq->tail = rq->head;
	rq->lied = false;
	smp_store_release(&queue->receive_head, (u32)rq->head);
}
