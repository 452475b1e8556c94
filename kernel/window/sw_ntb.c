// SPDX-License-Identifier: GPL-2.0
/*
 * Windows across PCIe non-transparent bridges, any that the kernel has a driver for. It was never
 * run: it compiles, and what drives it runs over ivshmem.
 *
 * Both sides set up memory for the other one to write, say by two scratchpads how much of the way
 * in both directions they have, and use as much as both have. The window is there as long as the
 * link is up.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/ntb.h>
#include <linux/pci.h>

#include "sw.h"

#define PEER		0
#define MEMORY_WINDOW	0
/* Scratchpads, written by the other side: that this is what it speaks, and pages of a slot. */
#define SPAD_HELLO	0
#define SPAD_PAGES	1
#define HELLO		(0x534c5500u | SW_VERSION)
#define LOOK_AGAIN	(HZ / 10)

static unsigned int slot_mib = 16;
module_param(slot_mib, uint, 0444);
MODULE_PARM_DESC(slot_mib, "memory for the other side to write, MiB (16), if the bridge has so much");

struct bridge {
	struct ntb_dev *ntb;
	struct delayed_work work;
	u64 doorbells;

	void *in;
	dma_addr_t in_dma;
	size_t in_bytes;
	void __iomem *out;
	phys_addr_t out_at;
	resource_size_t out_bytes;

	/* For interrupts. */
	spinlock_t lock;
	struct sw_window *window;
};

static void ring(void *backend, u32 bell, u32 vector)
{
	struct bridge *bridge = backend;

	if (vector < 64 && (bridge->doorbells & BIT_ULL(vector)))
		ntb_peer_db_set(bridge->ntb, BIT_ULL(vector));
}

static unsigned long pfn(void *backend, const struct sw_view *view, u32 slot, u64 at)
{
	struct bridge *bridge = backend;

	/* Sides are slots; the core asks for its own and for its peer's only. */
	if (slot != view->me)
		return PHYS_PFN(bridge->out_at + at);
	if (is_vmalloc_addr(bridge->in))
		return vmalloc_to_pfn(bridge->in + at);
	return PHYS_PFN(virt_to_phys(bridge->in) + at);
}

static const struct sw_ops ops = {
	.ring = ring,
	.pfn = pfn,
};

static void free_memory(struct bridge *bridge)
{
	if (bridge->out)
		iounmap(bridge->out);
	bridge->out = NULL;
	if (bridge->in) {
		ntb_mw_clear_trans(bridge->ntb, PEER, MEMORY_WINDOW);
		dma_free_coherent(&bridge->ntb->pdev->dev, bridge->in_bytes, bridge->in,
				  bridge->in_dma);
	}
	bridge->in = NULL;
}

static int get_memory(struct bridge *bridge)
{
	resource_size_t align, size_align, size_max;
	struct ntb_dev *ntb = bridge->ntb;
	int err;

	err = ntb_mw_get_align(ntb, PEER, MEMORY_WINDOW, &align, &size_align, &size_max);
	if (err)
		return err;
	bridge->in_bytes = min_t(u64, size_max, (u64)slot_mib << 20);
	bridge->in_bytes -= bridge->in_bytes % max_t(size_t, size_align, SW_PAGE);
	if (!bridge->in_bytes)
		return -ENOSPC;
	bridge->in = dma_alloc_coherent(&ntb->pdev->dev, bridge->in_bytes, &bridge->in_dma,
					GFP_KERNEL);
	if (!bridge->in)
		return -ENOMEM;
	err = -EINVAL;
	if (IS_ALIGNED(bridge->in_dma, align))
		err = ntb_mw_set_trans(ntb, PEER, MEMORY_WINDOW, bridge->in_dma,
				       bridge->in_bytes);
	if (err) {
		dma_free_coherent(&ntb->pdev->dev, bridge->in_bytes, bridge->in, bridge->in_dma);
		bridge->in = NULL;
		return err;
	}
	err = ntb_peer_mw_get_addr(ntb, MEMORY_WINDOW, &bridge->out_at, &bridge->out_bytes);
	if (!err) {
		bridge->out = ioremap_wc(bridge->out_at, bridge->out_bytes);
		err = bridge->out ? 0 : -ENOMEM;
	}
	if (err)
		free_memory(bridge);
	return err;
}

static void remove_window(struct bridge *bridge)
{
	struct sw_window *window = bridge->window;

	spin_lock_irq(&bridge->lock);
	bridge->window = NULL;
	spin_unlock_irq(&bridge->lock);
	if (window)
		sw_window_remove(window);
	ntb_peer_spad_write(bridge->ntb, PEER, SPAD_HELLO, 0);
	free_memory(bridge);
}

static int add_window(struct bridge *bridge, u64 slot_bytes)
{
	u32 me = ntb_port_number(bridge->ntb) > ntb_peer_port_number(bridge->ntb, PEER);
	struct sw_view view = {
		.kind = SW_PUSH,
		.hosts = 2,
		.me = me,
		.slot_bytes = slot_bytes,
		.in = bridge->in,
	};
	struct sw_config config = {
		.ops = &ops,
		.backend = bridge,
		.parent = &bridge->ntb->dev,
		.bell = 0,
		.vectors = fls64(bridge->doorbells),
		.view = &view,
	};
	struct sw_window *window;

	view.out[1 - me] = (u8 __force *)bridge->out;
	window = sw_window_add(&config);
	if (IS_ERR(window))
		return PTR_ERR(window);
	spin_lock_irq(&bridge->lock);
	bridge->window = window;
	spin_unlock_irq(&bridge->lock);
	return 0;
}

/* Follows the link. One at a time: it is one work item. */
static void bridge_work(struct work_struct *work)
{
	struct bridge *bridge = container_of(work, struct bridge, work.work);
	struct ntb_dev *ntb = bridge->ntb;
	u64 pages, theirs;
	int err = 0;

	if (ntb_link_is_up(ntb, NULL, NULL) != 1) {
		remove_window(bridge);
		return;
	}
	if (bridge->window)
		return;
	if (!bridge->in)
		err = get_memory(bridge);
	if (err)
		goto failed;
	pages = min_t(u64, bridge->in_bytes, bridge->out_bytes) / SW_PAGE;
	ntb_peer_spad_write(ntb, PEER, SPAD_PAGES, min_t(u64, pages, U32_MAX));
	ntb_peer_spad_write(ntb, PEER, SPAD_HELLO, HELLO);
	if (ntb_spad_read(ntb, SPAD_HELLO) != HELLO) {
		schedule_delayed_work(&bridge->work, LOOK_AGAIN);
		return;
	}
	theirs = ntb_spad_read(ntb, SPAD_PAGES);
	pages = min(pages, theirs);
	err = -EINVAL;
	if (pages * SW_PAGE >= 2 * SW_PEER_BYTES + SW_HEAP_BYTES_MIN)
		err = add_window(bridge, pages * SW_PAGE);
	if (!err)
		return;
failed:
	dev_err(&ntb->dev, "no window: %d\n", err);
	remove_window(bridge);
}

static void link_event(void *context)
{
	struct bridge *bridge = context;

	mod_delayed_work(system_wq, &bridge->work, 0);
}

static void doorbell_event(void *context, int vector)
{
	struct bridge *bridge = context;
	u64 bits = ntb_db_read(bridge->ntb) & bridge->doorbells;
	unsigned long flags;

	ntb_db_clear(bridge->ntb, bits);
	spin_lock_irqsave(&bridge->lock, flags);
	while (bits && bridge->window) {
		sw_window_rang(bridge->window, __ffs64(bits));
		bits &= bits - 1;
	}
	spin_unlock_irqrestore(&bridge->lock, flags);
}

static const struct ntb_ctx_ops context_ops = {
	.link_event = link_event,
	.db_event = doorbell_event,
};

static int sw_probe(struct ntb_client *client, struct ntb_dev *ntb)
{
	struct bridge *bridge;
	int err;

	/* Bridges whose other side translates (IDT) would need it told the address first. */
	if (ntb_peer_port_count(ntb) != 1 || ntb_mw_count(ntb, PEER) < 1 ||
	    !ntb->ops->mw_set_trans || ntb_spad_count(ntb) < 2)
		return -EOPNOTSUPP;
	bridge = kzalloc(sizeof(*bridge), GFP_KERNEL);
	if (!bridge)
		return -ENOMEM;
	bridge->ntb = ntb;
	bridge->doorbells = ntb_db_valid_mask(ntb);
	spin_lock_init(&bridge->lock);
	INIT_DELAYED_WORK(&bridge->work, bridge_work);
	ntb_spad_write(ntb, SPAD_HELLO, 0);
	err = ntb_set_ctx(ntb, bridge, &context_ops);
	if (err) {
		kfree(bridge);
		return err;
	}
	ntb_db_clear(ntb, bridge->doorbells);
	ntb_db_clear_mask(ntb, bridge->doorbells);
	ntb_link_enable(ntb, NTB_SPEED_AUTO, NTB_WIDTH_AUTO);
	ntb_link_event(ntb);
	return 0;
}

static void sw_remove(struct ntb_client *client, struct ntb_dev *ntb)
{
	struct bridge *bridge = ntb->ctx;

	ntb_db_set_mask(ntb, bridge->doorbells);
	/* No events after this. */
	ntb_clear_ctx(ntb);
	cancel_delayed_work_sync(&bridge->work);
	remove_window(bridge);
	ntb_link_disable(ntb);
	kfree(bridge);
}

static struct ntb_client client = {
	.ops = {
		.probe = sw_probe,
		.remove = sw_remove,
	},
};
module_ntb_client(client);

MODULE_DESCRIPTION("Windows across PCIe non-transparent bridges");
MODULE_LICENSE("GPL");
