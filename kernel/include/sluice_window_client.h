/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Windows for other modules (docs/kernel.md, "For modules"): a client is told of each window and its
 * links, sends and hears messages at one port, has pieces of the heap, and rings doorbells.
 *
 * add() and remove() may sleep as long as they want. slot(), up(), down() and message() are called
 * with the window's lock held, one at a time and in order; they take no lock under which the client
 * calls sluice_window_lock(). rang() is called from interrupts. None is called before add() has
 * returned or after remove() was called. A client that comes to a window with links has them begin
 * anew: what its peers said before was said to nobody.
 */
#ifndef SLUICE_WINDOW_CLIENT_H
#define SLUICE_WINDOW_CLIENT_H

#include <linux/list.h>
#include <linux/types.h>

struct device;
struct sw_view;
struct sw_window;

struct sluice_window_client {
	const char *name;
	/* The upper half of the kinds of its messages; no program can have it meanwhile. */
	u16 port;
	/* ERR_PTR: it has nothing to do with this window. */
	void *(*add)(struct sw_window *window);
	/*
	 * It is about to be removed, and is called as before until this has returned: its users part with
	 * their peers. May be NULL.
	 */
	void (*leave)(void *context);
	/* Nobody calls it any more. */
	void (*remove)(void *context);
	/*
	 * A slot is held, as @view says, which is valid until the next call and to be copied; NULL: it is
	 * no more, all links are down and all that was lent of it is gone.
	 */
	void (*slot)(void *context, const struct sw_view *view);
	void (*up)(void *context, u32 peer);
	/*
	 * @left: in order. The peer's slot may be written to until down() has returned. What was lent to
	 * it is to be taken back.
	 */
	void (*down)(void *context, u32 peer, bool left);
	/* Anything but 0 ends the link: -EPROTO, that cannot be; -ENOMEM. */
	int (*message)(void *context, u32 peer, u32 kind, const u8 *data, u32 bytes);
	void (*rang)(void *context, u32 vector);
	/* The bus's. */
	struct list_head list;
};

/* -EADDRINUSE: another client has that port. */
int sluice_window_register_client(struct sluice_window_client *client);
void sluice_window_unregister_client(struct sluice_window_client *client);

struct device *sluice_window_device(struct sw_window *window);
int sluice_window_index(const struct sw_window *window);

/* Around the calls below, but for ring(), where they are not made from a client's functions. */
void sluice_window_lock(struct sw_window *window);
void sluice_window_unlock(struct sw_window *window);

/* -ENOLINK, -EAGAIN: no room now, -EINVAL: not the client's port, -EMSGSIZE, -EPROTO. */
int sluice_window_send(struct sw_window *window, const struct sluice_window_client *client, u32 peer,
		       u32 kind, const void *data, u32 bytes);
/* Where a piece begins that @peer may write to, in the own slot; whole pages. 0: there is no room. */
u64 sluice_window_lend(struct sw_window *window, u32 peer, u64 bytes);
/* False: no piece of that peer's begins there. */
bool sluice_window_take_back(struct sw_window *window, u32 peer, u64 at);
/*
 * Ends the link with a peer, for all that use it, in order; another one begins. A client that goes has
 * no other way to say so to a peer that writes to what it was lent. Not from a client's functions but
 * remove().
 */
void sluice_window_end_link(struct sw_window *window, u32 peer);

/* How many doorbells a peer has said that it has. */
u32 sluice_window_vectors(struct sw_window *window, u32 peer);
/*
 * Rings a doorbell, from process context. False: the peer has not said that it has that one. A peer
 * that is being replaced may be rung in vain.
 */
bool sluice_window_ring(struct sw_window *window, u32 peer, u32 vector);

#endif
