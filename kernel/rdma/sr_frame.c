// SPDX-License-Identifier: GPL-2.0
#include "sr_frame.h"

static u64 pair(u32 low, u32 high)
{
	return low | (u64)high << 32;
}

void sr_frame_emit(const struct sr_frame *frame, u8 bytes[SR_HEADER_BYTES])
{
	u32 kind = frame->what | (u32)frame->flags << 8 | (u32)frame->code << 16;
	u64 words[8] = {
		pair(frame->len, kind),
		pair(frame->to, frame->from),
		frame->seq,
		pair(frame->psn, frame->imm),
		frame->addr,
		pair(frame->rkey, frame->about),
		frame->words[0],
		frame->words[1],
	};
	int i;

	for (i = 0; i < 8; i++)
		words[i] = cpu_to_le64(words[i]);
	memcpy(bytes, words, SR_HEADER_BYTES);
}

int sr_frame_parse(struct sr_frame *frame, const u8 bytes[SR_HEADER_BYTES])
{
	u64 words[8];
	int i;

	memcpy(words, bytes, SR_HEADER_BYTES);
	for (i = 0; i < 8; i++)
		words[i] = le64_to_cpu(words[i]);
	frame->len = (u32)words[0];
	frame->what = (u8)(words[0] >> 32);
	frame->flags = (u8)(words[0] >> 40);
	frame->code = (u16)(words[0] >> 48);
	frame->to = (u32)words[1];
	frame->from = (u32)(words[1] >> 32);
	frame->seq = words[2];
	frame->psn = (u32)words[3];
	frame->imm = (u32)(words[3] >> 32);
	frame->addr = words[4];
	frame->rkey = (u32)words[5];
	frame->about = (u32)(words[5] >> 32);
	frame->words[0] = words[6];
	frame->words[1] = words[7];
	return frame->what >= SR_REQUEST && frame->what <= SR_READY ? 0 : -EPROTO;
}

void sr_frame_about(struct sr_frame *frame, enum sr_what what, const struct sr_frame *request)
{
	memset(frame, 0, sizeof(*frame));
	frame->what = what;
	frame->to = request->from;
	frame->seq = request->seq;
	frame->psn = request->psn;
}
