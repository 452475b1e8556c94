// An event loop that registers its connections through an io_uring, many at a time, and a ring for
// files: the connections have their lanes all the same.
//: lane required
#include "ring.h"

#define PAIRS 4

static struct ring ring;
static struct pair pairs[PAIRS];
static struct epoll_event events[16];
static int set;

static struct io_uring_sqe *control(int op, int fd, uint32_t interest, uint64_t data)
{
    struct io_uring_sqe *sqe = ring_entry(&ring, IORING_OP_EPOLL_CTL, set);
    struct epoll_event *event = &events[sqe - ring.sqes];
    event->events = interest;
    event->data.u64 = data;
    sqe->addr = (uint64_t)(uintptr_t)event;
    sqe->len = (uint32_t)op;
    sqe->off = (uint64_t)fd;
    return sqe;
}

static void enter(const char *what)
{
    long results[16];
    uint32_t count = ring.prepared;
    ring_enter(&ring, results);
    say("%s:", what);
    for (uint32_t at = 0; at < count; at++)
        say(" %s", results[at] < 0 ? error_name((int)-results[at]) : "done");
    say("\n");
}

/* What is reported, in the order of the data. */
static void show_ready(int ms)
{
    struct epoll_event got[16];
    uint32_t by_data[16] = {0};
    int count = (int)NEED(epoll_wait(set, got, 16, ms));
    say("ready %d:", count);
    for (int at = 0; at < count; at++)
        by_data[got[at].data.u64 % 16] = got[at].events;
    for (int at = 0; at < 16; at++)
        if (by_data[at] != 0)
            say(" %d=%#x", at, by_data[at]);
    say("\n");
}

static void drain(void)
{
    char in[100];
    for (int at = 0; at < PAIRS; at++)
        while (recv(pairs[at].b, in, sizeof in, MSG_DONTWAIT) > 0)
            ;
}

static void send_to_all(void)
{
    for (int at = 0; at < PAIRS; at++)
        NEED(write(pairs[at].a, "12345", 5));
    for (int at = 0; at < PAIRS; at++)
        await_pending(pairs[at].b, 5);
}

/* As libuv does for each request: what it wants, and nothing, in one batch. */
static void rounds(int count)
{
    for (int round = 0; round < count; round++) {
        send_to_all();
        int left = PAIRS;
        while (left > 0) {
            struct epoll_event got[PAIRS];
            int ready = (int)NEED(epoll_wait(set, got, PAIRS, PATIENCE_SECONDS * 1000));
            if (ready == 0)
                die("no event");
            for (int at = 0; at < ready; at++) {
                char in[5];
                int which = (int)got[at].data.u64;
                read_exact(pairs[which].b, in, 5);
                control(EPOLL_CTL_DEL, pairs[which].b, 0, 0);
                control(EPOLL_CTL_ADD, pairs[which].b, EPOLLIN, (uint64_t)which);
                NEED(write(pairs[which].b, in, 1));
                read_exact(pairs[which].a, in, 1);
                left--;
            }
            ring_enter(&ring, (long[16]){0});
        }
    }
    say("%d rounds\n", count);
}

int main(void)
{
    if (!ring_open(&ring, 0))
        skip("io_uring is not available");
    set = (int)NEED(epoll_create1(0));
    for (int at = 0; at < PAIRS; at++)
        pairs[at] = pair_cold();
    int pipes[2];
    NEED(pipe(pipes));
    NEED(write(pipes[1], "p", 1));

    for (int at = 0; at < PAIRS; at++)
        control(EPOLL_CTL_ADD, pairs[at].b, EPOLLIN, (uint64_t)at);
    control(EPOLL_CTL_ADD, pipes[0], EPOLLIN, 9);
    control(EPOLL_CTL_ADD, 999, EPOLLIN, 10);
    enter("add");
    show_ready(0);
    control(EPOLL_CTL_DEL, pipes[0], 0, 0);
    enter("delete");

    for (int warmed = 0; warmed < 2; warmed++) {
        say("-- warmed %d\n", warmed);
        for (int at = 0; at < PAIRS && warmed; at++)
            warm(pairs[at].a, pairs[at].b);
        send_to_all();
        show_ready(0);
        show_ready(0);
        control(EPOLL_CTL_ADD, pairs[0].b, EPOLLIN, 3);
        control(EPOLL_CTL_MOD, pairs[0].b, EPOLLIN | EPOLLOUT, 5);
        control(EPOLL_CTL_MOD, pairs[1].b, EPOLLIN | EPOLLONESHOT, 6);
        control(EPOLL_CTL_DEL, pairs[2].b, 0, 0);
        control(EPOLL_CTL_DEL, pairs[2].b, 0, 0);
        control(EPOLL_CTL_MOD, pairs[2].b, EPOLLIN, 7);
        enter("change");
        show_ready(0);
        show_ready(0);
        control(EPOLL_CTL_MOD, pairs[2].b, EPOLLIN, 7);
        enter("change what is not there");
        control(EPOLL_CTL_ADD, pairs[2].b, EPOLLIN, 8);
        control(EPOLL_CTL_MOD, pairs[1].b, 0, 6);
        enter("add again");
        show_ready(0);
        drain();
        show_ready(0);
        for (int at = 0; at < PAIRS; at++)
            control(EPOLL_CTL_MOD, pairs[at].b, EPOLLIN, (uint64_t)at);
        enter("as before");
        rounds(200);
    }

    say("-- one that waits for another\n");
    NEED(write(pairs[0].a, "12345", 5));
    ring_entry(&ring, IORING_OP_NOP, -1)->flags = IOSQE_IO_LINK;
    control(EPOLL_CTL_MOD, pairs[0].b, EPOLLIN, 12);
    enter("linked");
    await_pending(pairs[0].b, 5);
    show_ready(0);
    drain();
    NEED(write(pairs[0].a, "1", 1));
    await_pending(pairs[0].b, 1);
    show_ready(PATIENCE_SECONDS * 1000);
    drain();

    say("-- an instance that the kernel waits for\n");
    struct io_uring_sqe *sqe = ring_entry(&ring, IORING_OP_POLL_ADD, set);
    sqe->poll32_events = POLLIN;
    NEED(write(pairs[3].a, "1", 1));
    long result;
    ring_enter(&ring, &result);
    say_result("poll", result);
    show_ready(0);
    drain();
    for (int at = 0; at < PAIRS; at++)
        warm(pairs[at].a, pairs[at].b);
    show_ready(0);

    say("-- files\n");
    char text[16] = "";
    int file = (int)NEED(memfd_create("file", 0));
    NEED(write(file, "content", 7));
    say_result("read", ring_submit(&ring, IORING_OP_READ, file, text, sizeof text));
    say("%s\n", text);
    struct pair late = pair_open();
    pair_close(late);
    return 0;
}
