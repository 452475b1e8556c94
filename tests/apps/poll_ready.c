// poll and ppoll through the life of a connection, mixed with pipes and bad descriptors.
//: lane required
#include "common.h"

static void look(const char *when, int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, 0);
    say("%s: %d%s%s%s%s%s%s%s%s%s\n", when, n, p.revents & POLLIN ? " IN" : "",
        p.revents & POLLPRI ? " PRI" : "", p.revents & POLLOUT ? " OUT" : "",
        p.revents & POLLRDHUP ? " RDHUP" : "", p.revents & POLLHUP ? " HUP" : "",
        p.revents & POLLERR ? " ERR" : "", p.revents & POLLNVAL ? " NVAL" : "",
        p.revents & POLLRDNORM ? " RDNORM" : "", p.revents & POLLWRNORM ? " WRNORM" : "");
}

#define ALL (POLLIN | POLLPRI | POLLOUT | POLLRDHUP | POLLRDNORM | POLLWRNORM)

int main(void)
{
    struct pair p = pair_open();
    char in[100];

    look("idle", p.b, ALL);
    look("idle, no events asked", p.b, 0);
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    look("with data", p.b, ALL);
    look("with data, only OUT asked", p.b, POLLOUT);
    look("with data, only IN asked", p.b, POLLIN);
    SHOW(read(p.b, in, 1));
    look("some data left", p.b, ALL);
    SHOW(read(p.b, in, 100));
    look("drained", p.b, ALL);

    int ends[2];
    NEED(pipe(ends));
    struct pollfd set[5] = {{.fd = p.a, .events = POLLIN},
                            {.fd = -1, .events = POLLIN},
                            {.fd = ends[0], .events = POLLIN},
                            {.fd = 999, .events = POLLIN},
                            {.fd = p.b, .events = POLLIN}};
    SHOW(poll(set, 5, 0));
    set[3].fd = ends[1];
    set[3].events = POLLOUT;
    SHOW(poll(set, 5, 0));
    set[3].fd = -5;
    SHOW(poll(set, 5, 20));
    SHOW(write(p.a, "x", 1));
    SHOW(poll(set, 5, -1));
    say("revents %d %d %d %d %d\n", set[0].revents, set[1].revents, set[2].revents, set[3].revents,
        set[4].revents);
    SHOW(write(ends[1], "x", 1));
    await_pending(p.b, 1);
    SHOW(poll(set, 5, -1));
    SHOW(poll(set, 0, 5));
    SHOW(poll(NULL, 0, 5));
    struct timespec limit = {0, 5000000};
    SHOW(ppoll(set, 5, &limit, NULL));
    limit.tv_nsec = 2000000000;
    SHOW(ppoll(set, 5, &limit, NULL));
    SHOW(read(p.b, in, 100));

    /* The same descriptor twice, and a dup of it. */
    int twin = (int)NEED(dup(p.b));
    struct pollfd twice[3] = {{.fd = p.b, .events = POLLIN},
                              {.fd = p.b, .events = POLLOUT},
                              {.fd = twin, .events = POLLIN | POLLOUT}};
    SHOW(poll(twice, 3, -1));
    SHOW(write(p.a, "x", 1));
    await_pending(p.b, 1);
    SHOW(poll(twice, 3, -1));
    say("revents %d %d %d\n", twice[0].revents, twice[1].revents, twice[2].revents);

    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLRDHUP);
    look("peer half-closed, data left", p.b, ALL);
    SHOW(read(p.b, in, 100));
    look("peer half-closed, drained", p.b, ALL);
    look("peer half-closed, no events asked", p.b, 0);
    look("the half-closer", p.a, ALL);
    SHOW(shutdown(p.b, SHUT_WR));
    await_events(p.a, POLLHUP);
    look("both closed", p.a, ALL);
    look("both closed", p.b, ALL);
    look("both closed, no events asked", p.b, 0);
    pair_close(p);
    look("closed descriptor", p.b, ALL);

    int fresh = (int)NEED(socket(family(), SOCK_STREAM, 0));
    look("never connected", fresh, ALL);
    int listener = listen_loopback(4);
    look("listener", listener, ALL);
    int client = connect_loopback(port_of(listener));
    await_events(listener, POLLIN);
    look("listener with a client", listener, ALL);
    close(client);
    return 0;
}
