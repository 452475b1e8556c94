// Edge-triggered ends that never read until EAGAIN: less than they asked for was all there is, and
// less than they gave has filled the connection (epoll(7), question 9). Tokio and nginx do so.
//: lane required
//: ends thread fork exec
//: timeout 120
#include "common.h"

enum { MESSAGES = 20000, SMALL = 300, LARGE = 200000 };

struct end {
    int fd, set;
    bool readable, writable, ended;
};

static struct end start(int fd)
{
    set_nonblocking(fd, true);
    struct end e = {.fd = fd, .set = (int)NEED(epoll_create1(0)), .writable = true};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    NEED(epoll_ctl(e.set, EPOLL_CTL_ADD, fd, &event));
    return e;
}

/* False if nothing was said for a long time. */
static bool heard(struct end *e)
{
    struct epoll_event event;
    if (NEED(epoll_wait(e->set, &event, 1, PATIENCE_SECONDS * 1000)) == 0) {
        say("not told of %d bytes\n", pending(e->fd));
        return false;
    }
    e->readable |= (event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    e->writable |= (event.events & EPOLLOUT) != 0;
    return true;
}

static size_t take(struct end *e, void *data, size_t len)
{
    ssize_t n = read(e->fd, data, len);
    if (n < 0 && errno != EAGAIN)
        die("read");
    e->ended = n == 0;
    e->readable = n == (ssize_t)len;
    return n < 0 ? 0 : (size_t)n;
}

static size_t give(struct end *e, const void *data, size_t len)
{
    ssize_t n = write(e->fd, data, len);
    if (n < 0 && errno != EAGAIN)
        die("write");
    e->writable = n == (ssize_t)len;
    return n < 0 ? 0 : (size_t)n;
}

static size_t at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void client(int fd)
{
    struct end e = start(fd);
    char *out = malloc(LARGE), *in = malloc(LARGE);
    uint32_t lengths = 7, cuts = 11;
    uint64_t digest = SUM_START;
    size_t bytes = 0;
    for (int i = 0; i < MESSAGES; i++) {
        size_t len = 1 + next_random(&lengths) % (next_random(&lengths) % 64 ? SMALL : LARGE);
        size_t sent = 0, got = 0;
        fill(out, len, (uint32_t)i);
        while (got < len) {
            size_t sent_before = sent, got_before = got;
            if (e.writable && sent < len)
                sent += give(&e, out + sent, 1 + next_random(&cuts) % (len - sent));
            if (e.readable)
                got += take(&e, in + got, at_most(LARGE - got, 512 + next_random(&cuts) % 8192));
            if (sent == sent_before && got == got_before && !(e.writable && sent < len) &&
                !heard(&e))
                return;
        }
        if (memcmp(in, out, len) != 0)
            say("message %d differs\n", i);
        digest = sum_more(digest, in, len);
        bytes += len;
    }
    say("%zu bytes, %#llx\n", bytes, (unsigned long long)digest);
    shutdown(fd, SHUT_WR);
    while (!e.ended && (e.readable || heard(&e)))
        if (take(&e, in, LARGE) > 0)
            say("more than was sent\n");
    close(fd);
}

static void server(int fd)
{
    struct end e = start(fd);
    char *data = malloc(LARGE);
    size_t from = 0, to = 0, bytes = 0;
    while (!e.ended) {
        if (from < to && e.writable) {
            from += give(&e, data + from, to - from);
        } else if (from == to && e.readable) {
            from = 0;
            to = take(&e, data, bytes % 2 ? 4096 : LARGE);
            bytes += to;
        } else if (!heard(&e)) {
            return;
        }
    }
    say("%zu bytes\n", bytes);
    close(fd);
}

TWO_ENDS(client, server)
