// SPDX-License-Identifier: GPL-2.0
/* Memory that a request names in pieces. */
#include "sr.h"

/* The part of piece @index that lies within @bytes from @offset on; both go on behind it. */
static struct sr_sge part(const struct sr_sge *sge, u64 *offset, u64 *bytes)
{
	struct sr_sge some = *sge;
	u64 skip = min_t(u64, *offset, sge->len);

	some.addr += skip;
	some.len = min_t(u64, sge->len - skip, *bytes);
	*offset -= skip;
	*bytes -= some.len;
	return some;
}

/* ib_uses_virt_dma(): these are the kernel's addresses. */
static void *direct(const struct sr_sge *sge)
{
	return (void *)(uintptr_t)sge->addr;
}

static struct sr_mr *find(struct sr_qp *qp, const struct sr_sge *sge, int access)
{
	return sr_mr_find(qp->device, qp->ib.pd, sge->lkey, sge->addr, sge->len, access);
}

static int check(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
		 int access)
{
	int i;

	for (i = 0; i < count && bytes; i++) {
		struct sr_sge some = part(&sges[i], &offset, &bytes);

		if (some.len && !sr_is_direct(qp, some.lkey) && !find(qp, &some, access))
			return -EFAULT;
	}
	return bytes ? -EFAULT : 0;
}

int sr_gather(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	      struct sr_channel *channel, const struct sr_frame *header)
{
	int i, err = check(qp, sges, count, offset, bytes, 0);

	if (err)
		return err;
	sr_channel_put_header(channel, header);
	for (i = 0; i < count && bytes; i++) {
		struct sr_sge some = part(&sges[i], &offset, &bytes);

		if (some.len && sr_is_direct(qp, some.lkey))
			sr_channel_put(channel, direct(&some), some.len);
		else if (some.len)
			sr_mr_put(find(qp, &some, 0), some.addr, some.len, channel);
	}
	sr_channel_pad(channel, header->len);
	return 0;
}

int sr_scatter(struct sr_qp *qp, const struct sr_sge *sges, int count, u64 offset, u64 bytes,
	       struct sr_channel *channel, const u8 *from)
{
	int i, err = check(qp, sges, count, offset, bytes, IB_ACCESS_LOCAL_WRITE);
	u64 at = 0;

	if (err)
		return err;
	for (i = 0; i < count && bytes; i++) {
		struct sr_sge some = part(&sges[i], &offset, &bytes);
		struct sr_mr *mr = NULL;

		if (some.len && sr_is_direct(qp, some.lkey)) {
			if (from)
				memcpy(direct(&some), from + at, some.len);
			else
				sr_channel_copy(channel, at, direct(&some), some.len);
		} else if (some.len) {
			mr = find(qp, &some, IB_ACCESS_LOCAL_WRITE);
		}
		if (mr && from)
			sr_mr_write(mr, some.addr, some.len, from + at);
		else if (mr)
			sr_mr_copy(mr, some.addr, some.len, channel, at);
		at += some.len;
	}
	return 0;
}

int sr_sges_copy(struct sr_sge *to, u8 *count, u64 *length, const struct ib_sge *from, int sges,
		 u32 sges_max)
{
	int i;

	if (sges < 0 || sges > sges_max)
		return -EINVAL;
	*length = 0;
	for (i = 0; i < sges; i++) {
		to[i].addr = from[i].addr;
		to[i].len = from[i].length;
		to[i].lkey = from[i].lkey;
		*length += from[i].length;
	}
	*count = sges;
	return *length > SR_MESSAGE_BYTES_MAX ? -EINVAL : 0;
}
