// SPDX-License-Identifier: GPL-2.0
/* Queue pairs and their states (IBTA 10.3.1). */
#include "sr.h"

static void free_queues(struct sr_qp *qp)
{
	u32 i;

	for (i = 0; qp->sq && i < qp->cap.max_send_wr; i++)
		kfree(qp->sq[i].sges);
	kvfree(qp->sq);
	kvfree(qp->inline_bytes);
	sr_rq_free(&qp->rq);
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
	qp->answers = kcalloc(SR_ANSWERS_MAX, sizeof(*qp->answers), GFP_KERNEL_ACCOUNT);
	if (!qp->sq || !qp->answers)
		return -ENOMEM;
	if (!qp->srq && sr_rq_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge))
		return -ENOMEM;
	for (i = 0; i < qp->cap.max_send_wr; i++) {
		qp->sq[i].sges = new_sges(qp->cap.max_send_sge);
		if (!qp->sq[i].sges)
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
	qp->send_shell = sr_cq_shell(send, qp);
	qp->recv_shell = sr_cq_shell(recv, qp);
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
	       cap->max_inline_data <= SR_INLINE_BYTES_MAX;
}

int sr_qp_create(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct sr_device *device = to_device(ib->device);
	struct sr_qp *qp = to_qp(ib);
	int err;

	switch (init->qp_type) {
	case IB_QPT_RC:
		if (init->create_flags)
			return -EOPNOTSUPP;
		break;
	case IB_QPT_UC:
	case IB_QPT_UD:
		if (init->create_flags || !udata)
			return -EOPNOTSUPP;
		break;
	case IB_QPT_GSI:
		if (udata)
			return -EOPNOTSUPP;
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (!cap_fits(&init->cap) || !init->send_cq || !init->recv_cq)
		return -EINVAL;
	qp->device = device;
	qp->in_kernel = !udata;
	spin_lock_init(&qp->sq_lock);
	INIT_LIST_HEAD(&qp->posted);
	INIT_LIST_HEAD(&qp->turn);
	INIT_LIST_HEAD(&qp->watch);
	INIT_LIST_HEAD(&qp->groups);
	INIT_LIST_HEAD(&qp->windows);
	qp->receive.sges = qp->receive_sges;
	qp->srq = init->srq ? container_of(init->srq, struct sr_srq, ib) : NULL;
	qp->state = IB_QPS_RESET;
	qp->cap = init->cap;
	qp->cap.max_send_wr = max_t(u32, qp->cap.max_send_wr, 1);
	qp->cap.max_recv_wr = qp->srq ? 0 : max_t(u32, qp->cap.max_recv_wr, 1);
	qp->sq_sig_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	/* ib_core sets these behind this call. */
	qp->ib.send_cq = init->send_cq;
	qp->ib.recv_cq = init->recv_cq;
	if (init->qp_type == IB_QPT_GSI) {
		qp->number = 1;
		qp->ib.qp_num = 1;
		init->cap = qp->cap;
		return sr_gsi_create(qp, init);
	}
	err = new_queues(qp);
	if (!err)
		err = sr_queues_create(qp, udata);
	if (!err) {
		mutex_lock(&device->lock);
		err = enter(device, qp);
		mutex_unlock(&device->lock);
	}
	if (err) {
		sr_shared_end(qp->shared);
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

	if (sr_is_gsi(qp)) {
		sr_gsi_destroy(qp);
		return 0;
	}
	mutex_lock(&device->lock);
	sr_post_forget(qp);
	sr_watch_forget(qp);
	/* Its last acknowledgements. */
	if (qp->lane)
		sr_lane_flush(qp->lane);
	sr_responder_stop(qp);
	sr_mw_forget(qp);
	list_del_init(&qp->turn);
	sr_datagram_forget(qp);
	xa_erase(&device->qps, qp->number);
	device->qp_count--;
	sr_cq_forget(to_cq(ib->send_cq), qp->send_shell, true);
	sr_cq_forget(to_cq(ib->recv_cq), qp->recv_shell, true);
	sr_queues_end(qp);
	mutex_unlock(&device->lock);
	sr_shared_end(qp->shared);
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
	/* It takes none of the others' any more. */
	if (qp->srq)
		sr_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
}

static void reset(struct sr_qp *qp)
{
	qp->state = IB_QPS_RESET;
	list_del_init(&qp->turn);
	sr_post_take(qp);
	sr_requester_start(qp);
	qp->receive_taken = false;
	if (!qp->srq)
		sr_rq_clear(&qp->rq);
	qp->answer_count = 0;
	sr_responder_stop(qp);
	sr_mw_forget(qp);
	sr_cq_forget(to_cq(qp->ib.send_cq), qp->send_shell, false);
	sr_cq_forget(to_cq(qp->ib.recv_cq), qp->recv_shell, false);
	sr_watch_forget(qp);
	sr_queues_reset(qp);
	qp->lane = NULL;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

static bool values_fit(const struct ib_qp_attr *attr, int mask)
{
	if ((mask & IB_QP_PKEY_INDEX) && attr->pkey_index)
		return false;
	if ((mask & IB_QP_PORT) && (attr->port_num < 1 || attr->port_num > SR_PORTS))
		return false;
	if ((mask & IB_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > SR_READS_MAX)
		return false;
	if ((mask & IB_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > SR_READS_MAX)
		return false;
	if ((mask & IB_QP_DEST_QPN) && attr->dest_qp_num > SR_PSN_MASK)
		return false;
	return !(mask & IB_QP_ACCESS_FLAGS) ||
	       !(attr->qp_access_flags & ~(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
					   IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC));
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
	if (mask & IB_QP_QKEY)
		qp->attr.qkey = attr->qkey;
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
		qp->lane = slot < device->view.hosts && !qp->stale &&
			   sr_is_connected(qp) ? &device->lanes[slot] : NULL;
		qp->established = false;
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
	if (from == qp->state && ib_modify_qp_is_ok(from, to, ib->qp_type, mask) &&
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
	init->srq = ib->srq;
	init->qp_type = ib->qp_type;
	return 0;
}
