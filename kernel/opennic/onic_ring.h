/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of rings and completions, with nothing of the kernel in it: test/ring_test.c runs
 * it in user space.
 *
 * A ring of hardware has @count entries for software; behind them is its status. Of these one stays
 * empty, so that full and empty are told apart.
 */
#ifndef ONIC_RING_H
#define ONIC_RING_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

static inline u16 onic_ring_next(u16 at, u16 count)
{
	return at + 1 == count ? 0 : at + 1;
}

/* Entries from @tail up to @head. */
static inline u16 onic_ring_used(u16 head, u16 tail, u16 count)
{
	return head >= tail ? head - tail : count - tail + head;
}

/* Entries that can be put in before the ring is full. */
static inline u16 onic_ring_free(u16 head, u16 tail, u16 count)
{
	return count - 1 - onic_ring_used(head, tail, count);
}

/* Places that are empty before buffers are put in, so that a doorbell is for many. */
static inline u16 onic_refill_at(u16 count)
{
	return count / 4 < 64 ? count / 4 : 64;
}

/*
 * Whether what the device says it has consumed can be true: between what was cleaned and what was
 * given. The device is not trusted with an index into our arrays.
 */
static inline bool onic_ring_consumed_ok(u16 consumed, u16 head, u16 tail, u16 count)
{
	return consumed < count &&
	       onic_ring_used(consumed, tail, count) <= onic_ring_used(head, tail, count);
}

/* A completion of a received packet, 8 bytes (open-nic-shell, qdma_subsystem_c2h.sv). */
#define ONIC_CMPL_COLOUR	(1ULL << 1)
#define ONIC_CMPL_ERROR		(1ULL << 2)

/* Whether the entry was written in this lap; the colour turns with every lap. */
static inline bool onic_cmpl_is_new(u64 entry, bool colour)
{
	return !!(entry & ONIC_CMPL_COLOUR) == colour;
}

static inline bool onic_cmpl_is_bad(u64 entry)
{
	return entry & ONIC_CMPL_ERROR;
}

static inline u16 onic_cmpl_len(u64 entry)
{
	return entry >> 32;
}

/* Buffers that a packet lies in. */
static inline u16 onic_cmpl_buffers(u16 len, u16 size)
{
	return len ? (len + size - 1) / size : 1;
}

/* A descriptor of a packet to send, word 0; the shell takes the length from the lower half. */
static inline u64 onic_tx_desc(u16 len)
{
	return (u64)len << 32 | len;
}

/* What the device has consumed, of the status behind a ring of descriptors. */
static inline u16 onic_status_cidx(u64 status)
{
	return status >> 16;
}

#endif
