// SPDX-License-Identifier: GPL-2.0
/* Channels: rings made and unmade, interrupts and NAPI. */
#include <linux/interrupt.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

static size_t desc_bytes(u16 count, size_t entry)
{
	/* One entry more, for the status. */
	return ((size_t)count + 1) * entry;
}

int onic_tx_alloc(struct onic_channel *ch, struct onic_tx *tx, u16 qid, bool is_xdp)
{
	struct onic_priv *priv = ch->priv;
	int index = onic_hw_ring_index(priv->tx_ring);
	struct device *dev = &priv->pdev->dev;

	tx->priv = priv;
	tx->count = onic_ring_sizes[index];
	tx->ring_index = index;
	tx->qid = qid;
	tx->is_xdp = is_xdp;
	tx->head = 0;
	tx->tail = 0;
	/* As at the end of NAPI. */
	tx->armed = true;
	tx->buf = kvcalloc(tx->count, sizeof(*tx->buf), GFP_KERNEL);
	if (!tx->buf)
		return -ENOMEM;
	tx->desc = dma_alloc_coherent(dev, desc_bytes(tx->count, sizeof(*tx->desc)), &tx->dma,
				      GFP_KERNEL);
	if (!tx->desc) {
		kvfree(tx->buf);
		tx->buf = NULL;
		return -ENOMEM;
	}
	tx->status = &tx->desc[tx->count].meta;
	return 0;
}

void onic_tx_release(struct onic_channel *ch, struct onic_tx *tx)
{
	void *desc = tx->desc;

	if (!desc)
		return;
	/* Others reach a queue of XDP under its lock alone. */
	spin_lock_bh(&tx->lock);
	onic_tx_drop_all(ch, tx);
	tx->desc = NULL;
	spin_unlock_bh(&tx->lock);
	dma_free_coherent(&ch->priv->pdev->dev, desc_bytes(tx->count, sizeof(*tx->desc)), desc,
			  tx->dma);
	kvfree(tx->buf);
	tx->buf = NULL;
}

int onic_rx_alloc(struct onic_channel *ch)
{
	struct onic_rx *rx = &ch->rx;
	struct onic_priv *priv = ch->priv;
	struct device *dev = &priv->pdev->dev;
	int index = onic_hw_ring_index(priv->rx_ring);
	int err;

	rx->priv = priv;
	rx->count = onic_ring_sizes[index];
	rx->ring_index = index;
	rx->qid = ch->index;
	rx->head = 0;
	rx->tail = 0;
	rx->cmpl_at = 0;
	/* The device writes ones in the first lap, over our zeros. */
	rx->colour = true;
	rx->bulked = 0;
	rx->xsk = priv->pools[ch->index];
	rx->buf_len = ONIC_BUF_LEN;
	WRITE_ONCE(rx->prog, priv->prog);
	rx->buf = kvcalloc(rx->count, sizeof(*rx->buf), GFP_KERNEL);
	rx->desc = dma_alloc_coherent(dev, desc_bytes(rx->count, 8), &rx->dma, GFP_KERNEL);
	/* Of at least a page, because the ring's address has no lower bits. */
	rx->cmpl = dma_alloc_coherent(dev, PAGE_ALIGN(desc_bytes(rx->count, 8)), &rx->cmpl_dma,
				      GFP_KERNEL);
	err = -ENOMEM;
	if (!rx->buf || !rx->desc || !rx->cmpl)
		goto err_memory;
	err = xdp_rxq_info_reg(&rx->rxq, priv->netdev, ch->index, ch->napi.napi_id);
	if (err)
		goto err_memory;
	if (rx->xsk)
		err = onic_xsk_rxq(rx);
	else
		err = onic_rxmem_init(ch);
	if (!err)
		return 0;
	xdp_rxq_info_unreg(&rx->rxq);
err_memory:
	if (rx->cmpl)
		dma_free_coherent(dev, PAGE_ALIGN(desc_bytes(rx->count, 8)), rx->cmpl, rx->cmpl_dma);
	if (rx->desc)
		dma_free_coherent(dev, desc_bytes(rx->count, 8), rx->desc, rx->dma);
	kvfree(rx->buf);
	rx->cmpl = NULL;
	rx->desc = NULL;
	rx->buf = NULL;
	return err;
}

void onic_rx_release(struct onic_channel *ch)
{
	struct onic_rx *rx = &ch->rx;
	struct device *dev = &ch->priv->pdev->dev;
	u16 at;

	if (!rx->desc)
		return;
	if (rx->xsk) {
		onic_xsk_release(rx);
	} else {
		for (at = 0; at < rx->count; at++) {
			if (rx->buf[at].page)
				onic_rxmem_put(rx, &rx->buf[at]);
		}
	}
	xdp_rxq_info_unreg(&rx->rxq);
	if (!rx->xsk)
		onic_rxmem_fini(rx);
	dma_free_coherent(dev, PAGE_ALIGN(desc_bytes(rx->count, 8)), rx->cmpl, rx->cmpl_dma);
	dma_free_coherent(dev, desc_bytes(rx->count, 8), rx->desc, rx->dma);
	kvfree(rx->buf);
	rx->cmpl = NULL;
	rx->desc = NULL;
	rx->buf = NULL;
	rx->xsk = NULL;
}

/* From rings that do not exist to packets that come and go. */
int onic_channel_start(struct onic_channel *ch)
{
	struct onic_priv *priv = ch->priv;
	u16 vector = ONIC_VECTORS_OTHER + ch->index;
	int err;

	err = onic_rx_alloc(ch);
	if (err)
		return err;
	err = onic_tx_alloc(ch, &ch->tx, ch->index, false);
	if (err)
		goto err_rx;
	err = onic_tx_alloc(ch, &ch->xtx, ONIC_CHANNELS_MAX + ch->index, true);
	if (err)
		goto err_tx;
	err = onic_hw_start_rx(priv, &ch->rx, vector);
	err = err ?: onic_hw_start_tx(priv, &ch->tx, vector);
	err = err ?: onic_hw_start_tx(priv, &ch->xtx, vector);
	if (err)
		goto err_hw;
	if (ch->rx.xsk)
		onic_xsk_refill(&ch->rx);
	else if (!onic_rx_refill(&ch->rx) && ch->rx.head == ch->rx.tail)
		err = -ENOMEM;
	if (err)
		goto err_hw;
	napi_enable(&ch->napi);
#ifdef ONIC_HAS_QUEUE_NAPI
	netif_queue_set_napi(priv->netdev, ch->index, NETDEV_QUEUE_TYPE_RX, &ch->napi);
	netif_queue_set_napi(priv->netdev, ch->index, NETDEV_QUEUE_TYPE_TX, &ch->napi);
#endif
	onic_rx_arm(&ch->rx, true);
	if (ch->rx.xsk) {
		/* The program may fill its ring only now, and not be told to call. */
		local_bh_disable();
		napi_schedule(&ch->napi);
		local_bh_enable();
	}
	return 0;

err_hw:
	onic_hw_stop_tx(priv, &ch->xtx);
	onic_hw_stop_tx(priv, &ch->tx);
	onic_hw_stop_rx(priv, &ch->rx);
	onic_tx_release(ch, &ch->xtx);
err_tx:
	onic_tx_release(ch, &ch->tx);
err_rx:
	onic_rx_release(ch);
	return err;
}

void onic_channel_stop(struct onic_channel *ch)
{
	struct onic_priv *priv = ch->priv;
	struct netdev_queue *queue = netdev_get_tx_queue(priv->netdev, ch->index);

	if (!ch->rx.desc)
		return;
#ifdef ONIC_HAS_QUEUE_NAPI
	netif_queue_set_napi(priv->netdev, ch->index, NETDEV_QUEUE_TYPE_RX, NULL);
	netif_queue_set_napi(priv->netdev, ch->index, NETDEV_QUEUE_TYPE_TX, NULL);
#endif
	napi_disable(&ch->napi);
	/*
	 * Only now: NAPI would wake it. The watchdog takes a queue that is stopped and has long sent nothing
	 * for one that hangs.
	 */
	__netif_tx_lock_bh(queue);
	txq_trans_cond_update(queue);
	netif_tx_stop_queue(queue);
	__netif_tx_unlock_bh(queue);
	onic_hw_stop_rx(priv, &ch->rx);
	onic_hw_stop_tx(priv, &ch->tx);
	onic_hw_stop_tx(priv, &ch->xtx);
	onic_tx_release(ch, &ch->xtx);
	onic_tx_release(ch, &ch->tx);
	onic_rx_release(ch);
}

irqreturn_t onic_irq(int irq, void *data)
{
	struct onic_channel *ch = data;

	napi_schedule_irqoff(&ch->napi);
	return IRQ_HANDLED;
}

static void poll_arm(struct onic_channel *ch)
{
	struct netdev_queue *queue = netdev_get_tx_queue(ch->priv->netdev, ch->index);

	onic_rx_arm(&ch->rx, true);
	__netif_tx_lock(queue, smp_processor_id());
	onic_tx_arm(ch, &ch->tx);
	__netif_tx_unlock(queue);
	spin_lock(&ch->xtx.lock);
	onic_tx_arm(ch, &ch->xtx);
	spin_unlock(&ch->xtx.lock);
}

int onic_poll(struct napi_struct *napi, int budget)
{
	struct onic_channel *ch = container_of(napi, struct onic_channel, napi);
	bool more = false;
	int done = 0;
#ifdef ONIC_MEASURE
	cycles_t start = get_cycles();
#endif

	WRITE_ONCE(ch->tx.armed, false);
	WRITE_ONCE(ch->xtx.armed, false);
	onic_tx_clean_stack(ch, budget);
	if (onic_tx_pending(&ch->xtx) || ch->rx.xsk) {
		spin_lock(&ch->xtx.lock);
		onic_xtx_clean(ch, budget > 0);
		if (ch->rx.xsk)
			more = onic_xsk_xmit(ch, budget);
		spin_unlock(&ch->xtx.lock);
	}
	/* netconsole asks for what was sent and nothing else. */
	if (budget)
		done = onic_rx_poll(ch, budget);
#ifdef ONIC_MEASURE
	/* Of full runs only: what a short one costs is not the packets'. */
	if (done && done == budget) {
		u64_stats_update_begin(&ch->rx.sync);
		ch->rx.stats.poll_cycles += get_cycles() - start;
		ch->rx.stats.polls++;
		ch->rx.stats.poll_packets += done;
		u64_stats_update_end(&ch->rx.sync);
	}
#endif
	if (done >= budget || more)
		return budget;
	if (napi_complete_done(napi, done))
		poll_arm(ch);
	return done;
}

/*
 * An interrupt that was lost would stop the channel for good: looks for what is left lying, and has
 * been since the last look, when nothing was taken meanwhile.
 */
void onic_channel_look(struct onic_channel *ch)
{
	u64 place = (u64)READ_ONCE(ch->rx.cmpl_at) << 32 | READ_ONCE(ch->tx.tail) << 16 |
		    READ_ONCE(ch->xtx.tail);
	bool lying;

	if (!ch->rx.desc)
		return;
	lying = onic_rx_pending(&ch->rx) ||
		onic_status_cidx(le64_to_cpu(READ_ONCE(*ch->tx.status))) != READ_ONCE(ch->tx.tail) ||
		onic_status_cidx(le64_to_cpu(READ_ONCE(*ch->xtx.status))) != READ_ONCE(ch->xtx.tail);
	if (!lying || !ch->suspect || ch->suspect_at != place) {
		ch->suspect = lying;
		ch->suspect_at = place;
		return;
	}
	ch->suspect = false;
	/* It may be on its way still, to a processor that has much else to do. */
	if (test_bit(NAPI_STATE_SCHED, &ch->napi.state))
		return;
	ch->rx.stats.missed_irq++;
	local_bh_disable();
	napi_schedule(&ch->napi);
	local_bh_enable();
}
