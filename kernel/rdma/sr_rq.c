// SPDX-License-Identifier: GPL-2.0
/* Receives that wait for messages: a queue pair's own, and those that several share (SRQ). */
#include "sr.h"

int sr_rq_init(struct sr_rq *rq, u32 wrs, u32 sges)
{
	u32 i;

	spin_lock_init(&rq->lock);
	rq->size = max_t(u32, wrs, 1);
	rq->sges_max = max_t(u32, sges, 1);
	rq->wqes = kvcalloc(rq->size, sizeof(*rq->wqes), GFP_KERNEL_ACCOUNT);
	rq->sges = kvcalloc((size_t)rq->size * rq->sges_max, sizeof(*rq->sges), GFP_KERNEL_ACCOUNT);
	if (!rq->wqes || !rq->sges) {
		sr_rq_free(rq);
		return -ENOMEM;
	}
	for (i = 0; i < rq->size; i++)
		rq->wqes[i].sges = rq->sges + (size_t)i * rq->sges_max;
	return 0;
}

void sr_rq_free(struct sr_rq *rq)
{
	kvfree(rq->sges);
	kvfree(rq->wqes);
	rq->sges = NULL;
	rq->wqes = NULL;
}

int sr_rq_post(struct sr_rq *rq, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&rq->lock, flags);
	for (; wr && !err; wr = err ? wr : wr->next) {
		struct sr_rwqe *wqe = &rq->wqes[rq->tail % rq->size];

		/* Of one that is mapped they are posted there. */
		err = rq->shared ? -EINVAL : -ENOMEM;
		if (!rq->shared && rq->tail - rq->head < rq->size)
			err = sr_sges_copy(wqe->sges, &wqe->sge_count, &wqe->length, wr->sg_list,
					   wr->num_sge, rq->sges_max);
		if (err)
			continue;
		wqe->wr_id = wr->wr_id;
		rq->tail++;
	}
	if (err)
		*bad = wr;
	spin_unlock_irqrestore(&rq->lock, flags);
	return err;
}

bool sr_rq_take(struct sr_rq *rq, struct sr_rwqe *to)
{
	const struct sr_rwqe *wqe;
	struct sr_sge *sges = to->sges;
	unsigned long flags;
	bool taken;

	spin_lock_irqsave(&rq->lock, flags);
	taken = rq->shared ? sr_queues_receives(rq) : rq->head != rq->tail;
	if (taken && rq->shared) {
		sr_queues_take_receive(rq, to);
	} else if (taken) {
		wqe = &rq->wqes[rq->head++ % rq->size];
		memcpy(sges, wqe->sges, wqe->sge_count * sizeof(*sges));
		*to = *wqe;
		to->sges = sges;
	}
	spin_unlock_irqrestore(&rq->lock, flags);
	return taken;
}

u64 sr_rq_count(struct sr_rq *rq)
{
	unsigned long flags;
	u64 count;

	spin_lock_irqsave(&rq->lock, flags);
	count = rq->shared ? sr_queues_receives(rq) : rq->tail - rq->head;
	spin_unlock_irqrestore(&rq->lock, flags);
	return count;
}

void sr_rq_clear(struct sr_rq *rq)
{
	unsigned long flags;

	spin_lock_irqsave(&rq->lock, flags);
	if (rq->shared)
		sr_queues_clear_receives(rq);
	else
		rq->head = rq->tail;
	spin_unlock_irqrestore(&rq->lock, flags);
}

static struct sr_srq *to_srq(struct ib_srq *ib)
{
	return container_of(ib, struct sr_srq, ib);
}

int sr_srq_create(struct ib_srq *ib, struct ib_srq_init_attr *init, struct ib_udata *udata)
{
	struct sr_srq *srq = to_srq(ib);

	if (init->srq_type != IB_SRQT_BASIC || !udata)
		return -EOPNOTSUPP;
	if (init->attr.max_wr > SR_WRS_MAX || init->attr.max_sge > SR_SGES_MAX)
		return -EINVAL;
	srq->limit = init->attr.srq_limit;
	if (srq->limit > init->attr.max_wr)
		return -EINVAL;
	if (sr_rq_init(&srq->rq, init->attr.max_wr, init->attr.max_sge))
		return -ENOMEM;
	init->attr.max_wr = srq->rq.size;
	init->attr.max_sge = srq->rq.sges_max;
	return 0;
}

int sr_srq_destroy(struct ib_srq *ib, struct ib_udata *udata)
{
	/* Queue pairs hold it, so none is left. */
	sr_rq_free(&to_srq(ib)->rq);
	return 0;
}

/* Its size stays. */
int sr_srq_modify(struct ib_srq *ib, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		  struct ib_udata *udata)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_srq *srq = to_srq(ib);

	if (mask & IB_SRQ_MAX_WR)
		return -EOPNOTSUPP;
	if (!(mask & IB_SRQ_LIMIT))
		return 0;
	if (attr->srq_limit > srq->rq.size)
		return -EINVAL;
	mutex_lock(&device->lock);
	srq->limit = attr->srq_limit;
	sr_srq_look(srq);
	mutex_unlock(&device->lock);
	return 0;
}

int sr_srq_query(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_srq *srq = to_srq(ib);

	mutex_lock(&device->lock);
	attr->max_wr = srq->rq.size;
	attr->max_sge = srq->rq.sges_max;
	attr->srq_limit = srq->limit;
	mutex_unlock(&device->lock);
	return 0;
}

/* Those that found none may be sent again. */
static void tell_waiting(struct sr_device *device, const struct sr_srq *srq)
{
	unsigned long number;
	struct sr_qp *qp;

	xa_for_each(&device->qps, number, qp)
		if (qp->srq == srq && qp->waits)
			sr_responder_posted(qp);
}

int sr_srq_post_recv(struct ib_srq *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_srq *srq = to_srq(ib);
	int err;

	mutex_lock(&device->lock);
	err = sr_rq_post(&srq->rq, wr, bad);
	tell_waiting(device, srq);
	mutex_unlock(&device->lock);
	return err;
}

/* That fewer than the limit are left is said once for each time that it is set. */
void sr_srq_look(struct sr_srq *srq)
{
	struct ib_event event = {
		.device = srq->ib.device,
		.element.srq = &srq->ib,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
	};

	if (!srq->limit || sr_rq_count(&srq->rq) >= srq->limit)
		return;
	srq->limit = 0;
	if (srq->ib.event_handler)
		srq->ib.event_handler(&event, srq->ib.srq_context);
}
