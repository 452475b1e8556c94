// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Takes connections of programs that cannot be preloaded to the daemon, and shows both programs
 * the addresses that they would see without it.
 *
 * At the end that connects, connect() to a chosen destination is sent to the daemon's listener on
 * loopback, in the network namespace of the program. getpeername() and getsockname() go on showing
 * what was meant. At the end that accepts, the daemon connects to the program's own address, and
 * accept() and getpeername() show the client for whom it does.
 *
 * Where anything is missing, room in a map or the listener, a connection goes its own way.
 */
#include "common.h"

#include <linux/tcp.h>

static long (*set_callbacks)(void *context, int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static struct bpf_sock *(*lookup_tcp)(void *context, struct bpf_sock_tuple *tuple, __u32 bytes,
				      __u64 netns, __u64 flags) = (void *)BPF_FUNC_sk_lookup_tcp;
static __u64 (*process_and_thread)(void) = (void *)BPF_FUNC_get_current_pid_tgid;
static long (*program_name)(void *name, __u32 bytes) = (void *)BPF_FUNC_get_current_comm;
static long (*release)(void *socket) = (void *)BPF_FUNC_sk_release;

/*
 * The maps. The loader makes them and puts their descriptors in place of these symbols; their
 * kinds and sizes are in capture.rs.
 */
extern char listeners;    /* Hash: cookie of a network namespace -> struct listener. */
extern char destinations; /* Hash: struct destination -> struct route. */
extern char ports;        /* Array of 1024 words of 64 bits: a bit for each port. */
extern char processes;    /* LRU hash: process that is left alone -> a byte. */
extern char names;        /* Hash: struct name -> a byte; with an empty one: no others. */
extern char exempted;     /* LRU hash: cookie of a socket that is left alone -> a byte. */
extern char originals;    /* Hash: cookie of a captured socket -> struct original. */
extern char arrivals;     /* LRU hash: struct arrival -> struct original. */
extern char pending;      /* LRU hash: struct tuple -> struct client. */
extern char clients;      /* LRU hash: cookie of an accepted socket -> struct client. */
extern char counters;     /* Per-CPU array: enum counter -> 64-bit number. */

/* The daemon's listeners; 0: none of this family. In network order. */
struct listener {
	__u16 port4;
	__u16 port6;
};

/* Port 0: any port of this address. In network order. */
struct destination {
	struct address address;
	__u16 port;
	__u16 padding;
};

/* Of a program, as the kernel has it: proc_pid_comm(5). */
struct name {
	char bytes[16];
};

/* From where a connection to a destination would come; all zero: it is not known. */
struct route {
	struct address source;
};

struct original {
	__u64 cookie; /* Of the program's socket. */
	struct address destination;
	struct address source;
	__u16 port;     /* Of the destination, in network order. */
	__u16 listener; /* The port that it was sent to, in network order. */
	__u32 padding;
};

/* How a connection arrives at the listener. In network order. */
struct arrival {
	__u64 netns;
	struct address source;
	__u16 port;
	__u16 listener;
	__u32 padding;
};

/* As an accepted socket sees it. Ports in network order. */
struct tuple {
	__u64 netns;
	struct address remote;
	struct address local;
	__u16 remote_port;
	__u16 local_port;
	__u32 padding;
};

struct client {
	struct address address;
	__u16 port; /* In network order. */
	__u16 padding;
};

/* The order is that of `Counter` in capture.rs. */
enum counter {
	CAPTURED,    /* Connections that were sent to the listener. */
	FULL,        /* Connections that were not, as there are too many already. */
	NO_LISTENER, /* The same, as nobody listened. */
	PRESENTED,   /* Accepted connections that show another client. */
};

static ALWAYS_INLINE void loopback(struct address *to, int v4)
{
	to->words[0] = 0;
	to->words[1] = 0;
	to->words[2] = v4 ? BIG_ENDIAN_32(0xffff) : 0;
	to->words[3] = v4 ? BIG_ENDIAN_32(0x7f000001) : BIG_ENDIAN_32(1);
}

/*
 * The listener may have been closed, or its process have ended a moment ago. Then connect() must
 * not find out.
 */
static ALWAYS_INLINE int somebody_listens(struct bpf_sock_addr *context, int v4, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	int listens;

	if (v4) {
		tuple.ipv4.saddr = BIG_ENDIAN_32(0x7f000001);
		tuple.ipv4.daddr = BIG_ENDIAN_32(0x7f000001);
		tuple.ipv4.dport = port;
		socket = lookup_tcp(context, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		tuple.ipv6.saddr[3] = BIG_ENDIAN_32(1);
		tuple.ipv6.daddr[3] = BIG_ENDIAN_32(1);
		tuple.ipv6.dport = port;
		socket = lookup_tcp(context, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return 0;
	listens = socket->state == BPF_TCP_LISTEN;
	release(socket);
	return listens;
}

/* Whether the connections of this program are wanted. */
static ALWAYS_INLINE int is_chosen(void)
{
	__u32 process = (__u32)(process_and_thread() >> 32);
	struct name name = {};

	if (map_lookup(&processes, &process))
		return 0;
	if (!map_lookup(&names, &name))
		return 1;
	if (program_name(&name, sizeof(name)))
		return 0;
	return !!map_lookup(&names, &name);
}

/* Where the connection is to go instead: a port in network order, or 0 for where it wants to. */
static ALWAYS_INLINE __u16 capture(struct bpf_sock_addr *context, const struct address *to)
{
	struct original original = {};
	struct destination key = {};
	struct listener *listener;
	struct route *route;
	__u64 netns, cookie;
	int v4 = is_v4(to);
	__u16 port;

	if (context->type != SOCK_STREAM || context->protocol != IPPROTO_TCP)
		return 0;
	netns = netns_cookie(context);
	listener = map_lookup(&listeners, &netns);
	if (!listener)
		return 0;
	cookie = socket_cookie(context);
	/* The same socket may have tried another destination before. */
	map_delete(&originals, &cookie);
	/* A program that chooses its route has its reasons. */
	if (!context->sk || context->sk->bound_dev_if || context->sk->mark)
		return 0;
	key.address = *to;
	key.port = (__u16)context->user_port;
	original.port = key.port;
	if (!has_port(&ports, BIG_ENDIAN_16(key.port)))
		return 0;
	route = map_lookup(&destinations, &key);
	if (!route) {
		key.port = 0;
		route = map_lookup(&destinations, &key);
	}
	if (!route || map_lookup(&exempted, &cookie) || !is_chosen())
		return 0;
	port = v4 ? listener->port4 : listener->port6;
	if (!port)
		return 0;
	if (!somebody_listens(context, v4, port)) {
		count_in(&counters, NO_LISTENER);
		return 0;
	}
	original.cookie = cookie;
	original.destination = *to;
	original.source = route->source;
	original.listener = port;
	if (map_update(&originals, &cookie, &original, BPF_ANY)) {
		count_in(&counters, FULL);
		return 0;
	}
	count_in(&counters, CAPTURED);
	return port;
}

static ALWAYS_INLINE void address_of(struct bpf_sock_addr *context, struct address *to)
{
	to->words[0] = FIELD(context->user_ip6[0]);
	to->words[1] = FIELD(context->user_ip6[1]);
	to->words[2] = FIELD(context->user_ip6[2]);
	to->words[3] = FIELD(context->user_ip6[3]);
}

static ALWAYS_INLINE void show_v6(struct bpf_sock_addr *context, const struct address *address)
{
	FIELD(context->user_ip6[0]) = address->words[0];
	FIELD(context->user_ip6[1]) = address->words[1];
	FIELD(context->user_ip6[2]) = address->words[2];
	FIELD(context->user_ip6[3]) = address->words[3];
}

SECTION("connect4")
int connect_v4(struct bpf_sock_addr *context)
{
	struct address to;
	__u16 port;

	from_v4(&to, context->user_ip4);
	port = capture(context, &to);
	if (port) {
		context->user_ip4 = BIG_ENDIAN_32(0x7f000001);
		context->user_port = port;
	}
	return PROCEED;
}

SECTION("connect6")
int connect_v6(struct bpf_sock_addr *context)
{
	struct address to;
	__u16 port;

	address_of(context, &to);
	port = capture(context, &to);
	if (port) {
		loopback(&to, is_v4(&to));
		show_v6(context, &to);
		context->user_port = port;
	}
	return PROCEED;
}

SECTION("peer4")
int peer_v4(struct bpf_sock_addr *context)
{
	__u64 cookie = socket_cookie(context);
	struct original *original = map_lookup(&originals, &cookie);
	struct client *client;

	if (original) {
		if ((__u16)context->user_port == original->listener) {
			context->user_ip4 = original->destination.words[3];
			context->user_port = original->port;
		}
		return PROCEED;
	}
	client = map_lookup(&clients, &cookie);
	if (client && is_v4(&client->address)) {
		context->user_ip4 = client->address.words[3];
		context->user_port = client->port;
	}
	return PROCEED;
}

SECTION("peer6")
int peer_v6(struct bpf_sock_addr *context)
{
	__u64 cookie = socket_cookie(context);
	struct original *original = map_lookup(&originals, &cookie);
	struct client *client;

	if (original) {
		if ((__u16)context->user_port == original->listener) {
			show_v6(context, &original->destination);
			context->user_port = original->port;
		}
		return PROCEED;
	}
	client = map_lookup(&clients, &cookie);
	if (client) {
		show_v6(context, &client->address);
		context->user_port = client->port;
	}
	return PROCEED;
}

/* The source to show instead of loopback, which a program cannot have meant. */
static ALWAYS_INLINE struct address *source_instead(struct bpf_sock_addr *context,
						     const struct address *shown)
{
	__u64 cookie = socket_cookie(context);
	struct original *original = map_lookup(&originals, &cookie);

	if (!original || is_any(&original->source) || !is_loopback(shown))
		return 0;
	return &original->source;
}

SECTION("name4")
int name_v4(struct bpf_sock_addr *context)
{
	struct address shown, *source;

	from_v4(&shown, context->user_ip4);
	source = source_instead(context, &shown);
	if (source)
		context->user_ip4 = source->words[3];
	return PROCEED;
}

SECTION("name6")
int name_v6(struct bpf_sock_addr *context)
{
	struct address shown, *source;

	address_of(context, &shown);
	source = source_instead(context, &shown);
	if (source)
		show_v6(context, source);
	return PROCEED;
}

/* The last descriptor is closed: nobody can ask any more. */
SECTION("release")
int released(struct bpf_sock *context)
{
	__u64 cookie = socket_cookie(context);

	map_delete(&originals, &cookie);
	return PROCEED;
}

static ALWAYS_INLINE void watch_state(struct bpf_sock_ops *context)
{
	set_callbacks(context, context->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

static ALWAYS_INLINE void arrival_of(struct bpf_sock_ops *context, struct arrival *arrival)
{
	arrival->netns = netns_cookie(context);
	local_of(context, &arrival->source);
	arrival->port = BIG_ENDIAN_16(context->local_port);
	arrival->listener = BIG_ENDIAN_16(remote_port_of(context));
	arrival->padding = 0;
}

/* A captured connection has its source port now: how the daemon will know it. */
static ALWAYS_INLINE void leaves(struct bpf_sock_ops *context)
{
	__u64 cookie = socket_cookie(context);
	struct original *original = map_lookup(&originals, &cookie);
	struct arrival arrival;

	if (!original)
		return;
	arrival_of(context, &arrival);
	if (arrival.listener != original->listener)
		return;
	map_update(&arrivals, &arrival, original, BPF_ANY);
	watch_state(context);
}

/* A connection was accepted: the daemon's, on behalf of another? */
static ALWAYS_INLINE void arrives(struct bpf_sock_ops *context)
{
	struct tuple tuple = {};
	struct client *client;
	__u64 cookie;

	tuple.netns = netns_cookie(context);
	remote_of(context, &tuple.remote);
	local_of(context, &tuple.local);
	tuple.remote_port = BIG_ENDIAN_16(remote_port_of(context));
	tuple.local_port = BIG_ENDIAN_16(context->local_port);
	client = map_lookup(&pending, &tuple);
	if (!client)
		return;
	cookie = socket_cookie(context);
	map_update(&clients, &cookie, client, BPF_ANY);
	map_delete(&pending, &tuple);
	watch_state(context);
	count_in(&counters, PRESENTED);
}

/*
 * getpeername() gives an error from now on. What the daemon has yet to accept stays known, however soon its client has
 * closed: the daemon's own look ends it.
 */
static ALWAYS_INLINE void ends(struct bpf_sock_ops *context)
{
	__u64 cookie = socket_cookie(context);
	struct arrival arrival;
	struct original *original;

	map_delete(&clients, &cookie);
	if (context->args[0] != BPF_TCP_SYN_SENT)
		return;
	arrival_of(context, &arrival);
	original = map_lookup(&arrivals, &arrival);
	/* The port may have been given to another connection since. */
	if (original && original->cookie == cookie)
		map_delete(&arrivals, &arrival);
}

SECTION("sockops")
int follow(struct bpf_sock_ops *context)
{
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		leaves(context);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		arrives(context);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (context->args[1] == BPF_TCP_CLOSE)
			ends(context);
		break;
	}
	return PROCEED;
}
