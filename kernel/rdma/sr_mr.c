// SPDX-License-Identifier: GPL-2.0
/* Memory of programs: pinned by ib_umem_get(), which counts it as locked, and named by random keys. */
#include <linux/random.h>

#include "sr.h"

#define KEY_TRIES 16

static struct ib_umem *pin(struct ib_pd *pd, u64 start, u64 length, int access)
{
#ifdef SR_HAS_UMEM_GET_VA
	return ib_umem_get_va(pd->device, start, length, access);
#else
	return ib_umem_get(pd->device, start, length, access);
#endif
}

static int find_pages(struct sr_mr *mr)
{
	size_t count = ib_umem_num_pages(mr->umem), i = 0;
	struct sg_page_iter iter;

	mr->pages = kvmalloc_array(count, sizeof(*mr->pages), GFP_KERNEL_ACCOUNT);
	if (!mr->pages)
		return -ENOMEM;
	for_each_sgtable_page(&mr->umem->sgt_append.sgt, &iter, 0) {
		if (i == count)
			return -EINVAL;
		mr->pages[i++] = page_address(sg_page_iter_page(&iter));
	}
	return i == count ? 0 : -EINVAL;
}

/* A key that nobody has; who has one learns nothing of another. */
static int name(struct sr_device *device, struct sr_mr *mr)
{
	int try, err = -EBUSY;

	mutex_lock(&device->lock);
	if (device->key_count >= SR_MRS_MAX)
		err = -ENOMEM;
	for (try = 0; err == -EBUSY && try < KEY_TRIES; try++) {
		u32 key = get_random_u32();

		/* Programs take 0 for none. */
		if (!key)
			continue;
		err = xa_insert(&device->keys, key, mr, GFP_KERNEL);
		if (!err) {
			mr->ib.lkey = key;
			mr->ib.rkey = key;
			device->key_count++;
		}
	}
	mutex_unlock(&device->lock);
	return err;
}

static void free_mr(struct sr_mr *mr)
{
	kvfree(mr->pages);
	ib_umem_release(mr->umem);
	kfree(mr);
}

struct ib_mr *sr_mr_register(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access)
{
	struct sr_mr *mr;
	int err;

	if (access & ~(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |
		       IB_ACCESS_OPTIONAL))
		return ERR_PTR(-EOPNOTSUPP);
	if (!length || iova + length < iova)
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->umem = pin(pd, start, length, access);
	if (IS_ERR(mr->umem)) {
		err = PTR_ERR(mr->umem);
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->ib.pd = pd;
	mr->access = access;
	mr->start = iova;
	mr->length = length;
	mr->offset = start & ~PAGE_MASK;
	err = find_pages(mr);
	if (!err)
		err = name(to_device(pd->device), mr);
	if (err) {
		free_mr(mr);
		return ERR_PTR(err);
	}
	return &mr->ib;
}

int sr_mr_deregister(struct ib_mr *ib, struct ib_udata *udata)
{
	struct sr_device *device = to_device(ib->device);

	/* Who copies holds the lock: behind this nobody does. */
	mutex_lock(&device->lock);
	xa_erase(&device->keys, ib->lkey);
	device->key_count--;
	mutex_unlock(&device->lock);
	free_mr(to_mr(ib));
	return 0;
}

struct sr_mr *sr_mr_find(struct sr_device *device, struct ib_pd *pd, u32 key, u64 addr, u64 bytes,
			 int access)
{
	struct sr_mr *mr = xa_load(&device->keys, key);

	if (!mr || mr->ib.pd != pd || (mr->access & access) != access)
		return NULL;
	if (addr < mr->start || addr - mr->start > mr->length ||
	    bytes > mr->length - (addr - mr->start))
		return NULL;
	return mr;
}

/* Where a byte lies, and how many behind it are of the same page. */
static u8 *place(struct sr_mr *mr, u64 addr, u64 *bytes)
{
	u64 at = addr - mr->start + mr->offset;

	*bytes = min_t(u64, *bytes, PAGE_SIZE - (at & ~PAGE_MASK));
	return (u8 *)mr->pages[at >> PAGE_SHIFT] + (at & ~PAGE_MASK);
}

void sr_mr_put(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel)
{
	while (bytes) {
		u64 some = bytes;
		u8 *from = place(mr, addr, &some);

		sr_channel_put(channel, from, some);
		addr += some;
		bytes -= some;
	}
}

void sr_mr_copy(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel, u64 offset)
{
	while (bytes) {
		u64 some = bytes;
		u8 *to = place(mr, addr, &some);

		sr_channel_copy(channel, offset, to, some);
		addr += some;
		offset += some;
		bytes -= some;
	}
}
