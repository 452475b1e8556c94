// SPDX-License-Identifier: GPL-2.0
/*
 * Receive buffers from a page pool: a packet's page goes up the stack, or out of a port, and comes
 * back. A page whose packet is dropped does not even go that far: it stays where it is in the ring.
 */
#include "onic.h"

int onic_rxmem_init(struct onic_channel *ch)
{
	struct onic_priv *priv = ch->priv;
	struct onic_rx *rx = &ch->rx;
	struct page_pool_params params = {
		.flags = PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV,
		.pool_size = rx->count,
		.nid = dev_to_node(&priv->pdev->dev),
		.dev = &priv->pdev->dev,
		/* For XDP_TX as well: a program may come at any time. */
		.dma_dir = DMA_BIDIRECTIONAL,
		.offset = ONIC_HEADROOM,
		.max_len = ONIC_BUF_LEN,
#ifdef ONIC_HAS_POOL_NAPI
		.napi = &ch->napi,
#endif
#ifdef ONIC_HAS_POOL_NETDEV
		.netdev = priv->netdev,
#endif
	};
	int err;

	rx->pool = page_pool_create(&params);
	if (IS_ERR(rx->pool)) {
		err = PTR_ERR(rx->pool);
		rx->pool = NULL;
		return err;
	}
	err = xdp_rxq_info_reg_mem_model(&rx->rxq, MEM_TYPE_PAGE_POOL, rx->pool);
	if (err) {
		page_pool_destroy(rx->pool);
		rx->pool = NULL;
	}
	return err;
}

/* The pool goes with the last of its pages. */
void onic_rxmem_fini(struct onic_rx *rx)
{
	page_pool_destroy(rx->pool);
	rx->pool = NULL;
}

bool onic_rxmem_get(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	buf->page = page_pool_dev_alloc_pages(rx->pool);
	if (unlikely(!buf->page))
		return false;
	buf->dma = page_pool_get_dma_addr(buf->page);
	return true;
}

void onic_rxmem_put(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	page_pool_put_full_page(rx->pool, buf->page, false);
	buf->page = NULL;
}

struct sk_buff *onic_rxmem_skb(struct onic_channel *ch, struct onic_rx_buf *buf,
			       struct xdp_buff *xdp)
{
	struct sk_buff *skb = napi_build_skb(xdp->data_hard_start, PAGE_SIZE);

	if (unlikely(!skb))
		return NULL;
	skb_mark_for_recycle(skb);
	skb_reserve(skb, xdp->data - xdp->data_hard_start);
	__skb_put(skb, xdp->data_end - xdp->data);
	buf->page = NULL;
	return skb;
}

void onic_rxmem_given(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	buf->page = NULL;
}

bool onic_rxmem_pooled(void)
{
	return true;
}
