// SPDX-License-Identifier: GPL-2.0
/* Two hosts that found each other: docs/windows.md, "A link". */
#include "sw_proto.h"

static u64 hear(const struct sw_link *link, const struct sw_view *view, u64 offset)
{
	return sw_look(view, (u64)link->peer * SW_PEER_BYTES + offset);
}

static void tell(const struct sw_link *link, const struct sw_view *view, u64 offset, u64 value)
{
	sw_say(view, link->peer, (u64)view->me * SW_PEER_BYTES + offset, value);
}

static void call(const struct sw_link *link, const struct sw_view *view)
{
	/* In this order: whoever sees this generation sees no answer of an earlier one. */
	tell(link, view, SW_AT_ANSWER, link->answered);
	tell(link, view, SW_AT_GENERATION, link->generation);
	tell(link, view, SW_AT_HELLO, SW_HELLO_WORD);
}

/* Both mailboxes are made empty, and then the peer is told that they are. */
static void answer(struct sw_link *link, const struct sw_view *view, u64 theirs)
{
	memset(&link->sender, 0, sizeof(link->sender));
	memset(&link->receiver, 0, sizeof(link->receiver));
	tell(link, view, SW_AT_TAIL, 0);
	tell(link, view, SW_AT_HEAD, 0);
	link->answered = theirs;
	tell(link, view, SW_AT_ANSWER, theirs);
}

void sw_link_begin(struct sw_link *link, const struct sw_view *view, u32 peer)
{
	memset(link, 0, sizeof(*link));
	link->peer = peer;
	link->state = SW_LINK_CALLING;
	link->generation = sw_fresh();
	call(link, view);
}

void sw_link_beat(struct sw_link *link, const struct sw_view *view)
{
	if (link->state == SW_LINK_CALLING) {
		if (link->answered)
			answer(link, view, link->answered);
		call(link, view);
	}
	tell(link, view, SW_AT_BEAT, ++link->beat);
}

/* The peer says hello, in whatever version. */
static bool is_hello(u64 hello)
{
	return hello != SW_ALL_ONES && (hello & SW_HELLO_MASK) == SW_HELLO;
}

/*
 * A peer that lives and has not answered for so long may have done so in vain, where the way was cut: it is up,
 * and does not say it again. It hears another call.
 */
static void call_again_if_unheard(struct sw_link *link, const struct sw_view *view, u64 now_ns)
{
	u64 hello = hear(link, view, SW_AT_HELLO), beat = link->beat;
	struct sw_pulse pulse;

	if (sw_pulse_feel(&link->pulse, hear(link, view, SW_AT_BEAT), now_ns) && !link->alive) {
		link->alive = true;
		sw_watch_begin(&link->alive_watch, now_ns);
	}
	if (sw_pulse_silent(&link->pulse))
		link->alive = false;
	if (!link->alive || sw_watch_look(&link->alive_watch, now_ns) < SW_SILENCE_NS ||
	    (is_hello(hello) && hello >> 48 != SW_VERSION))
		return;
	pulse = link->pulse;
	sw_link_begin(link, view, link->peer);
	link->pulse = pulse;
	link->beat = beat;
}

static enum sw_event listen(struct sw_link *link, const struct sw_view *view, u64 now_ns)
{
	u64 hello = hear(link, view, SW_AT_HELLO);
	u64 theirs;
	bool same;

	if (!is_hello(hello))
		return SW_NOTHING;
	theirs = hear(link, view, SW_AT_GENERATION);
	if (theirs == 0 || theirs == SW_ALL_ONES)
		return SW_NOTHING;
	same = hello >> 48 == SW_VERSION;
	if (theirs != link->seen) {
		link->seen = theirs;
		if (!same)
			return SW_OTHER_VERSION;
		answer(link, view, theirs);
	}
	if (!same || hear(link, view, SW_AT_ANSWER) != link->generation)
		return SW_NOTHING;
	link->state = SW_LINK_UP;
	/* The silence of a peer begins to count now. */
	memset(&link->pulse, 0, sizeof(link->pulse));
	sw_pulse_feel(&link->pulse, hear(link, view, SW_AT_BEAT), now_ns);
	return SW_UP;
}

static enum sw_event poll_calling(struct sw_link *link, const struct sw_view *view, u64 now_ns)
{
	enum sw_event event = listen(link, view, now_ns);

	if (event == SW_NOTHING)
		call_again_if_unheard(link, view, now_ns);
	return event;
}

static enum sw_event poll_up(struct sw_link *link, const struct sw_view *view, u64 now_ns)
{
	u64 theirs = hear(link, view, SW_AT_GENERATION);

	if (theirs == SW_ALL_ONES)
		return SW_CUT;
	if (theirs == 0)
		return SW_LEFT;
	if (theirs != link->seen)
		return SW_REPLACED;
	if (hear(link, view, SW_AT_ANSWER) != link->generation)
		return SW_LEFT;
	sw_pulse_feel(&link->pulse, hear(link, view, SW_AT_BEAT), now_ns);
	return sw_pulse_silent(&link->pulse) ? SW_SILENT : SW_NOTHING;
}

enum sw_event sw_link_poll(struct sw_link *link, const struct sw_view *view, u64 now_ns)
{
	enum sw_event event;

	if (link->state == SW_LINK_CALLING)
		return poll_calling(link, view, now_ns);
	if (link->state == SW_LINK_OVER)
		return SW_NOTHING;
	event = poll_up(link, view, now_ns);
	if (event != SW_NOTHING)
		link->state = SW_LINK_OVER;
	return event;
}

void sw_link_leave(struct sw_link *link, const struct sw_view *view)
{
	link->state = SW_LINK_OVER;
	tell(link, view, SW_AT_ANSWER, 0);
	tell(link, view, SW_AT_GENERATION, 0);
}
