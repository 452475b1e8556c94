/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What the programs of this crate share. */
#ifndef SLUICE_COMMON_H
#define SLUICE_COMMON_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>

#define SECTION(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BIG_ENDIAN_16(x) ((__u16)__builtin_bswap16(x))
#define BIG_ENDIAN_32(x) ((__u32)__builtin_bswap32(x))
#define LITTLE_ENDIAN_32(x) ((__u32)(x))
#else
#define BIG_ENDIAN_16(x) ((__u16)(x))
#define BIG_ENDIAN_32(x) ((__u32)(x))
#define LITTLE_ENDIAN_32(x) ((__u32)__builtin_bswap32(x))
#endif

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*map_delete)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static __u64 (*socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*netns_cookie)(void *context) = (void *)BPF_FUNC_get_netns_cookie;

/* Of the kernel's <linux/socket.h> and <linux/errno.h>, which are not for everybody. */
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define ENOSPC 28

/* What a cgroup's program says: go on. Anything else refuses the program's call. */
#define PROCEED 1

/*
 * An IPv4 address is written as IPv6 has it, ::ffff:a.b.c.d (RFC 4291 §2.5.5.2), whatever the
 * family of the socket. In network order.
 */
struct address {
	__u32 words[4];
};

static ALWAYS_INLINE void from_v4(struct address *to, __u32 v4)
{
	to->words[0] = 0;
	to->words[1] = 0;
	to->words[2] = BIG_ENDIAN_32(0xffff);
	to->words[3] = v4;
}

static ALWAYS_INLINE int is_v4(const struct address *address)
{
	return !address->words[0] && !address->words[1] &&
	       address->words[2] == BIG_ENDIAN_32(0xffff);
}

static ALWAYS_INLINE int is_any(const struct address *address)
{
	return !address->words[0] && !address->words[1] && !address->words[2] &&
	       !address->words[3];
}

/* 127.0.0.0/8, ::1. */
static ALWAYS_INLINE int is_loopback(const struct address *address)
{
	if (is_v4(address))
		return (address->words[3] & BIG_ENDIAN_32(0xff000000)) ==
		       BIG_ENDIAN_32(0x7f000000);
	return !address->words[0] && !address->words[1] && !address->words[2] &&
	       address->words[3] == BIG_ENDIAN_32(1);
}

/*
 * The verifier allows accesses to a context by constant offsets and of the sizes of its fields only.
 * FIELD keeps clang from making one access of two neighbours, KEEP_APART, at the end of a branch,
 * from making one at a computed address of two in different branches.
 */
#define FIELD(field) (*(volatile __typeof__(field) *)&(field))
#define KEEP_APART() asm volatile("" ::: "memory")

/* The addresses of a socket's callback. */
static ALWAYS_INLINE void remote_of(struct bpf_sock_ops *context, struct address *to)
{
	if (context->family == AF_INET6) {
		to->words[0] = FIELD(context->remote_ip6[0]);
		to->words[1] = FIELD(context->remote_ip6[1]);
		to->words[2] = FIELD(context->remote_ip6[2]);
		to->words[3] = FIELD(context->remote_ip6[3]);
		KEEP_APART();
	} else {
		from_v4(to, context->remote_ip4);
	}
}

static ALWAYS_INLINE void local_of(struct bpf_sock_ops *context, struct address *to)
{
	if (context->family == AF_INET6) {
		to->words[0] = FIELD(context->local_ip6[0]);
		to->words[1] = FIELD(context->local_ip6[1]);
		to->words[2] = FIELD(context->local_ip6[2]);
		to->words[3] = FIELD(context->local_ip6[3]);
		KEEP_APART();
	} else {
		from_v4(to, context->local_ip4);
	}
}

/* In the machine's byte order; the context has it in the network's, in 32 bits. */
static ALWAYS_INLINE __u16 remote_port_of(struct bpf_sock_ops *context)
{
	return (__u16)BIG_ENDIAN_32(context->remote_port);
}

/* Of an array of 1024 words of 64 bits, with a bit for each port: whether this one is chosen. */
static ALWAYS_INLINE int has_port(void *ports, __u16 port)
{
	__u32 word = port >> 6;
	__u64 *bits = map_lookup(ports, &word);

	return bits && *bits >> (port & 63) & 1;
}

static ALWAYS_INLINE void count_in(void *counters, __u32 which)
{
	__u64 *number = map_lookup(counters, &which);

	if (number)
		*number += 1;
}

#endif
