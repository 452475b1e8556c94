// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that a program maps and this side works with as well: queues of its own. The program can write
 * anywhere in it at any moment, so nothing is read from it that is not checked, and nothing twice. Its pages live as
 * long as somebody has them mapped; when the queue is gone nobody else looks at them.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <rdma/uverbs_ioctl.h>

#include "sr.h"

static struct sr_shared *to_shared(struct rdma_user_mmap_entry *entry)
{
	return container_of(entry, struct sr_shared, entry);
}

struct sr_shared *sr_shared_new(struct ib_udata *udata, size_t bytes)
{
	struct sr_ucontext *context = rdma_udata_to_drv_context(udata, struct sr_ucontext, ib);
	struct sr_shared *shared = kzalloc(sizeof(*shared), GFP_KERNEL_ACCOUNT);
	int err = -ENOMEM;

	if (!shared)
		return ERR_PTR(err);
	shared->bytes = PAGE_ALIGN(bytes);
	/* Pages of their own, which count as the program's. */
	shared->memory = __vmalloc(shared->bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (shared->memory)
		err = rdma_user_mmap_entry_insert(&context->ib, &shared->entry, shared->bytes);
	if (err) {
		vfree(shared->memory);
		kfree(shared);
		return ERR_PTR(err);
	}
	return shared;
}

/* A program that maps it at this moment has it until it is through. */
void sr_shared_end(struct sr_shared *shared)
{
	if (shared)
		rdma_user_mmap_entry_remove(&shared->entry);
}

void sr_shared_free(struct rdma_user_mmap_entry *entry)
{
	struct sr_shared *shared = to_shared(entry);

	vfree(shared->memory);
	kfree(shared);
}

int sr_shared_mmap(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	/* Shared, and as long as it is. */
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(context, vma);
	struct sr_shared *shared;
	size_t at;
	int err = 0;

	if (!entry)
		return -EINVAL;
	shared = to_shared(entry);
	if (vma->vm_flags & VM_EXEC)
		err = -EPERM;
	for (at = 0; !err && at < shared->bytes; at += PAGE_SIZE)
		err = vm_insert_page(vma, vma->vm_start + at, vmalloc_to_page(shared->memory + at));
	rdma_user_mmap_entry_put(entry);
	return err;
}

bool sr_shared_is_asked(struct ib_udata *udata)
{
	struct sluice_rdma_ask ask;

	return udata && udata->inlen >= sizeof(ask) && !ib_copy_from_udata(&ask, udata, sizeof(ask)) &&
	       ask.queues == SLUICE_RDMA_QUEUES;
}

u64 sr_shared_offset(const struct sr_shared *shared)
{
	return rdma_user_mmap_get_offset(&shared->entry);
}
