/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * /dev/sluice_windowN: pieces of a window and doorbells for programs (docs/kernel.md).
 *
 * A file speaks, after SLUICE_WINDOW_ATTACH, with one peer on one port: the upper 16 bits of the
 * kinds of its messages. Everything that it has ends with the last copy of its descriptor and the
 * last mapping: pieces go back, doorbells are forgotten.
 *
 * All calls return 0 or -1 with errno. ENODEV: the device was removed; it stays so. ENOLINK: the
 * link with the peer is down; what this file had with it is gone, and it attaches again by a new
 * descriptor. EINVAL: an argument that cannot be, or a reserved field that
 * is not 0.
 *
 * Mappings never fault with a signal. When a piece is given back, taken back, or its link or the
 * device ends, they show one private page of the file, again and again, instead.
 *
 * poll(2): POLLIN when SLUICE_WINDOW_RECEIVE has something to say, POLLHUP with ENODEV or ENOLINK.
 */
#ifndef SLUICE_WINDOW_UAPI_H
#define SLUICE_WINDOW_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SLUICE_WINDOW_ABI		1
#define SLUICE_WINDOW_MESSAGE_MAX	1024
/* Per file. */
#define SLUICE_WINDOW_PIECES_MAX	16
#define SLUICE_WINDOW_EVENTS_MAX	8
/* Messages that a file may leave unread; RECEIVE says EOVERFLOW behind them when more came. */
#define SLUICE_WINDOW_QUEUE_MAX		64

/*
 * Ports that are not for programs: what kernels say to each other of pieces and doorbells, and
 * verbs.
 */
#define SLUICE_WINDOW_PORT_KERNEL	0x5700
#define SLUICE_WINDOW_PORT_VERBS	0x5600

struct sluice_window_info {
	__u32 abi;
	/* 1 coherent, 2 flush, 3 push */
	__u32 kind;
	__u32 hosts;
	/* ~0: none is held yet. */
	__u32 slot;
	__u64 slot_bytes;
	__u64 id[2];
	/* Which peers' links are up, by slot. */
	__u32 links;
	/* Doorbells of this host; vector 0 is the kernel's, and rings for messages as well. */
	__u32 vectors;
	/* What pieces of all files and of files of this user may have together, and have. */
	__u64 user_bytes_max;
	__u64 user_bytes;
	__u64 lent_bytes;
	__u64 reserved;
};

struct sluice_window_attach {
	__u32 peer;
	/* EADDRINUSE: another file has it; EACCES: it is not for programs. */
	__u16 port;
	__u16 reserved;
};

/*
 * LEND: a piece of this host's heap for the peer to write to, and to be mapped here. The peer hears
 * of it before any later message. ENOSPC: there is no such room; EDQUOT: this user has too much;
 * EMFILE: this file has too many; EAGAIN: the mailbox is full.
 *
 * BORROW: a piece that the peer has lent to this port, by its @at, to be mapped and written to.
 * ENOENT: none of that; @bytes is how long it is.
 */
struct sluice_window_piece {
	/* In the lender's slot. */
	__u64 at;
	/* In: at least so many. Out: whole pages. */
	__u64 bytes;
	/* For mmap(2), with MAP_SHARED. */
	__u64 offset;
	__u64 reserved;
};

struct sluice_window_message {
	/* The upper half is the port. */
	__u32 kind;
	/* In RECEIVE: out. */
	__u32 bytes;
	__u8 data[SLUICE_WINDOW_MESSAGE_MAX];
};

struct sluice_window_event {
	__u32 vector;
	/* An eventfd(2) that is written to whenever that doorbell rings. */
	__s32 fd;
};

#define SLUICE_WINDOW_INFO	_IOR('w', 0x40, struct sluice_window_info)
#define SLUICE_WINDOW_ATTACH	_IOW('w', 0x41, struct sluice_window_attach)
#define SLUICE_WINDOW_LEND	_IOWR('w', 0x42, struct sluice_window_piece)
#define SLUICE_WINDOW_BORROW	_IOWR('w', 0x43, struct sluice_window_piece)
/* Gives up a piece of either sort, by its offset. */
#define SLUICE_WINDOW_GIVE_UP	_IOW('w', 0x44, __u64)
#define SLUICE_WINDOW_SEND	_IOW('w', 0x45, struct sluice_window_message)
#define SLUICE_WINDOW_RECEIVE	_IOR('w', 0x46, struct sluice_window_message)
#define SLUICE_WINDOW_EVENT	_IOW('w', 0x47, struct sluice_window_event)
/* Rings a doorbell of the peer. EOPNOTSUPP: it has not said that it has that one. */
#define SLUICE_WINDOW_RING	_IOW('w', 0x48, __u32)

#endif
