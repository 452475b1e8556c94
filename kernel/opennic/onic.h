/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the driver share. */
#ifndef ONIC_H
#define ONIC_H

#include <linux/bpf.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <linux/u64_stats_sync.h>
#include <linux/workqueue.h>
#ifdef ONIC_HAS_QUEUE_STATS
#include <net/netdev_queues.h>
#endif
#include <net/xdp.h>
#if __has_include(<net/page_pool/helpers.h>)
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

#include "onic_regs.h"
#include "onic_ring.h"

#define ONIC_CHANNELS_MAX	16
/* Queues of a function, of the card's 2048: one to the stack and one for XDP for each channel. */
#define ONIC_QUEUES		(2 * ONIC_CHANNELS_MAX)
/* The first vector of a function is for errors of the card. */
#define ONIC_VECTORS_OTHER	1
#define ONIC_RING_DEFAULT	1024
#define ONIC_HEADROOM		XDP_PACKET_HEADROOM
/* What the hardware may write into a page: the program's room before it, the stack's behind it. */
#define ONIC_BUF_LEN \
	ALIGN_DOWN(PAGE_SIZE - ONIC_HEADROOM - SKB_DATA_ALIGN(sizeof(struct skb_shared_info)), 64)
#define ONIC_MTU_MAX		(ONIC_BUF_LEN - ETH_HLEN - 2 * VLAN_HLEN)
/* Frames that XDP_TX collects before it takes the ring's lock. */
#define ONIC_XDP_BULK		16

struct onic_priv;

enum onic_tx_type {
	ONIC_TX_NONE,
	ONIC_TX_SKB,
	/* A frame in a page of our own pool, which stays mapped. */
	ONIC_TX_POOLED,
	/* A frame of somebody else's, mapped for sending. */
	ONIC_TX_MAPPED,
	ONIC_TX_XSK,
};

struct onic_tx_buf {
	enum onic_tx_type type;
	u32 len;
	dma_addr_t dma;
	union {
		struct sk_buff *skb;
		struct xdp_frame *frame;
	};
};

/* Counted under the lock that the queue is used under. */
struct onic_tx_stats {
	u64 packets, bytes, full, errors, xsk_packets;
};

/* A queue from host to card. */
struct onic_tx {
	struct {
		__le64 meta;
		__le64 addr;
	} *desc;
	__le64 *status;
	struct onic_tx_buf *buf;
	struct onic_priv *priv;
	u16 count;
	u16 head;
	u16 tail;
	u16 qid;
	u8 ring_index;
	bool is_xdp;
	/* Whether doorbells ask for an interrupt: from the end of NAPI to its next run. */
	bool armed;
	/* Of a queue for XDP. One of the stack is used under the lock that the stack has for it. */
	spinlock_t lock;
	dma_addr_t dma;
	struct onic_tx_stats stats;
	struct u64_stats_sync sync;
};

struct onic_rx_buf {
	struct page *page;
	dma_addr_t dma;
	struct xdp_buff *xsk;
};

/* Counted by NAPI alone. */
struct onic_rx_stats {
	u64 packets, bytes, bad, too_long, alloc_failed;
	u64 xdp_drop, xdp_pass, xdp_tx, xdp_tx_failed, xdp_redirect, xdp_redirect_failed;
	u64 xdp_aborted, xsk_packets, missed_irq;
#ifdef ONIC_MEASURE
	u64 poll_cycles, polls, poll_packets;
#endif
};

/* A queue from card to host, and its completions. */
struct onic_rx {
	__le64 *desc;
	__le64 *cmpl;
	struct onic_rx_buf *buf;
	struct onic_priv *priv;
	struct bpf_prog *prog;
	struct xsk_buff_pool *xsk;
	struct page_pool *pool;
	u16 count;
	/* Buffers given, and packets taken. */
	u16 head;
	u16 tail;
	u16 cmpl_at;
	u16 qid;
	u16 buf_len;
	u8 ring_index;
	bool colour;
	dma_addr_t dma, cmpl_dma;
	struct xdp_rxq_info rxq;
	struct xdp_frame *bulk[ONIC_XDP_BULK];
	unsigned int bulked;
#ifdef ONIC_LACK
	/* How many buffers were asked for. */
	unsigned int asked;
#endif
	struct onic_rx_stats stats;
	struct u64_stats_sync sync;
};

/* What a channel has counted: it goes on from there after the device was down, or reset. */
struct onic_counts {
	struct onic_rx_stats rx;
	struct onic_tx_stats tx, xtx;
};

/* A vector with what it serves. */
struct onic_channel {
	struct napi_struct napi;
	struct onic_priv *priv;
	struct onic_rx rx;
	struct onic_tx tx;
	struct onic_tx xtx;
	u16 index;
	/* Something lay there when it was looked at last, and where the channel was then. */
	bool suspect;
	u64 suspect_at;
	int irq;
	char name[IFNAMSIZ + 8];
};

struct onic_priv {
	struct pci_dev *pdev;
	struct net_device *netdev;
	void __iomem *qdma;
	void __iomem *shell;
	/* Number of the function on the card, which is that of its port, too. */
	u8 func;
	u16 qbase;
	bool error_irq;
	unsigned int vectors;
	unsigned int channels;
	u32 rx_ring, tx_ring;
	u8 counter_index;
	u8 timer_index;
	u32 rx_usecs, rx_frames;
	u32 key[ONIC_KEY_WORDS];
	u16 indir[ONIC_INDIR_SIZE];
	struct bpf_prog *prog;
	struct xsk_buff_pool *pools[ONIC_CHANNELS_MAX];
	struct onic_channel *channel[ONIC_CHANNELS_MAX];
	/* Of channels that are not there. */
	struct onic_counts counts[ONIC_CHANNELS_MAX];
	struct delayed_work link_work;
	struct work_struct reset_work;
	/* Of the port, which counts since it was asked last. */
	struct mutex port_lock;
	u64 port[6];
	u64 resets, card_errors;
};

/* onic_hw.c */
static inline u32 qdma_read(struct onic_priv *priv, u32 reg)
{
	return readl(priv->qdma + reg);
}

static inline void qdma_write(struct onic_priv *priv, u32 reg, u32 value)
{
	writel(value, priv->qdma + reg);
}

static inline u32 shell_read(struct onic_priv *priv, u32 reg)
{
	return readl(priv->shell + reg);
}

static inline void shell_write(struct onic_priv *priv, u32 reg, u32 value)
{
	writel(value, priv->shell + reg);
}

extern const u16 onic_ring_sizes[16];
extern const u16 onic_timers[16];
extern const u16 onic_counters[16];
#define ONIC_TICK_NS 100

int onic_hw_init(struct onic_priv *priv);
void onic_hw_fini(struct onic_priv *priv);
int onic_hw_map(struct onic_priv *priv);
void onic_hw_rss(struct onic_priv *priv);
int onic_hw_start_tx(struct onic_priv *priv, struct onic_tx *tx, u16 vector);
void onic_hw_stop_tx(struct onic_priv *priv, struct onic_tx *tx);
int onic_hw_start_rx(struct onic_priv *priv, struct onic_rx *rx, u16 vector);
void onic_hw_stop_rx(struct onic_priv *priv, struct onic_rx *rx);
int onic_hw_buf_index(u32 len);
u32 onic_hw_buf_len(int index);
int onic_hw_ring_index(u32 size);
bool onic_hw_link(struct onic_priv *priv);
void onic_hw_port_stats(struct onic_priv *priv);
void onic_hw_errors_arm(struct onic_priv *priv);
void onic_hw_errors_report(struct onic_priv *priv);
int onic_hw_self_test(struct onic_priv *priv);

/* onic_queue.c */
int onic_tx_alloc(struct onic_channel *ch, struct onic_tx *tx, u16 qid, bool is_xdp);
void onic_tx_release(struct onic_channel *ch, struct onic_tx *tx);
int onic_rx_alloc(struct onic_channel *ch);
void onic_rx_release(struct onic_channel *ch);
int onic_channel_start(struct onic_channel *ch);
void onic_channel_stop(struct onic_channel *ch);
int onic_poll(struct napi_struct *napi, int budget);
irqreturn_t onic_irq(int irq, void *data);
void onic_channel_look(struct onic_channel *ch);

/* onic_tx.c */
netdev_tx_t onic_xmit(struct sk_buff *skb, struct net_device *netdev);
int onic_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames, u32 flags);
void onic_xdp_tx_flush(struct onic_channel *ch);
bool onic_tx_clean_stack(struct onic_channel *ch, int budget);
void onic_xtx_clean(struct onic_channel *ch, bool napi);
void onic_tx_drop_all(struct onic_channel *ch, struct onic_tx *tx);
void onic_tx_arm(struct onic_channel *ch, struct onic_tx *tx);
bool onic_tx_pending(struct onic_tx *tx);

/* The caller has the lock of the ring, and there is room. */
static inline void onic_tx_put(struct onic_tx *tx, struct onic_tx_buf *buf)
{
	tx->desc[tx->head].meta = cpu_to_le64(onic_tx_desc(buf->len));
	tx->desc[tx->head].addr = cpu_to_le64(buf->dma);
	tx->buf[tx->head] = *buf;
	WRITE_ONCE(tx->head, onic_ring_next(tx->head, tx->count));
}

static inline u16 onic_tx_room(struct onic_tx *tx)
{
	return onic_ring_free(tx->head, READ_ONCE(tx->tail), tx->count);
}

static inline void onic_tx_doorbell(struct onic_priv *priv, struct onic_tx *tx)
{
	/* writel() orders the descriptors before it. */
	qdma_write(priv, QDMA_H2C_PIDX(tx->qid),
		   tx->head | (tx->armed ? QDMA_PIDX_ARM : 0));
}

/* onic_rx.c */
int onic_rx_poll(struct onic_channel *ch, int budget);
bool onic_rx_refill(struct onic_rx *rx);
void onic_rx_arm(struct onic_rx *rx, bool arm);
bool onic_rx_pending(struct onic_rx *rx);
int onic_rx_not_redirected(struct onic_channel *ch, struct bpf_prog *prog);
int onic_rx_verdict(struct onic_channel *ch, struct bpf_prog *prog, struct xdp_buff *xdp, u32 act,
		    bool *redirected);

/* Takes the next completion. */
static inline bool onic_rx_next(struct onic_rx *rx, u16 *len, bool *bad)
{
	u64 entry = le64_to_cpu(READ_ONCE(rx->cmpl[rx->cmpl_at]));

	if (!onic_cmpl_is_new(entry, rx->colour))
		return false;
	/* The packet is read after the completion that says it is there. */
	dma_rmb();
	rx->cmpl_at = onic_ring_next(rx->cmpl_at, rx->count);
	if (!rx->cmpl_at)
		rx->colour = !rx->colour;
	*len = onic_cmpl_len(entry);
	*bad = onic_cmpl_is_bad(entry);
	return true;
}

/* onic_rxmem_pool.c, or onic_rxmem_fixed.c */
int onic_rxmem_init(struct onic_channel *ch);
void onic_rxmem_fini(struct onic_rx *rx);
bool onic_rxmem_get(struct onic_rx *rx, struct onic_rx_buf *buf);
void onic_rxmem_put(struct onic_rx *rx, struct onic_rx_buf *buf);
struct sk_buff *onic_rxmem_skb(struct onic_channel *ch, struct onic_rx_buf *buf,
			       struct xdp_buff *xdp);
void onic_rxmem_given(struct onic_rx *rx, struct onic_rx_buf *buf);
/* Whether a frame of this memory stays mapped while it is sent. */
bool onic_rxmem_pooled(void);

/* onic_xsk.c */
int onic_xsk_setup(struct onic_priv *priv, struct xsk_buff_pool *pool, u16 index);
int onic_xsk_rxq(struct onic_rx *rx);
bool onic_xsk_refill(struct onic_rx *rx);
void onic_xsk_release(struct onic_rx *rx);
int onic_xsk_poll(struct onic_channel *ch, int budget, bool *redirected);
bool onic_xsk_xmit(struct onic_channel *ch, int budget);
int onic_xsk_wakeup(struct net_device *netdev, u32 index, u32 flags);

/* onic_netdev.c */
extern const struct net_device_ops onic_netdev_ops;
#ifdef ONIC_HAS_QUEUE_STATS
extern const struct netdev_stat_ops onic_stat_ops;
#endif
int onic_open(struct net_device *netdev);
int onic_close(struct net_device *netdev);
int onic_reopen(struct onic_priv *priv);
void onic_link_work(struct work_struct *work);
void onic_reset_work(struct work_struct *work);

/* onic_ethtool.c */
extern const struct ethtool_ops onic_ethtool_ops;

#endif
