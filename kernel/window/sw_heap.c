// SPDX-License-Identifier: GPL-2.0
/*
 * The heap of the own slot, lent to peers by pages. A page that one peer has had is lent to no
 * other one: a peer that was thought dead may go on in the middle of a copy.
 */
#include "sw_proto.h"

struct sw_heap_page {
	/* 1 + the peer that had it first; 0: nobody yet. */
	u8 owner;
	bool lent;
	bool first;
};

int sw_heap_init(struct sw_heap *heap, u32 hosts, u64 slot_bytes)
{
	heap->start = sw_heap_at(hosts);
	heap->count = (slot_bytes - heap->start) / SW_PAGE;
	heap->pages = kvcalloc(heap->count, sizeof(*heap->pages), GFP_KERNEL);
	return heap->pages ? 0 : -ENOMEM;
}

void sw_heap_reset(struct sw_heap *heap)
{
	memset(heap->pages, 0, heap->count * sizeof(*heap->pages));
}

void sw_heap_free(struct sw_heap *heap)
{
	kvfree(heap->pages);
	heap->pages = NULL;
	heap->count = 0;
}

/* The first of @count pages that are free, the peer's own or, with @fresh, nobody's too. */
static bool find(const struct sw_heap *heap, u8 owner, u64 count, bool fresh, u64 *at)
{
	u64 index, run = 0;

	for (index = 0; index < heap->count; index++) {
		const struct sw_heap_page *page = &heap->pages[index];
		bool fits = !page->lent && (page->owner == owner || (fresh && !page->owner));

		run = fits ? run + 1 : 0;
		if (run == count) {
			*at = index + 1 - count;
			return true;
		}
	}
	return false;
}

u64 sw_heap_lend(struct sw_heap *heap, u32 peer, u64 bytes)
{
	u64 count, at, index;

	if (bytes == 0 || bytes > heap->count * SW_PAGE)
		return 0;
	count = ALIGN(bytes, (u64)SW_PAGE) / SW_PAGE;
	/* Its own first, so that peers that come and go use up no new ones. */
	if (!find(heap, peer + 1, count, false, &at) && !find(heap, peer + 1, count, true, &at))
		return 0;
	for (index = at; index < at + count; index++) {
		heap->pages[index].owner = peer + 1;
		heap->pages[index].lent = true;
		heap->pages[index].first = index == at;
	}
	return heap->start + at * SW_PAGE;
}

bool sw_heap_take_back(struct sw_heap *heap, u32 peer, u64 at)
{
	struct sw_heap_page *page;
	u64 index;

	if (at < heap->start || !IS_ALIGNED(at - heap->start, (u64)SW_PAGE))
		return false;
	index = (at - heap->start) / SW_PAGE;
	if (index >= heap->count)
		return false;
	page = &heap->pages[index];
	if (!page->lent || !page->first || page->owner != peer + 1)
		return false;
	page->lent = false;
	for (index++; index < heap->count; index++) {
		page = &heap->pages[index];
		if (!page->lent || page->first)
			break;
		page->lent = false;
	}
	return true;
}

u64 sw_heap_lent(const struct sw_heap *heap)
{
	u64 index, lent = 0;

	for (index = 0; index < heap->count; index++)
		lent += heap->pages[index].lent;
	return lent * SW_PAGE;
}
