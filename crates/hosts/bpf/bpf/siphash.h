/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012) of a message of 16 bytes, given as two numbers whose
 * bytes are little-endian, with a key of two numbers.
 */
#ifndef SLUICE_SIPHASH_H
#define SLUICE_SIPHASH_H

#include "common.h"

struct key {
	__u64 words[2];
};

struct sip {
	__u64 a, b, c, d;
};

static ALWAYS_INLINE __u64 rotated(__u64 value, unsigned int bits)
{
	return value << bits | value >> (64 - bits);
}

static ALWAYS_INLINE void sip_round(struct sip *v)
{
	v->a += v->b;
	v->c += v->d;
	v->b = rotated(v->b, 13) ^ v->a;
	v->d = rotated(v->d, 16) ^ v->c;
	v->a = rotated(v->a, 32);
	v->c += v->b;
	v->a += v->d;
	v->b = rotated(v->b, 17) ^ v->c;
	v->d = rotated(v->d, 21) ^ v->a;
	v->c = rotated(v->c, 32);
}

static ALWAYS_INLINE void sip_word(struct sip *v, __u64 word)
{
	v->d ^= word;
	sip_round(v);
	sip_round(v);
	v->a ^= word;
}

static ALWAYS_INLINE __u64 siphash(const struct key *key, __u64 first, __u64 second)
{
	struct sip v = {
		.a = key->words[0] ^ 0x736f6d6570736575,
		.b = key->words[1] ^ 0x646f72616e646f6d,
		.c = key->words[0] ^ 0x6c7967656e657261,
		.d = key->words[1] ^ 0x7465646279746573,
	};

	sip_word(&v, first);
	sip_word(&v, second);
	/* The last word has the message's length in its upper byte. */
	sip_word(&v, (__u64)16 << 56);
	v.c ^= 0xff;
	sip_round(&v);
	sip_round(&v);
	sip_round(&v);
	sip_round(&v);
	return v.a ^ v.b ^ v.c ^ v.d;
}

#endif
