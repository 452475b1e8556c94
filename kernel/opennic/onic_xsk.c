// SPDX-License-Identifier: GPL-2.0
/* AF_XDP without a copy: the device writes into the program's memory and reads from it. */
#include <linux/etherdevice.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

/* Packets for sending in one run of NAPI. */
#define XSK_TX_BATCH 64

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

bool onic_xsk_refill(struct onic_rx *rx)
{
	u16 room = onic_ring_free(rx->head, rx->tail, rx->count);
	u16 before = rx->head;

	for (; room; room--) {
		struct xdp_buff *xdp = xsk_buff_alloc(rx->xsk);

		if (!xdp)
			break;
		rx->buf[rx->head].xsk = xdp;
		rx->desc[rx->head] = cpu_to_le64(xsk_buff_xdp_get_dma(xdp));
		rx->head = onic_ring_next(rx->head, rx->count);
	}
	if (rx->head != before)
		qdma_write(rx->priv, QDMA_C2H_PIDX(rx->qid), rx->head);
	if (xsk_uses_need_wakeup(rx->xsk)) {
		/* Without buffers nothing comes, so the program has to call. */
		if (room)
			xsk_set_rx_need_wakeup(rx->xsk);
		else
			xsk_clear_rx_need_wakeup(rx->xsk);
	}
	return !room;
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

int onic_xsk_poll(struct onic_channel *ch, int budget, bool *redirected)
{
	struct onic_rx *rx = &ch->rx;
	struct bpf_prog *prog = READ_ONCE(rx->prog);
	int done = 0;

	while (done < budget) {
		struct xdp_buff *xdp;
		u16 len, buffers;
		int act = XDP_PASS;
		bool bad;

		if (!onic_rx_next(rx, &len, &bad))
			break;
		done++;
		buffers = onic_cmpl_buffers(len, rx->buf_len);
		if (unlikely(bad || buffers > 1 || len < ETH_HLEN || rx->tail == rx->head)) {
			buffers = min(buffers, onic_ring_used(rx->head, rx->tail, rx->count));
			for (; buffers; buffers--) {
				xsk_buff_free(rx->buf[rx->tail].xsk);
				rx->tail = onic_ring_next(rx->tail, rx->count);
			}
			if (bad)
				rx->stats.bad++;
			else
				rx->stats.too_long++;
			continue;
		}
		xdp = rx->buf[rx->tail].xsk;
		rx->tail = onic_ring_next(rx->tail, rx->count);
		rx->stats.packets++;
		rx->stats.bytes += len;
		rx->stats.xsk_packets++;
		xdp->data_end = xdp->data + len;
#ifdef ONIC_HAS_XSK_SYNC_ALONE
		xsk_buff_dma_sync_for_cpu(xdp);
#else
		xsk_buff_dma_sync_for_cpu(xdp, rx->xsk);
#endif
		if (likely(prog))
			act = onic_rx_run_xdp(ch, prog, xdp, redirected);
		if (act == XDP_TX)
			continue;
		if (act == XDP_PASS)
			xsk_pass(ch, xdp);
		xsk_buff_free(xdp);
	}
	return done;
}

/* Under the lock of the ring; whether there is more. */
bool onic_xsk_xmit(struct onic_channel *ch, int budget)
{
	struct xsk_buff_pool *pool = ch->rx.xsk;
	struct onic_tx *tx = &ch->xtx;
	struct xdp_desc *descs = pool->tx_descs;
	u32 room = min3((u32)onic_tx_room(tx), (u32)XSK_TX_BATCH, (u32)max(budget, 1));
	u32 i, count;

	if (xsk_uses_need_wakeup(pool))
		xsk_set_tx_need_wakeup(pool);
	if (!room || !netif_carrier_ok(ch->priv->netdev))
		return false;
	count = xsk_tx_peek_release_desc_batch(pool, room);
	if (!count)
		return false;
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
	ch = priv->channel[index];
	if (!ch->rx.xsk)
		return -EINVAL;
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

	if (!netif_running(priv->netdev)) {
		priv->pools[index] = pool;
		return 0;
	}
	/* This channel alone stops; the others go on. */
	onic_channel_stop(ch);
	priv->pools[index] = pool;
	err = onic_channel_start(ch);
	if (err) {
		priv->pools[index] = before;
		if (onic_channel_start(ch)) {
			/* Its queue stays stopped, which the watchdog sees. */
			netdev_err(priv->netdev, "channel %u does not come back\n", index);
			return err;
		}
	}
	netif_tx_wake_queue(netdev_get_tx_queue(priv->netdev, index));
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
