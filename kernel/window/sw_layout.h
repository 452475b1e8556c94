/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Where everything lies in a window (docs/windows.md, "Layout, version 1"). Words are 64 bits,
 * little-endian; offsets and lengths are bytes.
 */
#ifndef SW_LAYOUT_H
#define SW_LAYOUT_H

#include "sw_port.h"

#define SW_MAGIC		0x4e57454349554c53ULL /* "SLUICEWN" */
#define SW_VERSION		1
#define SW_LINE			64
#define SW_PAGE			4096
#define SW_HEADER_BYTES		4096
#define SW_HOSTS_MAX		32
#define SW_PEER_BYTES		16384
#define SW_MAILBOX_BYTES	8192
#define SW_HEAP_BYTES_MIN	65536
#define SW_REGION_BYTES_MAX	(1ULL << 46)
#define SW_MESSAGE_BYTES_MAX	1024

/* What memory needs to be a wire; the word for it in the header. */
enum sw_kind {
	SW_COHERENT = 1,
	SW_FLUSH = 2,
	/* Across a bridge, which has no header. */
	SW_PUSH = 3,
};

/* In the first word of a hello; the version is in the upper 16 bits. */
#define SW_HELLO		0x0000454349554c53ULL /* "SLUICE" */
#define SW_HELLO_MASK		0x0000ffffffffffffULL
#define SW_HELLO_WORD		(SW_HELLO | (u64)SW_VERSION << 48)
/* A read that nobody answers (PCI Express 2.3.2). */
#define SW_ALL_ONES		(~0ULL)

/* In the page of a peer. */
#define SW_AT_HELLO		0
#define SW_AT_GENERATION	8
#define SW_AT_ANSWER		16
#define SW_AT_BEAT		64
#define SW_AT_TAIL		128
#define SW_AT_HEAD		192
#define SW_AT_MAILBOX		(SW_PEER_BYTES - SW_MAILBOX_BYTES)

/* In the line of a claim. */
enum sw_claim_word { SW_GENERATION, SW_BEAT, SW_NAME_LOW, SW_NAME_HIGH };

static inline u64 sw_claim_at(u32 slot)
{
	return SW_LINE * (1 + (u64)slot);
}

static inline u64 sw_slot_at(u32 slot, u64 slot_bytes)
{
	return SW_HEADER_BYTES + slot * slot_bytes;
}

static inline u64 sw_heap_at(u32 hosts)
{
	return (u64)hosts * SW_PEER_BYTES;
}

/* Protocol times, nanoseconds. */
#ifndef SW_SILENCE_NS
#define SW_SILENCE_NS		3000000000ULL
#endif
#define SW_BEAT_NS		250000000ULL
/* What counts of the time between two looks, at most. */
#define SW_GAP_NS		(2 * SW_BEAT_NS)
#define SW_SETTLE_NS		50000000ULL

#endif
