// SPDX-License-Identifier: GPL-2.0
/*
 * Memory windows of programs (IBTA 10.6.7): a request opens a part of a region to peers, under a key whose upper part is
 * the window's and random. A window has the pages of its region, which is not deregistered before. One of the second
 * kind is there for the queue pair alone that has bound it, and goes with that, or when that is reset.
 */
#include "sr.h"

#define CHANGES (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)
/* What means something of a window; the others, which programs may have set as for a region, do not. */
#define OPENS (CHANGES | IB_ACCESS_REMOTE_READ)

int sr_mw_allocate(struct ib_mw *ib, struct ib_udata *udata)
{
	struct sr_mr *mr = &to_mw(ib)->mr;
	int err;

	/* uverbs takes any. */
	if (ib->type != IB_MW_TYPE_1 && ib->type != IB_MW_TYPE_2)
		return -EINVAL;
	mr->ib.pd = ib->pd;
	mr->mw = to_mw(ib);
	INIT_LIST_HEAD(&mr->of_qp);
	err = sr_mr_name(to_device(ib->device), mr, false);
	ib->rkey = mr->key;
	return err;
}

static void unbind(struct sr_mr *mr)
{
	if (!mr->open)
		return;
	mr->open = false;
	mr->region->windows--;
	mr->region = NULL;
	mr->pages = NULL;
	mr->qp = NULL;
	list_del_init(&mr->of_qp);
}

int sr_mw_free(struct ib_mw *ib)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_mr *mr = &to_mw(ib)->mr;

	mutex_lock(&device->lock);
	unbind(mr);
	xa_erase(&device->keys, mr->key >> SR_KEY_SHIFT);
	device->key_count--;
	mutex_unlock(&device->lock);
	return 0;
}

/* Which region, if that may be opened so. */
static struct sr_mr *region_of(struct sr_qp *qp, const struct sr_wqe *wqe)
{
	int needs = IB_ACCESS_MW_BIND | (wqe->access & CHANGES ? IB_ACCESS_LOCAL_WRITE : 0);
	struct sr_mr *mr = sr_mr_find(qp->device, qp->ib.pd, wqe->imm, wqe->remote_addr,
				      wqe->compare_add, needs);

	return mr && mr->umem ? mr : NULL;
}

/* The same bytes as the region has there. */
static void bind(struct sr_qp *qp, struct sr_mr *mr, struct sr_mr *region, const struct sr_wqe *wqe)
{
	u64 at = wqe->remote_addr - region->start + region->offset;

	mr->region = region;
	mr->pages = region->pages + (at >> PAGE_SHIFT);
	mr->offset = at & ~PAGE_MASK;
	mr->start = wqe->access & IB_ZERO_BASED ? 0 : wqe->remote_addr;
	mr->length = wqe->compare_add;
	mr->access = wqe->access & OPENS;
	mr->open = true;
	region->windows++;
	if (mr->mw->ib.type == IB_MW_TYPE_2) {
		mr->qp = qp;
		list_add(&mr->of_qp, &qp->windows);
	}
}

int sr_mw_bind(struct sr_qp *qp, const struct sr_wqe *wqe)
{
	struct sr_mr *mr = xa_load(&qp->device->keys, wqe->rkey >> SR_KEY_SHIFT);
	struct sr_mr *region = NULL;

	if (!mr || !mr->mw || mr->ib.pd != qp->ib.pd)
		return -EINVAL;
	/* It is invalidated first (IBTA 10.6.7.2.4). */
	if (mr->mw->ib.type == IB_MW_TYPE_2 && mr->open)
		return -EINVAL;
	/* Of no bytes: it is taken off its region. */
	if (wqe->compare_add) {
		region = region_of(qp, wqe);
		if (!region)
			return -EINVAL;
	}
	unbind(mr);
	mr->key = wqe->rkey;
	if (region)
		bind(qp, mr, region, wqe);
	return 0;
}

int sr_mw_invalidate(struct sr_qp *qp, u32 key)
{
	struct sr_mr *mr = xa_load(&qp->device->keys, key >> SR_KEY_SHIFT);

	if (!mr || !mr->mw || !mr->open || mr->key != key || mr->qp != qp)
		return -EINVAL;
	unbind(mr);
	return 0;
}

void sr_mw_forget(struct sr_qp *qp)
{
	struct sr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &qp->windows, of_qp)
		unbind(mr);
}
