// epoll_pwait, epoll_pwait2, ppoll and pselect with signal masks; EINTR whatever SA_RESTART says.
//: lane required
#include "common.h"

static atomic_int caught, main_tid;
static struct pair p;

static void on_signal(int signal)
{
    (void)signal;
    caught++;
}

static void *interrupter(void *unused)
{
    (void)unused;
    await_blocked(&main_tid);
    /* To that thread only: this one could take it as well. */
    syscall(SYS_tgkill, getpid(), (int)main_tid, SIGUSR1);
    return NULL;
}

#define INTERRUPTED(expr)                                                                          \
    do {                                                                                           \
        pthread_t thread_;                                                                         \
        caught = 0;                                                                                \
        pthread_create(&thread_, NULL, interrupter, NULL);                                         \
        SHOW(expr);                                                                                \
        pthread_join(thread_, NULL);                                                               \
        say("signals %d\n", caught);                                                               \
    } while (0)

int main(void)
{
    p = pair_open();
    main_tid = (int)syscall(SYS_gettid);
    int set = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event));

    sigset_t usr1, empty;
    sigemptyset(&empty);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    for (int restart = 0; restart < 2; restart++) {
        say("-- SA_RESTART %d\n", restart);
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = restart ? SA_RESTART : 0};
        sigaction(SIGUSR1, &action, NULL);
        pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
        struct pollfd one = {.fd = p.b, .events = POLLIN};
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(p.b, &readable);
        INTERRUPTED(epoll_wait(set, &event, 1, -1));
        INTERRUPTED(epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000));
        INTERRUPTED(poll(&one, 1, -1));
        INTERRUPTED(select(p.b + 1, &readable, NULL, NULL, NULL));

        /* Blocked outside, open inside the call: a pending signal ends it at once. */
        pthread_sigmask(SIG_BLOCK, &usr1, NULL);
        struct timespec limit = {PATIENCE_SECONDS, 0};
        caught = 0;
        kill(getpid(), SIGUSR1);
        SHOW(epoll_pwait(set, &event, 1, -1, &empty));
        say("signals %d\n", caught);
        kill(getpid(), SIGUSR1);
        SHOW(epoll_pwait2(set, &event, 1, &limit, &empty));
        say("signals %d\n", caught);
        kill(getpid(), SIGUSR1);
        SHOW(ppoll(&one, 1, &limit, &empty));
        say("signals %d\n", caught);
        kill(getpid(), SIGUSR1);
        FD_SET(p.b, &readable);
        SHOW(pselect(p.b + 1, &readable, NULL, NULL, &limit, &empty));
        say("signals %d\n", caught);

        /* With data there and a signal pending the data wins, and the mask is back afterwards. */
        write_all(p.a, "x", 1);
        await_pending(p.b, 1);
        caught = 0;
        SHOW(epoll_pwait(set, &event, 1, -1, &usr1));
        SHOW(epoll_pwait2(set, &event, 1, NULL, &usr1));
        struct timespec brief = {0, 1000000};
        SHOW(epoll_pwait2(set, &event, 1, &brief, NULL));
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, NULL, &now);
        say("still blocked %d, signals %d\n", sigismember(&now, SIGUSR1), caught);
        char in[4];
        SHOW(read(p.b, in, sizeof in));
        SHOW(epoll_pwait2(set, &event, 1, &brief, NULL));
        brief.tv_nsec = -1;
        SHOW(epoll_pwait2(set, &event, 1, &brief, NULL));
    }
    pair_close(p);
    return 0;
}
