// SPDX-License-Identifier: GPL-2.0
/* The first page of a region: what window this is. */
#include "sw_proto.h"

int sw_header_read(const u8 *region, u64 memory, struct sw_header *header)
{
	u64 words[8], needed;
	bool ones = true;
	int i;

	if (memory < SW_HEADER_BYTES)
		return -ENODEV;
	for (i = 0; i < 8; i++) {
		words[i] = le64_to_cpu(READ_ONCE(((const u64 *)region)[i]));
		ones &= words[i] == SW_ALL_ONES;
	}
	if (ones || words[0] != SW_MAGIC)
		return -ENODEV;
	if (words[1] != SW_VERSION)
		return -EOPNOTSUPP;
	if (words[2] != SW_COHERENT && (words[2] != SW_FLUSH || !sw_can_flush()))
		return -EOPNOTSUPP;
	if (words[3] < 2 || words[3] > SW_HOSTS_MAX)
		return -EINVAL;
	needed = words[3] * SW_PEER_BYTES + SW_HEAP_BYTES_MIN;
	if (words[4] < needed || !IS_ALIGNED(words[4], SW_PAGE) ||
	    words[4] > SW_REGION_BYTES_MAX / words[3] - SW_HEADER_BYTES)
		return -EINVAL;
	if (SW_HEADER_BYTES + words[3] * words[4] > memory)
		return -EINVAL;
	header->kind = words[2];
	header->hosts = words[3];
	header->slot_bytes = words[4];
	header->id[0] = words[5];
	header->id[1] = words[6];
	return 0;
}

void sw_view_region(struct sw_view *view, const struct sw_header *header, u8 *region, u32 slot)
{
	u32 peer;

	view->kind = header->kind;
	view->hosts = header->hosts;
	view->me = slot;
	view->slot_bytes = header->slot_bytes;
	view->header = region;
	view->in = region + sw_slot_at(slot, header->slot_bytes);
	for (peer = 0; peer < header->hosts; peer++)
		view->out[peer] = region + sw_slot_at(peer, header->slot_bytes);
}
