// SPDX-License-Identifier: GPL-2.0
/*
 * The bus of windows: one work item for each window claims its slot, gives signs of life, holds
 * links with all peers and takes their messages.
 */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/utsname.h>

#include "sw.h"

/* Looks for messages of peers that cannot ring. */
#define LOOK_JIFFIES	max_t(unsigned long, 1, HZ / 100)
/* Messages of one peer in a row, so that one that never ends is no obstacle to the others. */
#define MESSAGES_MAX	64

static unsigned int user_share = 4;
module_param(user_share, uint, 0444);
MODULE_PARM_DESC(user_share, "pieces of one user have at most one part in so many of the heap (4)");

static DEFINE_IDA(indices);

u64 sw_user_bytes_max(struct sw_window *window)
{
	return window->heap.count * SW_PAGE / max(user_share, 1u);
}

void sw_kick(struct sw_window *window)
{
	mod_delayed_work(window->queue, &window->work, 0);
}

int sw_mail(struct sw_window *window, u32 peer, u32 kind, const void *data, u32 bytes)
{
	struct sw_peer *to = &window->peers[peer];
	int err;

	if (to->link.state != SW_LINK_UP)
		return -ENOLINK;
	err = sw_send(&to->link.sender, &window->view, peer, kind, data, bytes);
	if (!err && to->vectors)
		window->config.ops->ring(window->config.backend, to->bell, 0);
	return err;
}

static void begin(struct sw_window *window, u32 peer)
{
	WRITE_ONCE(window->peers[peer].vectors, 0);
	window->peers[peer].bell_told = false;
	sw_link_begin(&window->peers[peer].link, &window->view, peer);
}

static void ended(struct sw_window *window, u32 peer, bool left, const char *why)
{
	dev_info_ratelimited(window->config.parent, "peer %u: %s\n", peer, why);
	sw_clients_down(window, peer, left);
	sw_pieces_peer_ended(window, peer);
	sw_files_peer_ended(window, peer);
	begin(window, peer);
}

/* A peer that says what cannot be. */
static void broken(struct sw_window *window, u32 peer)
{
	sw_link_leave(&window->peers[peer].link, &window->view);
	ended(window, peer, false, "said what cannot be, its link is over");
}

void sw_end_link(struct sw_window *window, u32 peer)
{
	if (window->peers[peer].link.state != SW_LINK_UP)
		return;
	sw_link_leave(&window->peers[peer].link, &window->view);
	ended(window, peer, true, "a client has ended the link");
}

/* Without room for it the next look tells. */
static void tell_bell(struct sw_window *window, u32 peer)
{
	__le32 words[2] = { cpu_to_le32(window->config.bell), cpu_to_le32(window->config.vectors) };

	if (window->peers[peer].bell_told || !window->config.vectors)
		return;
	if (sw_mail(window, peer, SW_BELL, words, sizeof(words)) == 0)
		window->peers[peer].bell_told = true;
}

static int heard_bell(struct sw_peer *peer, const u8 *data, u32 bytes)
{
	__le32 words[2];

	if (bytes != sizeof(words))
		return -EPROTO;
	memcpy(words, data, sizeof(words));
	/* What a doorbell register has room for; a number that is nobody's rings nowhere. */
	if (le32_to_cpu(words[0]) > U16_MAX || le32_to_cpu(words[1]) > U16_MAX)
		return -EPROTO;
	WRITE_ONCE(peer->bell, le32_to_cpu(words[0]));
	WRITE_ONCE(peer->vectors, le32_to_cpu(words[1]));
	return 0;
}

/* Whether there may be more. */
static int messages(struct sw_window *window, u32 number)
{
	struct sw_peer *peer = &window->peers[number];
	int count, bytes, err;
	u32 kind;

	for (count = 0; count < MESSAGES_MAX; count++) {
		bytes = sw_receive(&peer->link.receiver, &window->view, number, &kind,
				   window->message);
		if (bytes == -EAGAIN)
			break;
		if (bytes < 0)
			return bytes;
		if (kind == SW_BELL) {
			err = heard_bell(peer, window->message, bytes);
		} else if (kind >> 16 == SLUICE_WINDOW_PORT_KERNEL) {
			err = sw_pieces_message(window, number, kind, window->message, bytes);
		} else if (sw_clients_have_port(window, kind >> 16)) {
			err = sw_clients_message(window, number, kind, window->message, bytes);
		} else {
			sw_files_message(window, number, kind, window->message, bytes);
			err = 0;
		}
		if (err)
			return err;
	}
	/* The peer may wait for room that there is now. */
	if (count && peer->vectors)
		window->config.ops->ring(window->config.backend, peer->bell, 0);
	return count == MESSAGES_MAX;
}

/* Whether there is more at once. A link that ended begins again with the next look. */
static bool peer_poll(struct sw_window *window, u32 number, u64 now_ns)
{
	struct sw_peer *peer = &window->peers[number];
	enum sw_event event = sw_link_poll(&peer->link, &window->view, now_ns);
	int more;

	switch (event) {
	case SW_UP:
		dev_info_ratelimited(window->config.parent, "peer %u: up\n", number);
		/* So the peer knows how to ring before it hears of clients. */
		tell_bell(window, number);
		sw_clients_up(window, number);
		sw_files_wake(window);
		break;
	case SW_OTHER_VERSION:
		dev_warn_ratelimited(window->config.parent, "peer %u: speaks another version\n", number);
		break;
	case SW_NOTHING:
		break;
	case SW_LEFT:
		ended(window, number, true, "left");
		return false;
	case SW_REPLACED:
		ended(window, number, false, "restarted");
		return false;
	case SW_SILENT:
		ended(window, number, false, "gives no sign of life");
		return false;
	case SW_CUT:
		ended(window, number, false, "the window is cut off");
		return false;
	}
	if (peer->link.state != SW_LINK_UP)
		return false;
	more = messages(window, number);
	if (more >= 0) {
		int err;

		tell_bell(window, number);
		err = sw_pieces_say(window, number);
		if (err && err != -EAGAIN)
			more = err;
	}
	if (more == -ENOMEM)
		dev_warn_ratelimited(window->config.parent, "peer %u: no memory for it\n", number);
	if (more < 0) {
		broken(window, number);
		return false;
	}
	return more;
}

/*
 * Somebody thought this host dead: it slept for too long, as a guest that is stopped does. Nothing
 * may be written to the slot any more; another one is claimed.
 */
static void lose(struct sw_window *window)
{
	u32 peer;

	dev_warn_ratelimited(window->config.parent, "somebody else has taken slot %u\n",
			     window->view.me);
	window->state = SW_CLAIMING;
	for (peer = 0; peer < window->view.hosts; peer++) {
		window->peers[peer].link.state = SW_LINK_OVER;
		sw_clients_down(window, peer, false);
		sw_pieces_peer_ended(window, peer);
		sw_files_peer_ended(window, peer);
	}
	sw_clients_slot(window, NULL);
	sw_heap_reset(&window->heap);
	sw_claim_init(&window->claim, utsname()->nodename);
}

/* How long until the next look, or 0: at once. */
static unsigned long held(struct sw_window *window, u64 now_ns)
{
	unsigned long wait = nsecs_to_jiffies(SW_BEAT_NS);
	bool beat = now_ns >= window->beat_due_ns;
	bool again = false;
	u32 peer;

	if (beat) {
		window->beat_due_ns = now_ns + SW_BEAT_NS;
		if (window->view.header && !sw_claim_beat(&window->claim, &window->view)) {
			lose(window);
			return wait;
		}
	}
	for (peer = 0; peer < window->view.hosts; peer++) {
		if (peer == window->view.me)
			continue;
		if (beat)
			sw_link_beat(&window->peers[peer].link, &window->view);
		again |= peer_poll(window, peer, now_ns);
		if (window->peers[peer].link.state == SW_LINK_UP && !window->peers[peer].vectors)
			wait = min(wait, LOOK_JIFFIES);
	}
	return again ? 0 : wait;
}

static void hold(struct sw_window *window)
{
	u32 peer;

	if (window->view.header)
		sw_view_region(&window->view, &window->header, window->config.region,
			       window->claim.slot);
	window->state = SW_HELD;
	window->beat_due_ns = 0;
	dev_info_ratelimited(window->config.parent, "slot %u of %u\n", window->view.me,
		 window->view.hosts);
	for (peer = 0; peer < window->view.hosts; peer++)
		if (peer != window->view.me)
			begin(window, peer);
	sw_clients_slot(window, &window->view);
	sw_files_wake(window);
}

static void window_work(struct work_struct *work)
{
	struct sw_window *window = container_of(work, struct sw_window, work.work);
	u64 now_ns = ktime_get_ns();
	unsigned long wait = nsecs_to_jiffies(SW_BEAT_NS);

	mutex_lock(&window->lock);
	if (window->state == SW_CLAIMING) {
		if (!window->view.header || sw_claim_poll(&window->claim, &window->view, now_ns)) {
			hold(window);
			wait = 0;
		} else if (window->claim.settling) {
			wait = nsecs_to_jiffies(SW_SETTLE_NS) + 1;
		}
	} else if (window->state == SW_HELD) {
		wait = held(window, now_ns);
	}
	/* A doorbell that rang meanwhile has its own, earlier. */
	if (window->state == SW_CLAIMING || window->state == SW_HELD)
		queue_delayed_work(window->queue, &window->work, wait);
	mutex_unlock(&window->lock);
}

void sw_window_rang(struct sw_window *window, u32 vector)
{
	if (vector == 0)
		sw_kick(window);
	sw_signal(window, vector);
	sw_clients_rang(window, vector);
}
EXPORT_SYMBOL_GPL(sw_window_rang);

void sw_window_free(struct kref *ref)
{
	struct sw_window *window = container_of(ref, struct sw_window, ref);

	sw_heap_free(&window->heap);
	ida_free(&indices, window->index);
	kfree(window);
}

static int view_of(struct sw_window *window)
{
	int err;

	if (window->config.view) {
		window->view = *window->config.view;
		window->header.kind = window->view.kind;
		window->header.hosts = window->view.hosts;
		window->header.slot_bytes = window->view.slot_bytes;
		return 0;
	}
	err = sw_header_read(window->config.region, window->config.region_bytes, &window->header);
	if (err)
		return err;
	sw_view_region(&window->view, &window->header, window->config.region, 0);
	return 0;
}

struct sw_window *sw_window_add(const struct sw_config *config)
{
	struct sw_window *window = kzalloc(sizeof(*window), GFP_KERNEL);
	int err;
	u32 peer;

	if (!window)
		return ERR_PTR(-ENOMEM);
	kref_init(&window->ref);
	window->config = *config;
	mutex_init(&window->lock);
	spin_lock_init(&window->events_lock);
	INIT_LIST_HEAD(&window->events);
	INIT_LIST_HEAD(&window->files);
	INIT_LIST_HEAD(&window->attachments);
	INIT_DELAYED_WORK(&window->work, window_work);
	for (peer = 0; peer < SW_HOSTS_MAX; peer++)
		sw_pieces_peer_init(&window->peers[peer]);
	window->next_offset = SW_PAGE;
	sw_claim_init(&window->claim, utsname()->nodename);
	window->index = ida_alloc(&indices, GFP_KERNEL);
	if (window->index < 0) {
		err = window->index;
		kfree(window);
		return ERR_PTR(err);
	}
	err = view_of(window);
	if (err)
		goto err_put;
	err = sw_heap_init(&window->heap, window->view.hosts, window->view.slot_bytes);
	if (err)
		goto err_put;
	window->queue = alloc_ordered_workqueue("sluice_window%d", WQ_MEM_RECLAIM, window->index);
	if (!window->queue) {
		err = -ENOMEM;
		goto err_put;
	}
	err = sw_char_add(window);
	if (err)
		goto err_queue;
	sw_clients_window_added(window);
	sw_kick(window);
	return window;

err_queue:
	destroy_workqueue(window->queue);
err_put:
	kref_put(&window->ref, sw_window_free);
	return ERR_PTR(err);
}
EXPORT_SYMBOL_GPL(sw_window_add);

/* The backend rings no more. Files that are open keep the struct, and nothing of the memory. */
void sw_window_remove(struct sw_window *window)
{
	bool was_held;
	u32 peer;

	sw_clients_window_removed(window);
	/* Nobody opens it any more. */
	sw_char_remove(window);
	mutex_lock(&window->lock);
	was_held = window->state == SW_HELD;
	window->state = SW_REMOVED;
	for (peer = 0; peer < window->view.hosts; peer++) {
		sw_pieces_peer_ended(window, peer);
		sw_files_peer_ended(window, peer);
		if (was_held && peer != window->view.me)
			sw_link_leave(&window->peers[peer].link, &window->view);
	}
	if (was_held && window->view.header)
		sw_claim_release(&window->claim, &window->view);
	sw_files_wake(window);
	mutex_unlock(&window->lock);
	cancel_delayed_work_sync(&window->work);
	destroy_workqueue(window->queue);
	kref_put(&window->ref, sw_window_free);
}
EXPORT_SYMBOL_GPL(sw_window_remove);

static int __init sw_init(void)
{
	return sw_ivshmem_register();
}

static void __exit sw_exit(void)
{
	sw_ivshmem_unregister();
}

module_init(sw_init);
module_exit(sw_exit);

MODULE_DESCRIPTION("Windows: memory that several hosts share as a wire");
MODULE_LICENSE("GPL");
