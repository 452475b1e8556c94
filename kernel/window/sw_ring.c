// SPDX-License-Identifier: GPL-2.0
/*
 * Mailboxes: rings of frames, a word with length (lower half) and kind, the message, zeros up to
 * a multiple of eight. Data and tail lie in the reader's slot, head in the writer's.
 */
#include "sw_proto.h"

#define MASK (SW_MAILBOX_BYTES - 1)

/* Places of what @me writes for @peer, and of what it reads that @peer writes. */
static u64 written(const struct sw_view *view, u64 offset)
{
	return (u64)view->me * SW_PEER_BYTES + offset;
}

static u64 read_from(u32 peer, u64 offset)
{
	return (u64)peer * SW_PEER_BYTES + offset;
}

static void put(const struct sw_view *view, u32 peer, u64 position,
		const void *from, u64 bytes)
{
	u64 place = position & MASK;
	u64 first = min_t(u64, bytes, SW_MAILBOX_BYTES - place);

	sw_copy_in(view, peer, written(view, SW_AT_MAILBOX + place), from, first);
	if (first < bytes)
		sw_copy_in(view, peer, written(view, SW_AT_MAILBOX), (const u8 *)from + first,
			   bytes - first);
}

int sw_send(struct sw_sender *sender, const struct sw_view *view, u32 peer, u32 kind,
	    const void *message, u32 bytes)
{
	static const u8 zeros[8];
	u64 frame, head, word, start, first;

	if (bytes > SW_MESSAGE_BYTES_MAX)
		return -EMSGSIZE;
	frame = 8 + ALIGN((u64)bytes, 8);
	if (SW_MAILBOX_BYTES - (sender->tail - sender->head) < frame) {
		head = sw_look(view, read_from(peer, SW_AT_HEAD));
		/* It has read what was not written, or took back that it had read. */
		if (head < sender->head || head > sender->tail)
			return -EPROTO;
		sender->head = head;
		if (SW_MAILBOX_BYTES - (sender->tail - head) < frame)
			return -EAGAIN;
	}
	word = cpu_to_le64((u64)kind << 32 | bytes);
	put(view, peer, sender->tail, &word, 8);
	put(view, peer, sender->tail + 8, message, bytes);
	put(view, peer, sender->tail + 8 + bytes, zeros, frame - 8 - bytes);
	start = sender->tail & MASK;
	first = min_t(u64, frame, SW_MAILBOX_BYTES - start);
	sw_publish(view, peer, written(view, SW_AT_MAILBOX + start), first);
	if (first < frame)
		sw_publish(view, peer, written(view, SW_AT_MAILBOX), frame - first);
	sender->tail += frame;
	sw_say(view, peer, written(view, SW_AT_TAIL), sender->tail);
	return 0;
}

static void copy(const struct sw_view *view, u32 peer, u64 position, void *to, u64 bytes)
{
	u64 place = position & MASK;
	u64 first = min_t(u64, bytes, SW_MAILBOX_BYTES - place);

	sw_copy_out(view, read_from(peer, SW_AT_MAILBOX + place), to, first);
	if (first < bytes)
		sw_copy_out(view, read_from(peer, SW_AT_MAILBOX), (u8 *)to + first, bytes - first);
}

/* Learns how far the peer has written; what is new is fresh then. */
static int look_for_more(struct sw_receiver *receiver, const struct sw_view *view, u32 peer)
{
	u64 tail = sw_look(view, read_from(peer, SW_AT_TAIL));
	u64 start, first;

	/* Not back, and not over what was not read. */
	if (tail < receiver->tail || tail - receiver->head > SW_MAILBOX_BYTES)
		return -EPROTO;
	if (tail == receiver->tail)
		return 0;
	start = receiver->tail & MASK;
	first = min_t(u64, tail - receiver->tail, SW_MAILBOX_BYTES - start);
	sw_refresh(view, read_from(peer, SW_AT_MAILBOX + start), first);
	if (first < tail - receiver->tail)
		sw_refresh(view, read_from(peer, SW_AT_MAILBOX), tail - receiver->tail - first);
	receiver->tail = tail;
	return 0;
}

int sw_receive(struct sw_receiver *receiver, const struct sw_view *view, u32 peer, u32 *kind,
	       void *message)
{
	u64 word, frame;
	u32 bytes;

	if (receiver->tail == receiver->head) {
		int err = look_for_more(receiver, view, peer);

		if (err)
			return err;
		if (receiver->tail == receiver->head)
			return -EAGAIN;
	}
	/* Writers tell of whole frames only. */
	if (receiver->tail - receiver->head < 8)
		return -EPROTO;
	copy(view, peer, receiver->head, &word, 8);
	word = le64_to_cpu(word);
	bytes = (u32)word;
	if (bytes > SW_MESSAGE_BYTES_MAX)
		return -EPROTO;
	frame = 8 + ALIGN((u64)bytes, 8);
	if (receiver->tail - receiver->head < frame)
		return -EPROTO;
	copy(view, peer, receiver->head + 8, message, bytes);
	*kind = word >> 32;
	receiver->head += frame;
	/* A release: what was copied was copied before. */
	sw_say(view, peer, written(view, SW_AT_HEAD), receiver->head);
	return bytes;
}
