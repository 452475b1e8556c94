// SPDX-License-Identifier: GPL-2.0
/*
 * Requests of a queue pair leave in order, each as one frame or several. Nothing is lost on the way, so
 * an answer ends all requests before its own; one that the peer is not ready for is sent again with
 * all behind it.
 */
#include "sr.h"

/* How long requests wait for a host that is not there. */
#define LANE_WAIT_NS (SW_SILENCE_NS + NSEC_PER_SEC)

static struct sr_wqe *wqe_at(const struct sr_qp *qp, u64 position)
{
	return &qp->sq[position % qp->cap.max_send_wr];
}

/* It ends with bytes that it brings. */
static bool reads(const struct sr_wqe *wqe)
{
	return wqe->opcode == IB_WR_RDMA_READ || sr_is_atomic(wqe->opcode);
}

static u32 name(const struct sr_qp *qp)
{
	return qp->number | (u32)qp->epoch << 24;
}

bool sr_may_send(const struct sr_qp *qp)
{
	const struct sr_wqe *next;

	if (qp->blocked || qp->sq_sent == qp->sq_tail)
		return false;
	/* What has begun is ended before the queue stands still. */
	if (qp->state != IB_QPS_RTS && !(qp->state == IB_QPS_SQD && qp->offset))
		return false;
	next = wqe_at(qp, qp->sq_sent);
	if (next->fenced && qp->reads)
		return false;
	/* What is sent again needs what it named. */
	if (next->opcode == IB_WR_LOCAL_INV && qp->sq_head != qp->sq_sent)
		return false;
	return !reads(next) || qp->reads < max_t(u32, qp->attr.max_rd_atomic, 1);
}

void sr_requester_call(struct sr_qp *qp)
{
	if (qp->ib.qp_type == IB_QPT_UD) {
		sr_datagram_call(qp);
		return;
	}
	if (!sr_may_send(qp))
		return;
	if (qp->lane && qp->lane->up) {
		sr_lane_call(qp->lane, qp);
	} else if (!qp->lane || qp->stale) {
		sr_requester_give_up(qp, IB_WC_RETRY_EXC_ERR);
	} else if (!qp->lane_until_ns) {
		qp->lane_until_ns = ktime_get_ns() + LANE_WAIT_NS;
		sr_device_alarm(qp->device, qp->lane_until_ns);
	}
}

void sr_requester_start(struct sr_qp *qp)
{
	qp->sq_sent = qp->sq_head;
	qp->offset = 0;
	qp->reads = 0;
	qp->blocked = false;
	qp->lane_until_ns = 0;
	qp->epoch++;
	qp->rnr_left = qp->attr.rnr_retry;
}

static enum ib_wc_opcode done_as(const struct sr_wqe *wqe)
{
	switch (wqe->opcode) {
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return IB_WC_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return IB_WC_FETCH_ADD;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case IB_WR_BIND_MW:
		return IB_WC_BIND_MW;
	default:
		return IB_WC_SEND;
	}
}

/* The oldest. Its place is free before that is said: who hears it may post at once. */
static void end_oldest(struct sr_qp *qp, enum ib_wc_status status)
{
	const struct sr_wqe *wqe = wqe_at(qp, qp->sq_head);
	struct ib_wc completion = {
		.wr_id = wqe->wr_id,
		.status = status,
		.qp = qp->send_shell->told,
		.opcode = done_as(wqe),
		.byte_len = wqe->length,
	};
	bool said = wqe->signaled || status;

	smp_store_release(&qp->sq_head, qp->sq_head + 1);
	sr_queues_freed(qp);
	if (said)
		sr_cq_complete(to_cq(qp->ib.send_cq), &completion, false);
}

void sr_requester_flush(struct sr_qp *qp)
{
	while (qp->sq_head != qp->sq_tail)
		end_oldest(qp, IB_WC_WR_FLUSH_ERR);
	sr_requester_start(qp);
}

/* The oldest request ends so, and with it the queue pair's work. */
static void fail(struct sr_qp *qp, enum ib_wc_status status)
{
	if (qp->sq_head != qp->sq_tail)
		end_oldest(qp, status);
	if (sr_is_reliable(qp)) {
		sr_qp_fail(qp);
		return;
	}
	/* It receives on. */
	qp->state = IB_QPS_SQE;
	sr_requester_flush(qp);
}

void sr_requester_fault(struct sr_qp *qp)
{
	fail(qp, IB_WC_LOC_PROT_ERR);
}

void sr_requester_left(struct sr_qp *qp)
{
	end_oldest(qp, IB_WC_SUCCESS);
	qp->sq_sent = qp->sq_head;
	qp->offset = 0;
}

void sr_requester_give_up(struct sr_qp *qp, enum ib_wc_status status)
{
	if (qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD)
		return;
	if (sr_is_reliable(qp)) {
		fail(qp, status);
		return;
	}
	while (qp->sq_head != qp->sq_tail)
		sr_requester_left(qp);
	sr_requester_drained(qp);
}

/* Those that nobody else hears of end when all before them have. */
static void end_locals(struct sr_qp *qp)
{
	while (qp->sq_head != qp->sq_sent && wqe_at(qp, qp->sq_head)->local)
		end_oldest(qp, IB_WC_SUCCESS);
}

/* The oldest @count have ended well. False: that cannot be, as one waits for bytes. */
static bool take(struct sr_qp *qp, u64 count)
{
	while (count--) {
		struct sr_wqe *wqe = wqe_at(qp, qp->sq_head);

		if (reads(wqe) && wqe->got < max_t(u64, wqe->length, 1))
			return false;
		if (qp->sq_sent == qp->sq_head) {
			/* One that has not left as a whole; the peer says so. */
			qp->sq_sent++;
			qp->offset = 0;
		} else if (reads(wqe)) {
			qp->reads--;
		}
		end_oldest(qp, IB_WC_SUCCESS);
		qp->rnr_left = qp->attr.rnr_retry;
	}
	end_locals(qp);
	return true;
}

void sr_requester_drained(struct sr_qp *qp)
{
	if (qp->state == IB_QPS_SQD && qp->drain_wanted && qp->sq_head == qp->sq_sent &&
	    !qp->offset) {
		qp->drain_wanted = false;
		sr_qp_event(qp, IB_EVENT_SQ_DRAINED);
	}
}

/* Which of the open requests a frame is about; -1: none, or one of an earlier connection. */
static s64 find(const struct sr_qp *qp, const struct sr_frame *frame)
{
	u64 open = qp->sq_tail - qp->sq_head;
	u64 begun = qp->sq_sent - qp->sq_head + (qp->offset > 0);
	u64 index = frame->seq - qp->sq_head;

	if (!sr_is_reliable(qp) || frame->to != name(qp) || index >= open)
		return -1;
	if (wqe_at(qp, frame->seq)->local || wqe_at(qp, frame->seq)->psn != frame->psn)
		return -1;
	/* One that is to come again may end instead. */
	return index < begun || (index == 0 && qp->blocked) ? index : -1;
}

static int put(struct sr_qp *qp, struct sr_wqe *wqe, u64 bytes)
{
	struct sr_frame frame = {
		.what = qp->offset ? SR_MORE : SR_REQUEST,
		.flags = (sr_is_reliable(qp) ? SR_RELIABLE : 0) |
			 (wqe->solicited ? SR_SOLICITED : 0),
		.code = wqe->opcode,
		.len = bytes,
		.to = qp->attr.dest_qp_num,
		.from = name(qp),
		.seq = qp->sq_sent,
		.psn = wqe->psn,
		.imm = wqe->imm,
		.addr = wqe->remote_addr,
		.rkey = wqe->rkey,
		.words = { wqe->length, 0 },
	};

	if (sr_is_atomic(wqe->opcode)) {
		frame.words[0] = wqe->compare_add;
		frame.words[1] = wqe->swap;
	}
	if (wqe->inlined) {
		sr_channel_put_header(&qp->lane->channel, &frame);
		sr_channel_put(&qp->lane->channel, wqe->bytes + qp->offset, bytes);
		sr_channel_pad(&qp->lane->channel, bytes);
		return 0;
	}
	return sr_gather(qp, wqe->sges, wqe->sge_count, qp->offset, bytes, &qp->lane->channel,
			 &frame);
}

static int do_local(struct sr_qp *qp, const struct sr_wqe *wqe)
{
	if (wqe->opcode == IB_WR_REG_MR)
		return sr_mr_open(qp->device, qp->ib.pd, wqe->rkey, wqe->access);
	if (wqe->opcode == IB_WR_BIND_MW)
		return sr_mw_bind(qp, wqe);
	if (!qp->in_kernel)
		return sr_mw_invalidate(qp, wqe->rkey);
	return sr_mr_close(qp->device, qp->ib.pd, wqe->rkey);
}

/* As sr_requester_send(). One that was carried out is not again, when what is before it comes again. */
static int carry_out(struct sr_qp *qp, struct sr_wqe *wqe)
{
	int err = wqe->done ? 0 : do_local(qp, wqe);

	if (err) {
		/* Requests before it end first. */
		if (qp->sq_sent == qp->sq_head)
			fail(qp, IB_WC_MW_BIND_ERR);
		return 0;
	}
	wqe->done = true;
	qp->sq_sent++;
	end_locals(qp);
	sr_requester_drained(qp);
	return 1;
}

int sr_requester_send(struct sr_qp *qp)
{
	struct sr_wqe *wqe;
	u64 bytes = 0;
	int room;

	if (!sr_may_send(qp))
		return 0;
	wqe = wqe_at(qp, qp->sq_sent);
	if (wqe->local)
		return carry_out(qp, wqe);
	if (!reads(wqe))
		bytes = min(wqe->length - qp->offset, sr_channel_piece_bytes(&qp->lane->channel));
	room = sr_channel_room(&qp->lane->channel, bytes);
	if (room <= 0)
		return room < 0 ? room : -EAGAIN;
	if (put(qp, wqe, bytes)) {
		/* Requests before it end first. */
		if (qp->sq_sent == qp->sq_head)
			fail(qp, IB_WC_LOC_PROT_ERR);
		return 0;
	}
	qp->offset += bytes;
	if (!reads(wqe) && qp->offset < wqe->length)
		return 1;
	if (!sr_is_reliable(qp)) {
		sr_requester_left(qp);
		sr_requester_drained(qp);
		return 1;
	}
	qp->sq_sent++;
	qp->offset = 0;
	qp->reads += reads(wqe);
	return 1;
}

void sr_requester_answered(struct sr_qp *qp, const struct sr_frame *frame)
{
	enum ib_wc_status status = frame->code;
	s64 index = find(qp, frame);

	if (index < 0)
		return;
	if (status > IB_WC_GENERAL_ERR)
		status = IB_WC_BAD_RESP_ERR;
	if (!take(qp, status ? index : index + 1))
		fail(qp, IB_WC_BAD_RESP_ERR);
	else if (status)
		fail(qp, status);
	else
		sr_requester_call(qp);
	sr_requester_drained(qp);
}

/* How long to wait for a queue pair that is not ready: all repetitions (IBTA 9.7.6.1.3). */
static u64 patience_ns(const struct sr_qp *qp)
{
	u32 code = qp->attr.timeout & 31;

	return code ? (4096ULL << code) * (qp->attr.retry_cnt + 1) : U64_MAX;
}

/* IBTA 9.7.5.2.8, table 46. */
static u64 rnr_ns(u32 code)
{
	static const u32 hundredths_ms[32] = {
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
		1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	};

	return hundredths_ms[code & 31] * 10000ULL;
}

/* This one and all behind it are sent again. */
static void rewind(struct sr_qp *qp)
{
	u64 at;

	for (at = qp->sq_head; at != qp->sq_tail; at++)
		wqe_at(qp, at)->got = 0;
	qp->sq_sent = qp->sq_head;
	qp->offset = 0;
	qp->reads = 0;
}

void sr_requester_not_yet(struct sr_qp *qp, const struct sr_frame *frame)
{
	bool no_receive = frame->flags & SR_NO_RECEIVE;
	s64 index = find(qp, frame);
	u64 wait_ns;

	if (index < 0)
		return;
	if (!take(qp, index)) {
		fail(qp, IB_WC_BAD_RESP_ERR);
		return;
	}
	/* 7: for ever (IBTA 9.7.5.2.8). */
	if (no_receive && qp->attr.rnr_retry < 7) {
		if (!qp->rnr_left) {
			fail(qp, IB_WC_RNR_RETRY_EXC_ERR);
			return;
		}
		qp->rnr_left--;
		wait_ns = rnr_ns(frame->code);
	} else {
		/* It says when there is one. */
		wait_ns = no_receive ? U64_MAX : patience_ns(qp);
	}
	rewind(qp);
	qp->blocked = true;
	qp->blocked_fatal = !no_receive;
	qp->blocked_until_ns = wait_ns == U64_MAX ? U64_MAX : ktime_get_ns() + wait_ns;
	sr_device_alarm(qp->device, qp->blocked_until_ns);
}

void sr_requester_ready(struct sr_qp *qp, const struct sr_frame *frame)
{
	if (!sr_is_reliable(qp) || frame->to != name(qp) || !qp->blocked)
		return;
	qp->blocked = false;
	sr_requester_call(qp);
}

void sr_requester_data(struct sr_qp *qp, const struct sr_frame *frame)
{
	s64 index = find(qp, frame);
	struct sr_wqe *wqe;

	if (index < 0)
		return;
	/* A responder takes requests in order, so those before it have ended. */
	if (!take(qp, index)) {
		fail(qp, IB_WC_BAD_RESP_ERR);
		return;
	}
	wqe = wqe_at(qp, qp->sq_head);
	if (!reads(wqe) || frame->addr != wqe->got || frame->len > wqe->length - wqe->got ||
	    (!frame->len && wqe->length)) {
		fail(qp, IB_WC_BAD_RESP_ERR);
		return;
	}
	if (sr_scatter(qp, wqe->sges, wqe->sge_count, wqe->got, frame->len, &qp->lane->channel,
		       NULL)) {
		fail(qp, IB_WC_LOC_PROT_ERR);
		return;
	}
	wqe->got += frame->len;
	if (wqe->got < wqe->length)
		return;
	wqe->got = max_t(u64, wqe->length, 1);
	take(qp, 1);
	sr_requester_call(qp);
	sr_requester_drained(qp);
}

u64 sr_requester_due(struct sr_qp *qp, u64 now_ns)
{
	u64 due = U64_MAX;

	if (qp->ib.qp_type == IB_QPT_UD)
		return sr_datagram_due(qp, now_ns);
	if (qp->lane_until_ns) {
		if (now_ns >= qp->lane_until_ns) {
			qp->lane_until_ns = 0;
			sr_requester_give_up(qp, IB_WC_RETRY_EXC_ERR);
			return U64_MAX;
		}
		due = qp->lane_until_ns;
	}
	if (!qp->blocked)
		return due;
	if (now_ns < qp->blocked_until_ns)
		return min(due, qp->blocked_until_ns);
	qp->blocked = false;
	if (qp->blocked_fatal)
		sr_requester_give_up(qp, IB_WC_RETRY_EXC_ERR);
	else
		sr_requester_call(qp);
	return due;
}
