// A reset behind the bytes that a read returned stays visible to epoll until a call is told.
//: lane required
#include "common.h"

static void show_events(int set, const char *when)
{
    struct epoll_event event = {0};
    int n = epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000);
    say("%s: %d, error %d, end %d\n", when, n, !!(event.events & EPOLLERR),
        !!(event.events & EPOLLHUP));
}

int main(void)
{
    for (int edge = 0; edge < 2; edge++) {
        struct pair p = pair_open();
        int set = (int)NEED(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN | (edge ? EPOLLET : 0)};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event));
        write_all(p.a, "0123456789", 10);
        await_pending(p.b, 10);
        struct linger reset = {1, 0};
        NEED(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
        close(p.a);
        char in[100];
        SHOW(recv(p.b, in, sizeof in, MSG_WAITALL));
        show_events(set, "behind the bytes");
        SHOW(recv(p.b, in, sizeof in, 0));
        if (!edge)
            show_events(set, "behind the error");
        SHOW(recv(p.b, in, sizeof in, 0));
        close(set);
        close(p.b);
    }
    return 0;
}
