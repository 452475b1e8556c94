// SPDX-License-Identifier: GPL-2.0
/*
 * Receive buffers that belong to the ring: the stack gets a copy, and a page that leaves by XDP is
 * replaced by a new one. It is built to be compared with the page pool (ONIC_FIXED_BUFFERS=1).
 */
#include "onic.h"

int onic_rxmem_init(struct onic_channel *ch)
{
	return xdp_rxq_info_reg_mem_model(&ch->rx.rxq, MEM_TYPE_PAGE_SHARED, NULL);
}

void onic_rxmem_fini(struct onic_rx *rx)
{
}

bool onic_rxmem_get(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	struct device *dev = &rx->priv->pdev->dev;

	buf->page = dev_alloc_page();
	if (unlikely(!buf->page))
		return false;
	buf->dma = dma_map_page(dev, buf->page, 0, PAGE_SIZE, DMA_BIDIRECTIONAL);
	if (unlikely(dma_mapping_error(dev, buf->dma))) {
		__free_page(buf->page);
		buf->page = NULL;
		return false;
	}
	return true;
}

void onic_rxmem_put(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	dma_unmap_page(&rx->priv->pdev->dev, buf->dma, PAGE_SIZE, DMA_BIDIRECTIONAL);
	__free_page(buf->page);
	buf->page = NULL;
}

struct sk_buff *onic_rxmem_skb(struct onic_channel *ch, struct onic_rx_buf *buf,
			       struct xdp_buff *xdp)
{
	unsigned int len = xdp->data_end - xdp->data;
	struct sk_buff *skb = napi_alloc_skb(&ch->napi, len);

	if (unlikely(!skb))
		return NULL;
	skb_put_data(skb, xdp->data, len);
	return skb;
}

void onic_rxmem_given(struct onic_rx *rx, struct onic_rx_buf *buf)
{
	dma_unmap_page(&rx->priv->pdev->dev, buf->dma, PAGE_SIZE, DMA_BIDIRECTIONAL);
	buf->page = NULL;
}

bool onic_rxmem_pooled(void)
{
	return false;
}
