// A program whose clock stands still, as under libfaketime: its waits end all the same.
//: lane required
#include "common.h"

#include <dlfcn.h>

static atomic_bool is_stopped;

/* Takes the place of the C library's, for all libraries of the process. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!atomic_load(&is_stopped))
        return (int)syscall(SYS_clock_gettime, clock, time);
    time->tv_sec = 1700000000;
    time->tv_nsec = 0;
    return 0;
}

static const struct timeval short_time = {0, 50000};

static void waits(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    SHOW(poll(&entry, 1, 50));
    struct timeval left = short_time;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    SHOW(select(fd + 1, &set, NULL, NULL, &left));
    int ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_wait(ep, &event, 1, 50));
    close(ep);
    char byte;
    NEED(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time));
    SHOW(read(fd, &byte, 1));
}

int main(void)
{
    struct pair p = pair_open();
    struct timespec time;
    atomic_store(&is_stopped, true);
    NEED(clock_gettime(CLOCK_MONOTONIC, &time));
    say("it stands at %ld\n", (long)time.tv_sec);
    /* A library asks for the same function. */
    say("replaced: %d\n", dlsym(RTLD_DEFAULT, "clock_gettime") == (void *)clock_gettime);
    for (int i = 0; i < 3; i++) {
        waits(p.b);
        ping_pong_within(p.a, p.b, 20);
    }
    /* Bytes that nobody has read go with the connection. */
    write_all(p.a, "unread", 6);
    await_pending(p.b, 6);
    SHOW(system("exit 3"));
    char in[6];
    read_exact(p.b, in, sizeof in);
    say("%.6s\n", in);
    pair_close(p);
    return 0;
}
