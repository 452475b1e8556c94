/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A way to a peer and back: a ring of frames in each direction, and who sleeps. Each host lends the
 * other a piece of its heap; in front of the ring's bytes that piece has three lines that the borrower
 * writes. No kernel call; callers see to it that one thread at a time uses a channel.
 *
 * What the peer says is read once and checked against what is kept here; -EPROTO: it cannot be.
 */
#ifndef SR_CHANNEL_H
#define SR_CHANNEL_H

#include "sw_view.h"
#include "sr_frame.h"

/* Kinds of messages in the mailbox; two words of 64 bits each. */
#define SR_KIND_LEND		0x56000001U
#define SR_KIND_READY		0x56000002U
/* Datagrams of the connection manager, to all hosts: this one has no queue pair 1 yet. */
#define SR_KIND_MANAGEMENT	0x56000003U

#define SR_CONTROL_BYTES	SW_PAGE
#define SR_RING_BYTES_MIN	32768
#define SR_RING_BYTES_MAX	(1ULL << 30)

/* In the word that says whether a host sleeps; above these a number, another one for each sleep. */
#define SR_ASLEEP		1
#define SR_WANTS_ROOM		2
#define SR_TURN			4

/* Where the two pieces begin and how long their rings are. */
struct sr_pieces {
	u64 lent;
	u64 lent_ring;
	u64 borrowed;
	u64 borrowed_ring;
};

struct sr_channel {
	const struct sw_view *view;
	u32 peer;
	struct sr_pieces pieces;
	/* Written, told of, and read by the peer. */
	u64 tail;
	u64 told;
	u64 head;
	/* Read, told of, and written by the peer. */
	u64 taken;
	u64 given;
	u64 seen;
	/* Which sleep of the peer's was rung for. */
	u64 rung;
	u64 slept;
};

/* Whether a peer may have lent this; -EPROTO. */
int sr_piece_check(const struct sw_view *view, u64 at, u64 ring);

/* Makes what this host writes of a channel empty. The peer is told so afterwards. */
void sr_channel_begin(struct sr_channel *channel, const struct sw_view *view, u32 peer,
		      const struct sr_pieces *pieces);

/* What one frame to the peer may carry. */
u64 sr_channel_piece_bytes(const struct sr_channel *channel);
/* 1: there is room for a frame that carries so many bytes; 0; -EPROTO. */
int sr_channel_room(struct sr_channel *channel, u64 len);
/* Bytes of a frame for which there is room; the last one is followed by sr_channel_pad(). */
void sr_channel_put(struct sr_channel *channel, const void *from, u64 bytes);
void sr_channel_put_header(struct sr_channel *channel, const struct sr_frame *frame);
void sr_channel_pad(struct sr_channel *channel, u64 len);
/* The peer learns of all that was put. */
void sr_channel_publish(struct sr_channel *channel);

/* 1: @frame is the next, and all its bytes are there; 0: none is; -EPROTO. */
int sr_channel_next(struct sr_channel *channel, struct sr_frame *frame);
/* Bytes of that frame, which may be others each time. */
void sr_channel_copy(const struct sr_channel *channel, u64 offset, void *to, u64 bytes);
/* Is through with it. Whether the peer was told of room. */
bool sr_channel_take(struct sr_channel *channel, const struct sr_frame *frame);

/* Says that this host sleeps until it is rung for. To be followed by another look for frames. */
void sr_channel_sleep(struct sr_channel *channel, bool wants_room);
/* Whether the peer sleeps, in such a way, and was not rung for; it will have been. */
bool sr_channel_must_ring(struct sr_channel *channel, u64 so);

#endif
