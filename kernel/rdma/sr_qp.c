// SPDX-License-Identifier: GPL-2.0
/* Queue pairs: their states (IBTA 10.3.1), and what programs post. Connected ones (RC) only. */
#include "sr.h"

static void free_queues(struct sr_qp *qp)
{
	u32 i;

	for (i = 0; qp->sq && i < qp->cap.max_send_wr; i++)
		kfree(qp->sq[i].sges);
	for (i = 0; qp->rq && i < qp->cap.max_recv_wr; i++)
		kfree(qp->rq[i].sges);
	kvfree(qp->sq);
	kvfree(qp->rq);
	kfree(qp->answers);
}

static struct sr_sge *new_sges(u32 count)
{
	return kcalloc(max_t(u32, count, 1), sizeof(struct sr_sge), GFP_KERNEL_ACCOUNT);
}

static int new_queues(struct sr_qp *qp)
{
	u32 i;

	qp->sq = kvcalloc(qp->cap.max_send_wr, sizeof(*qp->sq), GFP_KERNEL_ACCOUNT);
	qp->rq = kvcalloc(qp->cap.max_recv_wr, sizeof(*qp->rq), GFP_KERNEL_ACCOUNT);
	qp->answers = kcalloc(SR_ANSWERS_MAX, sizeof(*qp->answers), GFP_KERNEL_ACCOUNT);
	if (!qp->sq || !qp->rq || !qp->answers)
		return -ENOMEM;
	for (i = 0; i < qp->cap.max_send_wr; i++) {
		qp->sq[i].sges = new_sges(qp->cap.max_send_sge);
		if (!qp->sq[i].sges)
			return -ENOMEM;
	}
	for (i = 0; i < qp->cap.max_recv_wr; i++) {
		qp->rq[i].sges = new_sges(qp->cap.max_recv_sge);
		if (!qp->rq[i].sges)
			return -ENOMEM;
	}
	return 0;
}

/* A number, with this host's slot in it, and shells for completions. device->lock held. */
static int enter(struct sr_device *device, struct sr_qp *qp)
{
	struct sr_cq *send = to_cq(qp->ib.send_cq), *recv = to_cq(qp->ib.recv_cq);
	u32 tries;
	int err = -EBUSY;

	if (!device->held)
		return -ENETDOWN;
	if (device->qp_count >= SR_QPS_MAX)
		return -ENOMEM;
	for (tries = 0; err == -EBUSY && tries <= SR_QPS_MAX; tries++) {
		if (device->next_number < SR_NUMBER_MIN || device->next_number > SR_NUMBER_MAX)
			device->next_number = SR_NUMBER_MIN;
		qp->number = device->view.me << SR_NUMBER_BITS | device->next_number++;
		err = xa_insert(&device->qps, qp->number, qp, GFP_KERNEL);
	}
	if (err)
		return err;
	qp->send_shell = sr_cq_shell(send, qp->number);
	qp->recv_shell = sr_cq_shell(recv, qp->number);
	if (qp->send_shell && qp->recv_shell) {
		device->qp_count++;
		return 0;
	}
	if (qp->send_shell)
		sr_cq_forget(send, qp->send_shell, true);
	if (qp->recv_shell)
		sr_cq_forget(recv, qp->recv_shell, true);
	xa_erase(&device->qps, qp->number);
	return -ENOMEM;
}

static bool cap_fits(const struct ib_qp_cap *cap)
{
	return cap->max_send_wr <= SR_WRS_MAX && cap->max_recv_wr <= SR_WRS_MAX &&
	       cap->max_send_sge <= SR_SGES_MAX && cap->max_recv_sge <= SR_SGES_MAX &&
	       !cap->max_inline_data;
}

int sr_qp_create(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_qp *qp = to_qp(ib);
	int err;

	if (init->qp_type != IB_QPT_RC || init->create_flags || init->srq)
		return -EOPNOTSUPP;
	if (!cap_fits(&init->cap) || !init->send_cq || !init->recv_cq)
		return -EINVAL;
	qp->device = device;
	INIT_LIST_HEAD(&qp->turn);
	qp->state = IB_QPS_RESET;
	qp->cap = init->cap;
	qp->cap.max_send_wr = max_t(u32, qp->cap.max_send_wr, 1);
	qp->cap.max_recv_wr = max_t(u32, qp->cap.max_recv_wr, 1);
	qp->sq_sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	/* ib_core sets these behind this call. */
	qp->ib.send_cq = init->send_cq;
	qp->ib.recv_cq = init->recv_cq;
	err = new_queues(qp);
	if (!err) {
		mutex_lock(&device->lock);
		err = enter(device, qp);
		mutex_unlock(&device->lock);
	}
	if (err) {
		free_queues(qp);
		return err;
	}
	qp->ib.qp_num = qp->number;
	init->cap = qp->cap;
	return 0;
}

int sr_qp_destroy(struct ib_qp *ib, struct ib_udata *udata)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;

	mutex_lock(&device->lock);
	/* Its last acknowledgements. */
	if (qp->lane)
		sr_lane_flush(qp->lane);
	sr_responder_stop(qp);
	list_del_init(&qp->turn);
	xa_erase(&device->qps, qp->number);
	device->qp_count--;
	sr_cq_forget(to_cq(ib->send_cq), qp->send_shell, true);
	sr_cq_forget(to_cq(ib->recv_cq), qp->recv_shell, true);
	mutex_unlock(&device->lock);
	free_queues(qp);
	return 0;
}

void sr_qp_event(struct sr_qp *qp, enum ib_event_type what)
{
	struct ib_event event = {
		.device = qp->ib.device,
		.element.qp = &qp->ib,
		.event = what,
	};

	if (qp->ib.event_handler)
		qp->ib.event_handler(&event, qp->ib.qp_context);
}

void sr_qp_fail(struct sr_qp *qp)
{
	if (qp->state == IB_QPS_ERR)
		return;
	qp->state = IB_QPS_ERR;
	sr_requester_flush(qp);
	sr_responder_stop(qp);
}

static void reset(struct sr_qp *qp)
{
	qp->state = IB_QPS_RESET;
	list_del_init(&qp->turn);
	qp->sq_head = qp->sq_tail;
	sr_requester_start(qp);
	qp->receive_taken = false;
	qp->rq_head = qp->rq_tail;
	qp->answer_count = 0;
	sr_responder_stop(qp);
	sr_cq_forget(to_cq(qp->ib.send_cq), qp->send_shell, false);
	sr_cq_forget(to_cq(qp->ib.recv_cq), qp->recv_shell, false);
	qp->lane = NULL;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

static bool values_fit(const struct ib_qp_attr *attr, int mask)
{
	if ((mask & IB_QP_PKEY_INDEX) && attr->pkey_index)
		return false;
	if ((mask & IB_QP_PORT) && attr->port_num != 1)
		return false;
	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > SR_READS_MAX)
		return false;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > SR_READS_MAX)
		return false;
	if ((mask & IB_QP_DEST_QPN) && attr->dest_qp_num > SR_PSN_MASK)
		return false;
	return !(mask & IB_QP_ACCESS_FLAGS) ||
	       !(attr->qp_access_flags & ~(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
					   IB_ACCESS_REMOTE_READ));
}

static void set_values(struct sr_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	if (mask & IB_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = attr->qp_access_flags;
	if (mask & IB_QP_PORT)
		qp->attr.port_num = attr->port_num;
	if (mask & IB_QP_AV) {
		qp->attr.ah_attr = attr->ah_attr;
		/* ib_core's own. */
		qp->attr.ah_attr.grh.sgid_attr = NULL;
	}
	if (mask & IB_QP_PATH_MTU)
		qp->attr.path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		qp->attr.timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		qp->attr.retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		qp->attr.rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		qp->attr.rq_psn = attr->rq_psn & SR_PSN_MASK;
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		qp->attr.max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		qp->attr.min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_SQ_PSN) {
		qp->attr.sq_psn = attr->sq_psn & SR_PSN_MASK;
		qp->psn = qp->attr.sq_psn;
	}
	if (mask & IB_QP_DEST_QPN)
		qp->attr.dest_qp_num = attr->dest_qp_num;
	qp->rnr_left = qp->attr.rnr_retry;
}

static void enter_state(struct sr_qp *qp, enum ib_qp_state to, const struct ib_qp_attr *attr,
			int mask)
{
	struct sr_device *device = qp->device;
	u32 slot;

	if (to == IB_QPS_RESET) {
		reset(qp);
		return;
	}
	if (to == IB_QPS_ERR) {
		qp->answer_count = 0;
		sr_qp_fail(qp);
		return;
	}
	if (to == IB_QPS_RTR && qp->state == IB_QPS_INIT) {
		slot = sr_slot_of(qp->attr.dest_qp_num);
		qp->lane = slot < device->view.hosts && !qp->stale ? &device->lanes[slot] : NULL;
		qp->state = to;
		sr_requester_start(qp);
		sr_responder_start(qp);
	}
	if (to == IB_QPS_SQD)
		qp->drain_wanted = (mask & IB_QP_EN_SQD_ASYNC_NOTIFY) &&
				   attr->en_sqd_async_notify;
	qp->state = to;
	sr_requester_drained(qp);
	sr_requester_call(qp);
}

int sr_qp_modify(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;
	enum ib_qp_state from, to;
	int err = -EINVAL;

	if (mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	mutex_lock(&device->lock);
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	if (from == qp->state && ib_modify_qp_is_ok(from, to, IB_QPT_RC, mask) &&
	    values_fit(attr, mask)) {
		err = qp->stale && to != IB_QPS_ERR && to != IB_QPS_RESET ? -ENETDOWN : 0;
		if (!err) {
			set_values(qp, attr, mask);
			enter_state(qp, to, attr, mask);
			if (qp->lane)
				sr_lane_flush(qp->lane);
		}
	}
	mutex_unlock(&device->lock);
	sr_device_kick(device);
	return err;
}

int sr_qp_query(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	struct sr_qp *qp = to_qp(ib);

	mutex_lock(&qp->device->lock);
	*attr = qp->attr;
	attr->qp_state = qp->state;
	attr->cur_qp_state = qp->state;
	attr->cap = qp->cap;
	attr->sq_psn = qp->psn;
	attr->rq_psn = qp->expected;
	attr->sq_draining = qp->state == IB_QPS_SQD && qp->sq_head != qp->sq_sent;
	attr->path_mig_state = IB_MIG_MIGRATED;
	mutex_unlock(&qp->device->lock);
	init->event_handler = ib->event_handler;
	init->qp_context = ib->qp_context;
	init->send_cq = ib->send_cq;
	init->recv_cq = ib->recv_cq;
	init->cap = attr->cap;
	init->sq_sig_type = qp->sq_sig_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR;
	init->qp_type = IB_QPT_RC;
	return 0;
}

/* What it comes to in bytes; -EINVAL: too many pieces, or bytes. */
static int copy_sges(struct sr_sge *to, u8 *count, u64 *length, const struct ib_sge *from, int sges,
		     u32 sges_max)
{
	int i;

	if (sges < 0 || sges > sges_max)
		return -EINVAL;
	*length = 0;
	for (i = 0; i < sges; i++) {
		to[i].addr = from[i].addr;
		to[i].len = from[i].length;
		to[i].lkey = from[i].lkey;
		*length += from[i].length;
	}
	*count = sges;
	return *length > SR_MESSAGE_BYTES_MAX ? -EINVAL : 0;
}

static int post_one(struct sr_qp *qp, const struct ib_send_wr *wr)
{
	struct sr_wqe *wqe = &qp->sq[qp->sq_tail % qp->cap.max_send_wr];
	int err;

	if (qp->sq_tail - qp->sq_head == qp->cap.max_send_wr)
		return -ENOMEM;
	if (wr->send_flags & (IB_SEND_INLINE | IB_SEND_IP_CSUM))
		return -EINVAL;
	switch (wr->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		wqe->remote_addr = rdma_wr(wr)->remote_addr;
		wqe->rkey = rdma_wr(wr)->rkey;
		break;
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		wqe->remote_addr = 0;
		wqe->rkey = 0;
		break;
	default:
		return -EOPNOTSUPP;
	}
	err = copy_sges(wqe->sges, &wqe->sge_count, &wqe->length, wr->sg_list, wr->num_sge,
			qp->cap.max_send_sge);
	if (err)
		return err;
	wqe->wr_id = wr->wr_id;
	wqe->got = 0;
	wqe->imm = wr->opcode == IB_WR_SEND_WITH_IMM || wr->opcode == IB_WR_RDMA_WRITE_WITH_IMM ?
			   (__force u32)wr->ex.imm_data : 0;
	wqe->psn = qp->psn;
	wqe->opcode = wr->opcode;
	wqe->signaled = qp->sq_sig_all || (wr->send_flags & IB_SEND_SIGNALED);
	wqe->solicited = wr->send_flags & IB_SEND_SOLICITED;
	wqe->fenced = wr->send_flags & IB_SEND_FENCE;
	qp->psn = (qp->psn + 1) & SR_PSN_MASK;
	qp->sq_tail++;
	return 0;
}

int sr_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;
	int err = 0;

	mutex_lock(&device->lock);
	if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD && qp->state != IB_QPS_ERR)
		err = -EINVAL;
	for (; wr && !err; wr = err ? wr : wr->next)
		err = post_one(qp, wr);
	if (err)
		*bad = wr;
	if (qp->state == IB_QPS_ERR)
		sr_requester_flush(qp);
	sr_requester_call(qp);
	if (qp->lane)
		sr_lane_flush(qp->lane);
	if (!list_empty(&qp->turn))
		sr_device_kick(device);
	mutex_unlock(&device->lock);
	return err;
}

int sr_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_device *device = qp->device;
	int err = 0;

	mutex_lock(&device->lock);
	if (qp->state == IB_QPS_RESET)
		err = -EINVAL;
	for (; wr && !err; wr = err ? wr : wr->next) {
		struct sr_rwqe *rwqe = &qp->rq[qp->rq_tail % qp->cap.max_recv_wr];

		if (qp->rq_tail - qp->rq_head == qp->cap.max_recv_wr) {
			err = -ENOMEM;
			continue;
		}
		err = copy_sges(rwqe->sges, &rwqe->sge_count, &rwqe->length, wr->sg_list,
				wr->num_sge, qp->cap.max_recv_sge);
		if (err)
			continue;
		rwqe->wr_id = wr->wr_id;
		qp->rq_tail++;
	}
	if (err)
		*bad = wr;
	if (qp->state == IB_QPS_ERR)
		sr_responder_stop(qp);
	else
		sr_responder_posted(qp);
	mutex_unlock(&device->lock);
	return err;
}
