// maxevents smaller than the number of ready connections: everyone gets a turn.
//: lane required
#include "common.h"

enum { PAIRS = 12 };

int main(void)
{
    struct pair p[PAIRS];
    int set = (int)NEED(epoll_create1(0));
    for (uint32_t i = 0; i < PAIRS; i++) {
        p[i] = pair_open();
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, p[i].b, &event));
    }
    for (int i = 0; i < PAIRS; i++) {
        write_all(p[i].a, "x", 1);
        await_pending(p[i].b, 1);
    }
    for (int max = 1; max <= 5; max += 2) {
        /* Level triggered and never read: within as many looks as there are members, all come. */
        int times[PAIRS] = {0};
        int looks = (PAIRS + max - 1) / max * 2;
        for (int look = 0; look < looks; look++) {
            struct epoll_event events[PAIRS];
            int n = epoll_wait(set, events, max, 1000);
            if (n != max)
                say("maxevents %d: got %d\n", max, n);
            for (int i = 0; i < n; i++)
                times[events[i].data.u32]++;
        }
        int never = 0;
        for (int i = 0; i < PAIRS; i++)
            never += times[i] == 0;
        say("maxevents %d: %d members never reported\n", max, never);
    }
    struct epoll_event events[2 * PAIRS];
    SHOW(epoll_wait(set, events, 2 * PAIRS, 0));

    /* A pipe that is always ready must not hide the connections, nor they the pipe. */
    int ends[2];
    NEED(pipe(ends));
    write_all(ends[1], "x", 1);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1000};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    int pipe_seen = 0, others_seen = 0;
    for (int look = 0; look < 4 * PAIRS; look++) {
        NEED(epoll_wait(set, events, 1, 1000));
        if (events[0].data.u32 == 1000)
            pipe_seen = 1;
        else
            others_seen = 1;
    }
    say("pipe seen %d, connections seen %d\n", pipe_seen, others_seen);
    for (int i = 0; i < PAIRS; i++)
        pair_close(p[i]);
    SHOW(epoll_wait(set, events, 2 * PAIRS, 0));
    return 0;
}
