/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Headers of the frames in which verbs cross a window (docs/windows.md, "Verbs"). No kernel call: the
 * tests have the same in user space.
 */
#ifndef SR_FRAME_H
#define SR_FRAME_H

#include "sw_port.h"

#define SR_HEADER_BYTES		64
/* A frame carries at most so many, and at most a quarter of the ring less its header. */
#define SR_PIECE_BYTES_MAX	32768
#define SR_PSN_MASK		0xffffffU
/* Above these bits a queue pair's number says whose it is. */
#define SR_NUMBER_BITS		19

enum sr_what {
	SR_REQUEST = 1,
	/* The next bytes of a request. */
	SR_MORE,
	/* How a request ended, and that all before it ended well. */
	SR_ANSWER,
	/* Bytes that a READ brings. */
	SR_DATA,
	/* A request found no receive, or a queue pair that is not ready. */
	SR_NOT_YET,
	/* What it did not find is there now. */
	SR_READY,
};

enum sr_flag {
	SR_SOLICITED = 1,
	SR_RELIABLE = 2,
	/* Of SR_NOT_YET. */
	SR_NO_RECEIVE = 4,
};

struct sr_frame {
	u8 what;
	u8 flags;
	/* An ib_wr_opcode, an ib_wc_status or an RNR timer, by what it is. */
	u16 code;
	/* Bytes that follow. */
	u32 len;
	u32 to;
	/* The upper eight bits: which connection of that queue pair. */
	u32 from;
	u64 seq;
	u32 psn;
	/* As it lies in memory, or a key to invalidate. */
	u32 imm;
	u64 addr;
	u32 rkey;
	u32 about;
	u64 words[2];
};

void sr_frame_emit(const struct sr_frame *frame, u8 bytes[SR_HEADER_BYTES]);
/* -EPROTO: there is no such frame. */
int sr_frame_parse(struct sr_frame *frame, const u8 bytes[SR_HEADER_BYTES]);
/* A frame to who sent @request, about it. */
void sr_frame_about(struct sr_frame *frame, enum sr_what what, const struct sr_frame *request);

static inline u32 sr_slot_of(u32 number)
{
	return (number & SR_PSN_MASK) >> SR_NUMBER_BITS;
}

/* Bytes of a frame in a ring. */
static inline u64 sr_padded(u64 len)
{
	return SR_HEADER_BYTES + ALIGN(len, (u64)8);
}

#endif
