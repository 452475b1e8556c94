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
 * Where anything is missing, room in a map or the listener, a connection goes its own way. So does
 * one whose program sets terms that the daemon's connection would not keep, such as a key or a TTL.
 */
#include "common.h"

#include <linux/tcp.h>

static long (*set_callbacks)(void *context, int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static struct bpf_sock *(*lookup_tcp)(void *context, struct bpf_sock_tuple *tuple, __u32 bytes,
				      __u64 netns, __u64 flags) = (void *)BPF_FUNC_sk_lookup_tcp;
static __u64 (*process_and_thread)(void) = (void *)BPF_FUNC_get_current_pid_tgid;
static long (*program_name)(void *name, __u32 bytes) = (void *)BPF_FUNC_get_current_comm;
static long (*release)(void *socket) = (void *)BPF_FUNC_sk_release;
static void *(*as_tcp)(void *socket) = (void *)BPF_FUNC_skc_to_tcp_sock;
static long (*read_kernel)(void *to, __u32 bytes, const void *from) =
	(void *)BPF_FUNC_probe_read_kernel;
static long (*load_bytes)(const void *packet, __u32 at, void *to, __u32 bytes) =
	(void *)BPF_FUNC_skb_load_bytes;

/*
 * The maps. The loader makes them and puts their descriptors in place of these symbols; their
 * kinds and sizes are in capture.rs.
 */
extern char listeners;    /* Hash: cookie of a network namespace -> struct listener. */
extern char destinations; /* Hash: struct destination -> struct route. */
extern char ports;        /* Array of 1024 words of 64 bits: a bit for each port. */
extern char processes;    /* LRU hash: process that is left alone -> a byte. */
extern char names;        /* Hash: struct name -> a byte; with an empty one: no others. */
extern char terms;        /* Array of eight: struct term. */
extern char room;         /* Array of two 64-bit numbers: enum room. */
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

/*
 * A part of the kernel's struct tcp_sock, or of what a pointer in there leads to, by which a
 * program has set terms for its connections. The loader knows where it is.
 */
struct term {
	__u32 pointer; /* Where the pointer is, in bytes; 0: the part is in struct tcp_sock. */
	__u32 offset;  /* Where the part is, in bytes. */
	__u32 shift;   /* Of the 64 bits from there. */
	__u32 padding;
	__u64 mask;  /* All zero: there is no such term. */
	__u64 usual; /* What is there if the program has set nothing. */
};

enum room {
	LIMIT, /* How many captured connections there may be. */
	OPEN,  /* How many there are. */
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
	OWN_TERMS,   /* Connections that were not sent to it, as their program has set terms for them. */
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

static ALWAYS_INLINE int is_set(const char *tcp, __u32 which)
{
	struct term *term = map_lookup(&terms, &which);
	__u64 from = 0, bits = 0;
	long failed;

	if (!term || !term->mask)
		return 0;
	if (term->pointer) {
		failed = read_kernel(&from, sizeof(from), tcp + (term->pointer & 0xffff));
		if (failed || !from)
			return 0;
		from += term->offset;
		failed = read_kernel(&bits, sizeof(bits), (const void *)from);
	} else {
		failed = read_kernel(&bits, sizeof(bits), tcp + (term->offset & 0xffff));
	}
	return !failed && (bits >> (term->shift & 63) & term->mask) != term->usual;
}

/*
 * Whether the program has set terms for this socket: keys that its peer must have (RFC 2385,
 * RFC 5925), a TTL (RFC 5082), IP options. The kernel's own sockets count too, which nobody asks
 * for their names. Without a loop: the verifier does not count on the stack, where keys of maps are.
 */
static ALWAYS_INLINE int has_terms(void *socket)
{
	const char *tcp = as_tcp(socket);

	return tcp && (is_set(tcp, 0) || is_set(tcp, 1) || is_set(tcp, 2) || is_set(tcp, 3) ||
		       is_set(tcp, 4) || is_set(tcp, 5) || is_set(tcp, 6) || is_set(tcp, 7));
}

/* Below it, ports are for programs that may have them (ip_unprivileged_port_start), by default. */
#define UNPRIVILEGED_PORTS 1024

/* A captured socket is closed, or tries another destination. */
static ALWAYS_INLINE void forget(__u64 *cookie)
{
	__u32 which = OPEN;
	__u64 *open;

	if (map_delete(&originals, cookie))
		return;
	open = map_lookup(&room, &which);
	if (open)
		__sync_fetch_and_add(open, -1);
}

/* Notes what the connection was to be. 0: there is no room. */
static ALWAYS_INLINE int note(const struct original *original)
{
	__u32 which = LIMIT;
	__u64 *limit = map_lookup(&room, &which);
	__u64 *open;

	which = OPEN;
	open = map_lookup(&room, &which);
	if (!limit || !open || *open >= *limit)
		return 0;
	if (map_update(&originals, &original->cookie, original, BPF_NOEXIST))
		return 0;
	__sync_fetch_and_add(open, 1);
	return 1;
}

/*
 * Where the connection is to go instead: a port in network order, or 0 for where it wants to.
 * Without `sees` the terms of a socket are not looked at, for kernels that do not say where they
 * are.
 */
static ALWAYS_INLINE __u16 capture(struct bpf_sock_addr *context, const struct address *to,
				   int sees)
{
	struct bpf_sock *socket = context->sk;
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
	forget(&cookie);
	/* A program that chooses its route has its reasons. */
	if (!socket || socket->bound_dev_if || socket->mark)
		return 0;
	/* A server may ask for a client with such a port, which the daemon cannot always have. */
	if (socket->src_port && socket->src_port < UNPRIVILEGED_PORTS)
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
	if (sees && has_terms(socket)) {
		count_in(&counters, OWN_TERMS);
		return 0;
	}
	if (!somebody_listens(context, v4, port)) {
		count_in(&counters, NO_LISTENER);
		return 0;
	}
	original.cookie = cookie;
	original.destination = *to;
	original.source = route->source;
	original.listener = port;
	if (!note(&original)) {
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

static ALWAYS_INLINE int connect_at_v4(struct bpf_sock_addr *context, int sees)
{
	struct address to;
	__u16 port;

	from_v4(&to, context->user_ip4);
	port = capture(context, &to, sees);
	if (port) {
		context->user_ip4 = BIG_ENDIAN_32(0x7f000001);
		context->user_port = port;
	}
	return PROCEED;
}

static ALWAYS_INLINE int connect_at_v6(struct bpf_sock_addr *context, int sees)
{
	struct address to;
	__u16 port;

	address_of(context, &to);
	port = capture(context, &to, sees);
	if (port) {
		loopback(&to, is_v4(&to));
		show_v6(context, &to);
		context->user_port = port;
	}
	return PROCEED;
}

SECTION("connect4")
int connect_v4(struct bpf_sock_addr *context)
{
	return connect_at_v4(context, 1);
}

SECTION("connect6")
int connect_v6(struct bpf_sock_addr *context)
{
	return connect_at_v6(context, 1);
}

SECTION("blind4")
int blind_v4(struct bpf_sock_addr *context)
{
	return connect_at_v4(context, 0);
}

SECTION("blind6")
int blind_v6(struct bpf_sock_addr *context)
{
	return connect_at_v6(context, 0);
}

/* What is asked of `look`, behind an Ethernet header that says nothing. In network order. */
struct question {
	struct address from;
	struct address to;
	__u16 from_port;
	__u16 to_port;
};

#define ETHERNET_BYTES 14

/*
 * Whether the socket that would accept a connection has terms: 0 or 1. It is run by hand, for the daemon, which
 * would be at its end in a client's place.
 */
SECTION("classifier")
int look(struct __sk_buff *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct question asked = {};
	struct bpf_sock *socket;
	__u32 word;
	int found;

	if (load_bytes(packet, ETHERNET_BYTES, &asked, sizeof(asked)))
		return 0;
	if (is_v4(&asked.to)) {
		tuple.ipv4.saddr = asked.from.words[3];
		tuple.ipv4.daddr = asked.to.words[3];
		tuple.ipv4.sport = asked.from_port;
		tuple.ipv4.dport = asked.to_port;
		socket = lookup_tcp(packet, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		for (word = 0; word < 4; word++) {
			tuple.ipv6.saddr[word] = asked.from.words[word];
			tuple.ipv6.daddr[word] = asked.to.words[word];
		}
		tuple.ipv6.sport = asked.from_port;
		tuple.ipv6.dport = asked.to_port;
		socket = lookup_tcp(packet, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return 0;
	found = has_terms(socket);
	release(socket);
	return found;
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

	forget(&cookie);
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
