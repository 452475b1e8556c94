/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol of docs/windows.md: header, claims, rings of messages, links, heap. Time is an
 * argument, nothing sleeps, and callers see to it that one thread at a time uses an object.
 *
 * A peer can write everywhere at any time. Its numbers are read once, checked against what is
 * kept here, and used; -EPROTO says that one cannot be, and the link with that peer is over.
 */
#ifndef SW_PROTO_H
#define SW_PROTO_H

#include "sw_view.h"

struct sw_header {
	enum sw_kind kind;
	u32 hosts;
	u64 slot_bytes;
	u64 id[2];
};

/*
 * Reads the header once. -ENODEV: no window, or all ones; -EOPNOTSUPP: another version, or a kind
 * that this machine cannot do; -EINVAL: sizes that cannot be, or more than @memory has.
 */
int sw_header_read(const u8 *region, u64 memory, struct sw_header *header);
/* The window of a region, as the holder of @slot sees it. */
void sw_view_region(struct sw_view *view, const struct sw_header *header, u8 *region, u32 slot);

/* For how long it was watched, by who looks again and again: crates/base/window/src/claim.rs. */
struct sw_watch {
	u64 looked_ns;
	u64 watched_ns;
};

void sw_watch_begin(struct sw_watch *watch, u64 now_ns);
/* Looks; how long it was until now. */
u64 sw_watch_look(struct sw_watch *watch, u64 now_ns);

/* Whether a beat changes, by the clock of who looks. */
struct sw_pulse {
	bool felt;
	u64 beat;
	struct sw_watch watch;
};

/* Whether there was another beat before. */
bool sw_pulse_feel(struct sw_pulse *pulse, u64 beat, u64 now_ns);
/* For long enough, when it was felt last. */
bool sw_pulse_silent(const struct sw_pulse *pulse);

struct sw_claim {
	u64 generation;
	u64 name[2];
	struct {
		u64 holder;
		struct sw_pulse pulse;
	} seen[SW_HOSTS_MAX];
	/* Where caches do not agree: the slot that was written to, and when to look again. */
	bool settling;
	u32 slot;
	u64 until_ns;
	u64 beat;
};

/* @name: for people, 16 bytes at most. */
void sw_claim_init(struct sw_claim *claim, const char *name);
/* Whether a slot is held now: @claim->slot. @view->me is not looked at. */
bool sw_claim_poll(struct sw_claim *claim, const struct sw_view *view, u64 now_ns);
/* A sign of life. False: the slot is somebody else's, nothing may be written any more. */
bool sw_claim_beat(struct sw_claim *claim, const struct sw_view *view);
void sw_claim_release(struct sw_claim *claim, const struct sw_view *view);

/* The writing and the reading half of the mailbox with a peer; positions never wrap. */
struct sw_sender {
	u64 tail;
	u64 head;
};

struct sw_receiver {
	u64 head;
	u64 tail;
};

/* 0, -EAGAIN: no room now, -EMSGSIZE, -EPROTO. */
int sw_send(struct sw_sender *sender, const struct sw_view *view, u32 peer, u32 kind,
	    const void *message, u32 bytes);
/* Bytes of the message, -EAGAIN: none there, -EPROTO. @message has SW_MESSAGE_BYTES_MAX. */
int sw_receive(struct sw_receiver *receiver, const struct sw_view *view, u32 peer, u32 *kind,
	       void *message);

enum sw_event {
	SW_NOTHING,
	SW_UP,
	/* The link is over. */
	SW_LEFT,
	SW_REPLACED,
	SW_SILENT,
	SW_CUT,
	/* Said once for each generation of the peer. */
	SW_OTHER_VERSION,
};

enum sw_link_state { SW_LINK_CALLING, SW_LINK_UP, SW_LINK_OVER };

struct sw_link {
	u32 peer;
	enum sw_link_state state;
	u64 generation;
	/* The peer's generation that was looked at, and the one that was answered; 0: none. */
	u64 seen;
	u64 answered;
	/* For how long the peer's beat changes, while this host calls. */
	bool alive;
	struct sw_watch alive_watch;
	struct sw_pulse pulse;
	u64 beat;
	struct sw_sender sender;
	struct sw_receiver receiver;
};

/* Says hello, with a fresh generation. After the end another link begins here. */
void sw_link_begin(struct sw_link *link, const struct sw_view *view, u32 peer);
/* A sign of life. Until the link is up it says everything again: what is said while the way is cut is lost. */
void sw_link_beat(struct sw_link *link, const struct sw_view *view);
/* One event at a time. */
enum sw_event sw_link_poll(struct sw_link *link, const struct sw_view *view, u64 now_ns);
/* Says that this host wants nothing more of the peer. */
void sw_link_leave(struct sw_link *link, const struct sw_view *view);

/* What is lent of the own slot's heap; private memory. */
struct sw_heap {
	u64 start;
	u64 count;
	struct sw_heap_page *pages;
};

int sw_heap_init(struct sw_heap *heap, u32 hosts, u64 slot_bytes);
/* Of another slot now: nothing of it is lent, or ever was. */
void sw_heap_reset(struct sw_heap *heap);
void sw_heap_free(struct sw_heap *heap);
/* Lends @bytes, rounded up to pages; where they begin in the slot, or 0: no such room. */
u64 sw_heap_lend(struct sw_heap *heap, u32 peer, u64 bytes);
/* False: no piece of this peer begins there. */
bool sw_heap_take_back(struct sw_heap *heap, u32 peer, u64 at);
u64 sw_heap_lent(const struct sw_heap *heap);

#endif
