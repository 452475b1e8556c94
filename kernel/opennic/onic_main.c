// SPDX-License-Identifier: GPL-2.0
/*
 * AMD OpenNIC shell: the functions of an FPGA card with queues by the QDMA engine and ports of
 * 100 Gb/s.
 */
#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pm.h>

#include "onic.h"

#define BAR_QDMA 0
#define BAR_SHELL 2

static irqreturn_t error_irq(int irq, void *data)
{
	onic_hw_errors_report(data);
	return IRQ_HANDLED;
}

static int interrupts_init(struct onic_priv *priv)
{
	int wanted = ONIC_VECTORS_OTHER + min_t(int, num_online_cpus(), ONIC_CHANNELS_MAX);
	int vectors, err;

	vectors = pci_alloc_irq_vectors(priv->pdev, ONIC_VECTORS_OTHER + 1,
					max(wanted, ONIC_VECTORS_OTHER + 8), PCI_IRQ_MSIX);
	if (vectors < 0)
		return vectors;
	priv->vectors = min(vectors - ONIC_VECTORS_OTHER, ONIC_CHANNELS_MAX);
	priv->channels = min_t(unsigned int, priv->vectors, num_online_cpus());
	/* The card has one place for errors: the first function looks at it. */
	if (priv->func)
		return 0;
	err = request_threaded_irq(pci_irq_vector(priv->pdev, 0), NULL, error_irq, IRQF_ONESHOT,
				   "opennic-errors", priv);
	if (err) {
		pci_free_irq_vectors(priv->pdev);
		return err;
	}
	priv->error_irq = true;
	onic_hw_errors_arm(priv);
	return 0;
}

static void interrupts_fini(struct onic_priv *priv)
{
	if (priv->error_irq)
		free_irq(pci_irq_vector(priv->pdev, 0), priv);
	pci_free_irq_vectors(priv->pdev);
}

static void netdev_init(struct onic_priv *priv)
{
	struct net_device *netdev = priv->netdev;

	netdev->netdev_ops = &onic_netdev_ops;
#ifdef ONIC_HAS_QUEUE_STATS
	netdev->stat_ops = &onic_stat_ops;
#endif
	netdev->ethtool_ops = &onic_ethtool_ops;
	netdev->watchdog_timeo = 5 * HZ;
	netdev->min_mtu = ETH_MIN_MTU;
	netdev->max_mtu = ONIC_MTU_MAX;
	netdev->features |= NETIF_F_HIGHDMA;
	netdev->hw_features |= NETIF_F_HIGHDMA;
#if __has_include(<uapi/linux/netdev.h>)
	netdev->xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT |
			       NETDEV_XDP_ACT_NDO_XMIT | NETDEV_XDP_ACT_XSK_ZEROCOPY;
#endif
	eth_hw_addr_random(netdev);
	netdev_rss_key_fill(priv->key, sizeof(priv->key));
	priv->rx_ring = ONIC_RING_DEFAULT;
	priv->tx_ring = ONIC_RING_DEFAULT;
	priv->timer_index = 4;
	priv->counter_index = 7;
	priv->rx_usecs = onic_timers[priv->timer_index];
	priv->rx_frames = onic_counters[priv->counter_index];
}

static int onic_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct net_device *netdev;
	struct onic_priv *priv;
	int err;

	netdev = devm_alloc_etherdev_mqs(&pdev->dev, sizeof(*priv), ONIC_CHANNELS_MAX,
					 ONIC_CHANNELS_MAX);
	if (!netdev)
		return -ENOMEM;
	SET_NETDEV_DEV(netdev, &pdev->dev);
	priv = netdev_priv(netdev);
	priv->netdev = netdev;
	priv->pdev = pdev;
	mutex_init(&priv->port_lock);
	INIT_DELAYED_WORK(&priv->link_work, onic_link_work);
	INIT_WORK(&priv->reset_work, onic_reset_work);
	pci_set_drvdata(pdev, priv);

	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	err = pcim_iomap_regions(pdev, BIT(BAR_QDMA) | BIT(BAR_SHELL), KBUILD_MODNAME);
	if (err)
		return err;
	priv->qdma = pcim_iomap_table(pdev)[BAR_QDMA];
	priv->shell = pcim_iomap_table(pdev)[BAR_SHELL];
	pci_set_master(pdev);
	err = onic_hw_init(priv);
	if (err)
		return err;
	err = interrupts_init(priv);
	if (err)
		goto err_hw;
	netdev_init(priv);
	err = netif_set_real_num_queues(netdev, priv->channels, priv->channels);
	if (err)
		goto err_interrupts;
	netif_carrier_off(netdev);
	err = register_netdev(netdev);
	if (err)
		goto err_interrupts;
	return 0;

err_interrupts:
	interrupts_fini(priv);
err_hw:
	onic_hw_fini(priv);
	pci_clear_master(pdev);
	return err;
}

static void onic_remove(struct pci_dev *pdev)
{
	struct onic_priv *priv = pci_get_drvdata(pdev);

	unregister_netdev(priv->netdev);
	cancel_work_sync(&priv->reset_work);
	onic_hw_fini(priv);
	interrupts_fini(priv);
	pci_clear_master(pdev);
}

/* Before the card forgets everything, and after. */
static void quiesce(struct onic_priv *priv)
{
	rtnl_lock();
	netif_device_detach(priv->netdev);
	if (netif_running(priv->netdev))
		onic_close(priv->netdev);
	rtnl_unlock();
}

static int revive(struct onic_priv *priv)
{
	int err;

	rtnl_lock();
	err = onic_hw_init(priv);
	if (!err && priv->error_irq)
		onic_hw_errors_arm(priv);
	if (!err && netif_running(priv->netdev))
		err = onic_open(priv->netdev);
	if (!err)
		netif_device_attach(priv->netdev);
	rtnl_unlock();
	return err;
}

static int __maybe_unused onic_suspend(struct device *dev)
{
	quiesce(dev_get_drvdata(dev));
	return 0;
}

static int __maybe_unused onic_resume(struct device *dev)
{
	return revive(dev_get_drvdata(dev));
}

static SIMPLE_DEV_PM_OPS(onic_pm_ops, onic_suspend, onic_resume);

static void onic_reset_prepare(struct pci_dev *pdev)
{
	quiesce(pci_get_drvdata(pdev));
}

static void onic_reset_done(struct pci_dev *pdev)
{
	struct onic_priv *priv = pci_get_drvdata(pdev);
	int err = revive(priv);

	priv->resets++;
	if (err)
		dev_err(&pdev->dev, "not ready after a reset: %d\n", err);
}

static const struct pci_error_handlers onic_error_handlers = {
	.reset_prepare = onic_reset_prepare,
	.reset_done = onic_reset_done,
};

static const struct pci_device_id onic_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_XILINX, 0x903f) },
	{ PCI_DEVICE(PCI_VENDOR_ID_XILINX, 0x913f) },
	{ }
};
MODULE_DEVICE_TABLE(pci, onic_ids);

static struct pci_driver onic_driver = {
	.name = KBUILD_MODNAME,
	.id_table = onic_ids,
	.probe = onic_probe,
	.remove = onic_remove,
	.driver.pm = &onic_pm_ops,
	.err_handler = &onic_error_handlers,
};
module_pci_driver(onic_driver);

MODULE_DESCRIPTION("AMD OpenNIC shell");
MODULE_LICENSE("GPL");
