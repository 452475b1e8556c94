// SPDX-License-Identifier: GPL-2.0
/* ethtool: rings, channels, coalescing, the receive hash, counters, a test of the card. */
#include <linux/ethtool.h>
#include <linux/netdevice.h>

#include "onic.h"

static void get_drvinfo(struct net_device *netdev, struct ethtool_drvinfo *info)
{
	struct onic_priv *priv = netdev_priv(netdev);

	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
	strscpy(info->bus_info, pci_name(priv->pdev), sizeof(info->bus_info));
}

static int get_link_ksettings(struct net_device *netdev, struct ethtool_link_ksettings *settings)
{
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	ethtool_link_ksettings_add_link_mode(settings, supported, 100000baseCR4_Full);
	ethtool_link_ksettings_add_link_mode(settings, supported, FIBRE);
	settings->base.speed = netif_carrier_ok(netdev) ? SPEED_100000 : SPEED_UNKNOWN;
	settings->base.duplex = netif_carrier_ok(netdev) ? DUPLEX_FULL : DUPLEX_UNKNOWN;
	settings->base.port = PORT_FIBRE;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static void get_ringparam(struct net_device *netdev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel_ring,
			  struct netlink_ext_ack *extack)
{
	struct onic_priv *priv = netdev_priv(netdev);

	ring->rx_max_pending = onic_ring_sizes[15];
	ring->tx_max_pending = onic_ring_sizes[15];
	ring->rx_pending = priv->rx_ring;
	ring->tx_pending = priv->tx_ring;
}

/* Runs the change with the device stopped; the old values if it does not start with the new. */
static int changed(struct onic_priv *priv, u32 rx_ring, u32 tx_ring, unsigned int channels)
{
	u32 old_rx = priv->rx_ring, old_tx = priv->tx_ring;
	unsigned int old_channels = priv->channels;
	bool running = netif_running(priv->netdev);
	int err;

	if (running)
		onic_close(priv->netdev);
	priv->rx_ring = rx_ring;
	priv->tx_ring = tx_ring;
	priv->channels = channels;
	if (!running)
		return netif_set_real_num_queues(priv->netdev, channels, channels);
	err = onic_open(priv->netdev);
	if (err) {
		priv->rx_ring = old_rx;
		priv->tx_ring = old_tx;
		priv->channels = old_channels;
		if (onic_open(priv->netdev))
			dev_close(priv->netdev);
	}
	return err;
}

static bool card_has_ring(u32 size)
{
	int index = onic_hw_ring_index(size);

	return index >= 0 && onic_ring_sizes[index] == size;
}

static int set_ringparam(struct net_device *netdev, struct ethtool_ringparam *ring,
			 struct kernel_ethtool_ringparam *kernel_ring,
			 struct netlink_ext_ack *extack)
{
	struct onic_priv *priv = netdev_priv(netdev);

	if (!card_has_ring(ring->rx_pending) || !card_has_ring(ring->tx_pending)) {
		NL_SET_ERR_MSG_MOD(extack, "the card has rings of 64 to 16384: 2^n and 3*2^n");
		return -EINVAL;
	}
	return changed(priv, ring->rx_pending, ring->tx_pending, priv->channels);
}

static void get_channels(struct net_device *netdev, struct ethtool_channels *channels)
{
	struct onic_priv *priv = netdev_priv(netdev);

	channels->max_combined = min(priv->vectors, (unsigned int)ONIC_CHANNELS_MAX);
	channels->combined_count = priv->channels;
}

static int set_channels(struct net_device *netdev, struct ethtool_channels *channels)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i;

	for (i = channels->combined_count; i < priv->channels; i++) {
		if (priv->pools[i])
			return -EBUSY;
	}
	if (netif_is_rxfh_configured(netdev)) {
		for (i = 0; i < ONIC_INDIR_SIZE; i++) {
			if (priv->indir[i] >= channels->combined_count)
				return -EINVAL;
		}
	}
	return changed(priv, priv->rx_ring, priv->tx_ring, channels->combined_count);
}

static int get_coalesce(struct net_device *netdev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct onic_priv *priv = netdev_priv(netdev);

	coalesce->rx_coalesce_usecs = priv->rx_usecs;
	coalesce->rx_max_coalesced_frames = priv->rx_frames;
	return 0;
}

static int table_index(const u16 *table, u32 value)
{
	int i;

	for (i = 0; i < 16; i++) {
		if (table[i] >= value)
			return i;
	}
	return -EINVAL;
}

/* The next value that the card has. It is used from the next interrupt on. */
static int set_coalesce(struct net_device *netdev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct onic_priv *priv = netdev_priv(netdev);
	int timer = table_index(onic_timers, coalesce->rx_coalesce_usecs);
	int counter = table_index(onic_counters, coalesce->rx_max_coalesced_frames);

	if (timer < 0 || counter < 0) {
		NL_SET_ERR_MSG_MOD(extack, "at most 1000 microseconds and 192 frames");
		return -EINVAL;
	}
	WRITE_ONCE(priv->timer_index, timer);
	WRITE_ONCE(priv->counter_index, counter);
	priv->rx_usecs = onic_timers[timer];
	priv->rx_frames = onic_counters[counter];
	return 0;
}

/* How many queues the hash can choose from. */
#ifdef ONIC_HAS_RX_RING_COUNT
static u32 get_rx_ring_count(struct net_device *netdev)
{
	struct onic_priv *priv = netdev_priv(netdev);

	return priv->channels;
}
#else
static int get_rxnfc(struct net_device *netdev, struct ethtool_rxnfc *info, u32 *rules)
{
	struct onic_priv *priv = netdev_priv(netdev);

	if (info->cmd != ETHTOOL_GRXRINGS)
		return -EOPNOTSUPP;
	info->data = priv->channels;
	return 0;
}
#endif

static u32 get_rxfh_key_size(struct net_device *netdev)
{
	return ONIC_KEY_WORDS * 4;
}

static u32 get_rxfh_indir_size(struct net_device *netdev)
{
	return ONIC_INDIR_SIZE;
}

static void rss_get(struct onic_priv *priv, u32 *indir, u8 *key)
{
	int i;

	for (i = 0; indir && i < ONIC_INDIR_SIZE; i++)
		indir[i] = priv->indir[i];
	if (key)
		memcpy(key, priv->key, sizeof(priv->key));
}

static int rss_set(struct onic_priv *priv, const u32 *indir, const u8 *key)
{
	int i;

	for (i = 0; indir && i < ONIC_INDIR_SIZE; i++) {
		if (indir[i] >= priv->channels)
			return -EINVAL;
	}
	for (i = 0; indir && i < ONIC_INDIR_SIZE; i++)
		priv->indir[i] = indir[i];
	if (key)
		memcpy(priv->key, key, sizeof(priv->key));
	onic_hw_rss(priv);
	return 0;
}

#ifdef ONIC_HAS_RXFH_PARAM
static int get_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh)
{
	rss_get(netdev_priv(netdev), rxfh->indir, rxfh->key);
	/* The shell's own, which reads its key from the other end. */
	rxfh->hfunc = ETH_RSS_HASH_TOP;
	return 0;
}

static int set_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh,
		    struct netlink_ext_ack *extack)
{
	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE && rxfh->hfunc != ETH_RSS_HASH_TOP)
		return -EOPNOTSUPP;
	return rss_set(netdev_priv(netdev), rxfh->indir, rxfh->key);
}
#else
static int get_rxfh(struct net_device *netdev, u32 *indir, u8 *key, u8 *hfunc)
{
	rss_get(netdev_priv(netdev), indir, key);
	if (hfunc)
		*hfunc = ETH_RSS_HASH_TOP;
	return 0;
}

static int set_rxfh(struct net_device *netdev, const u32 *indir, const u8 *key, const u8 hfunc)
{
	if (hfunc != ETH_RSS_HASH_NO_CHANGE && hfunc != ETH_RSS_HASH_TOP)
		return -EOPNOTSUPP;
	return rss_set(netdev_priv(netdev), indir, key);
}
#endif

#define RX(name) { #name, offsetof(struct onic_rx_stats, name) }
static const struct {
	const char *name;
	size_t offset;
} rx_counters[] = {
	RX(packets), RX(bytes), RX(bad), RX(too_long), RX(alloc_failed), RX(xdp_drop), RX(xdp_pass),
	RX(xdp_tx), RX(xdp_tx_failed), RX(xdp_redirect), RX(xdp_redirect_failed), RX(xdp_aborted),
	RX(xsk_packets), RX(missed_irq),
#ifdef ONIC_MEASURE
	RX(poll_cycles), RX(polls), RX(poll_packets),
#endif
};

static const char *const tx_counters[] = { "packets", "bytes", "full", "xsk_packets" };

static const char *const card_counters[] = {
	"port_tx_packets", "port_tx_bytes", "port_rx_packets", "port_rx_bytes", "port_rx_bad_fcs",
	"port_rx_dropped", "resets", "card_errors",
};

#define POOL_STATS (IS_ENABLED(CONFIG_PAGE_POOL_STATS) ? page_pool_ethtool_stats_get_count() : 0)

static int get_sset_count(struct net_device *netdev, int set)
{
	struct onic_priv *priv = netdev_priv(netdev);

	switch (set) {
	case ETH_SS_STATS:
		return ARRAY_SIZE(card_counters) + POOL_STATS +
		       priv->channels * (ARRAY_SIZE(rx_counters) + 2 * ARRAY_SIZE(tx_counters));
	case ETH_SS_TEST:
		return 2;
	default:
		return -EOPNOTSUPP;
	}
}

static void put_string(u8 **at, const char *form, const char *name, unsigned int index)
{
	char text[ETH_GSTRING_LEN] = "";

	snprintf(text, sizeof(text), form, index, name);
	memcpy(*at, text, ETH_GSTRING_LEN);
	*at += ETH_GSTRING_LEN;
}

static void put_name(u8 **at, const char *name)
{
	char text[ETH_GSTRING_LEN] = "";

	strscpy(text, name, sizeof(text));
	memcpy(*at, text, ETH_GSTRING_LEN);
	*at += ETH_GSTRING_LEN;
}

static void get_strings(struct net_device *netdev, u32 set, u8 *at)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i, k;

	if (set == ETH_SS_TEST) {
		put_name(&at, "registers");
		put_name(&at, "link");
		return;
	}
	for (k = 0; k < ARRAY_SIZE(card_counters); k++)
		put_name(&at, card_counters[k]);
	for (i = 0; i < priv->channels; i++) {
		for (k = 0; k < ARRAY_SIZE(rx_counters); k++)
			put_string(&at, "rx%u_%s", rx_counters[k].name, i);
		for (k = 0; k < ARRAY_SIZE(tx_counters); k++)
			put_string(&at, "tx%u_%s", tx_counters[k], i);
		for (k = 0; k < ARRAY_SIZE(tx_counters); k++)
			put_string(&at, "xdp_tx%u_%s", tx_counters[k], i);
	}
#ifdef CONFIG_PAGE_POOL_STATS
	page_pool_ethtool_stats_get_strings(at);
#endif
}

static u64 *put_tx(u64 *at, const struct onic_tx_stats *tx)
{
	*at++ = tx->packets;
	*at++ = tx->bytes;
	*at++ = tx->full;
	*at++ = tx->xsk_packets;
	return at;
}

static void get_ethtool_stats(struct net_device *netdev, struct ethtool_stats *stats, u64 *at)
{
	struct onic_priv *priv = netdev_priv(netdev);
	unsigned int i, k;
#ifdef CONFIG_PAGE_POOL_STATS
	struct page_pool_stats pool = { 0 };
#endif

	onic_hw_port_stats(priv);
	for (k = 0; k < ARRAY_SIZE(priv->port); k++)
		*at++ = priv->port[k];
	*at++ = priv->resets;
	*at++ = priv->card_errors;
	for (i = 0; i < priv->channels; i++) {
		struct onic_channel *ch = priv->channel[i];
		const struct onic_counts *counts = &priv->counts[i];
		const void *rx = ch ? &ch->rx.stats : &counts->rx;

		for (k = 0; k < ARRAY_SIZE(rx_counters); k++)
			*at++ = *(const u64 *)(rx + rx_counters[k].offset);
		at = put_tx(at, ch ? &ch->tx.stats : &counts->tx);
		at = put_tx(at, ch ? &ch->xtx.stats : &counts->xtx);
#ifdef CONFIG_PAGE_POOL_STATS
		if (ch && ch->rx.pool)
			page_pool_get_stats(ch->rx.pool, &pool);
#endif
	}
#ifdef CONFIG_PAGE_POOL_STATS
	page_pool_ethtool_stats_get(at, &pool);
#endif
}

static void self_test(struct net_device *netdev, struct ethtool_test *test, u64 *data)
{
	struct onic_priv *priv = netdev_priv(netdev);

	data[0] = netif_running(netdev) ? onic_hw_self_test(priv) != 0 : 0;
	data[1] = netif_running(netdev) ? !onic_hw_link(priv) : 0;
	if (data[0] || data[1])
		test->flags |= ETH_TEST_FL_FAILED;
}

const struct ethtool_ops onic_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS | ETHTOOL_COALESCE_RX_MAX_FRAMES,
	.get_drvinfo = get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = get_link_ksettings,
	.get_ringparam = get_ringparam,
	.set_ringparam = set_ringparam,
	.get_channels = get_channels,
	.set_channels = set_channels,
	.get_coalesce = get_coalesce,
	.set_coalesce = set_coalesce,
#ifdef ONIC_HAS_RX_RING_COUNT
	.get_rx_ring_count = get_rx_ring_count,
#else
	.get_rxnfc = get_rxnfc,
#endif
	.get_rxfh_key_size = get_rxfh_key_size,
	.get_rxfh_indir_size = get_rxfh_indir_size,
	.get_rxfh = get_rxfh,
	.set_rxfh = set_rxfh,
	.get_sset_count = get_sset_count,
	.get_strings = get_strings,
	.get_ethtool_stats = get_ethtool_stats,
	.self_test = self_test,
	.get_ts_info = ethtool_op_get_ts_info,
};
