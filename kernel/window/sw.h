/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A window in the kernel: what backends give, what the core does with it, what programs see.
 *
 * Locks: window->lock guards the protocol's state, files and pieces. It is taken inside mmap_lock
 * (by faults), so nothing is copied from or to a program under it. window->events_lock is for
 * interrupts. The lock of clients (sw_client.c) is outside of window->lock.
 */
#ifndef SW_H
#define SW_H

#include <linux/eventfd.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "sluice_window_client.h"
#include "uapi/sluice_window.h"
#include "sw_proto.h"

#if PAGE_SHIFT != 12
#error "pieces of a window are lent by pages of 4096 bytes"
#endif

struct sw_window;

/*
 * A backend. Its contract is that of a non-transparent bridge: the own slot is local memory, peers'
 * slots are only written, doorbells are posted. Calls are made from process context, ring() also
 * under a mutex; none after sw_window_remove() has returned.
 */
struct sw_ops {
	/* Rings a doorbell, by the number that its host gave for itself. */
	void (*ring)(void *backend, u32 bell, u32 vector);
	/*
	 * The page frame of a page of a slot; the own one's when @slot is view->me. Sizes are @view's, which
	 * were checked: peers can write to the header at any time.
	 */
	unsigned long (*pfn)(void *backend, const struct sw_view *view, u32 slot, u64 at);
};

struct sw_config {
	const struct sw_ops *ops;
	void *backend;
	struct device *parent;
	/* This host's number for doorbells, and how many it has. */
	u32 bell;
	u32 vectors;
	/* A region, or across a bridge a view that is whole. */
	u8 *region;
	u64 region_bytes;
	const struct sw_view *view;
};

/* A piece that a peer said it lends to a port, not yet borrowed or borrowed. */
struct sw_grant {
	struct list_head list;
	u64 at;
	u64 bytes;
	u16 port;
	bool borrowed;
};

#define SW_GRANTS_MAX 64

struct sw_peer {
	struct sw_link link;
	/* What it rings by; no vectors: not told. */
	u32 bell;
	u32 vectors;
	bool bell_told;
	/* Clients know that its link is up. */
	bool announced;
	struct list_head grants;
	u32 grant_count;
	/* Pieces that files have ended and that the peer has not, and RETURNs that found no room. */
	struct list_head ending;
};

enum sw_state { SW_CLAIMING, SW_HELD, SW_REMOVED };

struct sw_window {
	struct kref ref;
	struct sw_config config;
	struct miscdevice misc;
	char name[32];
	int index;
	/* In the list of all. */
	struct list_head list;

	struct mutex lock;
	enum sw_state state;
	struct sw_header header;
	struct sw_view view;
	struct sw_claim claim;
	u64 beat_due_ns;
	struct sw_peer peers[SW_HOSTS_MAX];
	struct sw_heap heap;
	struct list_head files;
	/* Changed under events_lock as well. */
	struct list_head attachments;
	u64 next_offset;
	u8 message[SW_MESSAGE_BYTES_MAX];

	struct workqueue_struct *queue;
	struct delayed_work work;

	spinlock_t events_lock;
	struct list_head events;
};

enum sw_piece_state {
	SW_PIECE_LIVE,
	/* Mappings show the file's own page. */
	SW_PIECE_DEAD,
};

struct sw_piece {
	/* In its file, or in peer->ending when the file has no more to do with it. */
	struct list_head list;
	enum sw_piece_state state;
	bool borrowed;
	/* The peer knows that it is over, or need not. */
	bool told;
	u64 at;
	u64 bytes;
	u64 offset;
	/* Who has it, as long as its pages are not back. */
	kuid_t uid;
};

struct sw_event_fd {
	struct list_head list;
	struct sw_file *file;
	struct eventfd_ctx *ctx;
	u32 vector;
};

struct sw_file {
	struct list_head list;
	struct sw_window *window;
	struct file *file;
	kuid_t uid;
	bool attached;
	/* The link that it attached to has ended. */
	bool ended;
	bool lost;
	u32 peer;
	u16 port;
	struct list_head pieces;
	u32 piece_count;
	struct list_head queue;
	u32 queued;
	wait_queue_head_t wait;
	u32 event_count;
	/* What mappings of dead pieces show. */
	unsigned long page;
};

struct sw_queued {
	struct list_head list;
	u32 kind;
	u32 bytes;
	u8 data[];
};

/* Messages between kernels: see docs/windows.md, "Pieces for programs". */
#define SW_KIND(n)	((u32)SLUICE_WINDOW_PORT_KERNEL << 16 | (n))
#define SW_GRANT	SW_KIND(1)
#define SW_RETURN	SW_KIND(2)
#define SW_TAKE		SW_KIND(3)
#define SW_BELL		SW_KIND(4)

/* For backends. */
struct sw_window *sw_window_add(const struct sw_config *config);
void sw_window_remove(struct sw_window *window);
/* A doorbell rang; from interrupts too. */
void sw_window_rang(struct sw_window *window, u32 vector);

/* Within. */
u64 sw_user_bytes_max(struct sw_window *window);
void sw_window_free(struct kref *ref);
void sw_kick(struct sw_window *window);
/* In order; another one begins. With the lock held. */
void sw_end_link(struct sw_window *window, u32 peer);

int sw_char_add(struct sw_window *window);
void sw_char_remove(struct sw_window *window);
void sw_signal(struct sw_window *window, u32 vector);
/* With the lock held: a message for programs, the end of a peer, the end of everything. */
void sw_files_message(struct sw_window *window, u32 peer, u32 kind, const u8 *data, u32 bytes);
void sw_files_peer_ended(struct sw_window *window, u32 peer);
void sw_files_wake(struct sw_window *window);

/* Pieces; all with the lock held. */
void sw_pieces_peer_init(struct sw_peer *peer);
u64 sw_pieces_bytes(struct sw_window *window, kuid_t uid);
int sw_piece_lend(struct sw_file *file, struct sluice_window_piece *asked);
int sw_piece_borrow(struct sw_file *file, struct sluice_window_piece *asked);
void sw_piece_end(struct sw_file *file, struct sw_piece *piece);
void sw_piece_kill(struct sw_file *file, struct sw_piece *piece);
/* 0, -EAGAIN, or -EPROTO: the link is to be ended. */
int sw_pieces_message(struct sw_window *window, u32 peer, u32 kind, const u8 *data, u32 bytes);
int sw_pieces_say(struct sw_window *window, u32 peer);
void sw_pieces_peer_ended(struct sw_window *window, u32 peer);
int sw_mail(struct sw_window *window, u32 peer, u32 kind, const void *data, u32 bytes);

int sw_mmap(struct file *file, struct vm_area_struct *area);

/* Clients. The first two without the lock, the last from interrupts, the others with the lock held. */
void sw_clients_window_added(struct sw_window *window);
void sw_clients_window_removed(struct sw_window *window);
void sw_clients_slot(struct sw_window *window, const struct sw_view *view);
void sw_clients_up(struct sw_window *window, u32 peer);
void sw_clients_down(struct sw_window *window, u32 peer, bool left);
bool sw_clients_have_port(struct sw_window *window, u16 port);
/* To the client that has the port. */
int sw_clients_message(struct sw_window *window, u32 peer, u32 kind, const u8 *data, u32 bytes);
void sw_clients_rang(struct sw_window *window, u32 vector);

int sw_ivshmem_register(void);
void sw_ivshmem_unregister(void);

#endif
