// SPDX-License-Identifier: GPL-2.0
/*
 * sluice_window_test: a client that greets each peer with a piece of its heap, writes to the pieces
 * that it is greeted with, and counts what comes of it, in its parameters. For tests only: it
 * is built with SW_TEST=1.
 */
#include <linux/atomic.h>
#include <linux/moduleparam.h>
#include <linux/module.h>

#include "sw.h"

#define PORT	0x1002
#define KIND(n)	((u32)PORT << 16 | (n))
/* Here is a piece for you; what you lent has been written to; each 64 bits: its place. */
#define LENT	KIND(1)
#define WRITTEN	KIND(2)
#define BYTES	(3 * SW_PAGE)
#define VECTOR	1

static int windows, slots, ups, downs, lefts, exchanges, wrongs;
static atomic_t rings = ATOMIC_INIT(0);

static int rings_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(&rings));
}

static const struct kernel_param_ops rings_ops = { .get = rings_get };

module_param(windows, int, 0444);
module_param(slots, int, 0444);
module_param(ups, int, 0444);
module_param(downs, int, 0444);
module_param(lefts, int, 0444);
module_param(exchanges, int, 0444);
module_param(wrongs, int, 0444);
module_param_cb(rings, &rings_ops, NULL, 0444);

struct test {
	struct sw_window *window;
	struct sw_view view;
	bool held;
	u64 lent[SW_HOSTS_MAX];
};

static struct sluice_window_client client;

static void *add(struct sw_window *window)
{
	struct test *test = kzalloc(sizeof(*test), GFP_KERNEL);

	if (!test)
		return ERR_PTR(-ENOMEM);
	test->window = window;
	windows++;
	return test;
}

static void remove(void *context)
{
	struct test *test = context;
	u32 peer;

	sluice_window_lock(test->window);
	for (peer = 0; test->held && peer < test->view.hosts; peer++)
		if (test->lent[peer]) {
			if (!sluice_window_take_back(test->window, peer, test->lent[peer]))
				wrongs++;
			sluice_window_end_link(test->window, peer);
		}
	sluice_window_unlock(test->window);
	windows--;
	kfree(test);
}

static void slot(void *context, const struct sw_view *view)
{
	struct test *test = context;

	test->held = view;
	if (view) {
		test->view = *view;
		slots++;
	}
}

static u8 byte_at(u32 from, u32 index)
{
	return from * 31 + index * 7 + (index >> 8);
}

static int say(struct test *test, u32 peer, u32 kind, u64 at)
{
	__le64 word = cpu_to_le64(at);

	return sluice_window_send(test->window, &client, peer, kind, &word, sizeof(word));
}

static void link_up(void *context, u32 peer)
{
	struct test *test = context;

	ups++;
	test->lent[peer] = sluice_window_lend(test->window, peer, BYTES - 5);
	/* Neither to nobody, nor to itself, nor as another. */
	if (!test->lent[peer] || sluice_window_lend(test->window, test->view.me, 1) ||
	    sluice_window_lend(test->window, test->view.hosts, 1) ||
	    sluice_window_take_back(test->window, test->view.me, test->lent[peer]) ||
	    sluice_window_take_back(test->window, peer, test->lent[peer] + SW_PAGE) ||
	    say(test, test->view.me, LENT, 0) != -ENOLINK ||
	    say(test, SW_HOSTS_MAX, LENT, 0) != -ENOLINK || say(test, peer, 1, 0) != -EINVAL ||
	    say(test, peer, LENT, test->lent[peer]))
		wrongs++;
}

static void link_down(void *context, u32 peer, bool left)
{
	struct test *test = context;

	downs++;
	lefts += left;
	if (test->lent[peer] && !sluice_window_take_back(test->window, peer, test->lent[peer]))
		wrongs++;
	test->lent[peer] = 0;
}

static int write_piece(struct test *test, u32 peer, u64 at)
{
	u8 line[SW_LINE];
	u32 index, i;

	if (at < sw_heap_at(test->view.hosts) || !IS_ALIGNED(at, SW_PAGE) ||
	    at > test->view.slot_bytes - BYTES)
		return -EPROTO;
	for (index = 0; index < BYTES; index += SW_LINE) {
		for (i = 0; i < SW_LINE; i++)
			line[i] = byte_at(test->view.me, index + i);
		sw_copy_in(&test->view, peer, at + index, line, SW_LINE);
	}
	sw_publish(&test->view, peer, at, BYTES);
	if (say(test, peer, WRITTEN, at))
		wrongs++;
	sluice_window_ring(test->window, peer, VECTOR);
	return 0;
}

static int read_piece(struct test *test, u32 peer, u64 at)
{
	u8 line[SW_LINE];
	u32 index, i;

	if (!test->lent[peer] || at != test->lent[peer])
		return -EPROTO;
	sw_refresh(&test->view, at, BYTES);
	for (index = 0; index < BYTES; index += SW_LINE) {
		sw_copy_out(&test->view, at + index, line, SW_LINE);
		for (i = 0; i < SW_LINE; i++)
			if (line[i] != byte_at(peer, index + i)) {
				wrongs++;
				return 0;
			}
	}
	exchanges++;
	return 0;
}

static int message(void *context, u32 peer, u32 kind, const u8 *data, u32 bytes)
{
	struct test *test = context;
	__le64 word;

	if (bytes != sizeof(word))
		return -EPROTO;
	memcpy(&word, data, sizeof(word));
	if (kind == LENT)
		return write_piece(test, peer, le64_to_cpu(word));
	return kind == WRITTEN ? read_piece(test, peer, le64_to_cpu(word)) : -EPROTO;
}

static void rang(void *context, u32 vector)
{
	if (vector == VECTOR)
		atomic_inc(&rings);
}

static struct sluice_window_client client = {
	.name = "sluice_window_test",
	.port = PORT,
	.add = add,
	.remove = remove,
	.slot = slot,
	.up = link_up,
	.down = link_down,
	.message = message,
	.rang = rang,
};

static int __init test_init(void)
{
	struct sluice_window_client other = client;
	int err = sluice_window_register_client(&client);

	if (err)
		return err;
	if (sluice_window_register_client(&other) != -EADDRINUSE)
		wrongs++;
	other.port = SLUICE_WINDOW_PORT_KERNEL;
	if (sluice_window_register_client(&other) != -EADDRINUSE)
		wrongs++;
	return 0;
}

static void __exit test_exit(void)
{
	sluice_window_unregister_client(&client);
}

module_init(test_init);
module_exit(test_exit);

MODULE_DESCRIPTION("A client of windows, for tests");
MODULE_LICENSE("GPL");
