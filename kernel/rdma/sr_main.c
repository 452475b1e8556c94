// SPDX-License-Identifier: GPL-2.0
/*
 * RDMA over windows, as a client of sluice_window: a device for each window, and with each other host
 * a channel, made by two messages (docs/windows.md, "Verbs").
 */
#include <linux/module.h>
#include <linux/random.h>
#include <linux/vmalloc.h>

#include "uapi/sluice_window.h"
#include "sr.h"

#define RING_BYTES		(1024 * 1024)
#define OWN_RING_BYTES		(256 * 1024)
/* Frames of one peer in a row, so that one that never ends is no obstacle to the others. */
#define FRAMES_MAX		64
#define POLLED_FRAMES_MAX	16
/* For mailboxes that are full. */
#define RETRY_JIFFIES		max_t(unsigned long, 1, HZ / 100)

static struct sluice_window_client client;

void sr_device_kick(struct sr_device *device)
{
	if (!READ_ONCE(device->forgotten))
		mod_delayed_work(device->queue, &device->work, 0);
}

void sr_device_alarm(struct sr_device *device, u64 when_ns)
{
	if (when_ns >= device->due_ns)
		return;
	device->due_ns = when_ns;
	sr_device_kick(device);
}

void sr_device_look(struct sr_device *device)
{
	u32 peer;

	for (peer = 0; device->held && peer < device->view.hosts; peer++)
		sr_lane_run(&device->lanes[peer], POLLED_FRAMES_MAX);
}

void sr_device_poll(struct sr_device *device, bool watches)
{
	/* Whoever has it takes the frames. */
	if (!mutex_trylock(&device->lock))
		return;
	if (watches)
		sr_watch_wake(device);
	sr_watch_take(device);
	sr_device_look(device);
	mutex_unlock(&device->lock);
}

static void look_at_clocks(struct sr_device *device)
{
	u64 now_ns = ktime_get_ns(), due_ns = U64_MAX;
	unsigned long number;
	struct sr_qp *qp;

	if (now_ns < device->due_ns)
		return;
	/* What sets an alarm meanwhile is counted as well. */
	device->due_ns = U64_MAX;
	xa_for_each(&device->qps, number, qp)
		due_ns = min(due_ns, sr_requester_due(qp, now_ns));
	device->due_ns = min(device->due_ns, due_ns);
}

/* How long nothing has to be done; device->lock held. */
static unsigned long run(struct sr_device *device)
{
	bool more = false, silent = false;
	u64 now_ns;
	u32 peer;

	sr_post_take_all(device);
	sr_watch_take(device);
	look_at_clocks(device);
	for (peer = 0; device->held && peer < device->view.hosts; peer++) {
		more |= sr_lane_run(&device->lanes[peer], FRAMES_MAX);
		silent |= device->lanes[peer].up && !device->lanes[peer].rings;
	}
	if (more)
		return 0;
	/* While somebody looks nobody has to ring. */
	if (sr_watch_is_over(device))
		for (peer = 0; device->held && peer < device->view.hosts; peer++)
			more |= !sr_lane_sleep(&device->lanes[peer]);
	if (more)
		return 0;
	/* Peers that cannot ring are looked at. */
	if (silent && device->qp_count)
		return 1;
	now_ns = ktime_get_ns();
	if (device->due_ns == U64_MAX)
		return MAX_SCHEDULE_TIMEOUT;
	return device->due_ns <= now_ns ? 0 : nsecs_to_jiffies(device->due_ns - now_ns) + 1;
}

static void work(struct work_struct *item)
{
	struct sr_device *device = container_of(to_delayed_work(item), struct sr_device, work);
	unsigned long wait;

	mutex_lock(&device->lock);
	wait = run(device);
	mutex_unlock(&device->lock);
	if (wait)
		sr_watch_look(device);
	/* A bell that rang meanwhile has its own, earlier. */
	if (wait != MAX_SCHEDULE_TIMEOUT && !READ_ONCE(device->forgotten))
		queue_delayed_work(device->queue, &device->work, wait);
}

static int say(struct sr_lane *lane, u32 kind, u64 first, u64 second)
{
	__le64 words[2] = { cpu_to_le64(first), cpu_to_le64(second) };

	return sluice_window_send(lane->device->window, &client, lane->peer, kind, words,
				  sizeof(words));
}

/* What is to be said of a channel and was not; with both locks. Whether all was. */
static bool tell(struct sr_lane *lane)
{
	struct sr_device *device = lane->device;

	if (!lane->linked || !lane->pieces.lent || lane->broken)
		return true;
	if (!lane->told)
		lane->told = !say(lane, SR_KIND_LEND, lane->pieces.lent, lane->pieces.lent_ring);
	if (lane->borrowed && !lane->told_ready)
		lane->told_ready = !say(lane, SR_KIND_READY, lane->pieces.borrowed,
					sluice_window_vectors(device->window, lane->peer) > 0);
	if (lane->told_ready && lane->ready && !lane->up)
		sr_lane_begin(lane);
	return lane->told && (!lane->borrowed || lane->told_ready);
}

static void tell_or_retry(struct sr_lane *lane)
{
	if (!tell(lane))
		schedule_delayed_work(&lane->device->state_work, RETRY_JIFFIES);
}

/* Parts with what was lent to a peer; with both locks. */
static void end_lane(struct sr_lane *lane, bool left)
{
	u64 lent = lane->pieces.lent;
	struct sr_device *device = lane->device;
	bool is_own = device->held && lane->peer == device->view.me;

	sr_lane_end(lane, left);
	if (lent && !is_own)
		sluice_window_take_back(device->window, lane->peer, lent);
}

static void own_lane(struct sr_device *device)
{
	struct sr_lane *lane = &device->lanes[device->view.me];
	struct sr_pieces pieces = {
		.lent_ring = OWN_RING_BYTES,
		.borrowed_ring = OWN_RING_BYTES,
	};
	struct sw_view *view = &device->own_view;

	memset(view, 0, sizeof(*view));
	view->kind = SW_COHERENT;
	view->hosts = device->view.hosts;
	view->me = device->view.me;
	view->slot_bytes = SR_CONTROL_BYTES + OWN_RING_BYTES;
	view->in = device->own_ring;
	view->out[view->me] = device->own_ring;
	lane->owed = kvmalloc_array(SR_OWED_MAX, sizeof(*lane->owed), GFP_KERNEL);
	if (!lane->owed)
		return;
	lane->rings = true;
	lane->pieces = pieces;
	sr_channel_begin(&lane->channel, view, view->me, &pieces);
	sr_lane_begin(lane);
}

/* The largest ring that leaves half of the heap to programs, with all hosts there. */
static u64 ring_bytes(const struct sw_view *view)
{
	u64 share = (view->slot_bytes - sw_heap_at(view->hosts)) / 2 / (view->hosts - 1);
	u64 ring = RING_BYTES;

	while (ring + SR_CONTROL_BYTES > share)
		ring /= 2;
	return ring;
}

static void slot(void *context, const struct sw_view *view)
{
	struct sr_device *device = context;
	unsigned long number;
	struct sr_qp *qp;

	mutex_lock(&device->lock);
	if (view) {
		device->view = *view;
		device->ring_bytes = ring_bytes(view);
		device->held = true;
		own_lane(device);
	} else {
		end_lane(&device->lanes[device->view.me], false);
		device->held = false;
		/* Their numbers are another host's from now on. */
		xa_for_each(&device->qps, number, qp) {
			qp->stale = true;
			sr_qp_fail(qp);
			qp->lane = NULL;
		}
	}
	mutex_unlock(&device->lock);
	schedule_delayed_work(&device->state_work, 0);
}

static void link_up(void *context, u32 peer)
{
	struct sr_device *device = context;
	struct sr_lane *lane = &device->lanes[peer];
	u64 bytes = SR_CONTROL_BYTES + device->ring_bytes;

	mutex_lock(&device->lock);
	lane->linked = true;
	if (device->ring_bytes >= SR_RING_BYTES_MIN)
		lane->owed = kvmalloc_array(SR_OWED_MAX, sizeof(*lane->owed), GFP_KERNEL);
	if (lane->owed)
		lane->pieces.lent = sluice_window_lend(device->window, peer, bytes);
	lane->pieces.lent_ring = device->ring_bytes;
	if (lane->pieces.lent)
		tell_or_retry(lane);
	else
		dev_warn_ratelimited(sluice_window_device(device->window),
				     "no room in the window for peer %u\n", peer);
	mutex_unlock(&device->lock);
}

static void link_down(void *context, u32 peer, bool left)
{
	struct sr_device *device = context;

	mutex_lock(&device->lock);
	end_lane(&device->lanes[peer], left);
	mutex_unlock(&device->lock);
}

static int heard(struct sr_device *device, struct sr_lane *lane, u32 kind, u64 at, u64 number)
{
	if (kind == SR_KIND_LEND && !lane->borrowed) {
		if (sr_piece_check(&device->view, at, number))
			return -EPROTO;
		/* Without a piece of this host's there is no channel, and the peer waits in vain. */
		if (!lane->pieces.lent)
			return 0;
		lane->borrowed = true;
		lane->pieces.borrowed = at;
		lane->pieces.borrowed_ring = number;
		sr_channel_begin(&lane->channel, &device->view, lane->peer, &lane->pieces);
		return 0;
	}
	if (kind == SR_KIND_READY && lane->pieces.lent && at == lane->pieces.lent && !lane->ready) {
		lane->ready = true;
		lane->rings = number == 1;
		return 0;
	}
	return -EPROTO;
}

static int message(void *context, u32 peer, u32 kind, const u8 *data, u32 bytes)
{
	struct sr_device *device = context;
	struct sr_lane *lane = &device->lanes[peer];
	__le64 words[2];
	int err;

	if (kind == SR_KIND_MANAGEMENT) {
		struct sr_mail mail;

		if (bytes != sizeof(mail))
			return -EPROTO;
		memcpy(&mail, data, sizeof(mail));
		sr_gsi_came(device, &mail);
		return 0;
	}
	if (bytes != sizeof(words))
		return -EPROTO;
	memcpy(words, data, sizeof(words));
	mutex_lock(&device->lock);
	err = heard(device, lane, kind, le64_to_cpu(words[0]), le64_to_cpu(words[1]));
	if (!err)
		tell_or_retry(lane);
	mutex_unlock(&device->lock);
	return err;
}

static void rang(void *context, u32 vector)
{
	struct sr_device *device = context;

	if (vector == SR_VECTOR || vector == 0)
		sr_device_kick(device);
}

void sr_device_told(struct sr_device *device)
{
	if (!READ_ONCE(device->removed))
		schedule_delayed_work(&device->state_work, 0);
}

static void tell_of_port(struct sr_device *device, u32 port, bool is_up)
{
	struct ib_event event = {
		.device = &device->ib,
		.element.port_num = port,
		.event = is_up ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR,
	};

	if (device->told[port - 1] == is_up)
		return;
	device->told[port - 1] = is_up;
	ib_dispatch_event(&event);
}

static void register_device(struct sr_device *device)
{
	int err = sr_net_begin(device);

	if (!err)
		err = ib_register_device(&device->ib, "sluice%d", NULL);
	device->registered = !err;
	if (!err)
		return;
	dev_err(sluice_window_device(device->window), "no RDMA device: %d\n", err);
	sr_net_end(device);
	device->failed = true;
}

/* There is a device from the first slot on, and its ports are active while there is one. */
static void tell_core(struct sr_device *device)
{
	bool held;

	mutex_lock(&device->lock);
	held = device->held;
	mutex_unlock(&device->lock);
	if (held && !device->registered && !device->failed) {
		register_device(device);
		device->told[0] = device->registered;
	}
	if (!device->registered)
		return;
	sr_net_carries(device, held);
	tell_of_port(device, 1, held);
	tell_of_port(device, SR_ROCE_PORT, held && sr_net_is_up(device));
}

unsigned long sr_device_mail(struct sr_device *device, const struct sr_mail *mail, unsigned long hosts)
{
	unsigned long full = 0;
	u32 peer;

	sluice_window_lock(device->window);
	for (peer = 0; peer < SW_HOSTS_MAX; peer++)
		if ((hosts & BIT(peer)) && device->lanes[peer].linked &&
		    sluice_window_send(device->window, &client, peer, SR_KIND_MANAGEMENT, mail,
				       sizeof(*mail)) == -EAGAIN)
			full |= BIT(peer);
	sluice_window_unlock(device->window);
	return full;
}

/* What needs the window's lock, or none. */
static void state_work(struct work_struct *item)
{
	struct sr_device *device =
		container_of(to_delayed_work(item), struct sr_device, state_work);
	bool again = false;
	u32 peer;

	if (!READ_ONCE(device->removed))
		tell_core(device);
	for (peer = 0; peer < SW_HOSTS_MAX; peer++) {
		bool broken;

		sluice_window_lock(device->window);
		mutex_lock(&device->lock);
		again |= !tell(&device->lanes[peer]);
		broken = device->lanes[peer].broken;
		mutex_unlock(&device->lock);
		/* Down is said to this client as well. */
		if (broken)
			sluice_window_end_link(device->window, peer);
		sluice_window_unlock(device->window);
	}
	if (again && !READ_ONCE(device->removed))
		schedule_delayed_work(&device->state_work, RETRY_JIFFIES);
}

static void *add(struct sw_window *window)
{
	struct sr_device *device = ib_alloc_device(sr_device, ib);
	u32 peer;

	if (!device)
		return ERR_PTR(-ENOMEM);
	device->window = window;
	device->due_ns = U64_MAX;
	mutex_init(&device->lock);
	xa_init(&device->qps);
	xa_init(&device->keys);
	spin_lock_init(&device->posted_lock);
	INIT_LIST_HEAD(&device->posted);
	sr_watch_begin(device);
	device->next_number = SR_NUMBER_MIN + get_random_u32() % (SR_NUMBER_MAX - SR_NUMBER_MIN);
	INIT_DELAYED_WORK(&device->work, work);
	INIT_DELAYED_WORK(&device->state_work, state_work);
	for (peer = 0; peer < SW_HOSTS_MAX; peer++)
		sr_lane_init(&device->lanes[peer], device, peer);
	sr_verbs_set(device);
	device->own_ring = vzalloc(SR_CONTROL_BYTES + OWN_RING_BYTES);
	device->queue = alloc_workqueue("sluice_rdma%d", WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_UNBOUND, 1,
					sluice_window_index(window));
	if (device->queue && device->own_ring && !sr_gsi_begin(device))
		return device;
	if (device->queue)
		destroy_workqueue(device->queue);
	sr_gsi_end(device);
	vfree(device->own_ring);
	ib_dealloc_device(&device->ib);
	return ERR_PTR(-ENOMEM);
}

/*
 * From here on nothing is registered, and nobody is told of a port. Users part with what they have, some
 * with their peers' consent (DREQ and DREP of the connection manager), for which datagrams come and go.
 */
static void leave(void *context)
{
	struct sr_device *device = context;

	WRITE_ONCE(device->removed, true);
	cancel_delayed_work_sync(&device->state_work);
	if (device->registered)
		ib_unregister_device(&device->ib);
	WRITE_ONCE(device->forgotten, true);
}

static void remove(void *context)
{
	struct sr_device *device = context;
	u32 peer;

	sr_net_end(device);
	sluice_window_lock(device->window);
	for (peer = 0; peer < SW_HOSTS_MAX; peer++) {
		struct sr_lane *lane = &device->lanes[peer];
		bool end = lane->linked;

		mutex_lock(&device->lock);
		end_lane(lane, true);
		mutex_unlock(&device->lock);
		/* The peer may write to what was lent to it for as long as there is the link. */
		if (end)
			sluice_window_end_link(device->window, peer);
	}
	sluice_window_unlock(device->window);
	cancel_delayed_work_sync(&device->state_work);
	/* It calls the worker, which may start it once more. */
	sr_watch_end(device);
	cancel_delayed_work_sync(&device->work);
	sr_watch_end(device);
	sr_gsi_end(device);
	destroy_workqueue(device->queue);
	vfree(device->own_ring);
	xa_destroy(&device->qps);
	xa_destroy(&device->keys);
	mutex_destroy(&device->lock);
	ib_dealloc_device(&device->ib);
}

static struct sluice_window_client client = {
	.name = "sluice_rdma",
	.port = SLUICE_WINDOW_PORT_VERBS,
	.add = add,
	.leave = leave,
	.remove = remove,
	.slot = slot,
	.up = link_up,
	.down = link_down,
	.message = message,
	.rang = rang,
};

static int __init sr_init(void)
{
	return sluice_window_register_client(&client);
}

static void __exit sr_exit(void)
{
	sluice_window_unregister_client(&client);
}

module_init(sr_init);
module_exit(sr_exit);

MODULE_DESCRIPTION("RDMA over windows");
MODULE_LICENSE("GPL");
