/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A window as the holder of a slot sees it: what lies in its own slot is read, what lies in those
 * of its peers is written, and nothing else. Offsets come from sw_layout.h and from positions
 * within a ring; that the slots have room for those was checked with the header.
 *
 * Barriers are those between machines: a guest with one processor shares memory with the host's.
 */
#ifndef SW_VIEW_H
#define SW_VIEW_H

#include "sw_layout.h"

struct sw_view {
	enum sw_kind kind;
	u32 hosts;
	u32 me;
	u64 slot_bytes;
	/* The first page of a region; NULL across a bridge. */
	u8 *header;
	u8 *in;
	u8 *out[SW_HOSTS_MAX];
};

/* What is read from these bytes afterwards is no older than what was seen before. */
static inline void sw_refresh(const struct sw_view *view, u64 at, u64 bytes)
{
	if (view->kind == SW_FLUSH)
		sw_flush_lines(view->in + at, bytes);
	else
		virt_rmb();
}

/* A word of the own slot that a peer may have changed. */
static inline u64 sw_look(const struct sw_view *view, u64 at)
{
	if (view->kind == SW_FLUSH)
		sw_flush_lines(view->in + at, 8);
	return le64_to_cpu(virt_load_acquire((u64 *)(view->in + at)));
}

static inline void sw_copy_out(const struct sw_view *view, u64 at, void *to, u64 bytes)
{
	memcpy(to, view->in + at, bytes);
}

static inline void sw_copy_in(const struct sw_view *view, u32 peer, u64 at, const void *from,
			      u64 bytes)
{
#ifdef __KERNEL__
	if (view->kind == SW_PUSH) {
		memcpy_toio((void __iomem __force *)(view->out[peer] + at), from, bytes);
		return;
	}
#endif
	memcpy(view->out[peer] + at, from, bytes);
}

/* What was written to these bytes is visible to whoever sees anything that is written later. */
static inline void sw_publish(const struct sw_view *view, u32 peer, u64 at, u64 bytes)
{
	if (view->kind == SW_FLUSH)
		sw_flush_lines(view->out[peer] + at, bytes);
#ifdef __KERNEL__
	else if (view->kind == SW_PUSH)
		wmb();
#endif
	else
		virt_wmb();
}

/* Writes a word to a peer's slot and publishes it. */
static inline void sw_say(const struct sw_view *view, u32 peer, u64 at, u64 value)
{
#ifdef __KERNEL__
	if (view->kind == SW_PUSH) {
		wmb();
		/* Little-endian by itself. */
		writeq((value), (void __iomem __force *)(view->out[peer] + at));
		wmb();
		return;
	}
#endif
	virt_store_release((u64 *)(view->out[peer] + at), cpu_to_le64(value));
	sw_publish(view, peer, at, 8);
}

#endif
