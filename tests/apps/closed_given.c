/*
 * A connection is closed while sluiced, which was given its socket, has it open still: the epoll
 * instance that watched it must not report it any more (epoll(7), questions and answers, 6).
 *
 *   closed_given PID     the process id of sluiced, which is stopped meanwhile
 */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: see the top of closed_given.c");
    pid_t daemon = (pid_t)atoi(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    /* This process has introduced itself when these are matched. */
    struct pair first = pair_open();
    NEED(kill(daemon, SIGSTOP));
    struct pair second = pair_cold();
    int instance = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    NEED(epoll_ctl(instance, EPOLL_CTL_ADD, second.b, &event));
    /* Turns enough for both ends to be given to sluiced, which does not take them. */
    ping_pong_within(second.a, second.b, 40);
    NEED(close(second.b));
    (void)!write(second.a, "late", 4);
    NEED(close(second.a));
    say("events behind the close: %d\n", epoll_wait(instance, &event, 1, 300));
    NEED(kill(daemon, SIGCONT));
    ping_pong_within(first.a, first.b, 10);
    pair_close(first);
    return 0;
}
