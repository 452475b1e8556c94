// SPDX-License-Identifier: GPL-2.0
/* Receiving: completions to packets, a program's verdicts, the stack. */
#include <linux/bitfield.h>
#include <linux/bpf_trace.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

/* Built with ONIC_LACK=N there is no memory each Nth time, so that what happens then can be tried. */
static bool rx_lacks(struct onic_rx *rx)
{
#ifdef ONIC_LACK
	return ++rx->asked % ONIC_LACK == 0;
#else
	return false;
#endif
}

/* Fills the ring; whether that went well. A page that stayed in its place is given once more. */
bool onic_rx_refill(struct onic_rx *rx)
{
	struct device *dev = &rx->priv->pdev->dev;
	u16 room = onic_ring_free(rx->head, rx->tail, rx->count);
	u16 before = rx->head;
	bool ok = true;

	while (room--) {
		struct onic_rx_buf *buf = &rx->buf[rx->head];

		if (!buf->page) {
			if (unlikely(rx_lacks(rx) || !onic_rxmem_get(rx, buf))) {
				rx->stats.alloc_failed++;
				ok = false;
				break;
			}
		} else {
			dma_sync_single_range_for_device(dev, buf->dma, ONIC_HEADROOM, rx->buf_len,
							 DMA_BIDIRECTIONAL);
		}
		rx->desc[rx->head] = cpu_to_le64(buf->dma + ONIC_HEADROOM);
		rx->head = onic_ring_next(rx->head, rx->count);
	}
	if (rx->head != before)
		qdma_write(rx->priv, QDMA_C2H_PIDX(rx->qid), rx->head);
	return ok;
}

/* Tells how far completions were taken, and whether to interrupt for more. */
void onic_rx_arm(struct onic_rx *rx, bool arm)
{
	struct onic_priv *priv = rx->priv;

	qdma_write(priv, QDMA_CMPL_CIDX(rx->qid),
		   rx->cmpl_at | QDMA_CMPL_STAT_EN | (arm ? QDMA_CMPL_ARM : 0) |
		   FIELD_PREP(QDMA_CMPL_TRIGGER, QDMA_TRIGGER_COUNT_TIMER) |
		   FIELD_PREP(QDMA_CMPL_TIMER, priv->timer_index) |
		   FIELD_PREP(QDMA_CMPL_COUNTER, priv->counter_index));
}

bool onic_rx_pending(struct onic_rx *rx)
{
	u64 entry = le64_to_cpu(READ_ONCE(rx->cmpl[READ_ONCE(rx->cmpl_at)]));

	return onic_cmpl_is_new(entry, READ_ONCE(rx->colour));
}

/* Passes over a packet's buffers. */
static void rx_skip(struct onic_rx *rx, u16 buffers)
{
	u16 given = onic_ring_used(rx->head, rx->tail, rx->count);

	for (buffers = min(buffers, given); buffers; buffers--)
		rx->tail = onic_ring_next(rx->tail, rx->count);
}

static void xdp_tx_add(struct onic_channel *ch, struct xdp_frame *frame)
{
	ch->rx.bulk[ch->rx.bulked++] = frame;
	if (ch->rx.bulked == ONIC_XDP_BULK)
		onic_xdp_tx_flush(ch);
}

/* A packet that the program wanted elsewhere, and that did not get there. */
int onic_rx_not_redirected(struct onic_channel *ch, struct bpf_prog *prog)
{
	ch->rx.stats.xdp_redirect_failed++;
	trace_xdp_exception(ch->priv->netdev, prog, XDP_REDIRECT);
	return XDP_DROP;
}

/* Does what the program wants; XDP_PASS, XDP_DROP (the buffer is still ours) or XDP_TX (it is given away). */
int onic_rx_verdict(struct onic_channel *ch, struct bpf_prog *prog, struct xdp_buff *xdp, u32 act,
		    bool *redirected)
{
	struct onic_rx *rx = &ch->rx;
	struct net_device *netdev = ch->priv->netdev;
	struct xdp_frame *frame;

	switch (act) {
	case XDP_PASS:
		rx->stats.xdp_pass++;
		return XDP_PASS;
	case XDP_DROP:
		rx->stats.xdp_drop++;
		return XDP_DROP;
	case XDP_TX:
		frame = xdp_convert_buff_to_frame(xdp);
		if (unlikely(!frame)) {
			rx->stats.xdp_tx_failed++;
			break;
		}
		rx->stats.xdp_tx++;
		xdp_tx_add(ch, frame);
		return XDP_TX;
	case XDP_REDIRECT:
		if (unlikely(xdp_do_redirect(netdev, xdp, prog)))
			return onic_rx_not_redirected(ch, prog);
		rx->stats.xdp_redirect++;
		*redirected = true;
		return XDP_TX;
	default:
		bpf_warn_invalid_xdp_action(netdev, prog, act);
		fallthrough;
	case XDP_ABORTED:
		rx->stats.xdp_aborted++;
		break;
	}
	trace_xdp_exception(netdev, prog, act);
	return XDP_DROP;
}

static void rx_packet(struct onic_channel *ch, struct onic_rx_buf *buf, u16 len,
		      struct bpf_prog *prog, bool *redirected)
{
	struct onic_rx *rx = &ch->rx;
	struct sk_buff *skb;
	struct xdp_buff xdp;

	dma_sync_single_range_for_cpu(&ch->priv->pdev->dev, buf->dma, ONIC_HEADROOM, len,
				      DMA_BIDIRECTIONAL);
	xdp_init_buff(&xdp, PAGE_SIZE, &rx->rxq);
	xdp_prepare_buff(&xdp, page_address(buf->page), ONIC_HEADROOM, len, true);
	net_prefetch(xdp.data);
	if (prog) {
		switch (onic_rx_verdict(ch, prog, &xdp, bpf_prog_run_xdp(prog, &xdp), redirected)) {
		case XDP_PASS:
			break;
		case XDP_TX:
			onic_rxmem_given(rx, buf);
			return;
		default:
			return;
		}
	}
	skb = onic_rxmem_skb(ch, buf, &xdp);
	if (unlikely(!skb)) {
		rx->stats.alloc_failed++;
		return;
	}
	if (xdp.data != xdp.data_meta)
		skb_metadata_set(skb, xdp.data - xdp.data_meta);
	skb_record_rx_queue(skb, ch->index);
	skb->protocol = eth_type_trans(skb, ch->priv->netdev);
	napi_gro_receive(&ch->napi, skb);
}

static int rx_packets(struct onic_channel *ch, int budget, bool *redirected)
{
	struct onic_rx *rx = &ch->rx;
	struct bpf_prog *prog = READ_ONCE(rx->prog);
	int done = 0;

	while (done < budget) {
		u16 len;
		bool bad;

		if (!onic_rx_next(rx, &len, &bad))
			break;
		done++;
		if (unlikely(bad || len > rx->buf_len || len < ETH_HLEN || rx->tail == rx->head)) {
			if (bad)
				rx->stats.bad++;
			else
				rx->stats.too_long++;
			rx_skip(rx, onic_cmpl_buffers(len, rx->buf_len));
			continue;
		}
		rx->stats.packets++;
		rx->stats.bytes += len;
		rx_packet(ch, &rx->buf[rx->tail], len, prog, redirected);
		rx->tail = onic_ring_next(rx->tail, rx->count);
	}
	return done;
}

/* A full budget means that there is more, or that memory ran out. */
int onic_rx_poll(struct onic_channel *ch, int budget)
{
	struct onic_rx *rx = &ch->rx;
	bool redirected = false, filled = true;
	int done;

	u64_stats_update_begin(&rx->sync);
	if (rx->xsk)
		done = onic_xsk_poll(ch, budget, &redirected);
	else
		done = rx_packets(ch, budget, &redirected);
	if (rx->bulked)
		onic_xdp_tx_flush(ch);
	if (redirected)
		xdp_do_flush();
	if (rx->xsk)
		filled = onic_xsk_refill(rx);
	else if (onic_ring_free(rx->head, rx->tail, rx->count) >= onic_refill_at(rx->count))
		filled = onic_rx_refill(rx);
	u64_stats_update_end(&rx->sync);
	if (done)
		onic_rx_arm(rx, false);
	/* With an empty ring and no memory for it nothing would ever wake us. */
	if (unlikely(!filled && rx->head == rx->tail))
		return budget;
	return done;
}
