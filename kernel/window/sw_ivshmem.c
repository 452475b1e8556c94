// SPDX-License-Identifier: GPL-2.0
/*
 * Windows in virtual machines: QEMU's ivshmem-doorbell and ivshmem-plain (docs/specs/ivshmem-spec,
 * revision 1). BAR 0 has the registers, BAR 2 the memory, which is the host's own: caches agree.
 */
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "sw.h"

#define REG_POSITION	8
#define REG_DOORBELL	12
/* What is asked for; the device may have fewer. */
#define VECTORS_MAX	8

struct vector {
	struct ivshmem *device;
	u32 number;
};

struct ivshmem {
	struct pci_dev *pdev;
	void __iomem *registers;
	u8 *memory;
	struct sw_window *window;
	int vectors;
	struct vector vector[VECTORS_MAX];
};

static void ring(void *backend, u32 bell, u32 vector)
{
	struct ivshmem *device = backend;

	/* What was written before is seen before: writel is ordered behind all of it. */
	writel(bell << 16 | vector, device->registers + REG_DOORBELL);
}

static unsigned long pfn(void *backend, const struct sw_view *view, u32 slot, u64 at)
{
	struct ivshmem *device = backend;

	return PHYS_PFN(pci_resource_start(device->pdev, 2) +
			sw_slot_at(slot, view->slot_bytes) + at);
}

static const struct sw_ops ops = {
	.ring = ring,
	.pfn = pfn,
};

static irqreturn_t interrupt(int irq, void *data)
{
	struct vector *vector = data;

	sw_window_rang(vector->device->window, vector->number);
	return IRQ_HANDLED;
}

static void free_interrupts(struct ivshmem *device, int count)
{
	while (count--)
		free_irq(pci_irq_vector(device->pdev, count), &device->vector[count]);
}

static int request_interrupts(struct ivshmem *device)
{
	int i, err;

	for (i = 0; i < device->vectors; i++) {
		device->vector[i].device = device;
		device->vector[i].number = i;
		err = request_irq(pci_irq_vector(device->pdev, i), interrupt, 0, "sluice_window",
				  &device->vector[i]);
		if (err) {
			free_interrupts(device, i);
			return err;
		}
	}
	return 0;
}

static int add_window(struct ivshmem *device)
{
	struct sw_config config = {
		.ops = &ops,
		.backend = device,
		.parent = &device->pdev->dev,
		.bell = readl(device->registers + REG_POSITION),
		.vectors = device->vectors,
		.region = device->memory,
		.region_bytes = pci_resource_len(device->pdev, 2),
	};
	int err;

	if (config.bell > U16_MAX)
		config.vectors = 0;
	device->window = sw_window_add(&config);
	err = PTR_ERR_OR_ZERO(device->window);
	/* Others use such devices too. */
	if (err && err != -ENODEV)
		dev_warn(&device->pdev->dev, "a window that cannot be used: %d\n", err);
	return err;
}

static int sw_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ivshmem *device = devm_kzalloc(&pdev->dev, sizeof(*device), GFP_KERNEL);
	int err;

	if (!device)
		return -ENOMEM;
	device->pdev = pdev;
	pci_set_drvdata(pdev, device);
	err = pci_enable_device(pdev);
	if (err)
		return err;
	err = pci_request_regions(pdev, "sluice_window");
	if (err)
		goto err_disable;
	err = -ENOMEM;
	device->registers = pci_iomap(pdev, 0, 0);
	if (!device->registers)
		goto err_regions;
	device->memory = memremap(pci_resource_start(pdev, 2), pci_resource_len(pdev, 2),
				  MEMREMAP_WB);
	if (!device->memory)
		goto err_registers;
	pci_set_master(pdev);
	/* The plain device has no doorbells. */
	device->vectors = pci_alloc_irq_vectors(pdev, 1, VECTORS_MAX, PCI_IRQ_MSIX);
	if (device->vectors < 0)
		device->vectors = 0;
	err = add_window(device);
	if (err)
		goto err_vectors;
	err = request_interrupts(device);
	if (err)
		goto err_window;
	return 0;

err_window:
	sw_window_remove(device->window);
err_vectors:
	if (device->vectors)
		pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
	memunmap(device->memory);
err_registers:
	pci_iounmap(pdev, device->registers);
err_regions:
	pci_release_regions(pdev);
err_disable:
	pci_disable_device(pdev);
	return err;
}

static void sw_remove(struct pci_dev *pdev)
{
	struct ivshmem *device = pci_get_drvdata(pdev);

	free_interrupts(device, device->vectors);
	sw_window_remove(device->window);
	if (device->vectors)
		pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
	memunmap(device->memory);
	pci_iounmap(pdev, device->registers);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
	.name = "sluice_window",
	.id_table = ids,
	.probe = sw_probe,
	.remove = sw_remove,
};

int sw_ivshmem_register(void)
{
	return pci_register_driver(&driver);
}

void sw_ivshmem_unregister(void)
{
	pci_unregister_driver(&driver);
}
