// How much of the program's stack a call takes: threads may have little of it.
//: lane required
#include "common.h"
#include "passing.h"

#include <sys/sendfile.h>

/* Bytes below the caller's frame that a call may write, of which the C library's own function takes up to 260. */
#define MAY_TAKE 2048
#define PAINTED (48 << 10)
#define PAINT 0xa5

static struct pair p;
static int ep, file, pipe_ends[2], channel[2], spare;
static char bytes[64 << 10];

__attribute__((noinline)) static char *paint(void)
{
    char area[PAINTED];
    memset(area, PAINT, sizeof area);
    char *start = area;
    __asm__ volatile("" : "+r"(start) : : "memory");
    return start;
}

/* How far below the end of the painted area something has written. */
__attribute__((noinline)) static long written(const volatile unsigned char *start)
{
    for (long i = 0; i < PAINTED; i++)
        if (start[i] != PAINT)
            return PAINTED - i;
    return 0;
}

__attribute__((noinline)) static void call(void (*body)(void))
{
    body();
    __asm__ volatile("" : : : "memory");
}

static void measure(const char *name, void (*body)(void))
{
    long most = 0;
    /* The first calls are bound, and look around for the first time. */
    for (int i = 0; i < 6; i++) {
        char *start = paint();
        call(body);
        long now = written((unsigned char *)start);
        if (i >= 2 && now > most)
            most = now;
    }
    if (getenv("APP_SHOW") || most > MAY_TAKE)
        say("%s: %ld bytes\n", name, most);
    else
        say("%s: within %d bytes\n", name, MAY_TAKE);
}

#define CALL(name, body)                                                                                               \
    static void do_##name(void)                                                                                        \
    {                                                                                                                  \
        body;                                                                                                          \
    }

static struct pollfd entries[64];
static struct epoll_event events[256];
static struct iovec parts[100];
static struct msghdr message = {.msg_iov = parts, .msg_iovlen = 100};

static void feed(void)
{
    write_all(p.a, bytes, 1000);
    await_pending(p.b, 1000);
}

static ssize_t drained;
CALL(write, write(p.a, bytes, 10); drained = recv(p.b, bytes, 10, MSG_WAITALL))
CALL(read, drained = read(p.b, bytes, 1); write(p.a, "x", 1))
CALL(recv_nothing, drained = recv(p.b, bytes, sizeof bytes, MSG_DONTWAIT))
CALL(readv, drained = readv(p.b, parts, 100))
CALL(recvmsg, drained = recvmsg(p.b, &message, MSG_DONTWAIT))
CALL(writev, drained = writev(p.a, parts, 10))
CALL(discard, drained = recv(p.b, NULL, 100, MSG_TRUNC | MSG_DONTWAIT))
CALL(peek, drained = recv(p.b, bytes, 100, MSG_PEEK | MSG_DONTWAIT))
CALL(poll, poll(entries, 1, 0))
CALL(poll_many, poll(entries, 64, 0))
CALL(poll_sleeping, poll(entries, 1, 2))
CALL(select, fd_set set; FD_ZERO(&set); FD_SET(p.b, &set); select(p.b + 1, &set, NULL, NULL, &(struct timeval){0, 0}))
CALL(epoll_wait, epoll_wait(ep, events, 256, 0))
CALL(epoll_sleeping, epoll_wait(ep, events, 256, 2))
CALL(epoll_ctl, struct epoll_event event = {.events = EPOLLIN}; epoll_ctl(ep, EPOLL_CTL_MOD, p.b, &event))
CALL(sendfile, off_t at = 0; drained = sendfile(p.a, file, &at, 1000))
CALL(fionread, int count; ioctl(p.b, FIONREAD, &count))
CALL(fcntl, fcntl(p.b, F_SETFL, fcntl(p.b, F_GETFL)))
CALL(dup, close(dup(p.b)))
CALL(socket, close(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)))
CALL(getsockopt, int value; socklen_t len = sizeof value; getsockopt(p.b, SOL_SOCKET, SO_ERROR, &value, &len))
CALL(setsockopt, set_int(p.b, IPPROTO_TCP, TCP_NODELAY, 1))
CALL(pass, send_fd(channel[0], spare); close(receive_fd(channel[1])))

int main(void)
{
    p = pair_open();
    ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &event));
    char name[] = "/tmp/sluice-stack-XXXXXX";
    file = (int)NEED(mkstemp(name));
    unlink(name);
    write_all(file, bytes, 1000);
    NEED(pipe2(pipe_ends, O_CLOEXEC));
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel));
    spare = listen_loopback(1);
    for (int i = 0; i < 64; i++)
        entries[i] = (struct pollfd){.fd = p.b, .events = POLLIN};
    for (int i = 0; i < 100; i++)
        parts[i] = (struct iovec){bytes + i, 1};
    measure("write, recv", do_write);
    write_all(p.a, "x", 1);
    measure("read", do_read);
    read_exact(p.b, bytes, 1);
    measure("recv of nothing", do_recv_nothing);
    measure("poll", do_poll);
    measure("poll of many", do_poll_many);
    measure("poll asleep", do_poll_sleeping);
    measure("select", do_select);
    measure("epoll_wait", do_epoll_wait);
    measure("epoll_wait asleep", do_epoll_sleeping);
    feed();
    measure("poll", do_poll);
    measure("epoll_wait", do_epoll_wait);
    measure("epoll_ctl", do_epoll_ctl);
    measure("recv to peek", do_peek);
    measure("recv to nowhere", do_discard);
    measure("FIONREAD", do_fionread);
    feed();
    measure("readv", do_readv);
    measure("recvmsg", do_recvmsg);
    measure("writev", do_writev);
    measure("sendfile", do_sendfile);
    measure("fcntl", do_fcntl);
    measure("dup", do_dup);
    measure("socket", do_socket);
    measure("getsockopt", do_getsockopt);
    measure("setsockopt", do_setsockopt);
    measure("sendmsg of a descriptor", do_pass);
    pair_close(p);
    return 0;
}
