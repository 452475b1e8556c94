// RST: close with unread data, SO_LINGER 0, and what the other side sees.
//: lane required
#include "common.h"

static int socket_error(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;
    NEED(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    return error;
}

static void show_poll(const char *who, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    poll(&p, 1, 0);
    say("%s:%s%s%s%s%s\n", who, p.revents & POLLIN ? " IN" : "", p.revents & POLLOUT ? " OUT" : "",
        p.revents & POLLRDHUP ? " RDHUP" : "", p.revents & POLLHUP ? " HUP" : "",
        p.revents & POLLERR ? " ERR" : "");
}

static void after_reset(int fd)
{
    char in[32];
    await_events(fd, POLLERR);
    show_poll("after the reset", fd);
    SHOW(recv(fd, in, sizeof in, MSG_DONTWAIT));
    SHOW(recv(fd, in, sizeof in, MSG_DONTWAIT));
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    say("SO_ERROR %s\n", error_name(socket_error(fd)));
    show_poll("later", fd);
    SHOW(shutdown(fd, SHUT_RDWR));
}

int main(void)
{
    struct linger at_once = {1, 0}, two_seconds = {1, 2};
    struct pair p;

    say("-- close with unread data\n");
    p = pair_open();
    SHOW(write(p.a, "never read", 10));
    await_pending(p.b, 10);
    SHOW(close(p.b));
    after_reset(p.a);
    close(p.a);

    say("-- close with unread data, SO_ERROR asked first\n");
    p = pair_open();
    SHOW(write(p.a, "never read", 10));
    await_pending(p.b, 10);
    SHOW(close(p.b));
    await_events(p.a, POLLERR);
    say("SO_ERROR %s\n", error_name(socket_error(p.a)));
    say("SO_ERROR %s\n", error_name(socket_error(p.a)));
    char in[8];
    SHOW(read(p.a, in, sizeof in));
    SHOW(send(p.a, "x", 1, MSG_NOSIGNAL));
    close(p.a);

    say("-- linger 0, nothing unread\n");
    p = pair_open();
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    SHOW(close(p.b));
    after_reset(p.a);
    close(p.a);

    say("-- linger 0 on the end that connected, after its data was read\n");
    p = pair_open();
    SHOW(write(p.a, "read", 4));
    await_pending(p.b, 4);
    SHOW(read(p.b, in, sizeof in));
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    SHOW(close(p.a));
    after_reset(p.b);
    close(p.b);

    say("-- linger with time, all read: an orderly end\n");
    p = pair_open();
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &two_seconds, sizeof two_seconds));
    SHOW(write(p.a, "read", 4));
    await_pending(p.b, 4);
    SHOW(read(p.b, in, sizeof in));
    SHOW(close(p.a));
    SHOW(read(p.b, in, sizeof in));
    close(p.b);

    say("-- the reset throws away what was not read\n");
    p = pair_open();
    SHOW(write(p.b, "lost", 4));
    await_pending(p.a, 4);
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    SHOW(close(p.b));
    after_reset(p.a);
    close(p.a);
    return 0;
}
