// SPDX-License-Identifier: GPL-2.0
/*
 * The module's channel in user space, as host 0 of the window in a file, told by lines on its standard
 * input what to do: for tests that run it against another implementation.
 *
 *   channel FILE
 *
 * check AT RING                      whether host 1 may lend that: "ok" or "broken"
 * begin LENT RING BORROWED RING      a channel with host 1; "ok"
 * put WHAT FLAGS CODE TO FROM SEQ PSN IMM ADDR RKEY ABOUT WORD WORD LEN SEED
 *                                    a frame, with LEN bytes from SEED on, and tells of it: "ok",
 *                                    "ring" if host 1 is to be rung for, "full" or "broken"
 * next                               "none", "broken", or the same numbers but SEED, for which it has
 *                                    the sum of the bytes (FNV-1a); "room" behind them if it told of that
 * sleep WANTS_ROOM                   "ok"
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sr_channel.h"
#include "sw_proto.h"

static struct sw_view view;
static struct sr_channel channel;

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static void put(const unsigned long long *n)
{
	struct sr_frame frame = {
		.what = n[0], .flags = n[1], .code = n[2], .to = n[3], .from = n[4], .seq = n[5],
		.psn = n[6], .imm = n[7], .addr = n[8], .rkey = n[9], .about = n[10],
		.words = { n[11], n[12] }, .len = n[13],
	};
	u8 byte = n[14];
	u32 i;
	int room;

	if (frame.len > sr_channel_piece_bytes(&channel)) {
		say("full");
		return;
	}
	room = sr_channel_room(&channel, frame.len);
	if (room <= 0) {
		say(room ? "broken" : "full");
		return;
	}
	sr_channel_put_header(&channel, &frame);
	for (i = 0; i < frame.len; i++, byte += 7)
		sr_channel_put(&channel, &byte, 1);
	sr_channel_pad(&channel, frame.len);
	sr_channel_publish(&channel);
	say(sr_channel_must_ring(&channel, SR_ASLEEP) ? "ring" : "ok");
}

static void next(void)
{
	u64 sum = 0xcbf29ce484222325ULL;
	struct sr_frame frame;
	u8 byte;
	u32 i;
	int got = sr_channel_next(&channel, &frame);

	if (got <= 0) {
		say(got ? "broken" : "none");
		return;
	}
	for (i = 0; i < frame.len; i++) {
		sr_channel_copy(&channel, i, &byte, 1);
		sum = (sum ^ byte) * 0x100000001b3ULL;
	}
	printf("%u %u %u %u %u %llu %u %u %llu %u %u %llu %llu %u %llu%s", frame.what, frame.flags,
	       frame.code, frame.to, frame.from, (unsigned long long)frame.seq, frame.psn, frame.imm,
	       (unsigned long long)frame.addr, frame.rkey, frame.about,
	       (unsigned long long)frame.words[0], (unsigned long long)frame.words[1], frame.len,
	       (unsigned long long)sum, sr_channel_take(&channel, &frame) ? " room" : "");
	say("");
}

static void obey(const char *line)
{
	unsigned long long n[15] = { 0 };
	char word[16] = "";
	int used = 0, count = 0, more;

	sscanf(line, "%15s%n", word, &used);
	for (line += used; count < 15 && sscanf(line, "%llu%n", &n[count], &more) == 1; line += more)
		count++;
	if (!strcmp(word, "check")) {
		say(sr_piece_check(&view, n[0], n[1]) ? "broken" : "ok");
	} else if (!strcmp(word, "begin")) {
		struct sr_pieces pieces = { n[0], n[1], n[2], n[3] };

		sr_channel_begin(&channel, &view, 1, &pieces);
		say("ok");
	} else if (!strcmp(word, "put")) {
		put(n);
	} else if (!strcmp(word, "next")) {
		next();
	} else if (!strcmp(word, "sleep")) {
		sr_channel_sleep(&channel, n[0]);
		say("ok");
	} else {
		say("what?");
	}
}

int main(int count, char **words)
{
	struct sw_header header;
	struct stat status;
	char line[1024];
	u8 *region;
	int fd;

	if (count != 2)
		return 2;
	fd = open(words[1], O_RDWR);
	if (fd < 0 || fstat(fd, &status))
		return 3;
	region = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED || sw_header_read(region, status.st_size, &header))
		return 3;
	sw_view_region(&view, &header, region, 0);
	say("ready");
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
