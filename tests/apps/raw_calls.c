// System calls that no library function made: syscall(), inline assembler, mixed with plain ones.
//: lane required
#include "common.h"

static long raw3(long number, long one, long two, long three)
{
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(one), "S"(two), "d"(three)
                     : "rcx", "r11", "memory");
    return result;
#else
    long result = syscall(number, one, two, three);
    return result < 0 ? -errno : result;
#endif
}

int main(void)
{
    char in[100];
    struct pair p = pair_open();

    say("-- through syscall()\n");
    SHOW(syscall(SYS_write, p.a, "one", 3));
    SHOW(read(p.b, in, sizeof in));
    SHOW(write(p.a, "two", 3));
    await_pending(p.b, 3);
    SHOW(syscall(SYS_read, p.b, in, sizeof in));
    SHOW(syscall(SYS_sendto, p.b, "three", 5, 0, NULL, 0));
    SHOW(recv(p.a, in, sizeof in, 0));
    SHOW(send(p.b, "four", 4, 0));
    await_pending(p.a, 4);
    SHOW(syscall(SYS_recvfrom, p.a, in, sizeof in, 0, NULL, NULL));
    struct pollfd one = {.fd = p.b, .events = POLLIN};
    SHOW(write(p.a, "five", 4));
    SHOW(syscall(SYS_poll, &one, 1, -1));
    SHOW(read(p.b, in, sizeof in));
    /* No thread stands still so long. */
    struct timespec an_hour = {3600, 0};
    struct { const void *mask; size_t bytes; } no_mask = {NULL, 8};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(p.b, &readable);
    SHOW(write(p.a, "seen", 4));
    SHOW(syscall(SYS_pselect6, p.b + 1, &readable, NULL, NULL, &an_hour, &no_mask));
    say("%d, time is left: %d\n", FD_ISSET(p.b, &readable) != 0,
        an_hour.tv_sec < 3600 && an_hour.tv_sec >= 1800);
    SHOW(read(p.b, in, sizeof in));
    struct timespec no_time = {0, 10000000};
    FD_SET(p.b, &readable);
    SHOW(syscall(SYS_pselect6, p.b + 1, &readable, NULL, NULL, &no_time, NULL));
    say("%d, %ld.%09ld s left\n", FD_ISSET(p.b, &readable) != 0, (long)no_time.tv_sec,
        no_time.tv_nsec);
    struct timespec no_such_time = {0, -1};
    SHOW(syscall(SYS_pselect6, p.b + 1, &readable, NULL, NULL, &no_such_time, NULL));
    int count = -1;
    SHOW(write(p.a, "5 more", 6));
    await_pending(p.b, 6);
    SHOW(syscall(SYS_ioctl, p.b, FIONREAD, &count));
    say("%d bytes\n", count);
    struct iovec where = {in, sizeof in};
    SHOW(syscall(SYS_preadv2, p.b, &where, 1, -1L, -1L, RWF_NOWAIT));
    where.iov_len = 7;
    SHOW(syscall(SYS_pwritev2, p.a, &where, 1, -1L, -1L, 0));
    int watcher = (int)NEED(syscall(SYS_epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    struct timespec second = {1, 0};
    SHOW(syscall(SYS_epoll_ctl, watcher, EPOLL_CTL_ADD, p.b, &event));
    event.data.u64 = 0;
    SHOW(syscall(SYS_epoll_pwait2, watcher, &event, 1, &second, NULL, 8));
    say("data %llu\n", (unsigned long long)event.data.u64);
    SHOW(read(p.b, in, sizeof in));
    SHOW(close(watcher));
    int other = (int)NEED(syscall(SYS_fcntl, p.b, F_DUPFD_CLOEXEC, 0));
    SHOW(syscall(SYS_fcntl, p.b, F_SETFL, O_RDWR | O_NONBLOCK));
    SHOW(recv(p.b, in, sizeof in, 0));
    SHOW(syscall(SYS_fcntl, p.b, F_SETFL, O_RDWR));
    SHOW(write(p.a, "other", 5));
    SHOW(read(other, in, sizeof in));
    SHOW(close(other));
    int twin = (int)NEED(syscall(SYS_dup, p.b));
    SHOW(write(p.a, "six", 3));
    SHOW(read(twin, in, sizeof in));
    SHOW(syscall(SYS_close, p.b));
    SHOW(write(p.a, "seven", 5));
    SHOW(read(twin, in, sizeof in));
    SHOW(syscall(SYS_shutdown, p.a, SHUT_WR));
    SHOW(read(twin, in, sizeof in));
    SHOW(syscall(SYS_close, p.a));
    SHOW(syscall(SYS_close, twin));

    say("-- through the instruction itself: descriptors closed and reused\n");
    p = pair_open();
    int a = p.a, b = p.b;
    say("close %ld %ld\n", raw3(SYS_close, a, 0, 0), raw3(SYS_close, b, 0, 0));
    int tube[2];
    NEED(pipe(tube));
    NEED(dup2(tube[0], a));
    NEED(dup2(tube[1], b));
    SHOW(write(b, "through a pipe", 14));
    SHOW(read(a, in, sizeof in));
    close(a);
    close(b);

    say("-- a socket that only raw calls have touched before\n");
    int listener = listen_loopback(4);
    int client = connect_loopback(port_of(listener));
    int server = (int)raw3(SYS_accept, listener, 0, 0);
    for (int i = 0; i < 200; i++) {
        write_all(client, "0123456789", 10);
        await_pending(server, 10);
        if (raw3(SYS_read, server, (long)in, 10) != 10)
            say("raw read\n");
        if (raw3(SYS_write, server, (long)in, 10) != 10)
            say("raw write\n");
        read_exact(client, in, 10);
    }
    SHOW(close(client));
    say("end %ld\n", raw3(SYS_read, server, (long)in, 10));
    SHOW(close(server));
    return 0;
}
