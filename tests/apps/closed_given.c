/*
 * A connection is closed while sluiced, which was given its socket, has it open still: the epoll
 * instance that watched it must not report it any more (epoll(7), questions and answers, 6). The same of one that had a second name, and went on under
 * that when the first was closed.
 *
 *   closed_given PID     the process id of sluiced, which is stopped meanwhile
 */
#include "common.h"

/* Connects while sluiced is stopped, watches the connection, closes it by one name after the other,
 * and says what is reported then. */
static void close_given(const char *what, int names)
{
    struct pair p = pair_cold();
    int instance = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    NEED(epoll_ctl(instance, EPOLL_CTL_ADD, p.b, &event));
    /* Turns enough for both ends to be given to sluiced, which does not take them. */
    ping_pong_within(p.a, p.b, 40);
    int twins[4];
    for (int i = 1; i < names; i++)
        twins[i] = (int)NEED(dup(p.b));
    NEED(close(p.b));
    (void)!write(p.a, "late", 4);
    for (int i = 1; i < names; i++) {
        say("%s: events by %d names: %d\n", what, names - i, epoll_wait(instance, &event, 1, 300));
        NEED(close(twins[i]));
    }
    NEED(close(p.a));
    say("%s: events behind the close: %d\n", what, epoll_wait(instance, &event, 1, 300));
    NEED(close(instance));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: see the top of closed_given.c");
    pid_t daemon = (pid_t)atoi(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    /* This process has introduced itself when these are matched. */
    struct pair first = pair_open();
    NEED(kill(daemon, SIGSTOP));
    close_given("one name", 1);
    close_given("two names", 2);
    close_given("three names", 3);
    NEED(kill(daemon, SIGCONT));
    ping_pong_within(first.a, first.b, 10);
    pair_close(first);
    return 0;
}
