// Bytes that came before their connection was given to an io_uring, from a process that sleeps since.
//: lane required
#include "ring.h"

#define BYTES 3000
#define ROUNDS 64

static char out[BYTES], in[BYTES + 100];

/* Both ends, each in its process; twice, so that there is a lane by the second time. */
static void warm_own(int fd, int begins)
{
    char byte = 'w';
    for (int round = 0; round < 2 * ROUNDS; round++) {
        if (round == ROUNDS)
            nap_ms(knob("APP_PAUSE_MS", 50));
        if (begins)
            write_all(fd, &byte, 1);
        read_exact(fd, &byte, 1);
        if (!begins)
            write_all(fd, &byte, 1);
    }
}

static void sender(int port, int channel)
{
    int fd = connect_loopback(port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    warm_own(fd, 1);
    write_all(fd, out, sizeof out);
    write_all(channel, "s", 1);
    char byte;
    read_exact(fd, &byte, 1);
    write_all(fd, &byte, 1);
    exit(0);
}

static int listener, channel[2];

/* A connection with unread bytes whose sender sleeps. */
static int receiver(void)
{
    pid_t child = (pid_t)NEED(fork());
    if (child == 0)
        sender(port_of(listener), channel[1]);
    int fd = (int)NEED(accept(listener, NULL, NULL));
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    warm_own(fd, 0);
    char byte;
    read_exact(channel[0], &byte, 1);
    AWAIT(thread_sleeps(child, child));
    await_pending(fd, BYTES);
    return fd;
}

static void end(struct ring *ring, int fd)
{
    SHOW(write(fd, "x", 1));
    int status;
    NEED(wait(&status));
    await_pending(fd, 1);
    say_result("recv", ring_submit(ring, IORING_OP_RECV, fd, in, sizeof in));
    SHOW(close(fd));
}

int main(void)
{
    struct ring ring;
    if (!ring_open(&ring, 0))
        skip("io_uring is not available");
    fill(out, sizeof out, 5);
    listener = listen_loopback(8);
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));

    say("-- read in pieces\n");
    int fd = receiver();
    struct io_uring_sqe *sqe = ring_entry(&ring, IORING_OP_POLL_ADD, fd);
    sqe->poll32_events = POLLIN;
    long result;
    ring_enter(&ring, &result);
    say_result("poll", result);
    say_result("recv", ring_submit(&ring, IORING_OP_RECV, fd, in, 1000));
    say_result("read", ring_submit(&ring, IORING_OP_READ, fd, in + 1000, 500));
    SHOW(recv(fd, in + 1500, 700, 0));
    say_result("recv", ring_submit(&ring, IORING_OP_RECV, fd, in + 2200, sizeof in - 2200));
    say("same bytes: %d\n", memcmp(in, out, sizeof out) == 0);
    end(&ring, fd);

    say("-- read at once\n");
    fd = receiver();
    say_result("recv", ring_submit(&ring, IORING_OP_RECV, fd, in, sizeof in));
    say("same bytes: %d\n", memcmp(in, out, sizeof out) == 0);
    end(&ring, fd);
    return 0;
}
