// Level, edge and one-shot triggered epoll on one connection, step by step.
//: lane required
#include "common.h"

static int set;

static void look(const char *when)
{
    struct epoll_event events[8];
    int n = epoll_wait(set, events, 8, 0);
    say("%s: %d", when, n);
    for (int i = 0; i < n; i++)
        say(" {%llu%s%s%s%s%s%s}", (unsigned long long)events[i].data.u64,
            events[i].events & EPOLLIN ? " IN" : "", events[i].events & EPOLLOUT ? " OUT" : "",
            events[i].events & EPOLLRDHUP ? " RDHUP" : "", events[i].events & EPOLLHUP ? " HUP" : "",
            events[i].events & EPOLLERR ? " ERR" : "", events[i].events & EPOLLPRI ? " PRI" : "");
    say("\n");
}

static int control(int op, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, op, fd, &event);
}

int main(void)
{
    char in[100];
    set = (int)NEED(epoll_create1(EPOLL_CLOEXEC));

    say("-- level\n");
    struct pair p = pair_open();
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLRDHUP, 1));
    look("idle");
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("data");
    look("data, again");
    SHOW(read(p.b, in, 1));
    look("data left");
    SHOW(read(p.b, in, 100));
    look("drained");
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLOUT, 2));
    look("OUT too");
    SHOW(control(EPOLL_CTL_MOD, p.b, 0, 3));
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("no events asked");
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN, 4));
    look("IN asked with data there");
    SHOW(control(EPOLL_CTL_DEL, p.b, 0, 0));
    look("deleted");
    SHOW(read(p.b, in, 100));

    say("-- edge\n");
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLET, 5));
    look("idle");
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("data");
    look("data, again");
    SHOW(read(p.b, in, 1));
    look("partly read");
    SHOW(write(p.a, "de", 2));
    await_pending(p.b, 4);
    look("more data");
    look("more data, again");
    SHOW(read(p.b, in, 100));
    look("drained");
    SHOW(write(p.a, "f", 1));
    await_pending(p.b, 1);
    SHOW(read(p.b, in, 100));
    SHOW(write(p.a, "g", 1));
    await_pending(p.b, 1);
    look("drained and new data");
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLET, 6));
    look("MOD with data there");
    look("MOD with data there, again");
    SHOW(read(p.b, in, 100));
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLOUT | EPOLLET, 7));
    look("edge OUT");
    look("edge OUT, again");
    SHOW(control(EPOLL_CTL_DEL, p.b, 0, 0));

    say("-- edge, added with data there\n");
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLET, 8));
    look("data");
    look("data, again");
    SHOW(read(p.b, in, 100));
    SHOW(control(EPOLL_CTL_DEL, p.b, 0, 0));

    say("-- one-shot\n");
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLONESHOT, 9));
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("data");
    look("data, again");
    SHOW(write(p.a, "d", 1));
    await_pending(p.b, 4);
    look("more data");
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLONESHOT, 10));
    look("armed again with data");
    SHOW(read(p.b, in, 100));
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLONESHOT, 11));
    look("armed again without data");
    SHOW(write(p.a, "e", 1));
    await_pending(p.b, 1);
    look("data");
    SHOW(read(p.b, in, 100));
    SHOW(control(EPOLL_CTL_MOD, p.b, EPOLLIN | EPOLLET | EPOLLONESHOT, 12));
    SHOW(write(p.a, "f", 1));
    await_pending(p.b, 1);
    look("edge and one-shot");
    look("edge and one-shot, again");
    SHOW(read(p.b, in, 100));
    SHOW(control(EPOLL_CTL_DEL, p.b, 0, 0));

    say("-- the end of the stream\n");
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLRDHUP | EPOLLET, 13));
    SHOW(write(p.a, "z", 1));
    await_pending(p.b, 1);
    look("data");
    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLRDHUP);
    look("half-closed with data left");
    SHOW(read(p.b, in, 100));
    look("drained");
    SHOW(control(EPOLL_CTL_MOD, p.b, 0, 14));
    SHOW(shutdown(p.b, SHUT_WR));
    await_events(p.b, POLLHUP);
    look("HUP comes unasked");
    SHOW(close(p.b));
    look("closed");
    close(p.a);

    say("-- wrong uses\n");
    p = pair_open();
    SHOW(control(EPOLL_CTL_MOD, p.a, EPOLLIN, 0));
    SHOW(control(EPOLL_CTL_DEL, p.a, 0, 0));
    SHOW(control(EPOLL_CTL_ADD, p.a, EPOLLIN, 0));
    SHOW(control(EPOLL_CTL_ADD, p.a, EPOLLIN, 0));
    SHOW(control(EPOLL_CTL_ADD, set, EPOLLIN, 0));
    SHOW(control(EPOLL_CTL_ADD, 999, EPOLLIN, 0));
    SHOW(control(77, p.a, EPOLLIN, 0));
    SHOW(epoll_ctl(p.b, EPOLL_CTL_ADD, p.a, NULL));
    SHOW(control(EPOLL_CTL_MOD, p.a, EPOLLIN | EPOLLEXCLUSIVE, 0));
    SHOW(control(EPOLL_CTL_ADD, p.b, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0));
    struct epoll_event events[2];
    SHOW(epoll_wait(set, events, 0, 0));
    SHOW(epoll_wait(set, events, -1, 0));
    SHOW(epoll_wait(p.a, events, 1, 0));
    SHOW(epoll_wait(999, events, 1, 0));
    SHOW(epoll_create(0));
    SHOW(epoll_create1(0x1));
    int file = (int)NEED(open("/proc/self/exe", O_RDONLY));
    SHOW(control(EPOLL_CTL_ADD, file, EPOLLIN, 0));
    pair_close(p);
    return 0;
}
