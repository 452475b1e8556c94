// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Finds out during the TCP handshake whether the other end can do lanes.
 *
 * A SYN carries an experimental option (RFC 4727, RFC 6994) with a nonce; the SYN-ACK carries what
 * SipHash makes of this nonce with a key that both ends have. A middlebox that echoes options
 * sends the nonce back, and in the wrong role. With SYN cookies (RFC 4987 §3.6) the passive end
 * forgets the SYN; it says so in its option, and the active end repeats its own until the other
 * end has answered something.
 *
 *      0                   1                   2                   3
 *      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
 *     +---------------+---------------+-------------------------------+
 *     |   Kind 253    |   Length 16   |            ExID "SL           |
 *     +---------------+---------------+-------+-------+---------------+
 *     |            UC"                | Ver 1 | Role  |     Flags     |
 *     +-------------------------------+-------+-------+---------------+
 *     |                                                               |
 *     +                    Nonce, or its answer                       +
 *     |                                                               |
 *     +---------------------------------------------------------------+
 *
 * Nothing is kept for a socket before its connection is established but what the passive end reads
 * in a SYN: a nonce is a function of the socket's cookie.
 * Where the kernel's own options leave no room nothing is added, and the connection is as without
 * this program. So it is when a SYN or SYN-ACK has to be repeated, as something on the way may drop
 * what has options that it does not know.
 */
#include "siphash.h"

#include <linux/tcp.h>

static long (*set_callbacks)(void *context, int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*load_option)(void *context, void *found, __u32 length, __u64 flags) =
	(void *)BPF_FUNC_load_hdr_opt;
static long (*store_option)(void *context, const void *option, __u32 length, __u64 flags) =
	(void *)BPF_FUNC_store_hdr_opt;
static long (*reserve_option)(void *context, __u32 length, __u64 flags) =
	(void *)BPF_FUNC_reserve_hdr_opt;
static void *(*ring_reserve)(void *ring, __u64 bytes, __u64 flags) =
	(void *)BPF_FUNC_ringbuf_reserve;
static void (*ring_submit)(void *record, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;
static __u64 (*ring_query)(void *ring, __u64 what) = (void *)BPF_FUNC_ringbuf_query;

/*
 * The maps. The loader makes them and puts their descriptors in place of these symbols; their
 * kinds and sizes are in finder.rs.
 */
extern char settings; /* Array of one: struct settings. */
extern char networks; /* Trie: struct network -> a byte, whether it is chosen. */
extern char ports;    /* Array of 1024 words of 64 bits: a bit for each port, whether chosen. */
extern char offers;   /* LRU hash: cookie of a request -> __u64, the nonce of its SYN. */
extern char verdicts; /* LRU hash: cookie of a connection -> struct verdict. */
extern char events;   /* Ring: struct event. */
extern char counters; /* Per-CPU array: enum counter -> 64-bit number. */

struct settings {
	struct key nonces;  /* Ours alone: what nonces are made with. */
	struct key answers; /* That of all who find each other. */
	__u8 enabled;
	__u8 other_networks; /* Whether those that are not in the trie are chosen. */
	__u8 only_unheard; /* Events tell of connections whose SYN was not heard, and no others. */
	__u8 padding;
	__u32 wake_bytes; /* So much in the ring wakes who waits for it; 0: anything. */
};

struct network {
	__u32 bits;
	struct address address;
};

/* The order is that of `Counter` in finder.rs. */
enum counter {
	OFFERED,  /* SYNs with our option. */
	ANSWERED, /* SYN-ACKs with our option. */
	NO_ROOM,  /* SYNs and SYN-ACKs without, as there was no room for it. */
	LOST,     /* Events for which the ring had no room. */
	ENROLLED,  /* Listeners of before that answer now. */
	VERDICTS, /* Connections, by `enum peer`, which begins with 1. */
};

/* As in event.rs. */
enum peer {
	CANNOT = 1, /* It sent no option of ours. */
	CAN = 2,
	ECHOED = 3,  /* It, or something in between, sent back what we sent. */
	FOREIGN = 4, /* Our option, but with another key, of another version, or nonsense. */
	UNHEARD = 5, /* The SYN had to be repeated, without our option. */
};

enum happening {
	ESTABLISHED = 1,
	CLOSED = 2,
};

struct verdict {
	__u64 nonce;
	__u8 peer;
	__u8 active;  /* This end connected. */
	__u8 repeats; /* This end repeats its option: the other one has forgotten. */
	__u8 padding[5];
};

struct event {
	__u64 cookie;
	__u64 netns;
	__u64 nonce;
	struct address remote;
	struct address local;
	__u16 remote_port;
	__u16 local_port;
	__u8 happening;
	__u8 peer;
	__u8 active;
	__u8 padding;
};

/* Not 254, of which the kernel's search gives up at one that is shorter, such as that of RFC 7413. */
#define OPTION_KIND 253
#define OPTION_BYTES 16
/* Kind, length and ExID: what is searched for. */
#define OPTION_SEARCHED 6
#define VERSION 1
#define VERSION_AND(role) (VERSION << 4 | (role))

enum role {
	OFFER = 1,  /* In a SYN: the nonce. */
	ANSWER = 2, /* In a SYN-ACK: the nonce's answer. */
	REPEAT = 3, /* In later segments of the active end: the nonce. */
};

/* In an answer: repeat the offer, I keep nothing of it. */
#define FORGETFUL 1

struct option {
	__u8 kind;
	__u8 length;
	__u8 exid[4];
	__u8 version_and_role;
	__u8 flags;
	__u32 value[2]; /* A little-endian number of 64 bits, at an address that is none of such. */
};

_Static_assert(sizeof(struct option) == OPTION_BYTES, "no padding");

/* Of a TCP header's flags (RFC 9293 §3.1). */
#define SYN 0x02
#define ACK 0x10

static ALWAYS_INLINE struct settings *current_settings(void)
{
	__u32 first = 0;

	return map_lookup(&settings, &first);
}

/* Whether connections of this remote address to, or at, this port are ours to ask about. */
static ALWAYS_INLINE int chosen(struct bpf_sock_ops *context, const struct settings *set,
				__u16 port)
{
	struct network network = { .bits = 128 };
	__u8 *named;

	if (!set->enabled || !has_port(&ports, port))
		return 0;
	remote_of(context, &network.address);
	named = map_lookup(&networks, &network);
	return named ? *named : set->other_networks;
}

static ALWAYS_INLINE void add_callbacks(struct bpf_sock_ops *context, int flags)
{
	set_callbacks(context, context->bpf_sock_ops_cb_flags | flags);
}

static ALWAYS_INLINE void remove_callbacks(struct bpf_sock_ops *context, int flags)
{
	set_callbacks(context, context->bpf_sock_ops_cb_flags & ~flags);
}

static ALWAYS_INLINE void prepare(struct option *option)
{
	option->kind = OPTION_KIND;
	option->length = OPTION_BYTES;
	option->exid[0] = 'S';
	option->exid[1] = 'L';
	option->exid[2] = 'U';
	option->exid[3] = 'C';
	option->version_and_role = 0;
	option->flags = 0;
	option->value[0] = 0;
	option->value[1] = 0;
}

static ALWAYS_INLINE void set_value(struct option *option, __u64 value)
{
	option->value[0] = LITTLE_ENDIAN_32(value);
	option->value[1] = LITTLE_ENDIAN_32(value >> 32);
}

static ALWAYS_INLINE __u64 value_of(const struct option *option)
{
	return LITTLE_ENDIAN_32(option->value[0]) |
	       (__u64)LITTLE_ENDIAN_32(option->value[1]) << 32;
}

/*
 * Finds our option in the segment at hand, or (flags) in the SYN that is being answered. False:
 * there is none. One of another length is found, and has no version.
 */
static ALWAYS_INLINE int find(struct bpf_sock_ops *context, struct option *option, __u64 flags)
{
	long length;

	prepare(option);
	option->length = OPTION_SEARCHED;
	length = load_option(context, option, sizeof(*option), flags);
	/* Longer than ours: the beginning was copied. */
	if (length == -ENOSPC) {
		option->version_and_role = 0;
		return 1;
	}
	if (length <= 0)
		return 0;
	if (length != OPTION_BYTES)
		option->version_and_role = 0;
	return 1;
}

static ALWAYS_INLINE __u64 nonce_of(struct bpf_sock_ops *context, const struct settings *set)
{
	return siphash(&set->nonces, socket_cookie(context), 0);
}

static ALWAYS_INLINE __u64 answer_to(const struct settings *set, __u64 nonce)
{
	return siphash(&set->answers, nonce, ANSWER);
}

/* A reader that is woken for each event costs more than everything else here. */
static ALWAYS_INLINE void tell(struct event *event, const struct settings *set)
{
	__u64 flags = 0;

	/* Without flags the kernel wakes a reader that has read all that was there. */
	if (set && set->wake_bytes)
		flags = ring_query(&events, BPF_RB_AVAIL_DATA) >= set->wake_bytes ?
				BPF_RB_FORCE_WAKEUP :
				BPF_RB_NO_WAKEUP;
	ring_submit(event, flags);
}

/* Keeps and tells what is known of a connection that is established now. */
static ALWAYS_INLINE void decide(struct bpf_sock_ops *context, const struct settings *set,
				 const struct verdict *verdict)
{
	__u64 cookie = socket_cookie(context);
	struct event *event;

	map_update(&verdicts, &cookie, verdict, BPF_ANY);
	count_in(&counters, VERDICTS + verdict->peer - 1);
	add_callbacks(context, BPF_SOCK_OPS_STATE_CB_FLAG);
	if (set->only_unheard && verdict->peer != UNHEARD)
		return;
	event = ring_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_in(&counters, LOST);
		return;
	}
	event->cookie = cookie;
	event->netns = netns_cookie(context);
	event->nonce = verdict->nonce;
	remote_of(context, &event->remote);
	local_of(context, &event->local);
	event->remote_port = remote_port_of(context);
	event->local_port = (__u16)context->local_port;
	event->happening = ESTABLISHED;
	event->peer = verdict->peer;
	event->active = verdict->active;
	event->padding = 0;
	tell(event, set);
}

/* The SYN-ACK has come. */
static ALWAYS_INLINE void established_actively(struct bpf_sock_ops *context)
{
	struct settings *set = current_settings();
	struct verdict verdict = { .peer = CANNOT, .active = 1 };
	struct option option;

	if (!set || !chosen(context, set, remote_port_of(context)))
		return;
	verdict.nonce = nonce_of(context, set);
	if (find(context, &option, 0)) {
		__u64 value = value_of(&option);

		verdict.peer = FOREIGN;
		if (option.version_and_role == VERSION_AND(ANSWER) &&
		    value == answer_to(set, verdict.nonce)) {
			verdict.peer = CAN;
			verdict.repeats = option.flags & FORGETFUL;
		} else if (value == verdict.nonce) {
			verdict.peer = ECHOED;
		}
	} else if (context->total_retrans) {
		verdict.peer = UNHEARD;
	}
	if (verdict.repeats)
		add_callbacks(context, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
	else
		remove_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	decide(context, set, &verdict);
}

/*
 * The last segment of the handshake has come, or with TCP Fast Open (RFC 7413) the first one; then
 * the SYN-ACK is yet to be written.
 */
static ALWAYS_INLINE void established_passively(struct bpf_sock_ops *context)
{
	struct settings *set = current_settings();
	struct verdict verdict = { .peer = CANNOT };
	__u64 cookie = socket_cookie(context);
	struct option option;
	__u64 *offered;

	if (!(context->skb_tcp_flags & SYN))
		remove_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	if (!set || !chosen(context, set, (__u16)context->local_port))
		return;
	offered = map_lookup(&offers, &cookie);
	if (offered) {
		verdict.peer = CAN;
		verdict.nonce = *offered;
		map_delete(&offers, &cookie);
	} else if (find(context, &option, 0)) {
		verdict.peer = FOREIGN;
		if (option.version_and_role == VERSION_AND(OFFER) ||
		    option.version_and_role == VERSION_AND(REPEAT)) {
			verdict.peer = CAN;
			verdict.nonce = value_of(&option);
		}
	}
	decide(context, set, &verdict);
}

/* What this segment is to carry, and the nonce behind it: false for nothing. */
static ALWAYS_INLINE int compose(struct bpf_sock_ops *context, struct option *option,
				 __u64 *nonce)
{
	struct settings *set = current_settings();
	__u32 flags = context->skb_tcp_flags;
	__u64 cookie = socket_cookie(context);
	struct verdict *verdict;
	struct option found;

	if (!set)
		return 0;
	prepare(option);
	if ((flags & (SYN | ACK)) == SYN) {
		if (context->total_retrans || !chosen(context, set, remote_port_of(context)))
			return 0;
		*nonce = nonce_of(context, set);
		option->version_and_role = VERSION_AND(OFFER);
		set_value(option, *nonce);
		return 1;
	}
	if (flags & SYN) {
		if (!chosen(context, set, (__u16)context->local_port))
			return 0;
		/*
		 * It is repeated if there is an offer already. In a simultaneous open (RFC 9293
		 * §3.5) there is no SYN to be found.
		 */
		if (map_lookup(&offers, &cookie) ||
		    !find(context, &found, BPF_LOAD_HDR_OPT_TCP_SYN) ||
		    found.version_and_role != VERSION_AND(OFFER))
			return 0;
		*nonce = value_of(&found);
		option->version_and_role = VERSION_AND(ANSWER);
		set_value(option, answer_to(set, *nonce));
		if (context->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE)
			option->flags = FORGETFUL;
		return 1;
	}
	verdict = map_lookup(&verdicts, &cookie);
	if (!verdict || !verdict->repeats)
		return 0;
	*nonce = verdict->nonce;
	option->version_and_role = VERSION_AND(REPEAT);
	set_value(option, *nonce);
	return 1;
}

static ALWAYS_INLINE void ask_for_room(struct bpf_sock_ops *context)
{
	__u32 flags = context->skb_tcp_flags;
	struct option option;
	__u64 nonce;

	/* How long segments may be, while there is none: only what is repeated matters. */
	if (!compose(context, &option, &nonce)) {
		if (!(flags & SYN) && context->args[0] != BPF_WRITE_HDR_TCP_CURRENT_MSS)
			remove_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		return;
	}
	if (reserve_option(context, OPTION_BYTES, 0) < 0 && flags & SYN)
		count_in(&counters, NO_ROOM);
}

static ALWAYS_INLINE void write_option(struct bpf_sock_ops *context)
{
	__u64 cookie = socket_cookie(context);
	struct option option;
	__u64 nonce;

	if (!compose(context, &option, &nonce) ||
	    store_option(context, &option, OPTION_BYTES, 0) < 0)
		return;
	if (option.version_and_role == VERSION_AND(OFFER))
		count_in(&counters, OFFERED);
	if (option.version_and_role != VERSION_AND(ANSWER))
		return;
	count_in(&counters, ANSWERED);
	/* Only now: a peer that cannot be answered will not know of us either. */
	if (!(option.flags & FORGETFUL))
		map_update(&offers, &cookie, &nonce, BPF_ANY);
}

/* The other end has heard us, or it could not send this. */
static ALWAYS_INLINE void stop_repeating(struct bpf_sock_ops *context)
{
	__u64 cookie = socket_cookie(context);
	struct verdict *verdict = map_lookup(&verdicts, &cookie);

	if (context->skb_tcp_flags & SYN)
		return;
	if (verdict)
		verdict->repeats = 0;
	remove_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG |
					  BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
}

static ALWAYS_INLINE void closed(struct bpf_sock_ops *context)
{
	struct settings *set = current_settings();
	__u64 cookie = socket_cookie(context);
	struct event *event;

	if (map_delete(&verdicts, &cookie) || (set && set->only_unheard))
		return;
	event = ring_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_in(&counters, LOST);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->cookie = cookie;
	event->happening = CLOSED;
	tell(event, set);
}

SECTION("sockops")
int find_peer(struct bpf_sock_ops *context)
{
	struct settings *set;

	switch (context->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		/* Whatever the settings are now: they may change while it listens. */
		add_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		set = current_settings();
		if (set && chosen(context, set, remote_port_of(context)))
			add_callbacks(context, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		ask_for_room(context);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(context);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		stop_repeating(context);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		established_actively(context);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established_passively(context);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (context->args[1] == BPF_TCP_CLOSE)
			closed(context);
		break;
	}
	return PROCEED;
}

static void *(*to_tcp)(void *socket) = (void *)BPF_FUNC_skc_to_tcp_sock;
static long (*set_option)(void *socket, int level, int name, void *value, int length) =
	(void *)BPF_FUNC_setsockopt;
static long (*get_option)(void *socket, int level, int name, void *value, int length) =
	(void *)BPF_FUNC_getsockopt;

#define SOL_TCP 6
/* Linux 6.12; here because the system's headers may be older. */
#define SOCK_OPS_CB_FLAGS 1008
/* skc_state of the kernel's struct sock_common: finder.rs compares it. */
#define STATE_OFFSET 18

/* What the iterator over TCP sockets has for each; the second is the socket. */
struct iteration {
	__u64 state;
	__u64 socket;
	__u64 owner;
};

/* Listeners that are older than the program are told to ask it, too. */
SECTION("iterator")
int enroll(struct iteration *context)
{
	void *socket = (void *)context->socket;
	int flags = 0;

	if (!socket)
		return 0;
	socket = to_tcp(socket);
	if (!socket || *(volatile __u8 *)(socket + STATE_OFFSET) != BPF_TCP_LISTEN)
		return 0;
	if (get_option(socket, SOL_TCP, SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)) ||
	    flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		return 0;
	flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (!set_option(socket, SOL_TCP, SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		count_in(&counters, ENROLLED);
	return 0;
}
