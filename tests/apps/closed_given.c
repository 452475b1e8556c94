/*
 * A connection is closed while sluiced, which was given its socket, has it open still: the epoll
 * instance that watched it must not report it any more (epoll(7), questions and answers, 6). The same of one that had a second name, and went on under
 * that when the first was closed. And its peer sees the end at once, as of any connection: FIN, or a
 * reset where bytes are unread or the program asked for one (SO_LINGER, socket(7)).
 *
 *   closed_given PID     the process id of sluiced, which is stopped meanwhile, and its processes that
 *                        take what programs send
 */
#include "common.h"

static void signal_with_children(pid_t pid, int number)
{
    char path[64];
    NEED(kill(pid, number));
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *children = fopen(path, "re");
    if (!children)
        die(path);
    for (int child; fscanf(children, "%d", &child) == 1;)
        kill(child, number);
    fclose(children);
}

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

enum ending { PLAIN, UNREAD, LINGERS_NOT };

/* The same, and what the peer sees of it without waiting: on loopback the end is there when close returns. */
static void end_given(const char *what, enum ending ending, bool has_child)
{
    struct pair p = pair_cold();
    ping_pong_within(p.a, p.b, 40);
    pid_t child = has_child ? (pid_t)NEED(fork()) : 1;
    if (child == 0) {
        pause();
        _exit(0);
    }
    NEED(write(p.a, "last", 4));
    await_pending(p.b, 4);
    if (ending == UNREAD) {
        NEED(write(p.b, "unread", 6));
        await_pending(p.a, 6);
    } else if (ending == LINGERS_NOT) {
        struct linger at_once = {.l_onoff = 1};
        NEED(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    }
    NEED(close(p.a));
    char in[64];
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    say("-- %s\n", what);
    SHOW(getpeername(p.b, (struct sockaddr *)&peer, &len));
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(recv(p.b, in, sizeof in, MSG_DONTWAIT));
    SHOW(send(p.b, "more", 4, MSG_DONTWAIT));
    SHOW(send(p.b, "more", 4, MSG_DONTWAIT));
    NEED(close(p.b));
    if (child != 1) {
        NEED(kill(child, SIGKILL));
        NEED(waitpid(child, NULL, 0));
    }
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: see the top of closed_given.c");
    pid_t daemon = (pid_t)atoi(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    /* This process has introduced itself when these are matched. */
    struct pair first = pair_open();
    signal_with_children(daemon, SIGSTOP);
    close_given("one name", 1);
    close_given("two names", 2);
    close_given("three names", 3);
    end_given("closed", PLAIN, false);
    end_given("closed with unread bytes", UNREAD, false);
    end_given("closed to be reset", LINGERS_NOT, false);
    end_given("closed by one of two processes", PLAIN, true);
    signal_with_children(daemon, SIGCONT);
    ping_pong_within(first.a, first.b, 10);
    pair_close(first);
    return 0;
}
