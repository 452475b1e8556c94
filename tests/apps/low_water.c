// SO_RCVLOWAT: reads and readiness wait for that many bytes.
//: lane required
#include "common.h"

static int readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0);
}

int main(void)
{
    struct pair p = pair_open();
    char in[200], out[200];
    fill(out, sizeof out, 4);
    int value = 0;
    socklen_t len = sizeof value;

    SHOW(getsockopt(p.b, SOL_SOCKET, SO_RCVLOWAT, &value, &len));
    say("default %d\n", value);
    value = 50;
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value));
    value = 0;
    SHOW(getsockopt(p.b, SOL_SOCKET, SO_RCVLOWAT, &value, &len));
    say("now %d\n", value);

    SHOW(write(p.a, out, 20));
    await_pending(p.b, 20);
    SHOW(readable(p.b));
    SHOW(recv(p.b, in, 100, MSG_DONTWAIT | MSG_PEEK));
    SHOW(write(p.a, out + 20, 29));
    await_pending(p.b, 49);
    SHOW(readable(p.b));
    SHOW(write(p.a, out + 49, 1));
    await_pending(p.b, 50);
    SHOW(readable(p.b));
    SHOW(recv(p.b, in, 100, 0));
    say("same bytes: %d\n", memcmp(in, out, 50) == 0);

    /* A read for less than the mark is satisfied with what it asked for. */
    SHOW(write(p.a, out, 10));
    await_pending(p.b, 10);
    SHOW(recv(p.b, in, 10, 0));
    SHOW(write(p.a, out, 10));
    await_pending(p.b, 10);
    struct timeval brief = {0, 30000};
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief));
    SHOW(recv(p.b, in, 100, 0));
    SHOW(recv(p.b, in, 100, 0));

    /* The end of the stream makes it readable whatever the mark. */
    SHOW(write(p.a, out, 3));
    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLIN);
    SHOW(recv(p.b, in, 100, 0));
    SHOW(recv(p.b, in, 100, 0));

    value = 1;
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_SNDLOWAT, &value, sizeof value));
    pair_close(p);
    return 0;
}
