// SPDX-License-Identifier: GPL-2.0
/*
 * Connections of sockets of the kernel's SMC (RFC 7609), for the tests.
 *
 *   smc pnet NAME NET DEVICE PORT  enters into the kernel's table that this network device, and this port of an RDMA
 *                                  device, belong together; "-" for NET or DEVICE: there is none.
 *   smc eid NAME                   enters a name of hosts that may talk by SMC-R of the second version (RFC 7609 has
 *                                  the first).
 *   smc serve ADDRESS              takes connections and talks on each, a process each, until it is killed.
 *   smc talk ADDRESS BYTES         sends and receives so many bytes at once, looks at each, and says how they went.
 *   smc hold ADDRESS               the same without an end; says "holding" when bytes have come, and "ended" when the
 *                                  connection is over.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/smc.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT		4000
/* Of a name of hosts, with blanks behind it. */
#define SMC_EID_BYTES	32
#define BUFFER_BYTES	65536
#define MESSAGE_BYTES	32768
/* Of a talk that has none. */
#define ENDLESS		UINT64_MAX
/* Whose bytes they are. */
#define CLIENT		1
#define SERVER		2

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			printf("wrong: line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* Netlink. */

struct message {
	struct nlmsghdr header;
	uint8_t bytes[MESSAGE_BYTES];
};

static void add(struct message *message, const void *data, uint32_t bytes)
{
	memcpy((uint8_t *)message + NLMSG_ALIGN(message->header.nlmsg_len), data, bytes);
	message->header.nlmsg_len = NLMSG_ALIGN(message->header.nlmsg_len) + bytes;
}

static void add_attribute(struct message *message, uint16_t type, const void *data, uint16_t bytes)
{
	struct nlattr attribute = { .nla_len = NLA_HDRLEN + bytes, .nla_type = type };

	add(message, &attribute, sizeof(attribute));
	add(message, data, bytes);
	message->header.nlmsg_len = NLMSG_ALIGN(message->header.nlmsg_len);
}

static void begin(struct message *message, uint16_t type, uint16_t flags)
{
	memset(message, 0, sizeof(*message));
	message->header.nlmsg_len = NLMSG_HDRLEN;
	message->header.nlmsg_type = type;
	message->header.nlmsg_flags = NLM_F_REQUEST | flags;
}

static int netlink(int protocol)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);

	CHECK(fd >= 0);
	return fd;
}

static ssize_t receive(int fd, struct message *message)
{
	ssize_t bytes = recv(fd, message, sizeof(*message), 0);

	CHECK(bytes >= (ssize_t)NLMSG_HDRLEN);
	return bytes;
}

/* What an answer without anything else says. */
static int error_of(const struct message *answer)
{
	CHECK(answer->header.nlmsg_type == NLMSG_ERROR);
	return -((const struct nlmsgerr *)answer->bytes)->error;
}

static const struct nlattr *attribute_of(const void *first, const void *end, uint16_t type)
{
	const struct nlattr *attribute = first;

	while ((const uint8_t *)end - (const uint8_t *)attribute >= NLA_HDRLEN && attribute->nla_len >= NLA_HDRLEN) {
		if ((attribute->nla_type & NLA_TYPE_MASK) == type)
			return attribute;
		attribute = (const void *)((const uint8_t *)attribute + NLA_ALIGN(attribute->nla_len));
	}
	return NULL;
}

static void begin_generic(struct message *message, uint16_t family, uint8_t command, uint8_t version)
{
	struct genlmsghdr header = { .cmd = command, .version = version };

	begin(message, family, NLM_F_ACK);
	add(message, &header, sizeof(header));
}

static uint16_t family_of(int fd, const char *name)
{
	static struct message message;
	const struct nlattr *id;

	begin_generic(&message, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1);
	message.header.nlmsg_flags = NLM_F_REQUEST;
	add_attribute(&message, CTRL_ATTR_FAMILY_NAME, name, strlen(name) + 1);
	CHECK(send(fd, &message, message.header.nlmsg_len, 0) > 0);
	receive(fd, &message);
	CHECK(message.header.nlmsg_type == GENL_ID_CTRL);
	id = attribute_of(message.bytes + GENL_HDRLEN, (uint8_t *)&message + message.header.nlmsg_len,
			  CTRL_ATTR_FAMILY_ID);
	CHECK(id);
	return *(const uint16_t *)(id + 1);
}

static void ask(int fd, struct message *message)
{
	CHECK(send(fd, message, message->header.nlmsg_len, 0) > 0);
	receive(fd, message);
	errno = error_of(message);
	CHECK(!errno);
}

static void enter_pnet(char **words)
{
	int fd = netlink(NETLINK_GENERIC);
	static struct message message;
	uint8_t port = atoi(words[3]);

	begin_generic(&message, family_of(fd, SMCR_GENL_FAMILY_NAME), SMC_PNETID_ADD, SMCR_GENL_FAMILY_VERSION);
	add_attribute(&message, SMC_PNETID_NAME, words[0], strlen(words[0]) + 1);
	if (strcmp(words[1], "-"))
		add_attribute(&message, SMC_PNETID_ETHNAME, words[1], strlen(words[1]) + 1);
	if (strcmp(words[2], "-")) {
		add_attribute(&message, SMC_PNETID_IBNAME, words[2], strlen(words[2]) + 1);
		add_attribute(&message, SMC_PNETID_IBPORT, &port, sizeof(port));
	}
	ask(fd, &message);
	close(fd);
}

static void enter_eid(const char *name)
{
	int fd = netlink(NETLINK_GENERIC);
	static struct message message;
	char padded[SMC_EID_BYTES + 1];

	CHECK(snprintf(padded, sizeof(padded), "%-*s", SMC_EID_BYTES, name) == SMC_EID_BYTES);
	begin_generic(&message, family_of(fd, SMC_GENL_FAMILY_NAME), SMC_NETLINK_ADD_UEID, SMC_GENL_FAMILY_VERSION);
	add_attribute(&message, SMC_NLA_EID_TABLE_ENTRY, padded, sizeof(padded));
	ask(fd, &message);
	close(fd);
}

/* False: it is not this socket. */
static bool say_one(const struct nlmsghdr *header, uint64_t inode)
{
	const struct smc_diag_msg *socket = NLMSG_DATA(header);
	const void *end = (const uint8_t *)header + header->nlmsg_len;
	const struct nlattr *attribute;

	if (socket->diag_inode != inode)
		return false;
	if (socket->diag_mode == SMC_DIAG_MODE_SMCR) {
		const struct smc_diag_linkinfo *link;

		attribute = attribute_of(socket + 1, end, SMC_DIAG_LGRINFO);
		CHECK(attribute);
		link = ((const struct smc_diag_lgrinfo *)(attribute + 1))->lnk;
		printf("mode=smcr device=%s port=%u gid=%s\n", link->ibname, link->ibport, link->gid);
	} else {
		attribute = attribute_of(socket + 1, end, SMC_DIAG_FALLBACK);
		CHECK(socket->diag_mode == SMC_DIAG_MODE_FALLBACK_TCP && attribute);
		printf("mode=tcp reason=%#x\n", ((const struct smc_diag_fallback *)(attribute + 1))->reason);
	}
	return true;
}

/* Whether a dump of all sockets has this one. Where others come or go meanwhile it may be there twice, or not at all. */
static bool dump_has(int diag, uint64_t inode)
{
	struct smc_diag_req request = {
		.diag_family = AF_SMC,
		.diag_ext = 1 << (SMC_DIAG_LGRINFO - 1) | 1 << (SMC_DIAG_FALLBACK - 1),
	};
	static struct message message;
	bool was_said = false;

	begin(&message, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP);
	add(&message, &request, sizeof(request));
	CHECK(send(diag, &message, message.header.nlmsg_len, 0) > 0);
	for (;;) {
		int bytes = receive(diag, &message);
		struct nlmsghdr *header;

		for (header = &message.header; NLMSG_OK(header, bytes); header = NLMSG_NEXT(header, bytes)) {
			if (header->nlmsg_type == NLMSG_DONE)
				return was_said;
			CHECK(header->nlmsg_type == SOCK_DIAG_BY_FAMILY);
			was_said = was_said || say_one(header, inode);
		}
	}
}

/* By what the bytes of a connection go, as the kernel says it. */
static void say_mode(int fd)
{
	int diag = netlink(NETLINK_SOCK_DIAG);
	struct stat stat;

	CHECK(!fstat(fd, &stat));
	while (!dump_has(diag, stat.st_ino))
		;
	fflush(stdout);
	close(diag);
}

/* What goes over a connection. */

/* The eight bytes at a place of what one of the two says (the finalizer of SplitMix64, for numbers that look random). */
static uint64_t word(uint64_t whose, uint64_t at)
{
	uint64_t mixed = (at + (whose << 60)) * 0x9e3779b97f4a7c15;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return mixed ^ mixed >> 31;
}

static void fill(uint8_t *to, uint64_t whose, uint64_t from, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at++) {
		uint64_t place = from + at;

		to[at] = word(whose, place / 8) >> place % 8 * 8;
	}
}

/* Some bytes at a time, as many as come of what was said before. 0: all went. Otherwise an error of the connection. */
static int say(int fd, uint64_t whose, uint64_t bytes)
{
	static uint8_t buffer[BUFFER_BYTES];
	uint64_t said = 0;

	while (said < bytes) {
		size_t some = 1 + word(whose + 2, said) % BUFFER_BYTES;
		ssize_t sent;

		some = some < bytes - said ? some : bytes - said;
		fill(buffer, whose, said, some);
		sent = send(fd, buffer, some, MSG_NOSIGNAL);
		if (sent <= 0)
			return errno;
		said += sent;
	}
	CHECK(!shutdown(fd, SHUT_WR));
	return 0;
}

/* 0: all came, and then the end. An end before is ECONNRESET. */
static int hear(int fd, uint64_t whose, uint64_t bytes, bool tells)
{
	static uint8_t buffer[BUFFER_BYTES], right[BUFFER_BYTES];
	uint64_t heard = 0;

	for (;;) {
		ssize_t came = recv(fd, buffer, sizeof(buffer), 0);

		if (came < 0)
			return errno;
		if (!came)
			return heard == bytes ? 0 : ECONNRESET;
		CHECK((uint64_t)came <= bytes - heard);
		fill(right, whose, heard, came);
		CHECK(!memcmp(buffer, right, came));
		if (tells && !heard) {
			puts("holding");
			fflush(stdout);
		}
		heard += came;
	}
}

/* Who is killed takes those that it has started along. */
static pid_t start(void)
{
	pid_t own = getpid(), pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
		CHECK(getppid() == own);
	}
	return pid;
}

/* Both ways at once. */
static int talk(int fd, uint64_t own, uint64_t others, uint64_t bytes, bool tells)
{
	int status, err;
	pid_t teller = start();

	if (!teller)
		_exit(say(fd, own, bytes));
	err = hear(fd, others, bytes, tells);
	CHECK(waitpid(teller, &status, 0) == teller && WIFEXITED(status));
	return err ? err : WEXITSTATUS(status);
}

static struct sockaddr_in address_of(const char *text)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	CHECK(inet_pton(AF_INET, text, &address.sin_addr) == 1);
	return address;
}

static int new_socket(void)
{
	int fd = socket(AF_SMC, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	return fd;
}

static void serve_one(int fd)
{
	uint64_t bytes;
	int err;

	CHECK(recv(fd, &bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes));
	printf("served ");
	say_mode(fd);
	err = talk(fd, SERVER, CLIENT, bytes, false);
	printf("served errno=%d\n", err);
	exit(0);
}

static void serve(const char *where)
{
	struct sockaddr_in address = address_of(where);
	int listener = new_socket(), yes = 1, fd;

	signal(SIGCHLD, SIG_IGN);
	CHECK(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
	CHECK(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 16));
	puts("serving");
	fflush(stdout);
	for (;;) {
		fd = accept(listener, NULL, NULL);
		CHECK(fd >= 0);
		if (!start()) {
			signal(SIGCHLD, SIG_DFL);
			close(listener);
			serve_one(fd);
		}
		close(fd);
	}
}

static int connect_to(const char *where, uint64_t bytes)
{
	struct sockaddr_in address = address_of(where);
	int fd = new_socket();

	CHECK(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
	say_mode(fd);
	CHECK(send(fd, &bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes));
	return fd;
}

int main(int count, char **words)
{
	const char *command = count > 2 ? words[1] : "";

	if (!strcmp(command, "pnet") && count == 6) {
		enter_pnet(words + 2);
	} else if (!strcmp(command, "eid") && count == 3) {
		enter_eid(words[2]);
	} else if (!strcmp(command, "serve") && count == 3) {
		serve(words[2]);
	} else if (!strcmp(command, "talk") && count == 4) {
		uint64_t bytes = strtoull(words[3], NULL, 0);

		errno = talk(connect_to(words[2], bytes), CLIENT, SERVER, bytes, false);
		CHECK(!errno);
		puts("talk=ok");
	} else if (!strcmp(command, "hold") && count == 3) {
		printf("ended errno=%d\n", talk(connect_to(words[2], ENDLESS), CLIENT, SERVER, ENDLESS, true));
	} else {
		fprintf(stderr, "usage: see the beginning of smc.c\n");
		return 2;
	}
	return 0;
}
