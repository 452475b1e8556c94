// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of programs: pinned by ib_umem_get(), which counts it as locked, and named by random keys. And memory of
 * users in the kernel, which they open and close by requests, each time under a key whose upper part is the
 * region's and random, and whose lower part is theirs to choose (IBTA 10.6.3.3).
 */
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

/* A key that nobody has; who has one learns nothing of another. Nothing is open before that. */
int sr_mr_name(struct sr_device *device, struct sr_mr *mr, bool open)
{
	int try, err = -EBUSY;

	mutex_lock(&device->lock);
	if (device->key_count >= SR_MRS_MAX)
		err = -ENOMEM;
	for (try = 0; err == -EBUSY && try < KEY_TRIES; try++) {
		u32 key = get_random_u32();

		/* Programs take 0 for none, and it is the kernel's own memory. */
		if (!(key >> SR_KEY_SHIFT))
			continue;
		err = xa_insert(&device->keys, key >> SR_KEY_SHIFT, mr, GFP_KERNEL);
		if (!err) {
			mr->key = key;
			mr->open = open;
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
	kvfree(mr->next_pages);
	ib_umem_release(mr->umem);
	kfree(mr);
}

struct ib_mr *sr_mr_register(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access)
{
	struct sr_mr *mr;
	int err;

	if (access & ~(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ |
		       IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_MW_BIND | IB_ACCESS_OPTIONAL))
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
		err = sr_mr_name(to_device(pd->device), mr, true);
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
	if (to_mr(ib)->windows) {
		mutex_unlock(&device->lock);
		return -EBUSY;
	}
	xa_erase(&device->keys, to_mr(ib)->key >> SR_KEY_SHIFT);
	device->key_count--;
	mutex_unlock(&device->lock);
	free_mr(to_mr(ib));
	return 0;
}

struct ib_mr *sr_mr_allocate(struct ib_pd *pd, enum ib_mr_type type, u32 pages)
{
	struct sr_mr *mr;
	int err = -ENOMEM;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!pages || pages > SR_FAST_PAGES_MAX)
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->ib.pd = pd;
	mr->pages_max = pages;
	mr->pages = kvcalloc(pages, sizeof(*mr->pages), GFP_KERNEL);
	mr->next_pages = kvcalloc(pages, sizeof(*mr->next_pages), GFP_KERNEL);
	if (mr->pages && mr->next_pages)
		err = sr_mr_name(to_device(pd->device), mr, false);
	if (err) {
		free_mr(mr);
		return ERR_PTR(err);
	}
	return &mr->ib;
}

/* ib_uses_virt_dma(): it is the kernel's address of a page. */
static int set_page(struct ib_mr *ib, u64 addr)
{
	struct sr_mr *mr = to_mr(ib);

	if (mr->next_count == mr->pages_max)
		return -ENOMEM;
	mr->next_pages[mr->next_count++] = (void *)(uintptr_t)addr;
	return 0;
}

int sr_mr_map(struct ib_mr *ib, struct scatterlist *list, int count, unsigned int *offset)
{
	if (to_mr(ib)->umem || ib->page_size != PAGE_SIZE)
		return -EINVAL;
	to_mr(ib)->next_count = 0;
	return ib_sg_to_pages(ib, list, count, offset, set_page);
}

/* One that users in the kernel open and close. */
static struct sr_mr *find_fast(struct sr_device *device, struct ib_pd *pd, u32 key)
{
	struct sr_mr *mr = xa_load(&device->keys, key >> SR_KEY_SHIFT);

	return mr && !mr->umem && !mr->mw && mr->ib.pd == pd ? mr : NULL;
}

int sr_mr_open(struct sr_device *device, struct ib_pd *pd, u32 key, u32 access)
{
	struct sr_mr *mr = find_fast(device, pd, key);
	u64 offset;

	if (!mr || mr->open)
		return -EINVAL;
	/* Its owner may have changed where it begins, but within its page (ib_map_mr_sg_zbva()). */
	offset = mr->ib.iova & ~PAGE_MASK;
	if (!mr->next_count || !mr->ib.length ||
	    mr->ib.length > (u64)mr->next_count * PAGE_SIZE - offset ||
	    mr->ib.iova + mr->ib.length < mr->ib.iova)
		return -EINVAL;
	memcpy(mr->pages, mr->next_pages, mr->next_count * sizeof(*mr->pages));
	mr->start = mr->ib.iova;
	mr->length = mr->ib.length;
	mr->offset = offset;
	mr->access = access;
	mr->key = key;
	mr->open = true;
	return 0;
}

int sr_mr_close(struct sr_device *device, struct ib_pd *pd, u32 key)
{
	struct sr_mr *mr = find_fast(device, pd, key);

	/* What is closed may be closed again. */
	if (!mr || mr->key != key)
		return -EINVAL;
	mr->open = false;
	return 0;
}

int sr_mr_close_remote(struct sr_device *device, struct ib_pd *pd, u32 key)
{
	struct sr_mr *mr = find_fast(device, pd, key);

	/* Nobody was given a key that opens nothing to him. */
	if (!mr || mr->key != key || !mr->open ||
	    !(mr->access & (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC)))
		return -EACCES;
	mr->open = false;
	return 0;
}

static bool opens(const struct sr_mr *mr, struct ib_pd *pd, u32 key, u64 addr, u64 bytes, int access)
{
	if (mr->key != key || !mr->open || mr->ib.pd != pd || (mr->access & access) != access)
		return false;
	return addr >= mr->start && addr - mr->start <= mr->length &&
	       bytes <= mr->length - (addr - mr->start);
}

struct sr_mr *sr_mr_find(struct sr_device *device, struct ib_pd *pd, u32 key, u64 addr, u64 bytes,
			 int access)
{
	struct sr_mr *mr = xa_load(&device->keys, key >> SR_KEY_SHIFT);

	return mr && !mr->mw && opens(mr, pd, key, addr, bytes, access) ? mr : NULL;
}

struct sr_mr *sr_mr_find_remote(struct sr_qp *qp, u32 key, u64 addr, u64 bytes, int access)
{
	struct sr_mr *mr = xa_load(&qp->device->keys, key >> SR_KEY_SHIFT);

	if (!mr || !opens(mr, qp->ib.pd, key, addr, bytes, access))
		return NULL;
	return !mr->qp || mr->qp == qp ? mr : NULL;
}

/* The longest value that a program may find whole at the end of a WRITE. */
#define END_BYTES 8

/* Where a byte lies, and how many behind it are of the same page. */
static u8 *place(struct sr_mr *mr, u64 addr, u64 *bytes)
{
	u64 at = addr - mr->start + mr->offset;

	*bytes = min_t(u64, *bytes, PAGE_SIZE - (at & ~PAGE_MASK));
	return (u8 *)mr->pages[at >> PAGE_SHIFT] + (at & ~PAGE_MASK);
}

u64 *sr_mr_word(struct sr_mr *mr, u64 addr)
{
	u64 bytes = sizeof(u64);
	u8 *at = place(mr, addr, &bytes);

	return IS_ALIGNED((uintptr_t)at, sizeof(u64)) ? (u64 *)at : NULL;
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

void sr_mr_write(struct sr_mr *mr, u64 addr, u64 bytes, const u8 *from)
{
	while (bytes) {
		u64 some = bytes;
		u8 *to = place(mr, addr, &some);

		memcpy(to, from, some);
		addr += some;
		from += some;
		bytes -= some;
	}
}

/* Programs wait for a WRITE by looking at its last bytes. memcpy() may store them in parts, or twice, as the string
 * instruction does with 8 bytes: what a program has put there meanwhile would be gone. So the largest aligned units
 * are stored once each, in their order.
 */
static void store_end(u8 *to, const u8 *from, u64 bytes)
{
	while (bytes) {
		u64 unit = min_t(u64, rounddown_pow_of_two(bytes), END_BYTES), word = 0;

		while (!IS_ALIGNED((uintptr_t)to, unit))
			unit /= 2;
		memcpy(&word, from, unit);
		smp_wmb(); /* In their order. */
		switch (unit) {
		case 8:
			WRITE_ONCE(*(u64 *)to, word);
			break;
		case 4:
			WRITE_ONCE(*(u32 *)to, (u32)word);
			break;
		case 2:
			WRITE_ONCE(*(u16 *)to, (u16)word);
			break;
		default:
			WRITE_ONCE(*to, *from);
		}
		to += unit;
		from += unit;
		bytes -= unit;
	}
}

void sr_mr_copy(struct sr_mr *mr, u64 addr, u64 bytes, struct sr_channel *channel, u64 offset)
{
	while (bytes) {
		u64 some = bytes, end = 0;
		u8 *to = place(mr, addr, &some), last[END_BYTES];

		if (some == bytes)
			end = min_t(u64, some, END_BYTES);
		sr_channel_copy(channel, offset, to, some - end);
		if (end) {
			sr_channel_copy(channel, offset + some - end, last, end);
			store_end(to + some - end, last, end);
		}
		addr += some;
		offset += some;
		bytes -= some;
	}
}
