// SPDX-License-Identifier: GPL-2.0
/* AF_XDP without a copy: the device writes into the program's memory and reads from it. */
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

/* Packets for sending in one run of NAPI. */
#define XSK_TX_BATCH 64
/* Buffers that are asked for at once. */
#define XSK_FILL_BATCH 64

int onic_xsk_rxq(struct onic_rx *rx)
{
	int index = onic_hw_buf_index(xsk_pool_get_rx_frame_size(rx->xsk));
	int err;

	if (index < 0)
		return index;
	rx->buf_len = onic_hw_buf_len(index);
	err = xdp_rxq_info_reg_mem_model(&rx->rxq, MEM_TYPE_XSK_BUFF_POOL, NULL);
	if (!err)
		xsk_pool_set_rxq_info(rx->xsk, &rx->rxq);
	return err;
}

/* Gives the device what the program left in its fill ring; how many places stay empty. */
static u16 xsk_fill(struct onic_rx *rx, u16 room)
{
	struct xdp_buff *batch[XSK_FILL_BATCH];
	u16 head = rx->head;

	while (room) {
		u32 i, got = xsk_buff_alloc_batch(rx->xsk, batch, min_t(u32, room, XSK_FILL_BATCH));

		/* Fewer than asked for does not mean that there are no more. */
		if (!got)
			break;
		for (i = 0; i < got; i++) {
			rx->buf[head].xsk = batch[i];
			rx->desc[head] = cpu_to_le64(xsk_buff_xdp_get_dma(batch[i]));
			head = onic_ring_next(head, rx->count);
		}
		room -= got;
	}
	if (head != rx->head) {
		rx->head = head;
		qdma_write(rx->priv, QDMA_C2H_PIDX(rx->qid), head);
	}
	return room;
}

/*
 * Whether packets can come, or the program knows that it has to call. Otherwise NAPI has to look
 * once more: a program that is not told when to call only ever looks at its rings.
 */
bool onic_xsk_refill(struct onic_rx *rx)
{
	u16 room = onic_ring_free(rx->head, rx->tail, rx->count);
	bool told = xsk_uses_need_wakeup(rx->xsk);

	if (room >= onic_refill_at(rx->count)) {
		room = xsk_fill(rx, room);
		if (room && told) {
			/* It may have filled its ring and looked at the flag just before that was set. */
			xsk_set_rx_need_wakeup(rx->xsk);
			smp_mb();
			room = xsk_fill(rx, room);
		}
	} else {
		room = 0;
	}
	if (told && !room)
		xsk_clear_rx_need_wakeup(rx->xsk);
	return told || rx->head != rx->tail;
}

void onic_xsk_release(struct onic_rx *rx)
{
	for (; rx->tail != rx->head; rx->tail = onic_ring_next(rx->tail, rx->count))
		xsk_buff_free(rx->buf[rx->tail].xsk);
}

/* A packet for the stack is copied: the memory is the program's. */
static void xsk_pass(struct onic_channel *ch, struct xdp_buff *xdp)
{
	unsigned int len = xdp->data_end - xdp->data;
	struct sk_buff *skb = napi_alloc_skb(&ch->napi, len);

	if (unlikely(!skb)) {
		ch->rx.stats.alloc_failed++;
		return;
	}
	skb_put_data(skb, xdp->data, len);
	skb_record_rx_queue(skb, ch->index);
	skb->protocol = eth_type_trans(skb, ch->priv->netdev);
	napi_gro_receive(&ch->napi, skb);
}

/* A packet that is none: its buffers are the program's again. */
static void xsk_skip(struct onic_rx *rx, u16 len, bool bad)
{
	u16 buffers = onic_cmpl_buffers(len, rx->buf_len);

	for (buffers = min(buffers, onic_ring_used(rx->head, rx->tail, rx->count)); buffers; buffers--) {
		xsk_buff_free(rx->buf[rx->tail].xsk);
		rx->tail = onic_ring_next(rx->tail, rx->count);
	}
	if (bad)
		rx->stats.bad++;
	else
		rx->stats.too_long++;
}

/*
 * The copy of a small packet is cheap, so what stands around it counts: the verdict that nearly all
 * packets get is taken here, and counts are added up once.
 */
int onic_xsk_poll(struct onic_channel *ch, int budget, bool *redirected)
{
	struct onic_rx *rx = &ch->rx;
	struct net_device *netdev = ch->priv->netdev;
	struct bpf_prog *prog = READ_ONCE(rx->prog);
	u32 packets = 0, redirects = 0;
	u64 bytes = 0;
	int done;

	for (done = 0; done < budget; done++) {
		struct xdp_buff *xdp;
		u32 act = XDP_PASS;
		bool bad;
		u16 len;

		if (!onic_rx_next(rx, &len, &bad))
			break;
		if (unlikely(bad || len > rx->buf_len || len < ETH_HLEN || rx->tail == rx->head)) {
			xsk_skip(rx, len, bad);
			continue;
		}
		xdp = rx->buf[rx->tail].xsk;
		rx->tail = onic_ring_next(rx->tail, rx->count);
		packets++;
		bytes += len;
		/* Where the packet begins, too: what was asked for in a batch is as it was left. */
		xsk_buff_set_size(xdp, len);
#ifdef ONIC_HAS_XSK_SYNC_ALONE
		xsk_buff_dma_sync_for_cpu(xdp);
#else
		xsk_buff_dma_sync_for_cpu(xdp, rx->xsk);
#endif
		if (likely(prog)) {
			act = bpf_prog_run_xdp(prog, xdp);
			if (likely(act == XDP_REDIRECT)) {
				if (likely(!xdp_do_redirect(netdev, xdp, prog))) {
					redirects++;
					continue;
				}
				act = onic_rx_not_redirected(ch, prog);
			} else {
				act = onic_rx_verdict(ch, prog, xdp, act, redirected);
			}
		}
		if (act == XDP_TX)
			continue;
		if (act == XDP_PASS)
			xsk_pass(ch, xdp);
		xsk_buff_free(xdp);
	}
	rx->stats.packets += packets;
	rx->stats.bytes += bytes;
	rx->stats.xsk_packets += packets;
	rx->stats.xdp_redirect += redirects;
	if (redirects)
		*redirected = true;
	return done;
}

/* Under the lock of the ring; whether there is more. */
bool onic_xsk_xmit(struct onic_channel *ch, int budget)
{
	struct xsk_buff_pool *pool = ch->rx.xsk;
	struct onic_tx *tx = &ch->xtx;
	struct xdp_desc *descs;
	u32 room = min3((u32)onic_tx_room(tx), (u32)XSK_TX_BATCH, (u32)max(budget, 1));
	u32 i, count;

	if (xsk_uses_need_wakeup(pool))
		xsk_set_tx_need_wakeup(pool);
	if (!room || !netif_carrier_ok(ch->priv->netdev))
		return false;
	count = xsk_tx_peek_release_desc_batch(pool, room);
	if (!count)
		return false;
	/* Not before: a pool that only received has none until a socket that sends shares it. */
	descs = pool->tx_descs;
	u64_stats_update_begin(&tx->sync);
	for (i = 0; i < count; i++) {
		struct onic_tx_buf buf = { .type = ONIC_TX_XSK, .len = descs[i].len };

		buf.dma = xsk_buff_raw_get_dma(pool, descs[i].addr);
		xsk_buff_raw_dma_sync_for_device(pool, buf.dma, buf.len);
		onic_tx_put(tx, &buf);
		tx->stats.packets++;
		tx->stats.bytes += buf.len;
		tx->stats.xsk_packets++;
	}
	u64_stats_update_end(&tx->sync);
	onic_tx_doorbell(ch->priv, tx);
	return count == room;
}

/* The device has no way to be told to interrupt, so NAPI runs on the caller's processor. */
int onic_xsk_wakeup(struct net_device *netdev, u32 index, u32 flags)
{
	struct onic_priv *priv = netdev_priv(netdev);
	struct onic_channel *ch;

	if (!netif_running(netdev) || !netif_carrier_ok(netdev))
		return -ENETDOWN;
	if (index >= priv->channels)
		return -EINVAL;
	/* The device may be on its way down and up again. */
	ch = READ_ONCE(priv->channel[index]);
	if (!ch || !READ_ONCE(ch->rx.xsk))
		return -ENETDOWN;
	if (!napi_if_scheduled_mark_missed(&ch->napi)) {
		local_bh_disable();
		napi_schedule(&ch->napi);
		local_bh_enable();
	}
	return 0;
}

static int xsk_restart(struct onic_priv *priv, u16 index, struct xsk_buff_pool *pool)
{
	struct onic_channel *ch = priv->channel[index];
	struct xsk_buff_pool *before = priv->pools[index];
	int err;

	/* Down, or in the middle of a reset or asleep: there is nothing to stop, and it starts with this. */
	if (!ch) {
		priv->pools[index] = pool;
		return 0;
	}
	/*
	 * This channel alone stops; the others go on. What looks for lost interrupts reads the rings of
	 * all, and is not held by the lock that we have.
	 */
	cancel_delayed_work_sync(&priv->link_work);
	onic_channel_stop(ch);
	priv->pools[index] = pool;
	err = onic_channel_start(ch);
	if (err) {
		priv->pools[index] = before;
		if (onic_channel_start(ch)) {
			/* Its queue stays stopped, which the watchdog sees. */
			netdev_err(priv->netdev, "channel %u does not come back\n", index);
			goto out;
		}
	}
	netif_tx_wake_queue(netdev_get_tx_queue(priv->netdev, index));
out:
	schedule_delayed_work(&priv->link_work, 0);
	return err;
}

int onic_xsk_setup(struct onic_priv *priv, struct xsk_buff_pool *pool, u16 index)
{
	struct xsk_buff_pool *old;
	int err, buf;

	if (index >= priv->channels)
		return -EINVAL;
	old = priv->pools[index];
	if (!pool) {
		if (!old)
			return -EINVAL;
		err = xsk_restart(priv, index, NULL);
		if (!err)
			xsk_pool_dma_unmap(old, 0);
		return err;
	}
	if (old)
		return -EBUSY;
	buf = onic_hw_buf_index(xsk_pool_get_rx_frame_size(pool));
	if (buf < 0 || onic_hw_buf_len(buf) < priv->netdev->mtu + ETH_HLEN + VLAN_HLEN)
		return -EINVAL;
	err = xsk_pool_dma_map(pool, &priv->pdev->dev, 0);
	if (err)
		return err;
	err = xsk_restart(priv, index, pool);
	if (err)
		xsk_pool_dma_unmap(pool, 0);
	return err;
}
