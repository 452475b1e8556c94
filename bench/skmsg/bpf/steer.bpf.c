// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Takes what programs write to their TCP connections to a proxy's socket, and what the proxy writes
 * to that socket to the program.
 *
 * A connection of a program in the cgroup gets one of the proxy's sockets when it is established,
 * at either end, before any of its bytes can be written. From then on each message of one of the
 * two goes to the other's queue of incoming messages, and nothing by the connection itself. That
 * queue has no limit of its own.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#define SECTION(name) __attribute__((section(name), used))

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*hold_socket)(void *context, void *map, void *key, __u64 flags) =
	(void *)BPF_FUNC_sock_hash_update;
static long (*redirect_to)(void *context, void *map, void *key, __u64 flags) =
	(void *)BPF_FUNC_msg_redirect_hash;
static long (*ring_output)(void *ring, void *record, __u64 bytes, __u64 flags) =
	(void *)BPF_FUNC_ringbuf_output;

/* The maps, made by steering.rs. */
extern char sockets;  /* Sockets by struct ends. */
extern char peers;    /* Hash: struct ends -> struct ends, where its messages go. */
extern char pool;     /* Array: struct ends of the proxy's sockets. */
extern char taken;    /* Array of one: __u32, how many of these are in use. */
extern char arrivals; /* Ring: struct arrival. */

#define AF_INET 2
#define PROCEED 1

/* A socket, by its own end and the other one. Addresses in network order, ports in the machine's. */
struct ends {
	__u32 own_address;
	__u32 other_address;
	__u32 own_port;
	__u32 other_port;
};

/* A program's connection, and the proxy's socket for it. */
struct arrival {
	struct ends program;
	__u32 socket;
};

/* The upper half of a word in network order. */
static inline __attribute__((always_inline)) __u32 port(__u32 word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap32(word);
#else
	return word;
#endif
}

SECTION("sockops") int pair(struct bpf_sock_ops *context)
{
	struct arrival arrival = {};
	struct ends *proxy;
	struct ends key;
	__u32 *count;
	__u32 zero = 0;

	if (context->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    context->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return PROCEED;
	/* Within the host there is no other proxy. */
	if (context->family != AF_INET || context->local_ip4 == context->remote_ip4)
		return PROCEED;
	count = map_lookup(&taken, &zero);
	if (!count)
		return PROCEED;
	arrival.socket = __sync_fetch_and_add(count, 1);
	proxy = map_lookup(&pool, &arrival.socket);
	if (!proxy)
		return PROCEED;
	key = *proxy;
	arrival.program.own_address = context->local_ip4;
	arrival.program.other_address = context->remote_ip4;
	arrival.program.own_port = context->local_port;
	arrival.program.other_port = port(context->remote_port);
	if (hold_socket(context, &sockets, &arrival.program, BPF_ANY))
		return PROCEED;
	map_update(&peers, &arrival.program, &key, BPF_ANY);
	map_update(&peers, &key, &arrival.program, BPF_ANY);
	ring_output(&arrivals, &arrival, sizeof(arrival), 0);
	return PROCEED;
}

SECTION("message") int redirect(struct sk_msg_md *context)
{
	struct ends own = {
		.own_address = context->local_ip4,
		.other_address = context->remote_ip4,
		.own_port = context->local_port,
		.other_port = port(context->remote_port),
	};
	struct ends *peer = map_lookup(&peers, &own);

	if (!peer)
		return SK_PASS;
	own = *peer;
	return redirect_to(context, &sockets, &own, BPF_F_INGRESS);
}
