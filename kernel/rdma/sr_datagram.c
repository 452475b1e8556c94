// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams (UD): each goes as one frame to the host of the queue pair that it names, or to all hosts for
 * a group. What finds no channel, no room for a group, no receive or another Q_Key is lost, as on a network.
 */
#include <net/ip.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>

#include "sr.h"

#define GROUP_NUMBER	0xffffffU
#define GROUPS_MAX	64
/* Of one queue pair in a row. */
#define DATAGRAMS_MAX	32
#define GRH_BYTES	((u64)sizeof(struct ib_grh))
/* How long one waits for a channel that is being made. */
#define COMING_NS	NSEC_PER_SEC

struct sr_group {
	struct list_head list;
	union ib_gid gid;
	/* How often it was attached, by several LIDs: ib_core counts each of them. */
	u32 count;
};

static struct sr_wqe *oldest(const struct sr_qp *qp)
{
	return &qp->sq[qp->sq_head % qp->cap.max_send_wr];
}

static u64 half(const union ib_gid *gid, int which)
{
	u64 word;

	memcpy(&word, gid->raw + 8 * which, sizeof(word));
	return le64_to_cpu((__force __le64)word);
}

static void halves(union ib_gid *gid, u64 first, u64 second)
{
	__le64 words[2] = { cpu_to_le64(first), cpu_to_le64(second) };

	memcpy(gid->raw, words, sizeof(words));
}

/* The address of who sends, where it is known, has no place of its own in a frame (docs/windows.md). */
static struct sr_frame frame_of(const struct sr_qp *qp, const struct sr_wqe *wqe)
{
	u64 rest = half(&wqe->to.sgid, 1);
	struct sr_frame frame = {
		.what = SR_REQUEST,
		.flags = wqe->solicited ? SR_SOLICITED : 0,
		.code = wqe->opcode,
		.len = wqe->length,
		.to = wqe->to.number,
		.from = qp->number,
		.seq = qp->sq_head,
		.imm = wqe->imm,
		.about = wqe->to.qkey,
		.addr = half(&wqe->to.sgid, 0),
		.psn = rest,
		.rkey = rest >> 32,
		.words = { half(&wqe->to.dgid, 0), half(&wqe->to.dgid, 1) },
	};

	return frame;
}

static bool is_coming(const struct sr_lane *lane)
{
	return lane->linked && !lane->up && !lane->broken;
}

/* 0: it has left, or is lost; -EAGAIN: it finds no room; -ENOLINK: no channel yet; -EFAULT. */
static int put(struct sr_qp *qp, const struct sr_wqe *wqe, struct sr_lane *lane)
{
	struct sr_frame frame = frame_of(qp, wqe);
	int room;

	if (!lane->up)
		return is_coming(lane) ? -ENOLINK : 0;
	room = sr_channel_room(&lane->channel, wqe->length);
	if (room == 0)
		return -EAGAIN;
	if (room < 0) {
		sr_lane_break(lane);
		return 0;
	}
	if (sr_gather(qp, wqe->sges, wqe->sge_count, 0, wqe->length, &lane->channel, &frame))
		return -EFAULT;
	sr_lane_publish(lane);
	return 0;
}

static int put_to_all(struct sr_qp *qp, const struct sr_wqe *wqe)
{
	struct sr_device *device = qp->device;
	u32 peer;

	/* Who has said that it speaks this is waited for. */
	for (peer = 0; peer < device->view.hosts; peer++)
		if (is_coming(&device->lanes[peer]) && device->lanes[peer].borrowed)
			return -ENOLINK;
	for (peer = 0; peer < device->view.hosts; peer++)
		if (put(qp, wqe, &device->lanes[peer]) == -EFAULT)
			return -EFAULT;
	return 0;
}

static struct sr_lane *lane_of(struct sr_qp *qp, const struct sr_wqe *wqe)
{
	u32 slot = sr_slot_of(wqe->to.number);

	return slot < qp->device->view.hosts ? &qp->device->lanes[slot] : NULL;
}

/* Whether the oldest is to wait for a channel, and no longer than that. */
static bool waits(struct sr_qp *qp)
{
	u64 now_ns = ktime_get_ns();

	if (!qp->lane_until_ns) {
		qp->lane_until_ns = now_ns + COMING_NS;
		sr_device_alarm(qp->device, qp->lane_until_ns);
	}
	return now_ns < qp->lane_until_ns;
}

int sr_datagram_send(struct sr_qp *qp, struct sr_lane **waits_for)
{
	int sent;

	list_del_init(&qp->turn);
	for (sent = 0; qp->state == IB_QPS_RTS && qp->sq_head != qp->sq_tail; sent++) {
		struct sr_wqe *wqe = oldest(qp);
		bool is_group = wqe->to.number == GROUP_NUMBER;
		struct sr_lane *lane = is_group ? &qp->device->lanes[qp->device->view.me] :
						  lane_of(qp, wqe);
		int err = 0;

		if (!qp->device->held)
			lane = NULL;
		if (lane && sent == DATAGRAMS_MAX) {
			sr_lane_call(lane, qp);
			*waits_for = lane;
			return 1;
		}
		if (lane)
			err = is_group ? put_to_all(qp, wqe) : put(qp, wqe, lane);
		if (err == -EAGAIN) {
			sr_lane_call(lane, qp);
			*waits_for = lane;
			return -EAGAIN;
		}
		if (err == -ENOLINK && waits(qp))
			return 0;
		qp->lane_until_ns = 0;
		if (err == -EFAULT) {
			sr_requester_fault(qp);
			return 0;
		}
		sr_requester_left(qp);
	}
	return 0;
}

void sr_datagram_call(struct sr_qp *qp)
{
	struct sr_lane *waits_for;

	if (list_empty(&qp->turn) && sr_datagram_send(qp, &waits_for))
		sr_device_kick(qp->device);
}

u64 sr_datagram_due(struct sr_qp *qp, u64 now_ns)
{
	if (qp->lane_until_ns && now_ns >= qp->lane_until_ns)
		sr_datagram_call(qp);
	return qp->lane_until_ns ? qp->lane_until_ns : U64_MAX;
}

enum rdma_network_type sr_datagram_header(union rdma_network_hdr *header, const union ib_gid *from,
					  const union ib_gid *to, u64 bytes)
{
	struct iphdr *ip = &header->roce4grh;

	memset(header, 0, sizeof(*header));
	if (ipv6_addr_v4mapped((const struct in6_addr *)from) &&
	    ipv6_addr_v4mapped((const struct in6_addr *)to)) {
		ip->version = 4;
		ip->ihl = 5;
		ip->tot_len = cpu_to_be16(sizeof(*ip) + bytes);
		ip->ttl = 64;
		ip->protocol = IPPROTO_UDP;
		memcpy(&ip->saddr, from->raw + 12, 4);
		memcpy(&ip->daddr, to->raw + 12, 4);
		ip->check = ip_fast_csum(ip, ip->ihl);
		return RDMA_NETWORK_IPV4;
	}
	header->ibgrh.version_tclass_flow = cpu_to_be32(6 << 28);
	header->ibgrh.paylen = cpu_to_be16(bytes);
	header->ibgrh.next_hdr = 0x1b;
	header->ibgrh.hop_limit = 64;
	header->ibgrh.sgid = *from;
	header->ibgrh.dgid = *to;
	return RDMA_NETWORK_IPV6;
}

static void receive(struct sr_qp *qp, struct sr_lane *lane, const struct sr_frame *frame)
{
	struct ib_wc completion = {
		.opcode = IB_WC_RECV,
		.byte_len = GRH_BYTES + frame->len,
		.qp = qp->recv_shell->told,
		.src_qp = frame->from & SR_PSN_MASK,
		.slid = lane->peer + 1,
		.port_num = qp->attr.port_num,
	};
	union rdma_network_hdr header;
	union ib_gid from, to;

	halves(&from, frame->addr, frame->psn | (u64)frame->rkey << 32);
	halves(&to, frame->words[0], frame->words[1]);
	memset(&header, 0, sizeof(header));
	if (!rdma_is_zero_gid(&from)) {
		completion.wc_flags = IB_WC_GRH;
		sr_datagram_header(&header, &from, &to, frame->len);
	}
	if (frame->code == IB_WR_SEND_WITH_IMM) {
		completion.wc_flags |= IB_WC_WITH_IMM;
		completion.ex.imm_data = (__force __be32)frame->imm;
	}
	if (qp->receive.length < GRH_BYTES + frame->len)
		completion.status = IB_WC_LOC_LEN_ERR;
	else if (sr_scatter(qp, qp->receive.sges, qp->receive.sge_count, GRH_BYTES, frame->len,
			    &lane->channel, NULL) ||
		 sr_scatter(qp, qp->receive.sges, qp->receive.sge_count, 0, GRH_BYTES, NULL,
			    (const u8 *)&header))
		completion.status = IB_WC_LOC_PROT_ERR;
	sr_responder_complete(qp, &completion, frame->flags & SR_SOLICITED);
	/* A receive that names what is not this program's; one that is too small harms nobody. */
	if (completion.status == IB_WC_LOC_PROT_ERR) {
		sr_qp_fail(qp);
		sr_qp_event(qp, IB_EVENT_QP_FATAL);
	}
}

static void came(struct sr_qp *qp, struct sr_lane *lane, const struct sr_frame *frame)
{
	bool receives = qp->state == IB_QPS_RTR || qp->state == IB_QPS_RTS ||
			qp->state == IB_QPS_SQD || qp->state == IB_QPS_SQE;

	if (!receives || frame->what != SR_REQUEST || (frame->flags & SR_RELIABLE) ||
	    frame->about != qp->attr.qkey || frame->len > SR_DATAGRAM_BYTES_MAX)
		return;
	if (frame->code != IB_WR_SEND && frame->code != IB_WR_SEND_WITH_IMM)
		return;
	if (sr_responder_take(qp))
		receive(qp, lane, frame);
}

static struct sr_group *find_group(const struct sr_qp *qp, const union ib_gid *gid)
{
	struct sr_group *group;

	list_for_each_entry(group, &qp->groups, list)
		if (!memcmp(&group->gid, gid, sizeof(*gid)))
			return group;
	return NULL;
}

void sr_datagram_came(struct sr_device *device, struct sr_lane *lane, const struct sr_frame *frame)
{
	struct sr_qp *qp = xa_load(&device->qps, frame->to);
	unsigned long number;
	union ib_gid gid;

	if (frame->to != GROUP_NUMBER) {
		if (qp && qp->ib.qp_type == IB_QPT_UD)
			came(qp, lane, frame);
		return;
	}
	halves(&gid, frame->words[0], frame->words[1]);
	xa_for_each(&device->qps, number, qp)
		if (qp->ib.qp_type == IB_QPT_UD && find_group(qp, &gid))
			came(qp, lane, frame);
}

bool sr_datagram_is(struct sr_device *device, const struct sr_frame *frame)
{
	/* Whatever the bits say that only connections have. */
	struct sr_qp *qp = xa_load(&device->qps, frame->to & SR_PSN_MASK);

	return frame->to == GROUP_NUMBER || (qp && qp->ib.qp_type == IB_QPT_UD);
}

static int group_count(const struct sr_qp *qp)
{
	struct sr_group *group;
	int count = 0;

	list_for_each_entry(group, &qp->groups, list)
		count++;
	return count;
}

int sr_datagram_attach(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_group *made = kzalloc(sizeof(*made), GFP_KERNEL_ACCOUNT), *group;
	int err = 0;

	if (!made)
		return -ENOMEM;
	mutex_lock(&qp->device->lock);
	group = find_group(qp, gid);
	if (!group && group_count(qp) < GROUPS_MAX) {
		swap(group, made);
		group->gid = *gid;
		list_add(&group->list, &qp->groups);
	}
	if (group)
		group->count++;
	else
		err = -ENOMEM;
	mutex_unlock(&qp->device->lock);
	kfree(made);
	return err;
}

int sr_datagram_detach(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct sr_qp *qp = to_qp(ib);
	struct sr_group *group;
	int err;

	mutex_lock(&qp->device->lock);
	group = find_group(qp, gid);
	err = group ? 0 : -EINVAL;
	if (group && --group->count == 0)
		list_del(&group->list);
	else
		group = NULL;
	mutex_unlock(&qp->device->lock);
	kfree(group);
	return err;
}

void sr_datagram_forget(struct sr_qp *qp)
{
	struct sr_group *group, *next;

	list_for_each_entry_safe(group, next, &qp->groups, list)
		kfree(group);
	INIT_LIST_HEAD(&qp->groups);
}

static struct sr_ah *to_ah(struct ib_ah *ib)
{
	return container_of(ib, struct sr_ah, ib);
}

int sr_ah_create(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	const struct ib_global_route *grh;
	struct sr_ah *ah = to_ah(ib);

	ah->attr = *init->ah_attr;
	if (!(rdma_ah_get_ah_flags(init->ah_attr) & IB_AH_GRH))
		return 0;
	grh = rdma_ah_read_grh(init->ah_attr);
	ah->dgid = grh->dgid;
	if (grh->sgid_attr)
		ah->sgid = grh->sgid_attr->gid;
	/* ib_core's own. */
	ah->attr.grh.sgid_attr = NULL;
	return 0;
}

int sr_ah_query(struct ib_ah *ib, struct rdma_ah_attr *attr)
{
	*attr = to_ah(ib)->attr;
	return 0;
}

int sr_ah_destroy(struct ib_ah *ib, u32 flags)
{
	return 0;
}

void sr_ah_gids(const struct ib_ah *ib, union ib_gid *from, union ib_gid *to)
{
	const struct sr_ah *ah = container_of(ib, const struct sr_ah, ib);

	*from = ah->sgid;
	*to = ah->dgid;
}

int sr_datagram_address(struct sr_qp *qp, struct sr_wqe *wqe, const struct ib_send_wr *wr)
{
	const struct ib_ud_wr *ud = ud_wr(wr);
	const struct sr_ah *ah;

	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EOPNOTSUPP;
	if (!ud->ah || ud->remote_qpn > SR_PSN_MASK)
		return -EINVAL;
	ah = to_ah(ud->ah);
	if (ud->remote_qpn == GROUP_NUMBER && !rdma_is_multicast_addr((struct in6_addr *)&ah->dgid))
		return -EINVAL;
	wqe->to.number = ud->remote_qpn;
	/* With this bit, the queue pair's own. */
	wqe->to.qkey = ud->remote_qkey & BIT(31) ? qp->attr.qkey : ud->remote_qkey;
	wqe->to.sgid = ah->sgid;
	wqe->to.dgid = ah->dgid;
	return 0;
}
