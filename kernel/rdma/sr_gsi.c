// SPDX-License-Identifier: GPL-2.0
/*
 * Queue pair 1 of the RoCE port (IBTA 13.5.1): the connection manager's datagrams, by the mailboxes of the
 * window's links. An address does not say which host has it, so each goes to all of them, and who has
 * the address takes it.
 *
 * ib_mad posts from where nobody may sleep: what it posts lies behind a lock of its own, and a worker
 * sends it.
 *
 * The other port has one to which nothing comes and from which nothing leaves: rdma_listen() asks a device's
 * first port whether there is a connection manager, and ib_cm has queue pair 1 of each that says so.
 */
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "sr.h"

/* IBTA 12.6 */
#define CM_CLASS_VERSION	2
#define GRH_BYTES	((u32)sizeof(struct ib_grh))
/* How often a mailbox that is full is tried again, and when. What is lost then the sender sends again. */
#define TRIES_MAX	50
#define RETRY_JIFFIES	max_t(unsigned long, 1, HZ / 100)

struct sr_gsi_send {
	u64 wr_id;
	/* As it goes over a mailbox. */
	struct sr_mail mail;
};

struct sr_gsi_recv {
	u64 wr_id;
	u8 *at;
	u32 bytes;
};

struct sr_gsi {
	struct sr_device *device;
	u32 port;
	spinlock_t lock;
	/* NULL: there is none. */
	struct sr_qp *qp;
	struct sr_gsi_send *sends;
	u64 send_head;
	u64 send_tail;
	struct sr_gsi_recv *recvs;
	u64 recv_head;
	u64 recv_tail;

	struct delayed_work work;
	/* The worker's: of the one at send_head, if it has begun. */
	bool begun;
	int tries;
	unsigned long hosts_left;
	/* Who had no room for the last one until it was given up: nobody waits for those again. */
	unsigned long deaf;
	struct sr_mail mail;
};

static void say_done(struct sr_gsi *gsi, struct sr_cq *cq, struct ib_wc *completion)
{
	completion->port_num = gsi->port;
	sr_cq_complete(cq, completion, false);
}

/* Whether it is to an address of this host, which has to be asked while there is the queue pair. */
static bool is_here(struct sr_device *device, const union ib_gid *gid)
{
	const struct ib_gid_attr *attr = rdma_find_gid_by_port(
		&device->ib, gid, IB_GID_TYPE_ROCE_UDP_ENCAP, SR_ROCE_PORT, NULL);

	if (IS_ERR(attr))
		return false;
	rdma_put_gid_attr(attr);
	return true;
}

static void take(struct sr_gsi *gsi, const struct sr_mail *mail)
{
	struct sr_qp *qp = gsi->qp;
	const struct sr_gsi_recv *recv = &gsi->recvs[gsi->recv_head % qp->cap.max_recv_wr];
	struct ib_wc completion = {
		.wr_id = recv->wr_id,
		.opcode = IB_WC_RECV,
		.byte_len = GRH_BYTES + sizeof(mail->mad),
		.qp = qp->recv_shell->told,
		.src_qp = 1,
		.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE,
	};
	union rdma_network_hdr header;

	completion.network_hdr_type = sr_datagram_header(&header, &mail->source, &mail->destination,
							 sizeof(mail->mad));
	if (recv->bytes < completion.byte_len) {
		completion.status = IB_WC_LOC_LEN_ERR;
	} else {
		memcpy(recv->at, &header, GRH_BYTES);
		memcpy(recv->at + GRH_BYTES, mail->mad, sizeof(mail->mad));
	}
	gsi->recv_head++;
	say_done(gsi, to_cq(qp->ib.recv_cq), &completion);
}

/* A connection manager's. ib_mad answers others, or complains of them in the log, as often as they come. */
static bool is_sound(const struct sr_mail *mail)
{
	const struct ib_mad_hdr *header = (const struct ib_mad_hdr *)mail->mad;

	return header->base_version == IB_MGMT_BASE_VERSION &&
	       header->mgmt_class == IB_MGMT_CLASS_CM &&
	       header->class_version == CM_CLASS_VERSION &&
	       header->method == IB_MGMT_METHOD_SEND;
}

void sr_gsi_came(struct sr_device *device, const struct sr_mail *mail)
{
	struct sr_gsi *gsi = device->gsi[SR_ROCE_PORT - 1];
	unsigned long flags;

	if (!is_sound(mail))
		return;
	spin_lock_irqsave(&gsi->lock, flags);
	/* What finds no receive is lost. */
	if (gsi->qp && gsi->qp->state >= IB_QPS_RTR && gsi->recv_head != gsi->recv_tail &&
	    is_here(device, &mail->destination))
		take(gsi, mail);
	spin_unlock_irqrestore(&gsi->lock, flags);
}

/* Whether there is one, which is begun then. */
static bool begin(struct sr_gsi *gsi)
{
	unsigned long flags;

	spin_lock_irqsave(&gsi->lock, flags);
	if (!gsi->begun && gsi->qp && gsi->send_head != gsi->send_tail) {
		gsi->mail = gsi->sends[gsi->send_head % gsi->qp->cap.max_send_wr].mail;
		gsi->begun = true;
		gsi->tries = 0;
		gsi->hosts_left = gsi->port == SR_ROCE_PORT ? ~0UL : 0;
	}
	spin_unlock_irqrestore(&gsi->lock, flags);
	return gsi->begun;
}

static void end(struct sr_gsi *gsi)
{
	struct ib_wc completion = { .opcode = IB_WC_SEND };
	unsigned long flags;

	spin_lock_irqsave(&gsi->lock, flags);
	/* The queue pair may have gone meanwhile, with all that was in it. */
	if (gsi->begun && gsi->qp && gsi->send_head != gsi->send_tail) {
		completion.wr_id = gsi->sends[gsi->send_head++ % gsi->qp->cap.max_send_wr].wr_id;
		completion.qp = gsi->qp->send_shell->told;
		say_done(gsi, to_cq(gsi->qp->ib.send_cq), &completion);
	}
	gsi->begun = false;
	spin_unlock_irqrestore(&gsi->lock, flags);
}

static void work(struct work_struct *item)
{
	struct sr_gsi *gsi = container_of(to_delayed_work(item), struct sr_gsi, work);

	while (begin(gsi)) {
		if (!gsi->tries && gsi->hosts_left)
			sr_gsi_came(gsi->device, &gsi->mail);
		gsi->hosts_left = sr_device_mail(gsi->device, &gsi->mail, gsi->hosts_left);
		gsi->deaf &= gsi->hosts_left;
		if (gsi->hosts_left != gsi->deaf && ++gsi->tries < TRIES_MAX) {
			queue_delayed_work(gsi->device->queue, &gsi->work, RETRY_JIFFIES);
			return;
		}
		/* What a host asks for and does not take keeps no answer from another one. */
		gsi->deaf = gsi->hosts_left;
		end(gsi);
	}
}

int sr_gsi_create(struct sr_qp *qp, const struct ib_qp_init_attr *init)
{
	struct sr_gsi *gsi;
	int err = -ENOMEM;

	if (init->port_num < 1 || init->port_num > SR_PORTS)
		return -EINVAL;
	gsi = qp->device->gsi[init->port_num - 1];
	if (gsi->qp)
		return -EBUSY;
	qp->gsi = gsi;
	qp->send_shell = sr_cq_shell(to_cq(init->send_cq), qp);
	qp->recv_shell = sr_cq_shell(to_cq(init->recv_cq), qp);
	gsi->sends = kvcalloc(qp->cap.max_send_wr, sizeof(*gsi->sends), GFP_KERNEL);
	gsi->recvs = kvcalloc(qp->cap.max_recv_wr, sizeof(*gsi->recvs), GFP_KERNEL);
	if (qp->send_shell && qp->recv_shell && gsi->sends && gsi->recvs) {
		gsi->send_head = 0;
		gsi->send_tail = 0;
		gsi->recv_head = 0;
		gsi->recv_tail = 0;
		gsi->begun = false;
		spin_lock_irq(&gsi->lock);
		gsi->qp = qp;
		spin_unlock_irq(&gsi->lock);
		return 0;
	}
	if (qp->send_shell)
		sr_cq_forget(to_cq(init->send_cq), qp->send_shell, true);
	if (qp->recv_shell)
		sr_cq_forget(to_cq(init->recv_cq), qp->recv_shell, true);
	kvfree(gsi->sends);
	kvfree(gsi->recvs);
	return err;
}

void sr_gsi_destroy(struct sr_qp *qp)
{
	struct sr_gsi *gsi = qp->gsi;

	spin_lock_irq(&gsi->lock);
	gsi->qp = NULL;
	spin_unlock_irq(&gsi->lock);
	cancel_delayed_work_sync(&gsi->work);
	gsi->begun = false;
	sr_cq_forget(to_cq(qp->ib.send_cq), qp->send_shell, true);
	sr_cq_forget(to_cq(qp->ib.recv_cq), qp->recv_shell, true);
	kvfree(gsi->sends);
	kvfree(gsi->recvs);
}

/* ib_mad's memory is the kernel's, by its addresses (ib_uses_virt_dma()). */
static u8 *address_of(const struct ib_sge *sge)
{
	return (u8 *)(uintptr_t)sge->addr;
}

static int post_send(struct sr_gsi *gsi, struct sr_qp *qp, const struct ib_send_wr *wr)
{
	struct sr_gsi_send *send = &gsi->sends[gsi->send_tail % qp->cap.max_send_wr];
	u32 at = 0;
	int i;

	if (gsi->send_tail - gsi->send_head == qp->cap.max_send_wr)
		return -ENOMEM;
	if (wr->opcode != IB_WR_SEND || !ud_wr(wr)->ah)
		return -EINVAL;
	memset(send, 0, sizeof(*send));
	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (sge->length > sizeof(send->mail.mad) - at)
			return -EMSGSIZE;
		memcpy(send->mail.mad + at, address_of(sge), sge->length);
		at += sge->length;
	}
	send->wr_id = wr->wr_id;
	sr_ah_gids(ud_wr(wr)->ah, &send->mail.source, &send->mail.destination);
	gsi->send_tail++;
	return 0;
}

int sr_gsi_post_send(struct sr_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct sr_gsi *gsi = qp->gsi;
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&gsi->lock, flags);
	for (; wr && !err; wr = err ? wr : wr->next)
		err = post_send(gsi, qp, wr);
	if (err)
		*bad = wr;
	spin_unlock_irqrestore(&gsi->lock, flags);
	queue_delayed_work(qp->device->queue, &gsi->work, 0);
	return err;
}

int sr_gsi_post_recv(struct sr_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct sr_gsi *gsi = qp->gsi;
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&gsi->lock, flags);
	for (; wr && !err; wr = err ? wr : wr->next) {
		struct sr_gsi_recv *recv = &gsi->recvs[gsi->recv_tail % qp->cap.max_recv_wr];

		if (gsi->recv_tail - gsi->recv_head == qp->cap.max_recv_wr) {
			err = -ENOMEM;
		} else if (wr->num_sge != 1) {
			err = -EINVAL;
		} else {
			recv->wr_id = wr->wr_id;
			recv->at = address_of(&wr->sg_list[0]);
			recv->bytes = wr->sg_list[0].length;
			gsi->recv_tail++;
		}
	}
	if (err)
		*bad = wr;
	spin_unlock_irqrestore(&gsi->lock, flags);
	return err;
}

int sr_gsi_begin(struct sr_device *device)
{
	u32 port;

	for (port = 1; port <= SR_PORTS; port++) {
		struct sr_gsi *gsi = kzalloc(sizeof(*gsi), GFP_KERNEL);

		if (!gsi)
			return -ENOMEM;
		gsi->device = device;
		gsi->port = port;
		spin_lock_init(&gsi->lock);
		INIT_DELAYED_WORK(&gsi->work, work);
		device->gsi[port - 1] = gsi;
	}
	return 0;
}

void sr_gsi_end(struct sr_device *device)
{
	u32 port;

	for (port = 1; port <= SR_PORTS; port++) {
		if (device->gsi[port - 1])
			cancel_delayed_work_sync(&device->gsi[port - 1]->work);
		kfree(device->gsi[port - 1]);
	}
}
