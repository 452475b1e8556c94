// select and pselect: sets in and out, bits of others untouched, timeouts, errors.
//: lane required
#include "common.h"

static int twice;

static long look(const char *when, int fd, struct timeval *limit)
{
    fd_set readable, writable, odd;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_ZERO(&odd);
    FD_SET(fd, &readable);
    FD_SET(twice, &readable);
    FD_SET(fd, &writable);
    FD_SET(fd, &odd);
    errno = 0;
    int n = select(1024, &readable, &writable, &odd, limit);
    say("%s: %d %s r%d w%d x%d other r%d\n", when, n, n < 0 ? error_name(errno) : "",
        !!FD_ISSET(fd, &readable), !!FD_ISSET(fd, &writable), !!FD_ISSET(fd, &odd),
        !!FD_ISSET(twice, &readable));
    return n;
}

int main(void)
{
    struct pair p = pair_open(), q = pair_open();
    twice = q.b;
    char in[100];
    struct timeval none = {0, 0};

    look("idle", p.b, &none);
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("with data", p.b, &none);
    SHOW(write(q.a, "abc", 3));
    await_pending(q.b, 3);
    look("both with data", p.b, NULL);
    SHOW(read(p.b, in, 100));
    look("the other with data", p.b, NULL);
    SHOW(read(q.b, in, 100));

    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(p.b, &readable);
    struct timeval brief = {0, 20000};
    SHOW(select(p.b + 1, &readable, NULL, NULL, &brief));
    say("left %ld %ld, bit %d\n", (long)brief.tv_sec, (long)brief.tv_usec,
        !!FD_ISSET(p.b, &readable));
    FD_SET(p.b, &readable);
    struct timespec brief_ns = {0, 20000000};
    SHOW(pselect(p.b + 1, &readable, NULL, NULL, &brief_ns, NULL));
    say("unchanged: %d\n", brief_ns.tv_nsec == 20000000);
    FD_SET(p.b, &readable);
    SHOW(write(p.a, "z", 1));
    await_pending(p.b, 1);
    SHOW(pselect(p.b + 1, &readable, NULL, NULL, NULL, NULL));
    SHOW(select(p.b, &readable, NULL, NULL, &none));
    say("bit beyond nfds untouched: %d\n", !!FD_ISSET(p.b, &readable));
    SHOW(select(-1, &readable, NULL, NULL, &none));
    struct timeval wrong = {-1, 0};
    SHOW(select(p.b + 1, &readable, NULL, NULL, &wrong));
    SHOW(select(0, NULL, NULL, NULL, &(struct timeval){0, 1000}));
    FD_ZERO(&readable);
    /* Not just any unused number: select ignores those beyond the table of descriptors. */
    int closed = (int)NEED(dup(p.b));
    close(closed);
    FD_SET(closed, &readable);
    SHOW(select(closed + 1, &readable, NULL, NULL, &none));
    SHOW(read(p.b, in, 100));

    SHOW(send(p.a, "!", 1, MSG_OOB));
    await_events(p.b, POLLPRI);
    look("urgent", p.b, &none);
    SHOW(recv(p.b, in, 1, MSG_OOB));
    SHOW(close(p.a));
    await_events(p.b, POLLRDHUP);
    look("peer closed", p.b, NULL);
    SHOW(read(p.b, in, 100));
    close(p.b);
    return 0;
}
