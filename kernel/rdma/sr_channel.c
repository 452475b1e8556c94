// SPDX-License-Identifier: GPL-2.0
#include "sr_channel.h"

/* Lines of a piece. */
#define AT_TAIL		0
#define AT_HEAD		SW_LINE
#define AT_SLEEP	(2 * SW_LINE)

int sr_piece_check(const struct sw_view *view, u64 at, u64 ring)
{
	u64 heap = sw_heap_at(view->hosts);

	if (ring < SR_RING_BYTES_MIN || ring > SR_RING_BYTES_MAX || (ring & (ring - 1)))
		return -EPROTO;
	if (!IS_ALIGNED(at, (u64)SW_PAGE) || at < heap || at > view->slot_bytes ||
	    view->slot_bytes - at < SR_CONTROL_BYTES + ring)
		return -EPROTO;
	return 0;
}

static void say(struct sr_channel *channel, u64 line, u64 value)
{
	sw_say(channel->view, channel->peer, channel->pieces.borrowed + line, value);
}

static u64 look(struct sr_channel *channel, u64 line)
{
	return sw_look(channel->view, channel->pieces.lent + line);
}

void sr_channel_begin(struct sr_channel *channel, const struct sw_view *view, u32 peer,
		      const struct sr_pieces *pieces)
{
	memset(channel, 0, sizeof(*channel));
	channel->view = view;
	channel->peer = peer;
	channel->pieces = *pieces;
	say(channel, AT_TAIL, 0);
	say(channel, AT_HEAD, 0);
	say(channel, AT_SLEEP, 0);
}

static u64 piece_bytes(u64 ring)
{
	return min_t(u64, ring / 4 - SR_HEADER_BYTES, SR_PIECE_BYTES_MAX);
}

u64 sr_channel_piece_bytes(const struct sr_channel *channel)
{
	return piece_bytes(channel->pieces.borrowed_ring);
}

int sr_channel_room(struct sr_channel *channel, u64 len)
{
	u64 ring = channel->pieces.borrowed_ring;
	u64 head;

	if (ring - (channel->tail - channel->head) >= sr_padded(len))
		return 1;
	head = look(channel, AT_HEAD);
	/* It has read what it was not told of, or took back that it had read. */
	if (head < channel->head || head > channel->told)
		return -EPROTO;
	channel->head = head;
	return ring - (channel->tail - head) >= sr_padded(len);
}

void sr_channel_put(struct sr_channel *channel, const void *from, u64 bytes)
{
	u64 ring = channel->pieces.borrowed_ring;
	u64 data = channel->pieces.borrowed + SR_CONTROL_BYTES;
	u64 place = channel->tail & (ring - 1);
	u64 first = min_t(u64, bytes, ring - place);

	sw_copy_in(channel->view, channel->peer, data + place, from, first);
	if (first < bytes)
		sw_copy_in(channel->view, channel->peer, data, (const u8 *)from + first,
			   bytes - first);
	channel->tail += bytes;
}

void sr_channel_put_header(struct sr_channel *channel, const struct sr_frame *frame)
{
	u8 bytes[SR_HEADER_BYTES];

	sr_frame_emit(frame, bytes);
	sr_channel_put(channel, bytes, SR_HEADER_BYTES);
}

void sr_channel_pad(struct sr_channel *channel, u64 len)
{
	static const u8 zeros[8];

	sr_channel_put(channel, zeros, ALIGN(len, (u64)8) - len);
}

void sr_channel_publish(struct sr_channel *channel)
{
	u64 ring = channel->pieces.borrowed_ring;
	u64 data = channel->pieces.borrowed + SR_CONTROL_BYTES;
	u64 bytes = channel->tail - channel->told;
	u64 place = channel->told & (ring - 1);
	u64 first = min_t(u64, bytes, ring - place);

	if (!bytes)
		return;
	sw_publish(channel->view, channel->peer, data + place, first);
	if (first < bytes)
		sw_publish(channel->view, channel->peer, data, bytes - first);
	say(channel, AT_TAIL, channel->tail);
	channel->told = channel->tail;
}

/* How many bytes are there, looking for more if they are less than @wanted. */
static int available(struct sr_channel *channel, u64 wanted, u64 *there)
{
	u64 ring = channel->pieces.lent_ring;
	u64 data = channel->pieces.lent + SR_CONTROL_BYTES;
	u64 tail, bytes, place, first;

	if (channel->seen - channel->taken < wanted) {
		tail = look(channel, AT_TAIL);
		/* Not back, and not more than the room that it was told of. */
		if (tail < channel->seen || tail - channel->given > ring)
			return -EPROTO;
		bytes = tail - channel->seen;
		place = channel->seen & (ring - 1);
		first = min_t(u64, bytes, ring - place);
		if (bytes)
			sw_refresh(channel->view, data + place, first);
		if (first < bytes)
			sw_refresh(channel->view, data, bytes - first);
		channel->seen = tail;
	}
	*there = channel->seen - channel->taken;
	return 0;
}

static void copy(const struct sr_channel *channel, u64 position, void *to, u64 bytes)
{
	u64 ring = channel->pieces.lent_ring;
	u64 data = channel->pieces.lent + SR_CONTROL_BYTES;
	u64 place = position & (ring - 1);
	u64 first = min_t(u64, bytes, ring - place);

	sw_copy_out(channel->view, data + place, to, first);
	if (first < bytes)
		sw_copy_out(channel->view, data, (u8 *)to + first, bytes - first);
}

int sr_channel_next(struct sr_channel *channel, struct sr_frame *frame)
{
	u8 bytes[SR_HEADER_BYTES];
	u64 there;

	if (available(channel, SR_HEADER_BYTES, &there))
		return -EPROTO;
	if (there == 0)
		return 0;
	/* Writers tell of whole frames only. */
	if (there < SR_HEADER_BYTES)
		return -EPROTO;
	copy(channel, channel->taken, bytes, SR_HEADER_BYTES);
	if (sr_frame_parse(frame, bytes) || frame->len > piece_bytes(channel->pieces.lent_ring))
		return -EPROTO;
	if (available(channel, sr_padded(frame->len), &there) || there < sr_padded(frame->len))
		return -EPROTO;
	return 1;
}

void sr_channel_copy(const struct sr_channel *channel, u64 offset, void *to, u64 bytes)
{
	copy(channel, channel->taken + SR_HEADER_BYTES + offset, to, bytes);
}

bool sr_channel_take(struct sr_channel *channel, const struct sr_frame *frame)
{
	channel->taken += sr_padded(frame->len);
	if (channel->taken - channel->given < channel->pieces.lent_ring / 8)
		return false;
	say(channel, AT_HEAD, channel->taken);
	channel->given = channel->taken;
	return true;
}

void sr_channel_sleep(struct sr_channel *channel, bool wants_room)
{
	channel->slept += SR_TURN;
	say(channel, AT_SLEEP, channel->slept | SR_ASLEEP | (wants_room ? SR_WANTS_ROOM : 0));
	/* Said first, looked then; who puts a frame does it the other way round. */
	virt_mb();
}

bool sr_channel_must_ring(struct sr_channel *channel, u64 so)
{
	u64 word;

	virt_mb();
	word = look(channel, AT_SLEEP);
	if (!(word & so) || word == channel->rung)
		return false;
	channel->rung = word;
	return true;
}
