// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Takes RoCEv2 packets for queue pairs of this process to its AF_XDP sockets, and leaves
 * everything else to the kernel, as if this program were not there.
 *
 * Queue pairs are known by blocks of 256 numbers. Packets of other queue pairs may be another
 * process's, which reads them from a UDP socket; so may those of queue pair 1, whose datagrams
 * anybody on the host may want.
 *
 * In the kernel's generic code the program gets what a sender's kernel has not cut yet: up to 64 KiB
 * that are many packets (udp(7), UDP_SEGMENT). Nothing here says how long each is, so these stay
 * with the kernel, whose UDP sockets are told; and so does all else that UDP sockets have sent,
 * lest one overtakes the other. Such packets come from the port that they go to, see
 * crates/verbs/packet/src/udp/mod.rs; adapters use others.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>

#define SECTION(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BIG_ENDIAN_16(x) ((__u16)__builtin_bswap16(x))
#define BIG_ENDIAN_32(x) ((__u32)__builtin_bswap32(x))
#else
#define BIG_ENDIAN_16(x) ((__u16)(x))
#define BIG_ENDIAN_32(x) ((__u32)(x))
#endif

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

/*
 * The maps. The loader makes them and puts their descriptors in place of these symbols; their
 * kinds and sizes are in program.rs.
 */
extern char addresses; /* Hash: struct address -> enum taken. Those of this host that are ours. */
extern char blocks;    /* Array of 1024 words of 64 bits: one bit for each block. */
extern char sockets;   /* XSKMAP: receive queue -> AF_XDP socket. */
extern char counters;  /* Per-CPU array: enum counter -> 64-bit number. */
extern char left;      /* Array of one 64-bit number: what was left to our UDP sockets. */

/* The order is that of `Counter` in steering.rs. */
enum counter {
	REDIRECTED,      /* To one of our sockets. */
	FOREIGN_ADDRESS, /* RoCEv2 for an address that is not ours. */
	FOREIGN_QP,      /* RoCEv2 for a queue pair that is not ours, or for 0 or 1. */
	NO_SOCKET,       /* Ours, on a queue that has no socket. */
	OF_SOCKET,       /* Ours, and a UDP socket sent it. */
};

/* What is taken of an address's packets, a byte. */
enum taken {
	OURS = 1,
	SOCKETS_TOO = 2, /* What UDP sockets sent, too. */
};

/* An IPv4 address is written as IPv6 has it, ::ffff:a.b.c.d (RFC 4291 §2.5.5.2). */
struct address {
	__u32 words[4];
};

struct tag {
	__be16 control;
	__be16 type;
};

/* The front of the base transport header (IBTA 9.2). */
struct transport {
	__u8 opcode;
	__u8 flags;
	__be16 partition_key;
	__u8 reserved;
	__u8 destination_qp[3];
};

#define ROCE_PORT 4791
#define TAG_TYPE 0x8100
#define TAG_ID_MASK 0x0fff
#define IPV4_VERSION_AND_LENGTH 0x45
/* More fragments, and the offset. */
#define IPV4_FRAGMENT 0x3fff

static ALWAYS_INLINE int count(__u32 which, int verdict)
{
	__u64 *number = map_lookup(&counters, &which);

	if (number)
		*number += 1;
	return verdict;
}

/*
 * One for our UDP sockets, or for those of another process at the same address. Whoever polls reads
 * the number in its own memory, and asks its sockets when it has changed.
 */
static ALWAYS_INLINE int leave(__u32 which)
{
	__u32 first = 0;
	__u64 *number = map_lookup(&left, &first);

	if (number)
		__sync_fetch_and_add(number, 1);
	return count(which, XDP_PASS);
}

/* What lies behind the IP header if it is UDP's, and whose address it came to. */
static ALWAYS_INLINE void *behind_ip(void *data, void *end, __be16 type, struct address *to)
{
	if (type == BIG_ENDIAN_16(ETH_P_IP)) {
		struct iphdr *ip = data;

		if ((void *)(ip + 1) > end)
			return 0;
		if (*(__u8 *)ip != IPV4_VERSION_AND_LENGTH || ip->protocol != IPPROTO_UDP ||
		    ip->frag_off & BIG_ENDIAN_16(IPV4_FRAGMENT))
			return 0;
		to->words[0] = 0;
		to->words[1] = 0;
		to->words[2] = BIG_ENDIAN_32(0xffff);
		to->words[3] = ip->daddr;
		return ip + 1;
	}
	if (type == BIG_ENDIAN_16(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data;

		if ((void *)(ip + 1) > end)
			return 0;
		if (*(__u8 *)ip >> 4 != 6 || ip->nexthdr != IPPROTO_UDP)
			return 0;
		to->words[0] = ip->daddr.in6_u.u6_addr32[0];
		to->words[1] = ip->daddr.in6_u.u6_addr32[1];
		to->words[2] = ip->daddr.in6_u.u6_addr32[2];
		to->words[3] = ip->daddr.in6_u.u6_addr32[3];
		return ip + 1;
	}
	return 0;
}

SECTION("xdp.frags")
int steer(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct address to;
	struct udphdr *udp;
	struct transport *transport;
	__u32 number, word;
	__u64 *bits;
	__u8 *taken;
	__be16 type;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	type = ethernet->h_proto;
	data = ethernet + 1;
	if (type == BIG_ENDIAN_16(TAG_TYPE)) {
		struct tag *tag = data;

		if ((void *)(tag + 1) > end)
			return XDP_PASS;
		/*
		 * With an id of 0 the tag carries only a priority (IEEE 802.1Q §9.6), and the frame
		 * is this interface's. Another id is that of an interface of its own.
		 */
		if (tag->control & BIG_ENDIAN_16(TAG_ID_MASK))
			return XDP_PASS;
		type = tag->type;
		data = tag + 1;
	}

	udp = behind_ip(data, end, type, &to);
	if (!udp || (void *)(udp + 1) > end || udp->dest != BIG_ENDIAN_16(ROCE_PORT))
		return XDP_PASS;
	transport = (void *)(udp + 1);
	if ((void *)(transport + 1) > end)
		return XDP_PASS;
	taken = map_lookup(&addresses, &to);
	if (!taken)
		return count(FOREIGN_ADDRESS, XDP_PASS);

	number = (__u32)transport->destination_qp[0] << 16 |
		 (__u32)transport->destination_qp[1] << 8 | transport->destination_qp[2];
	/* The block is the number's upper 16 bits, of which the upper 10 say which word. */
	word = number >> 14;
	bits = map_lookup(&blocks, &word);
	if (number <= 1 || !bits || !(*bits >> (number >> 8 & 63) & 1))
		return leave(FOREIGN_QP);

	if (!(*taken & SOCKETS_TOO) && udp->source == BIG_ENDIAN_16(ROCE_PORT))
		return leave(OF_SOCKET);
	if (redirect_map(&sockets, context->rx_queue_index, XDP_PASS) == XDP_REDIRECT)
		return count(REDIRECTED, XDP_REDIRECT);
	return leave(NO_SOCKET);
}
