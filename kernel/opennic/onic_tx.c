// SPDX-License-Identifier: GPL-2.0
/* Sending: for the stack, for XDP, and what comes back when it was sent. */
#include <linux/etherdevice.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

/* The stack waits when there is less room than this, and goes on when there is so much. */
#define TX_STOP 2
#define TX_WAKE 32

static void tx_unmap_free(struct onic_priv *priv, struct onic_tx_buf *buf, bool napi, int budget)
{
	struct device *dev = &priv->pdev->dev;

	switch (buf->type) {
	case ONIC_TX_SKB:
		dma_unmap_single(dev, buf->dma, buf->len, DMA_TO_DEVICE);
		napi_consume_skb(buf->skb, budget);
		break;
	case ONIC_TX_POOLED:
		if (napi)
			xdp_return_frame_rx_napi(buf->frame);
		else
			xdp_return_frame(buf->frame);
		break;
	case ONIC_TX_MAPPED:
		dma_unmap_single(dev, buf->dma, buf->len, DMA_TO_DEVICE);
		xdp_return_frame(buf->frame);
		break;
	default:
		break;
	}
	buf->type = ONIC_TX_NONE;
}

/* How far the device is, if that can be. */
static u16 tx_consumed(struct onic_tx *tx)
{
	u16 consumed = onic_status_cidx(le64_to_cpu(READ_ONCE(*tx->status)));

	if (unlikely(!onic_ring_consumed_ok(consumed, READ_ONCE(tx->head), tx->tail, tx->count)))
		return tx->tail;
	return consumed;
}

bool onic_tx_pending(struct onic_tx *tx)
{
	return READ_ONCE(tx->head) != READ_ONCE(tx->tail);
}

/* Frees what was sent; the packets and bytes of the stack, and how many were of AF_XDP. */
static u32 tx_clean(struct onic_channel *ch, struct onic_tx *tx, bool napi, int budget,
		    u32 *bytes, u32 *xsk)
{
	u16 consumed = tx_consumed(tx);
	u16 tail = tx->tail;
	u32 packets = 0;

	while (tail != consumed) {
		struct onic_tx_buf *buf = &tx->buf[tail];

		if (buf->type == ONIC_TX_XSK)
			++*xsk;
		*bytes += buf->len;
		packets++;
		tx_unmap_free(ch->priv, buf, napi, budget);
		tail = onic_ring_next(tail, tx->count);
	}
	WRITE_ONCE(tx->tail, tail);
	return packets;
}

/* Of the stack, by NAPI alone; whether all that can be done was done. */
bool onic_tx_clean_stack(struct onic_channel *ch, int budget)
{
	struct netdev_queue *queue = netdev_get_tx_queue(ch->priv->netdev, ch->index);
	u32 bytes = 0, xsk = 0;
	u32 packets = tx_clean(ch, &ch->tx, true, budget, &bytes, &xsk);

	if (packets)
		netdev_tx_completed_queue(queue, packets, bytes);
	/* Pairs with the barrier between stopping the queue and looking once more. */
	smp_mb();
	if (unlikely(netif_tx_queue_stopped(queue) && netif_carrier_ok(ch->priv->netdev) &&
		     onic_tx_room(&ch->tx) >= TX_WAKE))
		netif_tx_wake_queue(queue);
	return true;
}

/* Of XDP, under the ring's lock. */
void onic_xtx_clean(struct onic_channel *ch, bool napi)
{
	u32 bytes = 0, xsk = 0;

	tx_clean(ch, &ch->xtx, napi, 0, &bytes, &xsk);
	if (xsk && ch->rx.xsk)
		xsk_tx_completed(ch->rx.xsk, xsk);
}

/*
 * From the end of NAPI on, doorbells ask for an interrupt; now, if there is something that was given
 * before. Under the ring's lock.
 */
void onic_tx_arm(struct onic_channel *ch, struct onic_tx *tx)
{
	tx->armed = true;
	if (onic_tx_pending(tx))
		onic_tx_doorbell(ch->priv, tx);
}

/* The queue is stopped: nothing of it will ever be sent. */
void onic_tx_drop_all(struct onic_channel *ch, struct onic_tx *tx)
{
	u32 xsk = 0;

	while (tx->tail != tx->head) {
		struct onic_tx_buf *buf = &tx->buf[tx->tail];

		xsk += buf->type == ONIC_TX_XSK;
		tx_unmap_free(ch->priv, buf, false, 0);
		tx->tail = onic_ring_next(tx->tail, tx->count);
	}
	if (xsk && ch->rx.xsk)
		xsk_tx_completed(ch->rx.xsk, xsk);
	if (!tx->is_xdp)
		netdev_tx_reset_queue(netdev_get_tx_queue(ch->priv->netdev, ch->index));
}

netdev_tx_t onic_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct onic_priv *priv = netdev_priv(netdev);
	u16 index = skb_get_queue_mapping(skb);
	struct netdev_queue *queue = netdev_get_tx_queue(netdev, index);
	struct onic_tx *tx = &priv->channel[index]->tx;
	struct onic_tx_buf buf = { .type = ONIC_TX_SKB };
	bool more = netdev_xmit_more();

	if (unlikely(onic_tx_room(tx) < 1)) {
		netif_tx_stop_queue(queue);
		tx->stats.full++;
		return NETDEV_TX_BUSY;
	}
	/* The device has no gather list and pads nothing. */
	if (unlikely(skb_put_padto(skb, ETH_ZLEN)))
		goto lost;
	buf.skb = skb;
	buf.len = skb->len;
	buf.dma = dma_map_single(&priv->pdev->dev, skb->data, skb->len, DMA_TO_DEVICE);
	if (unlikely(dma_mapping_error(&priv->pdev->dev, buf.dma))) {
		dev_kfree_skb_any(skb);
		goto lost;
	}
	skb_tx_timestamp(skb);
	onic_tx_put(tx, &buf);
	u64_stats_update_begin(&tx->sync);
	tx->stats.packets++;
	tx->stats.bytes += buf.len;
	u64_stats_update_end(&tx->sync);
	if (unlikely(onic_tx_room(tx) < TX_STOP)) {
		netif_tx_stop_queue(queue);
		/* NAPI may have made room before it could see that. */
		smp_mb();
		if (onic_tx_room(tx) >= TX_WAKE)
			netif_tx_start_queue(queue);
		else
			tx->stats.full++;
	}
	if (__netdev_tx_sent_queue(queue, buf.len, more))
		onic_tx_doorbell(priv, tx);
	return NETDEV_TX_OK;
lost:
	tx->stats.errors++;
	/* What was put in before it and waits for the doorbell. */
	if (!more && onic_tx_pending(tx))
		onic_tx_doorbell(priv, tx);
	return NETDEV_TX_OK;
}

/* Puts a frame in; under the ring's lock. @pooled: its page is ours and mapped. */
static bool xtx_put(struct onic_priv *priv, struct onic_tx *tx, struct xdp_frame *frame,
		    bool pooled)
{
	struct device *dev = &priv->pdev->dev;
	struct onic_tx_buf buf = { .frame = frame, .len = frame->len };

	if (unlikely(xdp_frame_has_frags(frame) || !onic_tx_room(tx) || frame->len < ETH_HLEN))
		return false;
	if (pooled) {
		struct page *page = virt_to_page(frame->data);

		buf.type = ONIC_TX_POOLED;
		buf.dma = page_pool_get_dma_addr(page) + (frame->data - page_address(page));
		dma_sync_single_for_device(dev, buf.dma, buf.len, DMA_BIDIRECTIONAL);
	} else {
		buf.type = ONIC_TX_MAPPED;
		buf.dma = dma_map_single(dev, frame->data, frame->len, DMA_TO_DEVICE);
		if (unlikely(dma_mapping_error(dev, buf.dma)))
			return false;
	}
	onic_tx_put(tx, &buf);
	tx->stats.packets++;
	tx->stats.bytes += buf.len;
	return true;
}

/* Sends what XDP_TX collected. Frames of AF_XDP's memory were copied and are nobody's pool's. */
void onic_xdp_tx_flush(struct onic_channel *ch)
{
	bool pooled = onic_rxmem_pooled() && !ch->rx.xsk;
	struct onic_rx *rx = &ch->rx;
	struct onic_tx *tx = &ch->xtx;
	unsigned int i, sent;

	spin_lock(&tx->lock);
	if (onic_tx_room(tx) < rx->bulked)
		onic_xtx_clean(ch, true);
	u64_stats_update_begin(&tx->sync);
	for (sent = 0; sent < rx->bulked; sent++) {
		if (!xtx_put(ch->priv, tx, rx->bulk[sent], pooled))
			break;
	}
	u64_stats_update_end(&tx->sync);
	if (sent)
		onic_tx_doorbell(ch->priv, tx);
	spin_unlock(&tx->lock);
	for (i = sent; i < rx->bulked; i++)
		xdp_return_frame_rx_napi(rx->bulk[i]);
	rx->stats.xdp_tx_failed += rx->bulked - sent;
	rx->stats.xdp_tx -= rx->bulked - sent;
	rx->bulked = 0;
}

/* From NAPI of any device; what is not taken is the caller's to free. */
int onic_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames, u32 flags)
{
	struct onic_priv *priv = netdev_priv(netdev);
	struct onic_channel *ch;
	struct onic_tx *tx;
	int sent;

	if (unlikely(flags & ~XDP_XMIT_FLAGS_MASK))
		return -EINVAL;
	if (unlikely(!netif_running(netdev) || !netif_carrier_ok(netdev)))
		return -ENETDOWN;
	ch = READ_ONCE(priv->channel[smp_processor_id() % READ_ONCE(priv->channels)]);
	if (unlikely(!ch))
		return -ENETDOWN;
	tx = &ch->xtx;
	spin_lock(&tx->lock);
	if (unlikely(!tx->desc)) {
		spin_unlock(&tx->lock);
		return -ENETDOWN;
	}
	if (onic_tx_room(tx) < n)
		onic_xtx_clean(ch, false);
	u64_stats_update_begin(&tx->sync);
	for (sent = 0; sent < n; sent++) {
		if (!xtx_put(priv, tx, frames[sent], false)) {
			tx->stats.full++;
			break;
		}
	}
	u64_stats_update_end(&tx->sync);
	if (flags & XDP_XMIT_FLUSH)
		onic_tx_doorbell(priv, tx);
	spin_unlock(&tx->lock);
	return sent;
}
