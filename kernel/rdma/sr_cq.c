// SPDX-License-Identifier: GPL-2.0
/* Completion queues. */
#include <linux/log2.h>

#include "sr.h"

#define WORDS_BYTES ALIGN(sizeof(struct sluice_rdma_cq_words), 64)

static struct sluice_rdma_cq_words *words(const struct sr_cq *cq)
{
	return cq->shared->memory;
}

/* For who asks for it. */
static int share(struct sr_cq *cq, struct ib_udata *udata)
{
	struct sluice_rdma_cq_answer answer = {
		.queues = SLUICE_RDMA_QUEUES,
		.places = roundup_pow_of_two(cq->size),
		.at = WORDS_BYTES,
	};
	int err;

	cq->shared = sr_shared_new(udata, WORDS_BYTES + (size_t)answer.places *
							sizeof(struct sluice_rdma_completion));
	if (IS_ERR(cq->shared)) {
		err = PTR_ERR(cq->shared);
		cq->shared = NULL;
		return err;
	}
	cq->mask = answer.places - 1;
	answer.offset = sr_shared_offset(cq->shared);
	answer.bytes = cq->shared->bytes;
	err = ib_copy_to_udata(udata, &answer, sizeof(answer));
	if (err)
		sr_shared_end(cq->shared);
	return err;
}

int sr_cq_create(struct ib_cq *ib, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
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
	ib->cqe = attr->cqe;
	if (sr_shared_is_asked(udata) && udata->outlen >= sizeof(struct sluice_rdma_cq_answer))
		return share(cq, udata);
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL_ACCOUNT);
	return cq->ring ? 0 : -ENOMEM;
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
	if (cq->shared)
		WRITE_ONCE(words(cq)->attended, 0);
	sr_shared_end(cq->shared);
	return 0;
}

struct sr_shell *sr_cq_shell(struct sr_cq *cq, struct sr_qp *qp)
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
	shell->ib.qp_num = qp->number;
	shell->told = qp->in_kernel ? &qp->ib : &shell->ib;
	return shell;
}

/* Completions of a queue pair that is gone, or was reset, are gone as well: of mapped ones its program sees to that. */
void sr_cq_forget(struct sr_cq *cq, struct sr_shell *shell, bool free)
{
	unsigned long flags;
	u32 i, kept = 0;

	spin_lock_irqsave(&cq->lock, flags);
	for (i = 0; i < cq->count; i++) {
		struct ib_wc *completion = &cq->ring[(cq->head + i) % cq->size];

		if (completion->qp != shell->told)
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

/* The kernel's numbers are libibverbs' but for this one. */
static u32 flags_of(const struct ib_wc *completion)
{
	u32 flags = completion->wc_flags & ~IB_WC_WITH_INVALIDATE;

	return completion->wc_flags & IB_WC_WITH_INVALIDATE ? flags | SLUICE_RDMA_WITH_INV : flags;
}

/* Whether there was room. What the program says that it has taken is read once. */
static bool put_shared(struct sr_cq *cq, const struct ib_wc *completion)
{
	struct sluice_rdma_completion *place = cq->shared->memory + WORDS_BYTES;
	struct sluice_rdma_completion made = {
		.wr_id = completion->wr_id,
		.status = completion->status,
		.opcode = completion->opcode,
		.bytes = completion->byte_len,
		.imm = completion->ex.invalidate_rkey,
		.qp_num = completion->qp->qp_num,
		.src_qp = completion->src_qp,
		.flags = flags_of(completion),
		.slid = completion->slid,
		.pkey_index = completion->pkey_index,
	};

	if (cq->tail - READ_ONCE(words(cq)->head) >= cq->size)
		return false;
	place[cq->tail & cq->mask] = made;
	smp_store_release(&words(cq)->tail, ++cq->tail);
	return true;
}

static bool put(struct sr_cq *cq, const struct ib_wc *completion)
{
	if (cq->shared)
		return put_shared(cq, completion);
	if (cq->count == cq->size)
		return false;
	cq->ring[(cq->head + cq->count++) % cq->size] = *completion;
	return true;
}

void sr_cq_complete(struct sr_cq *cq, const struct ib_wc *completion, bool solicited)
{
	bool notify = false, overflows = false;
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	if (cq->overflowed) {
		/* It was said, and it stays so. */
	} else if (!put(cq, completion)) {
		cq->overflowed = true;
		overflows = true;
	} else {
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

	/* Users in the kernel may not sleep here; they hear of it when the worker has taken the frames. */
	if (taken || count <= 0 || !ib->uobject)
		return taken;
	/* Who waits for events is told by bells. */
	sr_device_poll(cq->device, cq->shared && !sr_cq_is_armed(cq));
	return take(cq, count, completions);
}

bool sr_cq_is_armed(const struct sr_cq *cq)
{
	return READ_ONCE(cq->armed) || READ_ONCE(cq->armed_solicited);
}

void sr_cq_attend(struct sr_cq *cq, u32 attended)
{
	if (cq->shared)
		WRITE_ONCE(words(cq)->attended, attended);
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
	if (cq->shared)
		sr_watch_hurry(cq->device);
	return missed;
}
