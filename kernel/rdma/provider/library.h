/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Which libibverbs this is. A number of its private interface stands for more than one table of operations, and
 * what tells them apart is how large its contexts are: struct verbs_context has a function more for each
 * operation that programs call, and says its own size, in front of the part that all libraries have in common.
 */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <stdio.h>
#include <string.h>

#include "private.h"

/* More than any context of a library that is known, so that one that is not writes to nothing else. */
#define CONTEXT_ROOM 4096

struct library {
	size_t context_bytes;
	/* Places in its table, in order, of operations that the smallest table does not have. */
	const uint8_t *more;
	size_t more_count;
};

/* Those of this number. */
#if PRIVATE_ABI == 34 || PRIVATE_ABI == 57
static const struct library libraries[] = {
	{ 648, NULL, 0 },
};
#elif PRIVATE_ABI == 59
/* rdma-core 59 to 61, and 62 and 63. */
static const uint8_t more_59[] = { 2, 26, 71 };
static const uint8_t more_62[] = { 2, 26, 41, 64, 73 };

static const struct library libraries[] = {
	{ 672, more_59, sizeof(more_59) },
	{ 680, more_62, sizeof(more_62) },
};
#elif PRIVATE_ABI == 64
static const uint8_t more_64[] = { 1, 3, 27, 42, 43, 66, 75 };

static const struct library libraries[] = {
	{ 696, more_64, sizeof(more_64) },
};
#elif PRIVATE_ABI == 65
static const uint8_t more_65[] = { 1, 3, 16, 28, 34, 44, 45, 52, 53, 67, 68, 72, 77, 79, 83, 87, 89 };

static const struct library libraries[] = {
	{ 696, more_65, sizeof(more_65) },
};
#else
#error "the places of operations are known for 34, 57, 59, 64 and 65"
#endif

#define LIBRARIES (sizeof(libraries) / sizeof(libraries[0]))

/* The part of a context that programs have. */
static inline struct ibv_context *context_of(const struct library *library, void *start)
{
	return (void *)((char *)start + library->context_bytes - sizeof(struct ibv_context));
}

static inline bool made_by(const struct library *library, void *start)
{
	struct ibv_context *context = context_of(library, start);
	size_t said;

	memcpy(&said, (char *)context - sizeof(said), sizeof(said));
	return said == library->context_bytes && context->abi_compat == __VERBS_ABI_IS_EXTENDED;
}

/* Who has made this context, of CONTEXT_ROOM bytes. NULL: none that is known. */
static inline const struct library *library_of(void *start)
{
	size_t at;

	for (at = 0; at < LIBRARIES; at++) {
		if (made_by(&libraries[at], start))
			return &libraries[at];
	}
	return NULL;
}

/* A table of the smallest kind as a table of this library's. */
static inline void place_operations(const struct library *library, const struct verbs_context_ops *smallest,
				    struct verbs_context_ops *table)
{
	size_t more = 0, at;

	memset(table, 0, sizeof(*table));
	for (at = 0; at < SLOTS; at++) {
		while (more < library->more_count && library->more[more] == at + more)
			more++;
		table->slots[at + more] = smallest->slots[at];
	}
}

/* Whether these operations, which libibverbs shows programs, are where they were meant to be. */
static inline bool are_placed(const struct ibv_context *context, const struct verbs_context_ops *smallest)
{
	void (*const *meant)(void) = smallest->slots;

	return (void *)context->ops.poll_cq == (void *)meant[SLOT_POLL_CQ] &&
	       (void *)context->ops.post_recv == (void *)meant[SLOT_POST_RECV] &&
	       (void *)context->ops.post_send == (void *)meant[SLOT_POST_SEND] &&
	       (void *)context->ops.post_srq_recv == (void *)meant[SLOT_POST_SRQ_RECV] &&
	       (void *)context->ops.req_notify_cq == (void *)meant[SLOT_REQ_NOTIFY_CQ];
}

static inline void refuse_library(void)
{
	fprintf(stderr,
		"sluice: this libibverbs is none that its provider for the private interface %d knows; "
		"its devices cannot be opened (docs/kernel.md)\n",
		PRIVATE_ABI);
}

#endif
