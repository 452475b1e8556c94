// SPDX-License-Identifier: GPL-2.0
/*
 * The network device of a RoCE port. It carries no packet: its addresses are the port's GIDs, and its
 * routes say which addresses are reached by the window.
 */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>

#include "sr.h"

/* A path's MTU of 4096 and all headers that RoCE has. */
#define MTU	4200

struct sr_net {
	struct sr_device *device;
};

static int open(struct net_device *net)
{
	struct sr_net *own = netdev_priv(net);

	sr_device_told(own->device);
	return 0;
}

static netdev_tx_t xmit(struct sk_buff *skb, struct net_device *net)
{
	net->stats.tx_dropped++;
	dev_kfree_skb_any(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops ops = {
	.ndo_open = open,
	.ndo_stop = open,
	.ndo_start_xmit = xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static void setup(struct net_device *net)
{
	ether_setup(net);
	net->netdev_ops = &ops;
	net->mtu = MTU;
	net->max_mtu = MTU;
	/* Who has an address is asked of the connection managers of all hosts. */
	net->flags |= IFF_NOARP;
	net->priv_flags |= IFF_NO_QUEUE;
	eth_hw_addr_random(net);
}

int sr_net_begin(struct sr_device *device)
{
	struct net_device *net = alloc_netdev(sizeof(struct sr_net), "sluice%d", NET_NAME_ENUM, setup);
	struct sr_net *own;
	int err;

	if (!net)
		return -ENOMEM;
	own = netdev_priv(net);
	own->device = device;
	SET_NETDEV_DEV(net, sluice_window_device(device->window));
	netif_carrier_off(net);
	err = register_netdev(net);
	if (err) {
		free_netdev(net);
		return err;
	}
	err = ib_device_set_netdev(&device->ib, net, SR_ROCE_PORT);
	if (err) {
		unregister_netdev(net);
		free_netdev(net);
		return err;
	}
	device->net = net;
	return 0;
}

void sr_net_end(struct sr_device *device)
{
	if (!device->net)
		return;
	/* Where there is an RDMA device no more it has let go already. */
	if (!device->registered)
		ib_device_set_netdev(&device->ib, NULL, SR_ROCE_PORT);
	unregister_netdev(device->net);
	free_netdev(device->net);
	device->net = NULL;
}

void sr_net_carries(struct sr_device *device, bool carries)
{
	if (!device->net)
		return;
	if (carries)
		netif_carrier_on(device->net);
	else
		netif_carrier_off(device->net);
}

bool sr_net_is_up(const struct sr_device *device)
{
	return device->net && netif_running(device->net);
}
