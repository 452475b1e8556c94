// SPDX-License-Identifier: GPL-2.0
/*
 * Programs that use /dev/sluice_windowN, for the tests: `user COMMAND DEVICE`. Every one ends with
 * status 0 if all was as it should be; what was not is said on standard output.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uapi/sluice_window.h>

#define PORT 0x1001
#define KIND(n) ((uint32_t)PORT << 16 | (n))

/* What the two ends of a test say to each other. */
enum { HELLO = 1, DATA, SUM, END, LENT, WRITTEN, LEND, FILLED, TAKEN, GONE };

static const char *device;

#define CHECK(what)                                                                             \
	do {                                                                                    \
		if (!(what)) {                                                                  \
			printf("user.c:%d: %s (errno %d)\n", __LINE__, #what, errno);           \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

#define FAILS(call, error)                                                                      \
	do {                                                                                    \
		errno = 0;                                                                      \
		CHECK((call) == -1 && errno == (error));                                        \
	} while (0)

/* FNV-1a. */
static uint64_t sum_of(const volatile uint8_t *bytes, size_t count)
{
	uint64_t sum = 0xcbf29ce484222325;

	while (count--)
		sum = (sum ^ *bytes++) * 0x100000001b3;
	return sum;
}

static int open_device(void)
{
	int fd = open(device, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static struct sluice_window_info info_of(int fd)
{
	struct sluice_window_info info;

	CHECK(ioctl(fd, SLUICE_WINDOW_INFO, &info) == 0);
	CHECK(info.abi == SLUICE_WINDOW_ABI);
	return info;
}

/* A peer whose link is up. */
static uint32_t peer_of(int fd)
{
	for (;;) {
		uint32_t links = info_of(fd).links;

		if (links)
			return __builtin_ctz(links);
		usleep(5000);
	}
}

/* A file that is attached; the link may end at any moment. */
static int attached(uint16_t port)
{
	for (;;) {
		int fd = open_device();
		struct sluice_window_attach attach = { .peer = peer_of(fd), .port = port };

		if (ioctl(fd, SLUICE_WINDOW_ATTACH, &attach) == 0)
			return fd;
		CHECK(errno == ENOLINK);
		close(fd);
	}
}

static int send_message(int fd, uint32_t kind, const void *data, uint32_t bytes)
{
	struct sluice_window_message message = { .kind = kind, .bytes = bytes };

	memcpy(message.data, data, bytes);
	while (ioctl(fd, SLUICE_WINDOW_SEND, &message) != 0) {
		if (errno != EAGAIN)
			return -1;
		usleep(1000);
	}
	return 0;
}

/* -1 when the link has ended. */
static int receive_message(int fd, struct sluice_window_message *message)
{
	for (;;) {
		struct pollfd polled = { .fd = fd, .events = POLLIN };

		if (ioctl(fd, SLUICE_WINDOW_RECEIVE, message) == 0)
			return 0;
		if (errno == ENOLINK || errno == ENODEV)
			return -1;
		CHECK(errno == EAGAIN);
		CHECK(poll(&polled, 1, -1) == 1);
	}
}

/* Answers what comes with its sum, over as many links as it takes. */
static void echo(void)
{
	struct sluice_window_message message;
	unsigned long count = 0, links = 0;
	int bell = eventfd(0, EFD_NONBLOCK);

	for (;;) {
		struct sluice_window_event event = { .vector = 0, .fd = bell };
		int fd = attached(PORT);
		uint64_t rung, sum;

		links++;
		CHECK(ioctl(fd, SLUICE_WINDOW_EVENT, &event) == 0);
		if (send_message(fd, KIND(HELLO), "", 0) != 0) {
			CHECK(errno == ENOLINK);
			close(fd);
			continue;
		}
		while (receive_message(fd, &message) == 0) {
			if (message.kind == KIND(END)) {
				CHECK(read(bell, &rung, 8) == 8);
				printf("echoed=%lu links=%lu\n", count, links);
				return;
			}
			CHECK(message.kind == KIND(DATA));
			sum = sum_of(message.data, message.bytes);
			if (send_message(fd, KIND(SUM), &sum, sizeof(sum)) != 0)
				break;
			count++;
		}
		close(fd);
	}
}

static void *map_piece(int fd, const struct sluice_window_piece *piece)
{
	void *at = mmap(NULL, piece->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, piece->offset);

	CHECK(at != MAP_FAILED);
	return at;
}

/* Pieces both ways, and what their ends look like. */
static void pieces(void)
{
	struct sluice_window_piece lent = { .bytes = 40000 }, borrowed = { 0 };
	struct sluice_window_message message;
	uint64_t words[2], sum;
	volatile uint8_t *bytes;
	int fd = attached(PORT);
	size_t i;

	CHECK(ioctl(fd, SLUICE_WINDOW_LEND, &lent) == 0 && lent.bytes == 40960);
	CHECK(info_of(fd).lent_bytes == 40960 && info_of(fd).user_bytes == 40960);
	bytes = map_piece(fd, &lent);
	for (i = 0; i < lent.bytes; i++)
		CHECK(bytes[i] == 0);
	words[0] = lent.at;
	words[1] = lent.bytes;
	CHECK(send_message(fd, KIND(LENT), words, sizeof(words)) == 0);
	CHECK(receive_message(fd, &message) == 0 && message.kind == KIND(WRITTEN));
	memcpy(&sum, message.data, 8);
	CHECK(sum_of(bytes, lent.bytes) == sum);

	CHECK(receive_message(fd, &message) == 0 && message.kind == KIND(LEND));
	memcpy(&borrowed.at, message.data, 8);
	CHECK(ioctl(fd, SLUICE_WINDOW_BORROW, &borrowed) == 0 && borrowed.bytes == 8192);
	FAILS(ioctl(fd, SLUICE_WINDOW_BORROW, &borrowed), ENOENT);
	bytes = map_piece(fd, &borrowed);
	for (i = 0; i < borrowed.bytes; i++)
		bytes[i] = i * 7 + (i >> 8);
	sum = sum_of(bytes, borrowed.bytes);
	CHECK(send_message(fd, KIND(FILLED), &sum, sizeof(sum)) == 0);

	/* The lender wants it back: the mapping stays, and is of nothing. */
	CHECK(receive_message(fd, &message) == 0 && message.kind == KIND(TAKEN));
	for (i = 0; i < borrowed.bytes; i++)
		CHECK(bytes[i] == 0);
	bytes[0] = 1;
	FAILS(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, borrowed.offset) == MAP_FAILED ? -1 : 0,
	      ENOLINK);
	CHECK(send_message(fd, KIND(GONE), "", 0) == 0);
	CHECK(ioctl(fd, SLUICE_WINDOW_GIVE_UP, &borrowed.offset) == 0);
	CHECK(ioctl(fd, SLUICE_WINDOW_GIVE_UP, &lent.offset) == 0);
	FAILS(ioctl(fd, SLUICE_WINDOW_GIVE_UP, &lent.offset), EINVAL);
	/* The peer says that it writes there no more, sooner or later. */
	while (info_of(fd).lent_bytes)
		usleep(5000);
	printf("pieces=ok\n");
}

static void bad_maps(int fd, const struct sluice_window_piece *piece)
{
	const off_t offset = piece->offset;
	const size_t bytes = piece->bytes;
	const struct {
		size_t bytes;
		int protection, flags;
		off_t offset;
	} bad[] = {
		{ bytes + 4096, PROT_READ, MAP_SHARED, offset },
		{ bytes, PROT_READ, MAP_SHARED, offset + 4096 },
		{ 4096, PROT_READ, MAP_SHARED, offset + bytes },
		{ 4096, PROT_READ, MAP_SHARED, offset - 4096 },
		{ 4096, PROT_READ, MAP_SHARED, 0 },
		{ 4096, PROT_READ, MAP_SHARED, (off_t)1 << 40 },
		{ 4096, PROT_READ, MAP_SHARED, (off_t)0x7ffffffffffff000 },
		{ bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, offset },
		{ bytes, PROT_READ, MAP_PRIVATE, offset },
		{ bytes, PROT_READ | PROT_EXEC, MAP_SHARED, offset },
	};
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (mmap(NULL, bad[i].bytes, bad[i].protection, bad[i].flags, fd,
			 bad[i].offset) != MAP_FAILED) {
			printf("mapped what is no piece: %zu\n", i);
			exit(1);
		}
}

static void bad_calls(int fd)
{
	struct sluice_window_piece piece = { .bytes = 1 };
	struct sluice_window_message message = { .kind = KIND(1), .bytes = 1025 };
	struct sluice_window_event event = { .vector = 0, .fd = -1 };
	uint64_t offset = 12345;
	uint32_t vector = 99;
	unsigned int i;

	piece.reserved = 1;
	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, &piece), EINVAL);
	piece.reserved = 0;
	piece.bytes = 0;
	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, &piece), EINVAL);
	piece.bytes = ~0ull;
	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, &piece), ENOSPC);
	piece.at = 3 * 16384;
	FAILS(ioctl(fd, SLUICE_WINDOW_BORROW, &piece), ENOENT);
	FAILS(ioctl(fd, SLUICE_WINDOW_SEND, &message), EMSGSIZE);
	message.bytes = 8;
	message.kind = (uint32_t)SLUICE_WINDOW_PORT_KERNEL << 16 | 1;
	FAILS(ioctl(fd, SLUICE_WINDOW_SEND, &message), EINVAL);
	FAILS(ioctl(fd, SLUICE_WINDOW_GIVE_UP, &offset), EINVAL);
	FAILS(ioctl(fd, SLUICE_WINDOW_RING, &vector), EOPNOTSUPP);
	FAILS(ioctl(fd, SLUICE_WINDOW_EVENT, &event), EBADF);
	event.fd = fd;
	FAILS(ioctl(fd, SLUICE_WINDOW_EVENT, &event), EINVAL);
	event.vector = 1000;
	FAILS(ioctl(fd, SLUICE_WINDOW_EVENT, &event), EINVAL);
	for (i = 0; i < 256; i++) {
		unsigned int number = i < 128 ? _IOC(_IOC_READ | _IOC_WRITE, 'w', i, 64) :
						(unsigned int)random();

		errno = 0;
		CHECK(ioctl(fd, number, (void *)8) == -1 && (errno == ENOTTY || errno == EFAULT));
	}
	FAILS(ioctl(fd, SLUICE_WINDOW_INFO, (void *)8), EFAULT);
	FAILS(ioctl(fd, SLUICE_WINDOW_SEND, (void *)8), EFAULT);
	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, (void *)-4096l), EFAULT);
}

static void attachments(int fd)
{
	struct sluice_window_attach attach = { .peer = peer_of(fd), .port = PORT + 1 };
	struct sluice_window_piece piece = { .bytes = 1 };
	int other = open_device();

	FAILS(ioctl(other, SLUICE_WINDOW_LEND, &piece), ENOTCONN);
	FAILS(ioctl(other, SLUICE_WINDOW_ATTACH, &attach), EADDRINUSE);
	attach.port = SLUICE_WINDOW_PORT_KERNEL;
	FAILS(ioctl(other, SLUICE_WINDOW_ATTACH, &attach), EACCES);
	attach.port = PORT + 2;
	attach.peer = 77;
	FAILS(ioctl(other, SLUICE_WINDOW_ATTACH, &attach), EINVAL);
	attach.peer = info_of(fd).slot;
	FAILS(ioctl(other, SLUICE_WINDOW_ATTACH, &attach), EINVAL);
	attach.reserved = 1;
	FAILS(ioctl(other, SLUICE_WINDOW_ATTACH, &attach), EINVAL);
	FAILS(ioctl(fd, SLUICE_WINDOW_ATTACH, &attach), EISCONN);
	close(other);
}

static void limits(int fd)
{
	struct sluice_window_info info = info_of(fd);
	struct sluice_window_piece piece = { .bytes = info.user_bytes_max + 4096 };
	uint64_t offsets[SLUICE_WINDOW_PIECES_MAX];
	struct sluice_window_event event = { .vector = 0, .fd = eventfd(0, 0) };
	int count = 0, i;

	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, &piece), EDQUOT);
	for (;; count++) {
		piece = (struct sluice_window_piece){ .bytes = 4096 };
		if (ioctl(fd, SLUICE_WINDOW_LEND, &piece) != 0)
			break;
		CHECK(count < SLUICE_WINDOW_PIECES_MAX);
		offsets[count] = piece.offset;
	}
	CHECK(errno == EMFILE);
	for (i = 0; i < count; i++)
		CHECK(ioctl(fd, SLUICE_WINDOW_GIVE_UP, &offsets[i]) == 0);
	for (i = 0; ioctl(fd, SLUICE_WINDOW_EVENT, &event) == 0; i++)
		CHECK(i < SLUICE_WINDOW_EVENTS_MAX);
	CHECK(errno == EMFILE);
	close(event.fd);
}

/* A child has what its parent had, as with any descriptor, until both have let go. */
static void forked(int fd, const struct sluice_window_piece *piece)
{
	volatile uint8_t *bytes = map_piece(fd, piece);
	int status;
	pid_t child;

	bytes[0] = 1;
	child = fork();
	if (child == 0) {
		close(fd);
		bytes[1] = bytes[0] + 1;
		CHECK(mremap((void *)bytes, piece->bytes, piece->bytes + 4096, MREMAP_MAYMOVE) ==
		      MAP_FAILED);
		CHECK(mprotect((void *)bytes, piece->bytes, PROT_READ | PROT_EXEC) == -1);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(bytes[1] == 2);
	munmap((void *)(bytes + 4096), 4096);
	CHECK(bytes[1] == 2);
}

static void attack(void)
{
	struct sluice_window_piece piece = { .bytes = 3 * 4096 };
	int fd = attached(PORT + 1);
	volatile uint8_t *bytes;

	CHECK(ioctl(fd, SLUICE_WINDOW_LEND, &piece) == 0);
	bad_maps(fd, &piece);
	bad_calls(fd);
	attachments(fd);
	limits(fd);
	forked(fd, &piece);
	/* Closed while it is mapped: the mapping is the last copy. */
	bytes = map_piece(fd, &piece);
	close(fd);
	bytes[0] = 42;
	CHECK(bytes[0] == 42);
	munmap((void *)bytes, piece.bytes);
	/* Killed while it has things. */
	if (fork() == 0) {
		fd = attached(PORT + 3);
		CHECK(ioctl(fd, SLUICE_WINDOW_LEND, &piece) == 0);
		bytes = map_piece(fd, &piece);
		bytes[0] = 1;
		kill(getpid(), SIGKILL);
	}
	wait(NULL);
	printf("attack=ok\n");
}

/* The device goes away under a program: `unbind` on its standard input's other end does it. */
static void removal(void)
{
	struct sluice_window_piece piece = { .bytes = 2 * 4096 };
	struct sluice_window_info info;
	struct pollfd polled;
	int fd = attached(PORT + 1);
	volatile uint8_t *bytes;
	char line[16];

	CHECK(ioctl(fd, SLUICE_WINDOW_LEND, &piece) == 0);
	bytes = map_piece(fd, &piece);
	bytes[0] = 42;
	/* The second page is not touched before. */
	printf("holding=1\n");
	fflush(stdout);
	polled = (struct pollfd){ .fd = fd, .events = 0 };
	CHECK(poll(&polled, 1, -1) == 1 && (polled.revents & POLLHUP));
	CHECK(read(0, line, sizeof(line)) >= 0);
	CHECK(bytes[0] == 0 && bytes[4096] == 0);
	bytes[4096] = 1;
	FAILS(ioctl(fd, SLUICE_WINDOW_INFO, &info), ENODEV);
	FAILS(ioctl(fd, SLUICE_WINDOW_LEND, &piece), ENODEV);
	FAILS(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, piece.offset) == MAP_FAILED ? -1 : 0,
	      ENODEV);
	printf("removal=ok\n");
}

static int attached_to(const char *path, uint32_t peer)
{
	struct sluice_window_attach attach = { .peer = peer, .port = PORT + 5 };
	int fd;

	device = path;
	fd = open_device();
	while (ioctl(fd, SLUICE_WINDOW_ATTACH, &attach) != 0) {
		CHECK(errno == ENOLINK);
		usleep(5000);
	}
	return fd;
}

static void ring_once(int from, int to)
{
	struct sluice_window_event event = { .vector = 1, .fd = eventfd(0, 0) };
	uint32_t vector = 1;
	uint64_t rung;

	CHECK(ioctl(to, SLUICE_WINDOW_EVENT, &event) == 0);
	/* Until the other one has said that it can be rung. */
	while (ioctl(from, SLUICE_WINDOW_RING, &vector) != 0) {
		CHECK(errno == EOPNOTSUPP);
		usleep(5000);
	}
	CHECK(read(event.fd, &rung, 8) == 8 && rung == 1);
	close(event.fd);
}

static volatile uint8_t *lend_and_borrow(int lender, int borrower, struct sluice_window_piece *lent,
					 struct sluice_window_piece *borrowed)
{
	volatile uint8_t *here, *there;
	size_t i;

	*lent = (struct sluice_window_piece){ .bytes = 8192 };
	CHECK(ioctl(lender, SLUICE_WINDOW_LEND, lent) == 0);
	*borrowed = (struct sluice_window_piece){ .at = lent->at };
	/* The other kernel hears of it when it looks. */
	while (ioctl(borrower, SLUICE_WINDOW_BORROW, borrowed) != 0) {
		CHECK(errno == ENOENT);
		usleep(1000);
	}
	here = map_piece(lender, lent);
	there = map_piece(borrower, borrowed);
	for (i = 0; i < lent->bytes; i++)
		there[i] = 1 + i % 251;
	CHECK(sum_of(here, lent->bytes) == sum_of(there, lent->bytes) && here[0] == 1);
	munmap((void *)here, lent->bytes);
	return there;
}

/* Two devices of this machine, each other's peers: nothing but the module on either side. */
static void pair(void)
{
	static const char *const paths[] = { "/dev/sluice_window0", "/dev/sluice_window1" };
	struct sluice_window_message message;
	struct sluice_window_piece lent, borrowed;
	uint32_t slots[2], i;
	volatile uint8_t *there;
	int fds[2];

	for (i = 0; i < 2; i++) {
		device = paths[i];
		fds[i] = open_device();
		while ((slots[i] = info_of(fds[i]).slot) == ~0U)
			usleep(5000);
		close(fds[i]);
	}
	for (i = 0; i < 2; i++)
		fds[i] = attached_to(paths[i], slots[1 - i]);
	ring_once(fds[0], fds[1]);
	ring_once(fds[1], fds[0]);
	for (i = 0; i < 1000; i++) {
		uint32_t way = i % 2;

		CHECK(send_message(fds[way], (PORT + 5) << 16 | i, &i, i % 4) == 0);
		CHECK(receive_message(fds[1 - way], &message) == 0);
		CHECK(message.kind == ((PORT + 5) << 16 | i) && message.bytes == i % 4);
		CHECK(!memcmp(message.data, &i, i % 4));
	}
	/* The borrower gives up. */
	there = lend_and_borrow(fds[0], fds[1], &lent, &borrowed);
	CHECK(ioctl(fds[1], SLUICE_WINDOW_GIVE_UP, &borrowed.offset) == 0);
	CHECK(there[0] == 0);
	while (info_of(fds[0]).lent_bytes)
		usleep(1000);
	/* The lender ends. */
	there = lend_and_borrow(fds[0], fds[1], &lent, &borrowed);
	close(fds[0]);
	while (there[0])
		usleep(1000);
	device = paths[0];
	fds[0] = open_device();
	while (info_of(fds[0]).lent_bytes)
		usleep(1000);
	CHECK(ioctl(fds[1], SLUICE_WINDOW_GIVE_UP, &borrowed.offset) == 0);
	printf("pair=ok\n");
}

static void up(void)
{
	int fd = open_device();

	printf("slot=%u\n", info_of(fd).slot);
	peer_of(fd);
}

/* A port that a client in the kernel has. */
static void taken(void)
{
	struct sluice_window_attach asked = { .port = 0x1002 };
	int fd = open_device();

	asked.peer = info_of(fd).slot == 0;
	FAILS(ioctl(fd, SLUICE_WINDOW_ATTACH, &asked), EACCES);
}

static void unlent(void)
{
	int fd = open_device();

	CHECK(info_of(fd).lent_bytes == 0);
}

/* Until there are links with three other hosts at a time. */
static void three(void)
{
	int fd = open_device();

	while (__builtin_popcount(info_of(fd).links) < 3)
		usleep(100000);
}

int main(int count, char **words)
{
	const struct {
		const char *name;
		void (*run)(void);
	} commands[] = {
		{ "echo", echo },	{ "pieces", pieces },	{ "attack", attack },
		{ "removal", removal }, { "up", up },		{ "pair", pair },
		{ "taken", taken },	{ "unlent", unlent },
		{ "three", three },
	};
	size_t i;

	if (count != 3)
		return 2;
	device = words[2];
	for (i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		if (!strcmp(words[1], commands[i].name)) {
			commands[i].run();
			return 0;
		}
	return 2;
}
