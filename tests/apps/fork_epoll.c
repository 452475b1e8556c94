// A forked child closes the connection or the epoll instance that it inherited, or waits by the instance: the
// parent's waits go on to report.
//: lane required
#include "common.h"

enum what { NOTHING, SOCKET, INSTANCE, BOTH, EXIT, WAIT, WHATS };

static const char *const names[] = {"nothing", "socket", "instance", "both", "exit", "wait"};

/* One byte that comes while nobody waits, and its report. */
static void turn(const char *who, int from, int to, int ep)
{
    struct epoll_event event = {0};
    char byte;
    write_all(from, "x", 1);
    int count = epoll_wait(ep, &event, 1, PATIENCE_SECONDS * 1000);
    say("%s: %d reported, readable %d\n", who, count, event.events & EPOLLIN ? 1 : 0);
    say("%s: read %zd\n", who, recv(to, &byte, 1, MSG_DONTWAIT));
    say("%s: %d reported behind it\n", who, epoll_wait(ep, &event, 1, 0));
}

struct waiter {
    int ep, to;
    atomic_int thread;
};

static void *wait_asleep(void *argument)
{
    struct waiter *w = argument;
    struct epoll_event event = {0};
    char byte;
    atomic_store(&w->thread, (int)gettid());
    int count = epoll_wait(w->ep, &event, 1, PATIENCE_SECONDS * 1000);
    say("asleep: %d reported, readable %d\n", count, event.events & EPOLLIN ? 1 : 0);
    say("asleep: read %zd\n", recv(w->to, &byte, 1, MSG_DONTWAIT));
    return NULL;
}

/* One byte that comes to a thread that sleeps. */
static void turn_asleep(int from, int to, int ep)
{
    struct waiter w = {.ep = ep, .to = to};
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, wait_asleep, &w));
    AWAIT(atomic_load(&w.thread) != 0);
    AWAIT(thread_sleeps(getpid(), atomic_load(&w.thread)));
    write_all(from, "x", 1);
    NEED(-pthread_join(thread, NULL));
}

static void child(enum what what, struct pair p, int ep)
{
    if (what == SOCKET || what == BOTH)
        close(p.b);
    if (what == INSTANCE || what == BOTH)
        close(ep);
    if (what == WAIT)
        for (int i = 0; i < 3; i++)
            turn("child", p.a, p.b, ep);
    if (what == EXIT)
        exit(0);
    _exit(0);
}

static void with(uint32_t events)
{
    say("-- edge %d\n", events & EPOLLET ? 1 : 0);
    struct pair p = pair_open();
    int ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = events, .data.fd = p.b};
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &event));
    warm(p.a, p.b);
    /* What the warm-up left to be reported. */
    epoll_wait(ep, &event, 1, 0);
    turn("parent", p.a, p.b, ep);
    for (int what = NOTHING; what < WHATS; what++) {
        say("- %s\n", names[what]);
        int status;
        pid_t pid = (pid_t)NEED(fork());
        if (pid == 0)
            child((enum what)what, p, ep);
        NEED(waitpid(pid, &status, 0));
        say("status %d\n", status);
        for (int i = 0; i < 3; i++)
            turn("parent", p.a, p.b, ep);
        turn_asleep(p.a, p.b, ep);
    }
    close(ep);
    pair_close(p);
}

int main(void)
{
    with(EPOLLIN);
    with(EPOLLIN | EPOLLET);
    return 0;
}
