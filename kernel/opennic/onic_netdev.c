// SPDX-License-Identifier: GPL-2.0
/* The network device: up and down, programs, counters, the link. */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/interrupt.h>
#include <net/xdp_sock_drv.h>

#include "onic.h"

#define LINK_INTERVAL (HZ / 5)

static void stop_channels(struct onic_priv *priv, unsigned int count)
{
	/* None are there of a device that did not come back from a reset. */
	while (count--) {
		if (priv->channel[count])
			onic_channel_stop(priv->channel[count]);
	}
}

static void remove_channels(struct onic_priv *priv)
{
	unsigned int i;

	for (i = 0; i < ONIC_CHANNELS_MAX; i++) {
		struct onic_channel *ch = priv->channel[i];

		if (!ch)
			continue;
		if (ch->irq)
			free_irq(ch->irq, ch);
		netif_napi_del(&ch->napi);
		priv->counts[i].rx = ch->rx.stats;
		priv->counts[i].tx = ch->tx.stats;
		priv->counts[i].xtx = ch->xtx.stats;
		WRITE_ONCE(priv->channel[i], NULL);
		/* onic_xdp_xmit() may have it still. */
		synchronize_net();
		kfree(ch);
	}
}

static int add_channel(struct onic_priv *priv, u16 index)
{
	struct onic_channel *ch = kzalloc_node(sizeof(*ch), GFP_KERNEL,
					       dev_to_node(&priv->pdev->dev));
	int err;

	if (!ch)
		return -ENOMEM;
	ch->priv = priv;
	ch->index = index;
	spin_lock_init(&ch->tx.lock);
	spin_lock_init(&ch->xtx.lock);
	u64_stats_init(&ch->rx.sync);
	u64_stats_init(&ch->tx.sync);
	u64_stats_init(&ch->xtx.sync);
	ch->rx.stats = priv->counts[index].rx;
	ch->tx.stats = priv->counts[index].tx;
	ch->xtx.stats = priv->counts[index].xtx;
#ifdef ONIC_HAS_NAPI_CONFIG
	netif_napi_add_config(priv->netdev, &ch->napi, onic_poll, index);
#else
	netif_napi_add(priv->netdev, &ch->napi, onic_poll);
#endif
	WRITE_ONCE(priv->channel[index], ch);
	snprintf(ch->name, sizeof(ch->name), "%s-%u", priv->netdev->name, index);
	err = pci_irq_vector(priv->pdev, ONIC_VECTORS_OTHER + index);
	if (err < 0)
		return err;
	err = request_irq(err, onic_irq, 0, ch->name, ch);
	if (err)
		return err;
	ch->irq = pci_irq_vector(priv->pdev, ONIC_VECTORS_OTHER + index);
#ifdef ONIC_HAS_QUEUE_NAPI
	netif_napi_set_irq(&ch->napi, ch->irq);
#endif
	return 0;
}

int onic_open(struct net_device *netdev)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i;
	int err;

	if (!netif_is_rxfh_configured(netdev)) {
		for (i = 0; i < ONIC_INDIR_SIZE; i++)
			priv->indir[i] = ethtool_rxfh_indir_default(i, priv->channels);
	}
	for (i = 0; i < priv->channels; i++) {
		err = add_channel(priv, i);
		if (err)
			goto err_channels;
	}
	err = onic_hw_map(priv);
	if (err)
		goto err_channels;
	onic_hw_rss(priv);
	for (i = 0; i < priv->channels; i++) {
		err = onic_channel_start(priv->channel[i]);
		if (err) {
			stop_channels(priv, i);
			goto err_channels;
		}
	}
	err = netif_set_real_num_queues(netdev, priv->channels, priv->channels);
	if (err) {
		stop_channels(priv, priv->channels);
		goto err_channels;
	}
	netif_tx_start_all_queues(netdev);
	schedule_delayed_work(&priv->link_work, 0);
	return 0;

err_channels:
	remove_channels(priv);
	return err;
}

int onic_close(struct net_device *netdev)
{
	struct onic_priv *priv = netdev_priv(netdev);

	cancel_delayed_work_sync(&priv->link_work);
	netif_carrier_off(netdev);
	netif_tx_disable(netdev);
	stop_channels(priv, priv->channels);
	remove_channels(priv);
	return 0;
}

/* With what was changed; as it was before if that fails is the caller's. */
int onic_reopen(struct onic_priv *priv)
{
	if (!netif_running(priv->netdev))
		return 0;
	onic_close(priv->netdev);
	return onic_open(priv->netdev);
}

void onic_link_work(struct work_struct *work)
{
	struct onic_priv *priv = container_of(work, struct onic_priv, link_work.work);
	struct net_device *netdev = priv->netdev;
	bool up = onic_hw_link(priv);
	unsigned int i;

	if (up != netif_carrier_ok(netdev)) {
		netdev_info(netdev, "link %s\n", up ? "up" : "down");
		if (up)
			netif_carrier_on(netdev);
		else
			netif_carrier_off(netdev);
	}
	/* A queue that filled while the link was down is waited for by nobody. */
	for (i = 0; i < priv->channels; i++)
		onic_channel_look(priv->channel[i]);
	schedule_delayed_work(&priv->link_work, LINK_INTERVAL);
}

void onic_reset_work(struct work_struct *work)
{
	struct onic_priv *priv = container_of(work, struct onic_priv, reset_work);
	int err;

	rtnl_lock();
	/* Whoever resets it or sends it to sleep opens it again. */
	if (netif_running(priv->netdev) && netif_device_present(priv->netdev)) {
		priv->resets++;
		err = onic_reopen(priv);
		if (err) {
			netdev_err(priv->netdev, "does not come back: %d\n", err);
			dev_close(priv->netdev);
		}
	}
	rtnl_unlock();
}

static void onic_tx_timeout(struct net_device *netdev, unsigned int index)
{
	struct onic_priv *priv = netdev_priv(netdev);
	struct onic_channel *ch = READ_ONCE(priv->channel[index]);

	if (ch)
		netdev_err(netdev, "queue %u does not send: given %u, card at %llx, taken %u, %s; queue %lx, NAPI %lx\n",
			   index, ch->tx.head,
			   ch->tx.status ? le64_to_cpu(READ_ONCE(*ch->tx.status)) : 0, ch->tx.tail,
			   ch->tx.armed ? "armed" : "not armed",
			   netdev_get_tx_queue(netdev, index)->state, ch->napi.state);
	schedule_work(&priv->reset_work);
}

static struct onic_tx_stats tx_counts(struct onic_tx *tx)
{
	struct onic_tx_stats counts;
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&tx->sync);
		counts = tx->stats;
	} while (u64_stats_fetch_retry(&tx->sync, start));
	return counts;
}

static struct onic_counts channel_counts(struct onic_priv *priv, unsigned int index)
{
	struct onic_channel *ch = READ_ONCE(priv->channel[index]);
	struct onic_counts counts = priv->counts[index];
	unsigned int start;

	if (ch) {
		do {
			start = u64_stats_fetch_begin(&ch->rx.sync);
			counts.rx = ch->rx.stats;
		} while (u64_stats_fetch_retry(&ch->rx.sync, start));
		counts.tx = tx_counts(&ch->tx);
		counts.xtx = tx_counts(&ch->xtx);
	}
	return counts;
}

static void onic_get_stats64(struct net_device *netdev, struct rtnl_link_stats64 *stats)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i;

	for (i = 0; i < ONIC_CHANNELS_MAX; i++) {
		struct onic_counts c = channel_counts(priv, i);

		stats->rx_packets += c.rx.packets;
		stats->rx_bytes += c.rx.bytes;
		stats->rx_errors += c.rx.bad + c.rx.too_long;
		stats->rx_length_errors += c.rx.too_long;
		stats->rx_dropped += c.rx.alloc_failed;
		stats->tx_packets += c.tx.packets + c.xtx.packets;
		stats->tx_bytes += c.tx.bytes + c.xtx.bytes;
		stats->tx_errors += c.tx.errors;
	}
	stats->rx_missed_errors = READ_ONCE(priv->port[5]);
}

#ifdef ONIC_HAS_QUEUE_STATS
static void onic_queue_stats_rx(struct net_device *netdev, int index,
				struct netdev_queue_stats_rx *stats)
{
	struct onic_counts c = channel_counts(netdev_priv(netdev), index);

	stats->packets = c.rx.packets;
	stats->bytes = c.rx.bytes;
	stats->alloc_fail = c.rx.alloc_failed;
}

static void onic_queue_stats_tx(struct net_device *netdev, int index,
				struct netdev_queue_stats_tx *stats)
{
	struct onic_counts c = channel_counts(netdev_priv(netdev), index);

	stats->packets = c.tx.packets;
	stats->bytes = c.tx.bytes;
}

/* Of queues that the stack does not see: those of XDP, and those that were there once. */
static void onic_base_stats(struct net_device *netdev, struct netdev_queue_stats_rx *rx,
			    struct netdev_queue_stats_tx *tx)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i;

	rx->packets = 0;
	rx->bytes = 0;
	rx->alloc_fail = 0;
	tx->packets = 0;
	tx->bytes = 0;
	for (i = 0; i < ONIC_CHANNELS_MAX; i++) {
		struct onic_counts c = channel_counts(priv, i);

		tx->packets += c.xtx.packets;
		tx->bytes += c.xtx.bytes;
		if (i < priv->channels)
			continue;
		rx->packets += c.rx.packets;
		rx->bytes += c.rx.bytes;
		rx->alloc_fail += c.rx.alloc_failed;
		tx->packets += c.tx.packets;
		tx->bytes += c.tx.bytes;
	}
}

const struct netdev_stat_ops onic_stat_ops = {
	.get_queue_stats_rx = onic_queue_stats_rx,
	.get_queue_stats_tx = onic_queue_stats_tx,
	.get_base_stats = onic_base_stats,
};
#endif

/* A program changes between two packets: nothing stops and nothing is lost. */
static int set_program(struct onic_priv *priv, struct bpf_prog *prog)
{
	struct bpf_prog *old = xchg(&priv->prog, prog);
	unsigned int i;

	for (i = 0; i < ONIC_CHANNELS_MAX; i++) {
		if (priv->channel[i])
			WRITE_ONCE(priv->channel[i]->rx.prog, prog);
	}
	if (old)
		bpf_prog_put(old);
	return 0;
}

static int onic_bpf(struct net_device *netdev, struct netdev_bpf *bpf)
{
	struct onic_priv *priv = netdev_priv(netdev);

	switch (bpf->command) {
	case XDP_SETUP_PROG:
		return set_program(priv, bpf->prog);
	case XDP_SETUP_XSK_POOL:
		return onic_xsk_setup(priv, bpf->xsk.pool, bpf->xsk.queue_id);
	default:
		return -EINVAL;
	}
}

static int onic_change_mtu(struct net_device *netdev, int mtu)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i;

	/* A receive buffer takes any packet of the longest MTU, but for those of AF_XDP. */
	for (i = 0; i < priv->channels; i++) {
		int buf;

		if (!priv->pools[i])
			continue;
		buf = onic_hw_buf_index(xsk_pool_get_rx_frame_size(priv->pools[i]));
		if (buf < 0 || mtu + ETH_HLEN + VLAN_HLEN > onic_hw_buf_len(buf))
			return -EINVAL;
	}
	WRITE_ONCE(netdev->mtu, mtu);
	return 0;
}

const struct net_device_ops onic_netdev_ops = {
	.ndo_open = onic_open,
	.ndo_stop = onic_close,
	.ndo_start_xmit = onic_xmit,
	.ndo_tx_timeout = onic_tx_timeout,
	.ndo_get_stats64 = onic_get_stats64,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_change_mtu = onic_change_mtu,
	.ndo_bpf = onic_bpf,
	.ndo_xdp_xmit = onic_xdp_xmit,
	.ndo_xsk_wakeup = onic_xsk_wakeup,
};
