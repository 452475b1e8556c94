// SPDX-License-Identifier: GPL-2.0
/* Windows for other modules: include/sluice_window_client.h. */
#include <linux/module.h>

#include "sw.h"

/* A client's part in a window. In its list under the window's lock and events_lock. */
struct sw_attachment {
	struct list_head list;
	struct sluice_window_client *client;
	void *context;
};

/* Guards both lists, and that a client is added to each window once. */
static DEFINE_MUTEX(clients_lock);
static LIST_HEAD(clients);
static LIST_HEAD(windows);

static void insert(struct sw_window *window, struct sw_attachment *attachment)
{
	unsigned long flags;
	u32 peer;

	mutex_lock(&window->lock);
	/* What peers have said at its port by now was heard by nobody. In another link they say it again. */
	for (peer = 0; window->state == SW_HELD && peer < window->view.hosts; peer++)
		if (window->peers[peer].announced)
			sw_end_link(window, peer);
	spin_lock_irqsave(&window->events_lock, flags);
	list_add_tail(&attachment->list, &window->attachments);
	spin_unlock_irqrestore(&window->events_lock, flags);
	if (window->state == SW_HELD)
		attachment->client->slot(attachment->context, &window->view);
	mutex_unlock(&window->lock);
}

static int attach(struct sw_window *window, struct sluice_window_client *client)
{
	struct sw_attachment *attachment = kzalloc(sizeof(*attachment), GFP_KERNEL);

	if (!attachment)
		return -ENOMEM;
	attachment->client = client;
	attachment->context = client->add(window);
	if (IS_ERR(attachment->context)) {
		int err = PTR_ERR(attachment->context);

		kfree(attachment);
		return err;
	}
	insert(window, attachment);
	return 0;
}

/* One window without this client is no reason to be without the others. */
static void try_attach(struct sw_window *window, struct sluice_window_client *client)
{
	int err = attach(window, client);

	if (err)
		dev_warn(window->config.parent, "%s: %d\n", client->name, err);
}

static void detach(struct sw_window *window, struct sw_attachment *attachment)
{
	unsigned long flags;

	if (attachment->client->leave)
		attachment->client->leave(attachment->context);
	mutex_lock(&window->lock);
	spin_lock_irqsave(&window->events_lock, flags);
	list_del(&attachment->list);
	spin_unlock_irqrestore(&window->events_lock, flags);
	mutex_unlock(&window->lock);
	attachment->client->remove(attachment->context);
	kfree(attachment);
}

void sw_clients_window_added(struct sw_window *window)
{
	struct sluice_window_client *client;

	mutex_lock(&clients_lock);
	list_add_tail(&window->list, &windows);
	list_for_each_entry(client, &clients, list)
		try_attach(window, client);
	mutex_unlock(&clients_lock);
}

void sw_clients_window_removed(struct sw_window *window)
{
	struct sw_attachment *attachment, *next;

	mutex_lock(&clients_lock);
	list_del(&window->list);
	list_for_each_entry_safe(attachment, next, &window->attachments, list)
		detach(window, attachment);
	mutex_unlock(&clients_lock);
}

int sluice_window_register_client(struct sluice_window_client *client)
{
	struct sluice_window_client *other;
	struct sw_window *window;

	if (client->port == SLUICE_WINDOW_PORT_KERNEL)
		return -EADDRINUSE;
	mutex_lock(&clients_lock);
	list_for_each_entry(other, &clients, list)
		if (other->port == client->port) {
			mutex_unlock(&clients_lock);
			return -EADDRINUSE;
		}
	list_add_tail(&client->list, &clients);
	list_for_each_entry(window, &windows, list)
		try_attach(window, client);
	mutex_unlock(&clients_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(sluice_window_register_client);

void sluice_window_unregister_client(struct sluice_window_client *client)
{
	struct sw_attachment *attachment, *next;
	struct sw_window *window;

	mutex_lock(&clients_lock);
	list_del(&client->list);
	list_for_each_entry(window, &windows, list)
		list_for_each_entry_safe(attachment, next, &window->attachments, list)
			if (attachment->client == client)
				detach(window, attachment);
	mutex_unlock(&clients_lock);
}
EXPORT_SYMBOL_GPL(sluice_window_unregister_client);

/* What the bus tells; with the window's lock held. */

void sw_clients_slot(struct sw_window *window, const struct sw_view *view)
{
	struct sw_attachment *attachment;

	list_for_each_entry(attachment, &window->attachments, list)
		attachment->client->slot(attachment->context, view);
}

void sw_clients_up(struct sw_window *window, u32 peer)
{
	struct sw_attachment *attachment;

	window->peers[peer].announced = true;
	list_for_each_entry(attachment, &window->attachments, list)
		attachment->client->up(attachment->context, peer);
}

void sw_clients_down(struct sw_window *window, u32 peer, bool left)
{
	struct sw_attachment *attachment;

	if (!window->peers[peer].announced)
		return;
	window->peers[peer].announced = false;
	list_for_each_entry(attachment, &window->attachments, list)
		attachment->client->down(attachment->context, peer, left);
}

static struct sw_attachment *at_port(struct sw_window *window, u16 port)
{
	struct sw_attachment *attachment;

	list_for_each_entry(attachment, &window->attachments, list)
		if (attachment->client->port == port)
			return attachment;
	return NULL;
}

bool sw_clients_have_port(struct sw_window *window, u16 port)
{
	return at_port(window, port);
}

int sw_clients_message(struct sw_window *window, u32 peer, u32 kind, const u8 *data, u32 bytes)
{
	struct sw_attachment *attachment = at_port(window, kind >> 16);

	return attachment->client->message(attachment->context, peer, kind, data, bytes);
}

void sw_clients_rang(struct sw_window *window, u32 vector)
{
	struct sw_attachment *attachment;
	unsigned long flags;

	spin_lock_irqsave(&window->events_lock, flags);
	list_for_each_entry(attachment, &window->attachments, list)
		attachment->client->rang(attachment->context, vector);
	spin_unlock_irqrestore(&window->events_lock, flags);
}

/* What clients ask for. */

struct device *sluice_window_device(struct sw_window *window)
{
	return window->config.parent;
}
EXPORT_SYMBOL_GPL(sluice_window_device);

int sluice_window_index(const struct sw_window *window)
{
	return window->index;
}
EXPORT_SYMBOL_GPL(sluice_window_index);

void sluice_window_lock(struct sw_window *window)
{
	mutex_lock(&window->lock);
}
EXPORT_SYMBOL_GPL(sluice_window_lock);

void sluice_window_unlock(struct sw_window *window)
{
	mutex_unlock(&window->lock);
}
EXPORT_SYMBOL_GPL(sluice_window_unlock);

static bool has_peer(const struct sw_window *window, u32 peer)
{
	return window->state == SW_HELD && peer < window->view.hosts && peer != window->view.me;
}

int sluice_window_send(struct sw_window *window, const struct sluice_window_client *client, u32 peer,
		       u32 kind, const void *data, u32 bytes)
{
	lockdep_assert_held(&window->lock);
	if (kind >> 16 != client->port)
		return -EINVAL;
	return has_peer(window, peer) ? sw_mail(window, peer, kind, data, bytes) : -ENOLINK;
}
EXPORT_SYMBOL_GPL(sluice_window_send);

u64 sluice_window_lend(struct sw_window *window, u32 peer, u64 bytes)
{
	lockdep_assert_held(&window->lock);
	return has_peer(window, peer) ? sw_heap_lend(&window->heap, peer, bytes) : 0;
}
EXPORT_SYMBOL_GPL(sluice_window_lend);

bool sluice_window_take_back(struct sw_window *window, u32 peer, u64 at)
{
	lockdep_assert_held(&window->lock);
	return sw_heap_take_back(&window->heap, peer, at);
}
EXPORT_SYMBOL_GPL(sluice_window_take_back);

void sluice_window_end_link(struct sw_window *window, u32 peer)
{
	lockdep_assert_held(&window->lock);
	if (has_peer(window, peer))
		sw_end_link(window, peer);
}
EXPORT_SYMBOL_GPL(sluice_window_end_link);

u32 sluice_window_vectors(struct sw_window *window, u32 peer)
{
	return peer < SW_HOSTS_MAX ? READ_ONCE(window->peers[peer].vectors) : 0;
}
EXPORT_SYMBOL_GPL(sluice_window_vectors);

bool sluice_window_ring(struct sw_window *window, u32 peer, u32 vector)
{
	struct sw_peer *to;

	if (peer >= SW_HOSTS_MAX)
		return false;
	to = &window->peers[peer];
	if (vector >= READ_ONCE(to->vectors))
		return false;
	window->config.ops->ring(window->config.backend, READ_ONCE(to->bell), vector);
	return true;
}
EXPORT_SYMBOL_GPL(sluice_window_ring);
