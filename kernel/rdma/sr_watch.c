// SPDX-License-Identifier: GPL-2.0
/*
 * Who looks at queues that are mapped. A device is awake for a while behind each call of a program with such queues:
 * then posts need no call, and peers no bell. Three look: a program that polls an empty queue, which calls for
 * it; the worker, as long as its processor has nothing else to do; and the worker again when nobody has
 * looked for look_us. If that finds nothing the device says that nobody looks.
 *
 * device->lock is held but where it says otherwise.
 */
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/workqueue.h>

#include "sr.h"

#define LOOK_US_MAX 1000U

static unsigned int look_us = 50;
module_param(look_us, uint, 0644);
MODULE_PARM_DESC(look_us, "how long mapped queues are looked at behind the last work, in us; 0: not at all");

static u64 look_ns(void)
{
	return (u64)min(READ_ONCE(look_us), LOOK_US_MAX) * NSEC_PER_USEC;
}

/* From the timer. Who polls has looked in between; else it is the worker's turn. */
static enum hrtimer_restart is_over(struct hrtimer *timer)
{
	struct sr_device *device = container_of(timer, struct sr_device, watch_timer);
	u64 looks = READ_ONCE(device->looks), wait_ns = look_ns();

	if (looks != device->looks_seen && wait_ns) {
		device->looks_seen = looks;
		hrtimer_forward_now(timer, ns_to_ktime(wait_ns));
		return HRTIMER_RESTART;
	}
	WRITE_ONCE(device->watch_over, true);
	sr_device_kick(device);
	return HRTIMER_NORESTART;
}

void sr_watch_begin(struct sr_device *device)
{
	INIT_LIST_HEAD(&device->watched);
#ifdef SR_HAS_HRTIMER_SETUP
	hrtimer_setup(&device->watch_timer, is_over, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(&device->watch_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	device->watch_timer.function = is_over;
#endif
}

/* Nobody calls any more, and the device is forgotten. No lock held. */
void sr_watch_end(struct sr_device *device)
{
	hrtimer_cancel(&device->watch_timer);
}

static void start(struct sr_device *device)
{
	device->looks_seen = device->looks;
	device->taken_seen = device->taken;
	WRITE_ONCE(device->watch_over, false);
	hrtimer_start(&device->watch_timer, ns_to_ktime(look_ns()), HRTIMER_MODE_REL);
}

void sr_watch_wake(struct sr_device *device)
{
	device->looks++;
	if (device->awake || !look_ns() || READ_ONCE(device->removed))
		return;
	device->awake = true;
	start(device);
	/* It may find a processor that has nothing to do. */
	if (num_online_cpus() > 1)
		sr_device_kick(device);
}

void sr_watch_posts(struct sr_qp *qp)
{
	/* Who waits for events is told by bells, not by who looks. */
	if (!look_ns() || sr_cq_is_armed(to_cq(qp->ib.send_cq)) || sr_cq_is_armed(to_cq(qp->ib.recv_cq)))
		return;
	sr_watch_wake(qp->device);
	if (!qp->device->awake || !list_empty(&qp->watch))
		return;
	list_add_tail(&qp->watch, &qp->device->watched);
	sr_queues_say(qp, SLUICE_RDMA_LOOKS);
}

void sr_watch_take(struct sr_device *device)
{
	struct sr_qp *qp;

	list_for_each_entry(qp, &device->watched, watch) {
		sr_queues_look(qp);
		if (sr_queues_has_posts(qp))
			sr_post_take(qp);
	}
}

void sr_watch_forget(struct sr_qp *qp)
{
	if (list_empty(&qp->watch))
		return;
	list_del_init(&qp->watch);
	sr_queues_say(qp, SLUICE_RDMA_NOBODY);
	/* Others of the same queue do without it for a moment. */
	sr_cq_attend(to_cq(qp->ib.send_cq), 0);
	sr_cq_attend(to_cq(qp->ib.recv_cq), 0);
}

/* Nobody looks from now on. False: somebody has posted in between. */
static bool part(struct sr_device *device)
{
	struct sr_qp *qp;
	bool posted = false;

	list_for_each_entry(qp, &device->watched, watch)
		sr_queues_say(qp, SLUICE_RDMA_NOBODY);
	/* Said first, looked then; who posts does it the other way round. */
	smp_mb();
	list_for_each_entry(qp, &device->watched, watch)
		posted |= sr_queues_has_posts(qp);
	if (posted) {
		list_for_each_entry(qp, &device->watched, watch)
			sr_queues_say(qp, SLUICE_RDMA_LOOKS);
		return false;
	}
	while (!list_empty(&device->watched)) {
		qp = list_first_entry(&device->watched, struct sr_qp, watch);
		list_del_init(&qp->watch);
	}
	return true;
}

bool sr_watch_is_over(struct sr_device *device)
{
	if (!device->awake)
		return true;
	if (!READ_ONCE(device->watch_over))
		return false;
	if (device->taken == device->taken_seen) {
		if (part(device)) {
			device->awake = false;
			return true;
		}
		/* What was posted in between is for the worker. */
		sr_device_kick(device);
	}
	start(device);
	return false;
}

/* From anywhere: who waits for events from now on. */
void sr_watch_hurry(struct sr_device *device)
{
	if (!READ_ONCE(device->awake))
		return;
	WRITE_ONCE(device->watch_over, true);
	sr_device_kick(device);
}

static void attend(struct sr_device *device, u32 attended)
{
	struct sr_qp *qp;

	list_for_each_entry(qp, &device->watched, watch) {
		sr_cq_attend(to_cq(qp->ib.send_cq), attended);
		sr_cq_attend(to_cq(qp->ib.recv_cq), attended);
	}
}

/* Whether nobody else wants this processor, nor the worker for something else. */
static bool is_free(struct sr_device *device)
{
	return READ_ONCE(device->awake) && !READ_ONCE(device->forgotten) && single_task_running() &&
	       !need_resched() && !delayed_work_pending(&device->work);
}

/* No lock held. */
void sr_watch_look(struct sr_device *device)
{
	u64 wait_ns = look_ns(), now_ns = ktime_get_ns(), until_ns = now_ns + wait_ns;
	u64 worked = READ_ONCE(device->worked);

	while (is_free(device) && now_ns < until_ns && now_ns < READ_ONCE(device->due_ns)) {
		mutex_lock(&device->lock);
		if (!device->attended) {
			device->attended = true;
			attend(device, 1);
		}
		sr_watch_take(device);
		sr_device_look(device);
		if (worked != device->worked) {
			worked = device->worked;
			device->looks++;
			until_ns = now_ns + wait_ns;
		}
		mutex_unlock(&device->lock);
		cpu_relax();
		now_ns = ktime_get_ns();
	}
	if (!READ_ONCE(device->attended))
		return;
	mutex_lock(&device->lock);
	device->attended = false;
	attend(device, 0);
	mutex_unlock(&device->lock);
}
