// SPDX-License-Identifier: GPL-2.0
/*
 * Who holds which slot of a region. Where caches agree a compare-and-swap decides between two
 * claimants; where they do not it is Fischer's algorithm (Lamport, "A Fast Mutual Exclusion
 * Algorithm", 1987, section 2): write, wait for longer than a write can take to be seen, look who
 * was last.
 */
#include "sw_proto.h"

void sw_watch_begin(struct sw_watch *watch, u64 now_ns)
{
	watch->looked_ns = now_ns;
	watch->watched_ns = 0;
}

/* Who has looked less often stood still, perhaps with all of its machine, and has watched nobody meanwhile. */
u64 sw_watch_look(struct sw_watch *watch, u64 now_ns)
{
	if (now_ns > watch->looked_ns) {
		watch->watched_ns += min_t(u64, now_ns - watch->looked_ns, SW_GAP_NS);
		watch->looked_ns = now_ns;
	}
	return watch->watched_ns;
}

bool sw_pulse_feel(struct sw_pulse *pulse, u64 beat, u64 now_ns)
{
	bool another = pulse->felt && pulse->beat != beat;

	if (pulse->felt && !another) {
		sw_watch_look(&pulse->watch, now_ns);
		return false;
	}
	pulse->felt = true;
	pulse->beat = beat;
	sw_watch_begin(&pulse->watch, now_ns);
	return another;
}

bool sw_pulse_silent(const struct sw_pulse *pulse)
{
	return pulse->felt && pulse->watch.watched_ns >= SW_SILENCE_NS;
}

static u64 *claim_word(const struct sw_view *view, u32 slot, enum sw_claim_word word)
{
	return (u64 *)(view->header + sw_claim_at(slot) + 8 * word);
}

/* The one line of a window that two may write to: it is fresh before it is read or changed. */
static void fresh(const struct sw_view *view, u64 *at)
{
	if (view->kind == SW_FLUSH)
		sw_flush_lines(at, 8);
	virt_mb();
}

static u64 look(const struct sw_view *view, u32 slot, enum sw_claim_word word)
{
	u64 *at = claim_word(view, slot, word);

	fresh(view, at);
	return le64_to_cpu(virt_load_acquire(at));
}

static void say(const struct sw_view *view, u32 slot, enum sw_claim_word word, u64 value)
{
	u64 *at = claim_word(view, slot, word);

	/* The other words of the line are written back with this one. */
	fresh(view, at);
	virt_store_release(at, cpu_to_le64(value));
	fresh(view, at);
}

static bool exchange(const struct sw_view *view, u32 slot, u64 from, u64 to)
{
	u64 *at = claim_word(view, slot, SW_GENERATION);

	return cmpxchg(at, cpu_to_le64(from), cpu_to_le64(to)) == cpu_to_le64(from);
}

void sw_claim_init(struct sw_claim *claim, const char *name)
{
	u8 bytes[16] = { 0 };
	int i, j;

	memset(claim, 0, sizeof(*claim));
	claim->generation = sw_fresh();
	claim->beat = claim->generation;
	for (i = 0; i < 16 && name[i]; i++)
		bytes[i] = name[i];
	for (i = 0; i < 2; i++)
		for (j = 7; j >= 0; j--)
			claim->name[i] = claim->name[i] << 8 | bytes[8 * i + j];
}

static bool hold(struct sw_claim *claim, const struct sw_view *view, u32 slot)
{
	claim->slot = slot;
	say(view, slot, SW_NAME_LOW, claim->name[0]);
	say(view, slot, SW_NAME_HIGH, claim->name[1]);
	say(view, slot, SW_BEAT, ++claim->beat);
	return true;
}

bool sw_claim_poll(struct sw_claim *claim, const struct sw_view *view, u64 now_ns)
{
	u32 slot;

	if (claim->settling) {
		if (now_ns < claim->until_ns)
			return false;
		claim->settling = false;
		if (look(view, claim->slot, SW_GENERATION) == claim->generation)
			return hold(claim, view, claim->slot);
	}
	for (slot = 0; slot < view->hosts; slot++) {
		u64 holder = look(view, slot, SW_GENERATION);

		if (claim->seen[slot].holder != holder) {
			claim->seen[slot].holder = holder;
			claim->seen[slot].pulse.felt = false;
		}
		sw_pulse_feel(&claim->seen[slot].pulse, look(view, slot, SW_BEAT), now_ns);
		if (holder && !sw_pulse_silent(&claim->seen[slot].pulse))
			continue;
		if (view->kind == SW_COHERENT) {
			if (exchange(view, slot, holder, claim->generation))
				return hold(claim, view, slot);
			continue;
		}
		say(view, slot, SW_GENERATION, claim->generation);
		claim->settling = true;
		claim->slot = slot;
		claim->until_ns = now_ns + SW_SETTLE_NS;
		return false;
	}
	return false;
}

bool sw_claim_beat(struct sw_claim *claim, const struct sw_view *view)
{
	if (look(view, claim->slot, SW_GENERATION) != claim->generation)
		return false;
	say(view, claim->slot, SW_BEAT, ++claim->beat);
	return true;
}

void sw_claim_release(struct sw_claim *claim, const struct sw_view *view)
{
	if (view->kind == SW_COHERENT)
		exchange(view, claim->slot, claim->generation, 0);
	else if (look(view, claim->slot, SW_GENERATION) == claim->generation)
		say(view, claim->slot, SW_GENERATION, 0);
}
