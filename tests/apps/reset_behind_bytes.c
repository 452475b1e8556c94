// A reset behind the bytes that a read returned stays visible until a call is told.
//: lane required
#include "common.h"

static void show_events(int set, const char *when)
{
    struct epoll_event event = {0};
    int n = epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000);
    say("%s: %d, error %d, end %d\n", when, n, !!(event.events & EPOLLERR),
        !!(event.events & EPOLLHUP));
}

static void show_poll(int fd, const char *when)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int n = poll(&entry, 1, PATIENCE_SECONDS * 1000);
    say("%s: %d, error %d, end %d\n", when, n, !!(entry.revents & POLLERR),
        !!(entry.revents & POLLHUP));
}

static void by_poll_and_option(void)
{
    struct pair p = pair_open();
    write_all(p.a, "0123456789", 10);
    await_pending(p.b, 10);
    struct linger reset = {1, 0};
    NEED(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
    close(p.a);
    char in[100];
    SHOW(recv(p.b, in, sizeof in, MSG_WAITALL));
    show_poll(p.b, "poll behind the bytes");
    for (int i = 0; i < 2; i++) {
        int error = -1;
        socklen_t len = sizeof error;
        NEED(getsockopt(p.b, SOL_SOCKET, SO_ERROR, &error, &len));
        say("SO_ERROR %d\n", error);
    }
    show_poll(p.b, "poll behind SO_ERROR");
    SHOW(recv(p.b, in, sizeof in, 0));
    close(p.b);
}

int main(void)
{
    by_poll_and_option();
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
