// shutdown in both orders, on both sides, and what reads, writes and polls say then.
//: lane required
#include "common.h"

static void show_poll(const char *who, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    poll(&p, 1, 0);
    say("%s:%s%s%s%s%s\n", who, p.revents & POLLIN ? " IN" : "", p.revents & POLLOUT ? " OUT" : "",
        p.revents & POLLRDHUP ? " RDHUP" : "", p.revents & POLLHUP ? " HUP" : "",
        p.revents & POLLERR ? " ERR" : "");
}

static void writer_first(void)
{
    say("-- the writer ends, the reader answers\n");
    struct pair p = pair_open();
    char in[64];
    SHOW(write(p.a, "question", 8));
    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLRDHUP);
    show_poll("b", p.b);
    SHOW(read(p.b, in, 5));
    SHOW(read(p.b, in, sizeof in));
    SHOW(read(p.b, in, sizeof in));
    show_poll("b", p.b);
    show_poll("a", p.a);
    SHOW(write(p.b, "answer", 6));
    SHOW(send(p.a, "more", 4, MSG_NOSIGNAL));
    await_pending(p.a, 6);
    show_poll("a", p.a);
    SHOW(shutdown(p.b, SHUT_WR));
    await_events(p.a, POLLHUP);
    show_poll("a", p.a);
    SHOW(read(p.a, in, sizeof in));
    SHOW(read(p.a, in, sizeof in));
    show_poll("b", p.b);
    SHOW(shutdown(p.a, SHUT_WR));
    SHOW(shutdown(p.b, SHUT_RDWR));
    SHOW(read(p.b, in, sizeof in));
    pair_close(p);
}

static void reader_shuts(int sent_before)
{
    say("-- SHUT_RD with %d bytes unread\n", sent_before);
    struct pair p = pair_open();
    char in[64];
    if (sent_before) {
        SHOW(write(p.a, "0123456789", (size_t)sent_before));
        await_pending(p.b, sent_before);
    }
    SHOW(shutdown(p.b, SHUT_RD));
    show_poll("b", p.b);
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    /* Linux lets the peer go on and the bytes can even be read. */
    SHOW(write(p.a, "late", 4));
    await_pending(p.b, 4);
    show_poll("b", p.b);
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(write(p.b, "still works", 11));
    await_pending(p.a, 11);
    SHOW(read(p.a, in, sizeof in));
    pair_close(p);
}

static void both(void)
{
    say("-- SHUT_RDWR at once\n");
    struct pair p = pair_open();
    char in[64];
    SHOW(write(p.a, "last words", 10));
    await_pending(p.b, 10);
    SHOW(shutdown(p.a, SHUT_RDWR));
    show_poll("a", p.a);
    SHOW(read(p.a, in, sizeof in));
    SHOW(send(p.a, "x", 1, MSG_NOSIGNAL));
    await_events(p.b, POLLRDHUP);
    SHOW(read(p.b, in, sizeof in));
    SHOW(read(p.b, in, sizeof in));
    SHOW(close(p.b));
    SHOW(close(p.a));
}

static void wrong_use(void)
{
    say("-- wrong uses\n");
    struct pair p = pair_open();
    SHOW(shutdown(p.a, 3));
    SHOW(shutdown(p.a, -1));
    int unconnected = (int)NEED(socket(family(), SOCK_STREAM, 0));
    SHOW(shutdown(unconnected, SHUT_WR));
    SHOW(shutdown(-1, SHUT_WR));
    SHOW(shutdown(0x7fffffff, SHUT_WR));
    close(unconnected);
    pair_close(p);
}

int main(void)
{
    writer_first();
    reader_shuts(0);
    reader_shuts(10);
    both();
    wrong_use();
    return 0;
}
