// SPDX-License-Identifier: GPL-2.0
/*
 * A queue pair's responder: requests of the peer are carried out one after the other, straight from the
 * ring to the memory that the key opens. Key, bounds and access are looked at for each frame.
 */
#include "sr.h"

/* IBTA 9.9.3: why a request is refused; the requester's status, and this side's event. */
enum reason { INVALID_REQUEST, REMOTE_ACCESS, REMOTE_OPERATION };

static const struct {
	enum ib_wc_status requester;
	enum ib_wc_status receive;
	enum ib_event_type event;
} reasons[] = {
	[INVALID_REQUEST] = { IB_WC_REM_INV_REQ_ERR, IB_WC_WR_FLUSH_ERR, IB_EVENT_QP_REQ_ERR },
	[REMOTE_ACCESS] = { IB_WC_REM_ACCESS_ERR, IB_WC_WR_FLUSH_ERR, IB_EVENT_QP_ACCESS_ERR },
	[REMOTE_OPERATION] = { IB_WC_REM_OP_ERR, IB_WC_LOC_PROT_ERR, IB_EVENT_QP_FATAL },
};

/* No queue pair's number. */
#define SR_NOBODY U32_MAX

static struct sr_owed about(const struct sr_frame *request, enum sr_what what, u16 code, u8 flags)
{
	struct sr_owed owed = {
		.what = what,
		.flags = flags,
		.code = code,
		.to = request->from,
		.psn = request->psn,
		.seq = request->seq,
	};

	return owed;
}

static struct sr_owed answer(const struct sr_frame *request, enum ib_wc_status status)
{
	return about(request, SR_ANSWER, status, 0);
}

/* Who waits for an answer and speaks to nobody that could take the request. */
void sr_nobody(struct sr_lane *lane, const struct sr_frame *request)
{
	struct sr_owed owed = answer(request, IB_WC_RETRY_EXC_ERR);

	if (request->flags & SR_RELIABLE)
		sr_lane_owe(lane, &owed);
}

static bool is_good(const struct sr_answer *answer)
{
	return answer->kind == SR_ANSWER_SHORT && answer->owed.what == SR_ANSWER &&
	       answer->owed.code == IB_WC_SUCCESS;
}

/* NULL: there is no room, as the peer has more READs under way than it may. */
static struct sr_answer *new_answer(struct sr_qp *qp)
{
	struct sr_answer *answer;

	if (qp->answer_count == SR_ANSWERS_MAX)
		return NULL;
	answer = &qp->answers[(qp->answer_first + qp->answer_count++) % SR_ANSWERS_MAX];
	memset(answer, 0, sizeof(*answer));
	return answer;
}

/* Not before what a READ brings that came earlier. */
static void say(struct sr_qp *qp, const struct sr_owed *owed)
{
	struct sr_answer *last = NULL;

	if (!qp->answer_count) {
		sr_lane_owe(qp->lane, owed);
		return;
	}
	last = &qp->answers[(qp->answer_first + qp->answer_count - 1) % SR_ANSWERS_MAX];
	/* What it said holds all the more. */
	if (!is_good(last))
		last = new_answer(qp);
	if (!last) {
		sr_lane_break(qp->lane);
		return;
	}
	last->owed = *owed;
	sr_lane_call(qp->lane, qp);
}

bool sr_responder_take(struct sr_qp *qp)
{
	if (qp->receive_taken)
		return true;
	qp->receive_taken = sr_rq_take(qp->srq ? &qp->srq->rq : &qp->rq, &qp->receive);
	if (qp->receive_taken && qp->srq)
		sr_srq_look(qp->srq);
	return qp->receive_taken;
}

void sr_responder_complete(struct sr_qp *qp, struct ib_wc *completion, bool solicited)
{
	completion->wr_id = qp->receive.wr_id;
	qp->receive_taken = false;
	sr_cq_complete(to_cq(qp->ib.recv_cq), completion, solicited);
}

static void say_done(struct sr_qp *qp, enum ib_wc_status status, u32 bytes,
		     const struct sr_frame *request)
{
	bool writes = request && request->code == IB_WR_RDMA_WRITE_WITH_IMM;
	struct ib_wc completion = {
		.status = status,
		.opcode = writes ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV,
		.byte_len = bytes,
		.qp = qp->recv_shell->told,
		.src_qp = qp->attr.dest_qp_num,
		.slid = qp->lane ? qp->lane->peer + 1 : 0,
		.port_num = qp->attr.port_num,
	};

	if (request && (writes || request->code == IB_WR_SEND_WITH_IMM)) {
		completion.wc_flags = IB_WC_WITH_IMM;
		completion.ex.imm_data = (__force __be32)request->imm;
	} else if (request && request->code == IB_WR_SEND_WITH_INV) {
		completion.wc_flags = IB_WC_WITH_INVALIDATE;
		completion.ex.invalidate_rkey = request->imm;
	}
	sr_responder_complete(qp, &completion, request && request->flags & SR_SOLICITED);
}

static void refuse(struct sr_qp *qp, const struct sr_frame *request, enum reason reason)
{
	struct sr_owed owed = answer(request, reasons[reason].requester);

	qp->in_message = false;
	/* Where nobody waits for an answer the message is dropped, and its receive is the next one's (IBTA 9.9.3). */
	if (!sr_is_reliable(qp) && reason != REMOTE_OPERATION)
		return;
	if (qp->receive_taken)
		say_done(qp, reasons[reason].receive, 0, NULL);
	qp->refused = true;
	if (sr_is_reliable(qp))
		say(qp, &owed);
	sr_qp_fail(qp);
	sr_qp_event(qp, reasons[reason].event);
}

/*
 * What found no receive may come again. The peer's NOT_YET may still wait for its turn: a READY in front of that would say
 * nothing to it, and it would wait for ever.
 */
static void tell_ready(struct sr_qp *qp)
{
	struct sr_owed owed = about(&qp->waiting, SR_READY, 0, 0);

	if (!qp->waits)
		return;
	qp->waits = false;
	sr_queues_have_receives(qp);
	say(qp, &owed);
	sr_device_kick(qp->device);
}

/* Those that asked before there was a peer: the one that it is now, if any, may come again. */
static void tell_early(struct sr_qp *qp, u32 peer)
{
	u32 slot;

	for (slot = 0; slot < SW_HOSTS_MAX; slot++) {
		struct sr_owed *owed = &qp->early[slot];

		if (!owed->what)
			continue;
		if ((owed->to & SR_PSN_MASK) == peer) {
			owed->what = SR_READY;
		} else {
			owed->what = SR_ANSWER;
			owed->code = IB_WC_RETRY_EXC_ERR;
		}
		sr_lane_owe(&qp->device->lanes[slot], owed);
		owed->what = 0;
		sr_device_kick(qp->device);
	}
}

void sr_responder_start(struct sr_qp *qp)
{
	qp->expected = qp->attr.rq_psn & SR_PSN_MASK;
	qp->refused = false;
	qp->in_message = false;
	qp->answer_count = 0;
	tell_early(qp, qp->lane ? qp->attr.dest_qp_num : SR_NOBODY);
}

void sr_responder_posted(struct sr_qp *qp)
{
	tell_ready(qp);
}

/* All receives end, the one of a message under way among them. */
void sr_responder_stop(struct sr_qp *qp)
{
	u64 left;

	qp->in_message = false;
	if (qp->receive_taken)
		say_done(qp, IB_WC_WR_FLUSH_ERR, 0, NULL);
	/* What is posted from now on ends as well. */
	if (qp->state == IB_QPS_ERR)
		sr_queues_want_receives(qp);
	/* No more than are there now, as a program may post without an end. */
	for (left = qp->srq ? 0 : sr_rq_count(&qp->rq); left && sr_responder_take(qp); left--)
		say_done(qp, IB_WC_WR_FLUSH_ERR, 0, NULL);
	if (qp->waits) {
		qp->waits = false;
		sr_nobody(&qp->device->lanes[sr_slot_of(qp->waiting.from)], &qp->waiting);
		sr_device_kick(qp->device);
	}
	tell_early(qp, SR_NOBODY);
}

/* The peer's host is gone. */
void sr_responder_lost(struct sr_qp *qp)
{
	qp->waits = false;
	qp->answer_count = 0;
	qp->in_message = false;
	if (qp->receive_taken && sr_is_reliable(qp))
		say_done(qp, IB_WC_WR_FLUSH_ERR, 0, NULL);
}

static void not_ready(struct sr_qp *qp, struct sr_lane *lane, const struct sr_frame *request)
{
	struct sr_owed *early = &qp->early[lane->peer];

	if (!(request->flags & SR_RELIABLE) || (early->what && early->to == request->from))
		return;
	*early = about(request, SR_NOT_YET, 0, 0);
	sr_lane_owe(lane, early);
}

static bool take_receive(struct sr_qp *qp, const struct sr_frame *request)
{
	struct sr_owed owed = about(request, SR_NOT_YET, qp->attr.min_rnr_timer, SR_NO_RECEIVE);

	if (sr_responder_take(qp))
		return true;
	if (!sr_is_reliable(qp))
		return false;
	/* One may have come in between. */
	if (sr_queues_want_receives(qp) && sr_responder_take(qp)) {
		sr_queues_have_receives(qp);
		return true;
	}
	qp->waits = true;
	qp->waiting = *request;
	say(qp, &owed);
	return false;
}

/* The request has been carried out. */
static void well(struct sr_qp *qp)
{
	struct sr_owed owed = answer(&qp->request, IB_WC_SUCCESS);

	qp->expected = (qp->expected + 1) & SR_PSN_MASK;
	if (qp->request.flags & SR_RELIABLE)
		say(qp, &owed);
}

static bool writes(const struct sr_frame *request)
{
	return request->code == IB_WR_RDMA_WRITE || request->code == IB_WR_RDMA_WRITE_WITH_IMM;
}

static struct sr_mr *remote(struct sr_qp *qp, const struct sr_frame *request, u64 addr, u64 bytes,
			    int access)
{
	if (!(qp->attr.qp_access_flags & access))
		return NULL;
	return sr_mr_find_remote(qp, request->rkey, addr, bytes, access);
}

/* Memory that programs register is theirs to take back, but not windows on it; users in the kernel open theirs for this. */
static int invalidate(struct sr_qp *qp, u32 key)
{
	return qp->in_kernel ? sr_mr_close_remote(qp->device, qp->ib.pd, key) : sr_mw_invalidate(qp, key);
}

/* Bytes of the message under way, which fit; perhaps the last. */
static void bytes_came(struct sr_qp *qp, u64 bytes)
{
	struct sr_channel *channel = &qp->lane->channel;
	const struct sr_frame *request = &qp->request;
	u64 addr = request->addr + qp->got;
	struct sr_mr *mr;

	/* Nothing is written to no memory (IBTA 9.4.3). */
	if (writes(request) && bytes) {
		mr = remote(qp, request, addr, bytes, IB_ACCESS_REMOTE_WRITE);
		if (!mr) {
			refuse(qp, request, REMOTE_ACCESS);
			return;
		}
		sr_mr_copy(mr, addr, bytes, channel, 0);
	} else if (bytes) {
		const struct sr_rwqe *receive = &qp->receive;

		if (sr_scatter(qp, receive->sges, receive->sge_count, qp->got, bytes, channel,
			       NULL)) {
			refuse(qp, request, REMOTE_OPERATION);
			return;
		}
	}
	qp->got += bytes;
	if (qp->got < request->words[0])
		return;
	qp->in_message = false;
	if (request->code == IB_WR_SEND_WITH_INV && invalidate(qp, request->imm)) {
		refuse(qp, request, REMOTE_ACCESS);
		return;
	}
	/* A program that has seen the message may answer at once; the acknowledgement is in front of that. */
	well(qp);
	if (qp->receive_taken)
		say_done(qp, IB_WC_SUCCESS, request->words[0], request);
}

static void more_came(struct sr_qp *qp, const struct sr_frame *frame)
{
	/* Of a message that was refused, or is to come again. */
	if (!qp->in_message || qp->request.from != frame->from || qp->request.seq != frame->seq)
		return;
	if (!frame->len || frame->len > qp->request.words[0] - qp->got)
		refuse(qp, &qp->request, INVALID_REQUEST);
	else
		bytes_came(qp, frame->len);
}

static void read_came(struct sr_qp *qp, const struct sr_frame *request)
{
	struct sr_answer *answer;

	if (request->words[0] && !remote(qp, request, request->addr, request->words[0],
					 IB_ACCESS_REMOTE_READ)) {
		refuse(qp, request, REMOTE_ACCESS);
		return;
	}
	/* One is left for the refusal. */
	answer = qp->answer_count < SR_ANSWERS_MAX - 1 ? new_answer(qp) : NULL;
	if (!answer) {
		refuse(qp, request, INVALID_REQUEST);
		return;
	}
	answer->kind = SR_ANSWER_READ;
	answer->request = *request;
	qp->expected = (qp->expected + 1) & SR_PSN_MASK;
	sr_lane_call(qp->lane, qp);
}

/* IBTA 9.4.5. What was there leaves in its turn; a request that comes again is ignored by its number. */
static void atomic_came(struct sr_qp *qp, const struct sr_frame *request)
{
	struct sr_answer *answer;
	struct sr_mr *mr;
	u64 *word;

	mr = remote(qp, request, request->addr, sizeof(u64), IB_ACCESS_REMOTE_ATOMIC);
	if (!mr) {
		refuse(qp, request, REMOTE_ACCESS);
		return;
	}
	word = IS_ALIGNED(request->addr, sizeof(u64)) ? sr_mr_word(mr, request->addr) : NULL;
	/* One is left for the refusal. */
	answer = word && qp->answer_count < SR_ANSWERS_MAX - 1 ? new_answer(qp) : NULL;
	if (!answer) {
		refuse(qp, request, INVALID_REQUEST);
		return;
	}
	answer->kind = SR_ANSWER_ATOMIC;
	answer->request = *request;
	/* Programs with the memory may do the same at this moment. */
	if (request->code == IB_WR_ATOMIC_FETCH_AND_ADD)
		answer->found = atomic64_fetch_add(request->words[0], (atomic64_t *)word);
	else
		answer->found = cmpxchg(word, request->words[0], request->words[1]);
	qp->expected = (qp->expected + 1) & SR_PSN_MASK;
	sr_lane_call(qp->lane, qp);
}

static bool takes_receive(const struct sr_frame *request)
{
	switch (request->code) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return true;
	default:
		return false;
	}
}

/* What asks for bytes has none, and what has bytes begins with some of them. */
static bool is_sound(const struct sr_frame *request)
{
	u64 total = request->words[0];

	if (sr_is_atomic(request->code))
		return !request->len;
	if (total > SR_MESSAGE_BYTES_MAX)
		return false;
	if (request->code == IB_WR_RDMA_READ)
		return !request->len;
	return (takes_receive(request) || request->code == IB_WR_RDMA_WRITE) &&
	       request->len <= total && (request->len || !total);
}

static bool wants_answer(const struct sr_frame *request)
{
	return request->code == IB_WR_RDMA_READ || request->code == IB_WR_SEND_WITH_INV ||
	       sr_is_atomic(request->code);
}

static void request_came(struct sr_qp *qp, const struct sr_frame *request)
{
	u64 total = request->words[0];

	if (!is_sound(request) || (!sr_is_reliable(qp) && wants_answer(request))) {
		refuse(qp, request, INVALID_REQUEST);
		return;
	}
	if (request->code == IB_WR_RDMA_READ) {
		read_came(qp, request);
		return;
	}
	if (sr_is_atomic(request->code)) {
		atomic_came(qp, request);
		return;
	}
	if (takes_receive(request) && !take_receive(qp, request))
		return;
	if (!writes(request) && total > qp->receive.length) {
		say_done(qp, IB_WC_LOC_LEN_ERR, 0, NULL);
		refuse(qp, request, INVALID_REQUEST);
		return;
	}
	/* The whole of what it wants to write, before any of it is. */
	if (writes(request) && total &&
	    !remote(qp, request, request->addr, total, IB_ACCESS_REMOTE_WRITE)) {
		refuse(qp, request, REMOTE_ACCESS);
		return;
	}
	qp->in_message = true;
	qp->request = *request;
	qp->got = 0;
	bytes_came(qp, request->len);
}

void sr_responder_came(struct sr_qp *qp, const struct sr_frame *frame)
{
	struct sr_lane *lane = &qp->device->lanes[sr_slot_of(frame->from)];

	if (frame->what == SR_MORE) {
		if (qp->lane == lane && !qp->refused)
			more_came(qp, frame);
		return;
	}
	if (qp->state == IB_QPS_RESET || qp->state == IB_QPS_INIT) {
		not_ready(qp, lane, frame);
		return;
	}
	/* Of an earlier connection, or of a stranger. */
	if (qp->lane != lane || (frame->from & SR_PSN_MASK) != qp->attr.dest_qp_num ||
	    !(frame->flags & SR_RELIABLE) == sr_is_reliable(qp)) {
		if (qp->state == IB_QPS_ERR)
			sr_nobody(lane, frame);
		return;
	}
	/* Who was refused has been told. */
	if (qp->refused)
		return;
	if (qp->state == IB_QPS_ERR) {
		sr_nobody(lane, frame);
		return;
	}
	if (qp->state == IB_QPS_RTR && !qp->established) {
		qp->established = true;
		sr_qp_event(qp, IB_EVENT_COMM_EST);
	}
	if (!sr_is_reliable(qp)) {
		/* A message whose rest does not come leaves its receive to this one. */
		qp->in_message = false;
		request_came(qp, frame);
		return;
	}
	/* Behind one that comes again. */
	if (frame->psn != qp->expected)
		return;
	/* The rest of a message does not come any more. */
	if (qp->in_message)
		refuse(qp, frame, INVALID_REQUEST);
	else
		request_came(qp, frame);
}

/* A piece of what a READ asked for. */
static int send_read(struct sr_qp *qp, struct sr_answer *answer)
{
	const struct sr_frame *request = &answer->request;
	struct sr_channel *channel = &qp->lane->channel;
	u64 total = request->words[0], addr = request->addr + answer->offset;
	u64 bytes = min(total - answer->offset, sr_channel_piece_bytes(channel));
	int room = sr_channel_room(channel, bytes);
	struct sr_frame frame;
	struct sr_mr *mr = NULL;

	if (room <= 0)
		return room < 0 ? room : -EAGAIN;
	if (bytes) {
		mr = remote(qp, request, addr, bytes, IB_ACCESS_REMOTE_READ);
		if (!mr) {
			struct sr_frame refused = *request;

			qp->answer_count = 0;
			refuse(qp, &refused, REMOTE_ACCESS);
			return 1;
		}
	}
	sr_frame_about(&frame, SR_DATA, request);
	frame.len = bytes;
	frame.addr = answer->offset;
	sr_channel_put_header(channel, &frame);
	if (bytes)
		sr_mr_put(mr, addr, bytes, channel);
	sr_channel_pad(channel, bytes);
	answer->offset += bytes;
	return answer->offset == total ? 0 : 1;
}

static int send_found(struct sr_qp *qp, const struct sr_answer *answer)
{
	struct sr_channel *channel = &qp->lane->channel;
	int room = sr_channel_room(channel, sizeof(answer->found));
	struct sr_frame frame;

	if (room <= 0)
		return room < 0 ? room : -EAGAIN;
	sr_frame_about(&frame, SR_DATA, &answer->request);
	frame.len = sizeof(answer->found);
	sr_channel_put_header(channel, &frame);
	sr_channel_put(channel, &answer->found, sizeof(answer->found));
	return 0;
}

static int send_short(struct sr_qp *qp, const struct sr_answer *answer)
{
	int room = sr_channel_room(&qp->lane->channel, 0);

	if (room <= 0)
		return room < 0 ? room : -EAGAIN;
	sr_lane_owe(qp->lane, &answer->owed);
	return 0;
}

int sr_responder_send(struct sr_qp *qp)
{
	struct sr_answer *answer;
	int sent;

	if (!qp->answer_count)
		return 0;
	answer = &qp->answers[qp->answer_first];
	switch (answer->kind) {
	case SR_ANSWER_READ:
		sent = send_read(qp, answer);
		break;
	case SR_ANSWER_ATOMIC:
		sent = send_found(qp, answer);
		break;
	default:
		sent = send_short(qp, answer);
	}
	if (sent)
		return sent;
	qp->answer_first = (qp->answer_first + 1) % SR_ANSWERS_MAX;
	qp->answer_count--;
	return 1;
}
