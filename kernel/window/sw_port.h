/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the protocol's files (sw_view.h, sw_header.c, sw_claim.c, sw_ring.c, sw_link.c, sw_heap.c)
 * need of the kernel, and the same for user space, where test/peer.c runs them against the crate
 * sluice-window over one memory.
 */
#ifndef SW_PORT_H
#define SW_PORT_H

#ifdef __KERNEL__
#include <linux/bug.h>
#include <linux/errno.h>
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/types.h>
#include <asm/barrier.h>
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#endif

#ifndef CONFIG_64BIT
#error "words of a window have 64 bits and are written at once"
#endif

static inline bool sw_can_flush(void)
{
	return IS_ENABLED(CONFIG_X86);
}

/* Writes lines back and out of the cache, and waits for it. */
static inline void sw_flush_lines(void *at, u64 bytes)
{
#ifdef CONFIG_X86
	clflush_cache_range(at, bytes);
#endif
}

static inline u64 sw_random(void)
{
	return get_random_u64();
}

#else /* user space */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
#define virt_load_acquire(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define virt_store_release(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define virt_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define virt_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define virt_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define cpu_to_le64(x) (x)
#define le64_to_cpu(x) (x)
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define ALIGN(x, a) (((x) + (a) - 1) & ~((__typeof__(x))(a) - 1))
#define IS_ALIGNED(x, a) (((x) & ((__typeof__(x))(a) - 1)) == 0)
#define GFP_KERNEL 0
#define kvcalloc(n, size, flags) calloc(n, size)
#define kvfree(p) free(p)
#define cmpxchg(at, from, to)                                                                   \
	({                                                                                      \
		u64 was_ = (from);                                                              \
		__atomic_compare_exchange_n(at, &was_, to, false, __ATOMIC_SEQ_CST,             \
					    __ATOMIC_SEQ_CST);                                  \
		was_;                                                                           \
	})

#if defined(__x86_64__)
static inline bool sw_can_flush(void)
{
	return true;
}

static inline void sw_flush_lines(void *at, u64 bytes)
{
	uintptr_t line = (uintptr_t)at & ~(uintptr_t)63;

	__builtin_ia32_mfence();
	for (; line < (uintptr_t)at + bytes; line += 64)
		__builtin_ia32_clflush((void *)line);
	__builtin_ia32_mfence();
}
#else
static inline bool sw_can_flush(void)
{
	return false;
}

static inline void sw_flush_lines(void *at, u64 bytes)
{
	(void)at;
	(void)bytes;
}
#endif

static inline u64 sw_random(void)
{
	u64 word;

	if (getrandom(&word, sizeof(word), 0) != sizeof(word))
		abort();
	return word;
}
#endif

/* A generation: neither of the two words that mean nothing. */
static inline u64 sw_fresh(void)
{
	u64 word;

	do
		word = sw_random();
	while (word == 0 || word == ~0ULL);
	return word;
}

#endif
