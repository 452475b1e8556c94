// One epoll instance over a connection, a pipe, a timer, an eventfd and a signalfd; nesting.
//: lane required
#include "common.h"

#include <sys/signalfd.h>
#include <sys/timerfd.h>

/* Collects every ready source until `want` (bits) have been seen, in whatever order. */
static unsigned collect(int set, unsigned want)
{
    unsigned seen = 0;
    long long until = now_ms() + PATIENCE_SECONDS * 1000LL;
    while ((seen & want) != want && now_ms() < until) {
        struct epoll_event events[16];
        int n = epoll_wait(set, events, 16, 1000);
        for (int i = 0; i < n; i++)
            seen |= 1u << events[i].data.u32;
    }
    return seen;
}

int main(void)
{
    char in[256];
    struct pair p = pair_open(), q = pair_open();
    int set = (int)NEED(epoll_create1(0));
    int ends[2];
    NEED(pipe(ends));
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int counter = eventfd(0, EFD_NONBLOCK);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int signal_fd = signalfd(-1, &signals, SFD_NONBLOCK);

    int all[] = {p.b, q.b, ends[0], timer, counter, signal_fd};
    for (uint32_t i = 0; i < 6; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, all[i], &event));
    }
    struct epoll_event events[8];
    SHOW(epoll_wait(set, events, 8, 0));
    SHOW(epoll_wait(set, events, 8, 20));

    uint64_t one = 1;
    for (unsigned mask = 1; mask < 64; mask += 5) {
        if (mask & 1)
            write_all(p.a, "p", 1);
        if (mask & 2)
            write_all(q.a, "q", 1);
        if (mask & 4)
            write_all(ends[1], "x", 1);
        if (mask & 8) {
            struct itimerspec at = {.it_value = {0, 1000000}};
            timerfd_settime(timer, 0, &at, NULL);
        }
        if (mask & 16)
            write_all(counter, &one, 8);
        if (mask & 32)
            kill(getpid(), SIGUSR1);
        say("expected %#x got %#x\n", mask, collect(set, mask));
        for (int i = 0; i < 6; i++)
            if (mask >> i & 1)
                NEED(read(all[i], in, sizeof in));
    }
    SHOW(epoll_wait(set, events, 8, 0));

    say("-- nested\n");
    int outer = (int)NEED(epoll_create1(0)), outermost = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
    SHOW(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
    SHOW(epoll_ctl(outermost, EPOLL_CTL_ADD, outer, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, outermost, &event));
    SHOW(epoll_wait(outermost, events, 8, 0));
    struct pollfd poll_set = {.fd = outermost, .events = POLLIN};
    SHOW(poll(&poll_set, 1, 0));
    SHOW(write(p.a, "n", 1));
    await_pending(p.b, 1);
    SHOW(poll(&poll_set, 1, -1));
    SHOW(epoll_wait(outermost, events, 8, -1));
    SHOW(epoll_wait(outer, events, 8, -1));
    SHOW(epoll_wait(set, events, 8, -1));
    say("from %u\n", events[0].data.u32);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(outer, &readable);
    SHOW(select(outer + 1, &readable, NULL, NULL, NULL));
    SHOW(read(p.b, in, 10));
    SHOW(poll(&poll_set, 1, 0));
    SHOW(epoll_wait(outermost, events, 8, 0));

    say("-- a closed member disappears, one with another name does not\n");
    int twin = (int)NEED(dup(q.b));
    SHOW(close(q.b));
    SHOW(write(q.a, "t", 1));
    await_pending(twin, 1);
    SHOW(epoll_wait(set, events, 8, 0));
    say("from %u\n", events[0].data.u32);
    SHOW(close(twin));
    SHOW(epoll_wait(set, events, 8, 0));
    pair_close(p);
    SHOW(epoll_wait(set, events, 8, 0));
    close(q.a);
    return 0;
}
