// SPDX-License-Identifier: GPL-2.0
/* Frames to and from one host. */
#include "sr.h"

/* Pieces that one look sends, so that long transfers let others in. */
#define PIECES_MAX 32

void sr_lane_init(struct sr_lane *lane, struct sr_device *device, u32 peer)
{
	memset(lane, 0, sizeof(*lane));
	lane->device = device;
	lane->peer = peer;
	INIT_LIST_HEAD(&lane->turns);
}

void sr_lane_break(struct sr_lane *lane)
{
	lane->broken = true;
	lane->up = false;
	schedule_delayed_work(&lane->device->state_work, 0);
}

static bool is_self(const struct sr_lane *lane)
{
	return lane->channel.view == &lane->device->own_view;
}

/* Something that the peer looks for was said. */
static void ring(struct sr_lane *lane, u64 so)
{
	struct sr_device *device = lane->device;

	if (!sr_channel_must_ring(&lane->channel, so))
		return;
	if (is_self(lane))
		sr_device_kick(device);
	else if (!sluice_window_ring(device->window, lane->peer, SR_VECTOR))
		sluice_window_ring(device->window, lane->peer, 0);
}

void sr_lane_publish(struct sr_lane *lane)
{
	if (lane->channel.tail == lane->channel.told)
		return;
	sr_channel_publish(&lane->channel);
	ring(lane, SR_ASLEEP);
}

static bool is_good(const struct sr_owed *owed)
{
	return owed->what == SR_ANSWER && owed->code == IB_WC_SUCCESS;
}

void sr_lane_owe(struct sr_lane *lane, const struct sr_owed *owed)
{
	u32 i;

	if (!lane->up)
		return;
	/* A later acknowledgement says what the earlier one would. */
	for (i = 0; is_good(owed) && i < min(lane->owed_count, 16U); i++) {
		u32 at = (lane->owed_first + lane->owed_count - 1 - i) % SR_OWED_MAX;

		if (lane->owed[at].to != owed->to)
			continue;
		if (!is_good(&lane->owed[at]))
			break;
		lane->owed[at] = *owed;
		return;
	}
	if (lane->owed_count == SR_OWED_MAX) {
		/* It does not take its answers. */
		sr_lane_break(lane);
		return;
	}
	lane->owed[(lane->owed_first + lane->owed_count++) % SR_OWED_MAX] = *owed;
}

/* 0: all have left; -EAGAIN; -EPROTO. */
static int put_owed(struct sr_lane *lane)
{
	while (lane->owed_count) {
		const struct sr_owed *owed = &lane->owed[lane->owed_first];
		struct sr_frame frame = {
			.what = owed->what,
			.flags = owed->flags,
			.code = owed->code,
			.to = owed->to,
			.psn = owed->psn,
			.seq = owed->seq,
		};
		int room = sr_channel_room(&lane->channel, 0);

		if (room <= 0)
			return room < 0 ? room : -EAGAIN;
		sr_channel_put_header(&lane->channel, &frame);
		lane->owed_first = (lane->owed_first + 1) % SR_OWED_MAX;
		lane->owed_count--;
	}
	return 0;
}

void sr_lane_call(struct sr_lane *lane, struct sr_qp *qp)
{
	if (list_empty(&qp->turn))
		list_add_tail(&qp->turn, &lane->turns);
}

/* As sr_requester_send(), but what does not end waits for its turn by itself. */
static int send_datagrams(struct sr_lane *lane, struct sr_qp *qp)
{
	struct sr_lane *waits_for;
	int sent = sr_datagram_send(qp, &waits_for);

	if (sent && waits_for != lane)
		sr_device_kick(lane->device);
	return sent == -EAGAIN && waits_for == lane ? -EAGAIN : 0;
}

/* Each queue pair sends a piece in its turn. Whether there is more, and room for it. */
static bool send(struct sr_lane *lane)
{
	int pieces, err = put_owed(lane);

	for (pieces = 0; !err && !list_empty(&lane->turns) && pieces < PIECES_MAX; pieces++) {
		struct sr_qp *qp = list_first_entry(&lane->turns, struct sr_qp, turn);
		bool datagrams = qp->ib.qp_type == IB_QPT_UD;
		int sent = datagrams ? send_datagrams(lane, qp) : sr_responder_send(qp);

		if (sent == 0 && !datagrams)
			sent = sr_requester_send(qp);
		if (sent == 0 && datagrams)
			continue;
		if (sent == 0)
			list_del_init(&qp->turn);
		else if (sent > 0)
			list_move_tail(&qp->turn, &lane->turns);
		else
			err = sent;
		/* A queue pair that failed owes its last answers. */
		if (!err)
			err = put_owed(lane);
	}
	sr_lane_publish(lane);
	if (err == -EPROTO)
		sr_lane_break(lane);
	return !err && !list_empty(&lane->turns);
}

void sr_lane_flush(struct sr_lane *lane)
{
	if (lane->up)
		send(lane);
}

static void request_came(struct sr_qp *qp, const struct sr_frame *frame)
{
	sr_responder_came(qp, frame);
	sr_queues_look(qp);
}

static int dispatch(struct sr_lane *lane, const struct sr_frame *frame)
{
	struct sr_device *device = lane->device;
	struct sr_qp *qp = xa_load(&device->qps, frame->to & SR_PSN_MASK);
	bool its = qp && qp->lane == lane;

	switch (frame->what) {
	case SR_REQUEST:
	case SR_MORE:
		/* In another's name. */
		if (sr_slot_of(frame->from) != lane->peer)
			return -EPROTO;
		if (sr_datagram_is(device, frame))
			sr_datagram_came(device, lane, frame);
		else if (qp)
			request_came(qp, frame);
		else if (frame->what == SR_REQUEST)
			sr_nobody(lane, frame);
		return 0;
	case SR_ANSWER:
		if (its)
			sr_requester_answered(qp, frame);
		return 0;
	case SR_DATA:
		if (its)
			sr_requester_data(qp, frame);
		return 0;
	case SR_NOT_YET:
		if (its)
			sr_requester_not_yet(qp, frame);
		return 0;
	case SR_READY:
		if (its)
			sr_requester_ready(qp, frame);
		return 0;
	default:
		return -EPROTO;
	}
}

/* Whether there may be more. */
static bool receive(struct sr_lane *lane, int frames)
{
	struct sr_frame frame;
	int i, next;

	for (i = 0; i < frames && lane->up; i++) {
		next = sr_channel_next(&lane->channel, &frame);
		if (next == 0)
			return false;
		lane->device->worked++;
		if (next > 0)
			next = dispatch(lane, &frame);
		if (next < 0) {
			sr_lane_break(lane);
			return false;
		}
		if (sr_channel_take(&lane->channel, &frame))
			ring(lane, SR_WANTS_ROOM);
	}
	return lane->up;
}

bool sr_lane_run(struct sr_lane *lane, int frames)
{
	bool more;

	if (!lane->up)
		return false;
	more = receive(lane, frames);
	if (lane->up)
		more |= send(lane);
	return more && lane->up;
}

bool sr_lane_sleep(struct sr_lane *lane)
{
	struct sr_frame frame;

	if (!lane->up)
		return true;
	sr_channel_sleep(&lane->channel, lane->owed_count || !list_empty(&lane->turns));
	/* An error is for who looks next. */
	if (sr_channel_next(&lane->channel, &frame))
		return false;
	if (lane->owed_count)
		return sr_channel_room(&lane->channel, 0) == 0;
	return list_empty(&lane->turns) ||
	       sr_channel_room(&lane->channel, sr_channel_piece_bytes(&lane->channel)) == 0;
}

void sr_lane_begin(struct sr_lane *lane)
{
	unsigned long number;
	struct sr_qp *qp;

	lane->owed_first = 0;
	lane->owed_count = 0;
	lane->up = true;
	xa_for_each(&lane->device->qps, number, qp) {
		if (qp->lane == lane && sr_may_send(qp))
			sr_lane_call(lane, qp);
		if (qp->ib.qp_type == IB_QPT_UD)
			sr_datagram_call(qp);
	}
	sr_device_kick(lane->device);
}

void sr_lane_end(struct sr_lane *lane, bool left)
{
	bool was_up = lane->up || lane->broken;
	unsigned long number;
	struct sr_qp *qp, *next;
	LIST_HEAD(datagrams);

	lane->up = false;
	lane->owed_count = 0;
	xa_for_each(&lane->device->qps, number, qp) {
		qp->early[lane->peer].what = 0;
		if (qp->lane != lane)
			continue;
		list_del_init(&qp->turn);
		sr_responder_lost(qp);
		/* Without a request under way they hear of an orderly end when they send next. */
		if (was_up && (!left || qp->sq_head != qp->sq_tail))
			sr_requester_give_up(qp, IB_WC_RETRY_EXC_ERR);
	}
	kvfree(lane->owed);
	list_for_each_entry_safe(qp, next, &lane->turns, turn)
		list_move_tail(&qp->turn, &datagrams);
	sr_lane_init(lane, lane->device, lane->peer);
	/* What is for this host is lost, what is behind that may be for others. */
	while (!list_empty(&datagrams)) {
		qp = list_first_entry(&datagrams, struct sr_qp, turn);
		list_del_init(&qp->turn);
		sr_datagram_call(qp);
	}
}
