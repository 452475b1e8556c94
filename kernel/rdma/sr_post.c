// SPDX-License-Identifier: GPL-2.0
/*
 * What users post. It lies behind spin locks, as users in the kernel post from where nobody may sleep
 * (Documentation/infiniband/core_locking): what those post a worker takes, programs take theirs at once.
 */
#include "sr.h"

/* What users in the kernel may open memory for. */
#define FAST_ACCESS                                                                              \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |                \
	 IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_OPTIONAL)

static bool is_local(enum ib_wr_opcode opcode)
{
	return opcode == IB_WR_REG_MR || opcode == IB_WR_LOCAL_INV || opcode == IB_WR_BIND_MW;
}

static u32 imm_of(const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return (__force u32)wr->ex.imm_data;
	case IB_WR_SEND_WITH_INV:
		return wr->ex.invalidate_rkey;
	case IB_WR_BIND_MW:
		return container_of(wr, struct sr_bind_wr, wr)->lkey;
	default:
		return 0;
	}
}

/* Programs' only where queues are mapped, as uverbs knows no request for one. */
static int copy_bind(struct sr_qp *qp, struct sr_wqe *wqe, const struct ib_send_wr *wr)
{
	const struct sr_bind_wr *bind = container_of(wr, struct sr_bind_wr, wr);

	if (!qp->shared || wr->num_sge)
		return -EINVAL;
	wqe->remote_addr = bind->addr;
	wqe->compare_add = bind->length;
	wqe->access = bind->access;
	wqe->rkey = bind->rkey;
	return 0;
}

/* Where the request goes to, and what it does there. */
static int copy_remote(struct sr_qp *qp, struct sr_wqe *wqe, const struct ib_send_wr *wr)
{
	/* These want an answer. */
	if (!sr_is_reliable(qp) &&
	    (wr->opcode == IB_WR_RDMA_READ || wr->opcode == IB_WR_SEND_WITH_INV ||
	     sr_is_atomic(wr->opcode)))
		return -EOPNOTSUPP;
	switch (wr->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		wqe->remote_addr = rdma_wr(wr)->remote_addr;
		wqe->rkey = rdma_wr(wr)->rkey;
		return 0;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		wqe->remote_addr = atomic_wr(wr)->remote_addr;
		wqe->rkey = atomic_wr(wr)->rkey;
		wqe->compare_add = atomic_wr(wr)->compare_add;
		wqe->swap = atomic_wr(wr)->swap;
		return 0;
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
		wqe->remote_addr = 0;
		wqe->rkey = 0;
		return 0;
	case IB_WR_REG_MR:
		if (!qp->in_kernel || reg_wr(wr)->access & ~FAST_ACCESS)
			return -EINVAL;
		wqe->rkey = reg_wr(wr)->key;
		wqe->access = reg_wr(wr)->access;
		return 0;
	case IB_WR_BIND_MW:
		return copy_bind(qp, wqe, wr);
	case IB_WR_LOCAL_INV:
		if ((!qp->in_kernel && !qp->shared) || wr->num_sge)
			return -EINVAL;
		wqe->rkey = wr->ex.invalidate_rkey;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

u32 sr_post_room(const struct sr_qp *qp)
{
	/* With the release in end_oldest(): nobody reads what was there. */
	return qp->cap.max_send_wr - (qp->sq_posted - smp_load_acquire(&qp->sq_head));
}

int sr_post_one(struct sr_qp *qp, const struct ib_send_wr *wr)
{
	struct sr_wqe *wqe = &qp->sq[qp->sq_posted % qp->cap.max_send_wr];
	int err;

	if (!sr_post_room(qp))
		return -ENOMEM;
	/* Of mapped queues they were taken from where they stand. */
	if (wr->send_flags & IB_SEND_IP_CSUM || (wr->send_flags & IB_SEND_INLINE && !qp->shared))
		return -EINVAL;
	if (qp->ib.qp_type == IB_QPT_UD)
		err = sr_datagram_address(qp, wqe, wr);
	else
		err = copy_remote(qp, wqe, wr);
	if (!err)
		err = sr_sges_copy(wqe->sges, &wqe->sge_count, &wqe->length, wr->sg_list,
				   wr->num_sge, qp->cap.max_send_sge);
	if (err)
		return err;
	/* What was there comes back, and nothing else fits. */
	if (sr_is_atomic(wr->opcode) && wqe->length != sizeof(u64))
		return -EINVAL;
	if (qp->ib.qp_type == IB_QPT_UD && wqe->length > SR_DATAGRAM_BYTES_MAX)
		return -EINVAL;
	wqe->inlined = false;
	wqe->wr_id = wr->wr_id;
	wqe->got = 0;
	wqe->imm = imm_of(wr);
	wqe->opcode = wr->opcode;
	wqe->local = is_local(wr->opcode);
	wqe->done = false;
	wqe->signaled = qp->sq_sig_all || (wr->send_flags & IB_SEND_SIGNALED);
	wqe->solicited = wr->send_flags & IB_SEND_SOLICITED;
	wqe->fenced = wr->send_flags & IB_SEND_FENCE;
	qp->sq_posted++;
	return 0;
}

void sr_post_take(struct sr_qp *qp)
{
	unsigned long flags;
	u64 posted;

	if (qp->shared)
		sr_queues_take(qp);
	spin_lock_irqsave(&qp->sq_lock, flags);
	posted = qp->sq_posted;
	spin_unlock_irqrestore(&qp->sq_lock, flags);
	for (; qp->sq_tail != posted; qp->sq_tail++) {
		struct sr_wqe *wqe = &qp->sq[qp->sq_tail % qp->cap.max_send_wr];

		wqe->psn = qp->psn;
		/* Peers count the packets that they see. */
		if (!wqe->local)
			qp->psn = (qp->psn + 1) & SR_PSN_MASK;
	}
	if (qp->state < IB_QPS_RTS) {
		/* Posted before it was reset. */
		qp->sq_sent = qp->sq_tail;
		smp_store_release(&qp->sq_head, qp->sq_tail);
		sr_queues_freed(qp);
		return;
	}
	if (qp->state == IB_QPS_ERR || qp->state == IB_QPS_SQE)
		sr_requester_flush(qp);
	sr_requester_call(qp);
}

/* Receives that were posted may be what a peer waits for; device->lock held. */
static void look_at_receives(struct sr_qp *qp)
{
	if (qp->state == IB_QPS_ERR)
		sr_responder_stop(qp);
	else if (sr_rq_count(&qp->rq))
		sr_responder_posted(qp);
	sr_queues_look(qp);
}

void sr_post_take_all(struct sr_device *device)
{
	unsigned long flags;
	LIST_HEAD(taken);

	/* No longer than what is there now; who posts meanwhile calls again. */
	spin_lock_irqsave(&device->posted_lock, flags);
	list_splice_init(&device->posted, &taken);
	while (!list_empty(&taken)) {
		struct sr_qp *qp = list_first_entry(&taken, struct sr_qp, posted);

		list_del_init(&qp->posted);
		spin_unlock_irqrestore(&device->posted_lock, flags);
		look_at_receives(qp);
		sr_post_take(qp);
		spin_lock_irqsave(&device->posted_lock, flags);
	}
	spin_unlock_irqrestore(&device->posted_lock, flags);
}

/* For the worker. No lock held but perhaps its owner's. */
static void leave_for_worker(struct sr_qp *qp)
{
	struct sr_device *device = qp->device;
	unsigned long flags;
	bool first;

	spin_lock_irqsave(&device->posted_lock, flags);
	first = list_empty(&device->posted);
	if (list_empty(&qp->posted))
		list_add_tail(&qp->posted, &device->posted);
	spin_unlock_irqrestore(&device->posted_lock, flags);
	if (first)
		sr_device_kick(device);
}

void sr_post_forget(struct sr_qp *qp)
{
	unsigned long flags;

	spin_lock_irqsave(&qp->device->posted_lock, flags);
	list_del_init(&qp->posted);
	spin_unlock_irqrestore(&qp->device->posted_lock, flags);
}

int sr_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;
	unsigned long flags;
	int err = 0;

	if (sr_is_gsi(qp))
		return sr_gsi_post_send(qp, wr, bad);
	spin_lock_irqsave(&qp->sq_lock, flags);
	if (READ_ONCE(qp->state) < IB_QPS_RTS)
		err = -EINVAL;
	for (; wr && !err; wr = err ? wr : wr->next)
		/* Of one that is mapped they are posted there, and none is the call to look. */
		err = qp->shared ? -EINVAL : sr_post_one(qp, wr);
	if (err)
		*bad = wr;
	spin_unlock_irqrestore(&qp->sq_lock, flags);
	if (qp->in_kernel) {
		leave_for_worker(qp);
		return err;
	}
	mutex_lock(&device->lock);
	sr_post_take(qp);
	if (qp->lane)
		sr_lane_flush(qp->lane);
	if (!list_empty(&qp->turn))
		sr_device_kick(device);
	if (qp->shared && qp->state >= IB_QPS_RTS)
		sr_watch_posts(qp);
	mutex_unlock(&device->lock);
	return err;
}

int sr_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;
	int err = 0;

	if (sr_is_gsi(qp))
		return sr_gsi_post_recv(qp, wr, bad);
	if (READ_ONCE(qp->state) == IB_QPS_RESET || qp->srq) {
		*bad = wr;
		return -EINVAL;
	}
	err = sr_rq_post(&qp->rq, wr, bad);
	if (qp->in_kernel) {
		leave_for_worker(qp);
		return err;
	}
	mutex_lock(&device->lock);
	look_at_receives(qp);
	mutex_unlock(&device->lock);
	return err;
}
