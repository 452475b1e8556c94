// SPDX-License-Identifier: GPL-2.0
/* Completion queues. */
#include "sr.h"

int sr_cq_create(struct ib_cq *ib, const struct ib_cq_init_attr *attr)
{
	struct sr_cq *cq = to_cq(ib);

	if (attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > SR_CQES_MAX)
		return -EINVAL;
	cq->device = to_device(ib->device);
	spin_lock_init(&cq->lock);
	INIT_LIST_HEAD(&cq->shells);
	INIT_LIST_HEAD(&cq->free_shells);
	cq->size = attr->cqe;
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL_ACCOUNT);
	if (!cq->ring)
		return -ENOMEM;
	ib->cqe = attr->cqe;
	return 0;
}

static void free_shells(struct list_head *shells)
{
	struct sr_shell *shell, *next;

	list_for_each_entry_safe(shell, next, shells, list)
		kfree(shell);
}

int sr_cq_destroy(struct ib_cq *ib, struct ib_udata *udata)
{
	struct sr_cq *cq = to_cq(ib);

	/* Queue pairs hold it, so none is left. */
	free_shells(&cq->shells);
	free_shells(&cq->free_shells);
	kvfree(cq->ring);
	return 0;
}

struct sr_shell *sr_cq_shell(struct sr_cq *cq, u32 number)
{
	struct sr_shell *shell = list_first_entry_or_null(&cq->free_shells, struct sr_shell, list);

	if (shell) {
		list_move(&shell->list, &cq->shells);
	} else {
		shell = kzalloc(sizeof(*shell), GFP_KERNEL_ACCOUNT);
		if (!shell)
			return NULL;
		list_add(&shell->list, &cq->shells);
	}
	shell->ib.device = cq->ib.device;
	shell->ib.qp_num = number;
	return shell;
}

/* Completions of a queue pair that is gone, or was reset, are gone as well. */
void sr_cq_forget(struct sr_cq *cq, struct sr_shell *shell, bool free)
{
	unsigned long flags;
	u32 i, kept = 0;

	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < cq->count; i++) {
		struct ib_wc *completion = &cq->ring[(cq->head + i) % cq->size];

		if (completion->qp != &shell->ib)
			cq->ring[(cq->head + kept++) % cq->size] = *completion;
	}
	cq->count = kept;
	spin_unlock_irqrestore(&cq->lock, flags);
	if (free)
		list_move(&shell->list, &cq->free_shells);
}

static void overflow(struct sr_cq *cq)
{
	struct ib_event event = {
		.device = cq->ib.device,
		.element.cq = &cq->ib,
		.event = IB_EVENT_CQ_ERR,
	};

	if (cq->ib.event_handler)
		cq->ib.event_handler(&event, cq->ib.cq_context);
}

void sr_cq_complete(struct sr_cq *cq, const struct ib_wc *completion, bool solicited)
{
	bool notify = false, overflows = false;
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->overflowed) {
		/* It was said, and it stays so. */
	} else if (cq->count == cq->size) {
		cq->overflowed = true;
		overflows = true;
	} else {
		cq->ring[(cq->head + cq->count++) % cq->size] = *completion;
		notify = cq->armed || (cq->armed_solicited && (solicited || completion->status));
		if (notify) {
			cq->armed = false;
			cq->armed_solicited = false;
		}
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (overflows)
		overflow(cq);
	if (notify && cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static int take(struct sr_cq *cq, int count, struct ib_wc *completions)
{
	unsigned long flags;
	int taken = 0;

	spin_lock_irqsave(&cq->lock, flags);
	while (taken < count && cq->count) {
		completions[taken++] = cq->ring[cq->head];
		cq->head = (cq->head + 1) % cq->size;
		cq->count--;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return taken;
}

int sr_cq_poll(struct ib_cq *ib, int count, struct ib_wc *completions)
{
	struct sr_cq *cq = to_cq(ib);
	int taken = take(cq, count, completions);

	if (taken || count <= 0)
		return taken;
	sr_device_poll(cq->device);
	return take(cq, count, completions);
}

int sr_cq_arm(struct ib_cq *ib, enum ib_cq_notify_flags how)
{
	struct sr_cq *cq = to_cq(ib);
	unsigned long flags;
	int missed;

	spin_lock_irqsave(&cq->lock, flags);
	if ((how & IB_CQ_SOLICITED_MASK) == IB_CQ_NEXT_COMP)
		cq->armed = true;
	else
		cq->armed_solicited = true;
	missed = (how & IB_CQ_REPORT_MISSED_EVENTS) && cq->count;
	spin_unlock_irqrestore(&cq->lock, flags);
	return missed;
}
