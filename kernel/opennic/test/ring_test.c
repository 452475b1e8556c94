// SPDX-License-Identifier: GPL-2.0
/* The driver's ring arithmetic beside a queue that counts without ever wrapping. */
#include <stdio.h>
#include <stdlib.h>

#include "../onic_ring.h"

#define CHECK(what)                                                                     \
	do {                                                                            \
		if (!(what)) {                                                          \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);      \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

/* xorshift */
static u32 chance(void)
{
	static u32 state = 2463534242u;

	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static void rings(u16 count)
{
	u64 made = 0, taken = 0;
	u16 head = 0, tail = 0;

	for (int step = 0; step < 20000; step++) {
		if (chance() % 2 && made - taken < (u64)count - 1) {
			head = onic_ring_next(head, count);
			made++;
		} else if (made != taken) {
			tail = onic_ring_next(tail, count);
			taken++;
		}
		CHECK(head == made % count && tail == taken % count);
		CHECK(onic_ring_used(head, tail, count) == made - taken);
		CHECK(onic_ring_free(head, tail, count) == count - 1 - (made - taken));
		/* The device may say any number. */
		u16 said = chance() % (count + 3);
		u64 ahead = (said + count - tail) % count;
		CHECK(onic_ring_consumed_ok(said, head, tail, count) ==
		      (said < count && ahead <= made - taken));
	}
}

static void colours(u16 count)
{
	u64 ring[64] = { 0 };
	bool writes = true, reads = true;
	u16 put = 0, get = 0;
	u64 made = 0, taken = 0;

	for (int step = 0; step < 20000; step++) {
		if (chance() % 2 && made - taken < (u64)count - 1) {
			ring[put] = (writes ? ONIC_CMPL_COLOUR : 0) | made << 32;
			put = onic_ring_next(put, count);
			writes ^= put == 0;
			made++;
		}
		CHECK(onic_cmpl_is_new(ring[get], reads) == (made != taken));
		if (chance() % 2 && onic_cmpl_is_new(ring[get], reads)) {
			CHECK(onic_cmpl_len(ring[get]) == (u16)taken);
			get = onic_ring_next(get, count);
			reads ^= get == 0;
			taken++;
		}
	}
}

int main(void)
{
	for (u16 count = 2; count < 64; count++) {
		rings(count);
		colours(count);
	}
	rings(16384);
	CHECK(onic_cmpl_buffers(0, 2048) == 1 && onic_cmpl_buffers(2048, 2048) == 1);
	CHECK(onic_cmpl_buffers(2049, 2048) == 2 && onic_cmpl_buffers(65000, 256) == 254);
	CHECK(onic_tx_desc(0x1234) == 0x123400001234ULL);
	CHECK(onic_status_cidx(0x00050009) == 5);
	CHECK(onic_cmpl_is_bad(4) && !onic_cmpl_is_bad(~4ULL));
	puts("ok");
	return 0;
}
