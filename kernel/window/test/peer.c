// SPDX-License-Identifier: GPL-2.0
/*
 * The module's protocol in user space, as a host of the window in a file, told by lines on its
 * standard input what to do: for tests that run it against other implementations.
 *
 *   peer FILE
 *
 * claim NAME         "claimed SLOT", once it has a slot
 * beat               "ok" or "lost"
 * release            "ok"
 * begin PEER         a link; "ok"
 * poll PEER          its next event: "nothing", "up", "left", "replaced", "silent", "cut", "version"
 * pulse PEER         a beat on that link; "ok"
 * leave PEER         "ok"
 * send PEER KIND HEX "ok", "full" or "broken"
 * receive PEER       "KIND HEX", "none" or "broken"
 * time NS            so late it is from now on; "ok"
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sw_proto.h"

static struct sw_view view;
static struct sw_claim claim;
static struct sw_link links[SW_HOSTS_MAX];
static u64 now_ns = 1000000000;

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static const char *event_name(enum sw_event event)
{
	switch (event) {
	case SW_UP:
		return "up";
	case SW_LEFT:
		return "left";
	case SW_REPLACED:
		return "replaced";
	case SW_SILENT:
		return "silent";
	case SW_CUT:
		return "cut";
	case SW_OTHER_VERSION:
		return "version";
	default:
		return "nothing";
	}
}

static const char *result(int err)
{
	return err == 0 ? "ok" : err == -EAGAIN ? "full" : err == -EPROTO ? "broken" : "refused";
}

static void send_hex(u32 peer, u32 kind, const char *hex)
{
	u8 message[2 * SW_MESSAGE_BYTES_MAX];
	u32 bytes = 0;
	unsigned int byte;

	for (; bytes < sizeof(message) && sscanf(hex, "%2x", &byte) == 1; hex += 2)
		message[bytes++] = byte;
	say(result(sw_send(&links[peer].sender, &view, peer, kind, message, bytes)));
}

static void receive_hex(u32 peer)
{
	u8 message[SW_MESSAGE_BYTES_MAX];
	u32 kind;
	int i, bytes = sw_receive(&links[peer].receiver, &view, peer, &kind, message);

	if (bytes < 0) {
		say(bytes == -EAGAIN ? "none" : result(bytes));
		return;
	}
	printf("%u ", kind);
	for (i = 0; i < bytes; i++)
		printf("%02x", message[i]);
	say("");
}

static void claim_slot(const struct sw_header *header, u8 *region, const char *name)
{
	sw_claim_init(&claim, name);
	if (!sw_claim_poll(&claim, &view, now_ns)) {
		/* Where it has to settle, or a holder seems to live: the caller moves the time. */
		usleep(1000);
		say("wait");
		return;
	}
	sw_view_region(&view, header, region, claim.slot);
	printf("claimed %u", claim.slot);
	say("");
}

static void obey(const struct sw_header *header, u8 *region, char *line)
{
	static char word[16], text[4 * SW_MESSAGE_BYTES_MAX];
	unsigned long long first = 0, second = 0;

	text[0] = 0;
	sscanf(line, "%15s", word);
	if (!strcmp(word, "claim")) {
		sscanf(line, "%*s %4095s", text);
		claim_slot(header, region, text);
		return;
	}
	if (!strcmp(word, "again")) {
		if (!sw_claim_poll(&claim, &view, now_ns)) {
			say("wait");
			return;
		}
		sw_view_region(&view, header, region, claim.slot);
		printf("claimed %u", claim.slot);
		say("");
		return;
	}
	sscanf(line, "%*s %llu %llu %4095s", &first, &second, text);
	if (!strcmp(word, "time")) {
		now_ns = first;
		say("ok");
		return;
	}
	if (!strcmp(word, "beat")) {
		say(sw_claim_beat(&claim, &view) ? "ok" : "lost");
		return;
	}
	if (!strcmp(word, "release")) {
		sw_claim_release(&claim, &view);
		say("ok");
		return;
	}
	if (first >= view.hosts || first == view.me) {
		say("no such peer");
		return;
	}
	if (!strcmp(word, "begin")) {
		sw_link_begin(&links[first], &view, first);
		say("ok");
	} else if (!strcmp(word, "poll")) {
		say(event_name(sw_link_poll(&links[first], &view, now_ns)));
	} else if (!strcmp(word, "pulse")) {
		sw_link_beat(&links[first], &view);
		say("ok");
	} else if (!strcmp(word, "leave")) {
		sw_link_leave(&links[first], &view);
		say("ok");
	} else if (!strcmp(word, "send")) {
		send_hex(first, second, text);
	} else if (!strcmp(word, "receive")) {
		receive_hex(first);
	} else {
		say("what?");
	}
}

int main(int count, char **words)
{
	static char line[5 * SW_MESSAGE_BYTES_MAX];
	struct sw_header header;
	struct stat status;
	u8 *region;
	int fd, err;

	if (count != 2)
		return 2;
	fd = open(words[1], O_RDWR);
	if (fd < 0 || fstat(fd, &status))
		return 3;
	region = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region == MAP_FAILED)
		return 3;
	err = sw_header_read(region, status.st_size, &header);
	if (err) {
		printf("no window: %s", strerror(-err));
		say("");
		return 1;
	}
	sw_view_region(&view, &header, region, 0);
	say("ready");
	while (fgets(line, sizeof(line), stdin))
		obey(&header, region, line);
	return 0;
}
