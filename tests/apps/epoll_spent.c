// A one-shot registration that the kernel has reported before there was a lane is spent, whatever comes by the
// lane then, until the program arms it again.
//: lane required
#include "common.h"

#include <sys/epoll.h>

static void arm(int set, int op, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 7};
    NEED(epoll_ctl(set, op, fd, &event));
}

int main(void)
{
    char in[16];
    struct epoll_event events[4];
    for (int armed = 0; armed < 2; armed++) {
        say("-- %s\n", armed ? "armed again before the lane" : "spent");
        struct pair p = pair_cold();
        int set = (int)NEED(epoll_create1(0));
        arm(set, EPOLL_CTL_ADD, p.b);
        SHOW(write(p.a, "1", 1));
        SHOW(epoll_wait(set, events, 4, -1));
        SHOW(read(p.b, in, sizeof in));
        if (armed)
            arm(set, EPOLL_CTL_MOD, p.b);
        /* To and fro until there is a lane. */
        warm(p.a, p.b);
        SHOW(write(p.a, "2", 1));
        await_pending(p.b, 1);
        SHOW(epoll_wait(set, events, 4, 100));
        SHOW(epoll_wait(set, events, 4, 100));
        arm(set, EPOLL_CTL_MOD, p.b);
        SHOW(epoll_wait(set, events, 4, -1));
        SHOW(epoll_wait(set, events, 4, 100));
        SHOW(read(p.b, in, sizeof in));
        close(set);
        pair_close(p);
    }
    return 0;
}
