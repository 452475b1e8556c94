// Signal handlers jump out of calls, at any point of them, as timeouts made of setitimer do: the connection goes on, with
// every byte in its place.
//: lane required
#include "common.h"

#include <setjmp.h>

#define MESSAGES 400
/* So often a call is left before it may end. */
#define TRIES 4

static struct pair p;
static sigjmp_buf before_call;
static volatile sig_atomic_t is_armed;
static atomic_bool is_done;
static bool with_mask;

static void jump(int signal)
{
    (void)signal;
    if (!is_armed)
        return;
    is_armed = 0;
    /* Calls in the handler, on the connection that was interrupted and on another one. */
    int count;
    ioctl(p.b, FIONREAD, &count);
    struct pollfd entry = {.fd = p.a, .events = POLLOUT};
    poll(&entry, 1, 0);
    siglongjmp(before_call, 1);
}

/* A handler that uses jumps for itself returns. */
static void jump_inside(int signal)
{
    (void)signal;
    sigjmp_buf here;
    if (sigsetjmp(here, 0) == 0)
        siglongjmp(here, 1);
}

static void *sends(void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        write_all(p.a, &i, sizeof i);
        if (i % 16 == 0)
            nap_ms(1);
    }
    return NULL;
}

static pthread_t reader;

/* Again and again, so that signals come at every point of the reader's calls. */
static void *disturbs(void *unused)
{
    (void)unused;
    while (!is_done) {
        pthread_kill(reader, SIGUSR1);
        pthread_kill(reader, SIGUSR2);
        for (volatile int i = 0; i < 200; i++)
            ;
    }
    return NULL;
}

/* The first never sleeps. Others leave the connection on TCP when they are left asleep. */
enum way { BUSY, POLL, SELECT, EPOLL, PEEK, WAYS };
static const char *const names[] = {"busy", "poll", "select", "epoll_wait", "recv"};

static void wait_by(enum way way, int ep)
{
    struct pollfd entry = {.fd = p.b, .events = POLLIN};
    struct epoll_event event;
    fd_set set;
    char byte;
    int count;
    switch (way) {
    case BUSY:
        for (int i = 0; i < 100 && recv(p.b, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1; i++) {
            poll(&entry, 1, 0);
            epoll_wait(ep, &event, 1, 0);
            ioctl(p.b, FIONREAD, &count);
        }
        break;
    case POLL:
        poll(&entry, 1, 1000);
        break;
    case SELECT:
        FD_ZERO(&set);
        FD_SET(p.b, &set);
        select(p.b + 1, &set, NULL, NULL, &(struct timeval){1, 0});
        break;
    case EPOLL:
        epoll_wait(ep, &event, 1, 1000);
        break;
    default:
        recv(p.b, &byte, 1, MSG_PEEK);
    }
}

static void messages(enum way way)
{
    if (way == BUSY) {
        pair_close(p);
        p = pair_open();
    }
    int ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &event));
    reader = pthread_self();
    is_done = false;
    pthread_t sender, disturber;
    pthread_create(&sender, NULL, sends, NULL);
    pthread_create(&disturber, NULL, disturbs, NULL);
    uint32_t in = 0, right = 0;
    size_t got = 0;
    volatile int tries = 0;
    while (right < MESSAGES) {
        if (sigsetjmp(before_call, with_mask) != 0 && !with_mask) {
            sigset_t mask;
            sigemptyset(&mask);
            sigaddset(&mask, SIGUSR1);
            /* The handler's signal is blocked still. */
            sigset_t old;
            pthread_sigmask(SIG_UNBLOCK, &mask, &old);
            if (!sigismember(&old, SIGUSR1))
                die("the handler's mask is not in force behind the jump");
        }
        if (tries++ < TRIES)
            is_armed = 1;
        wait_by(way, ep);
        is_armed = 0;
        ssize_t n = recv(p.b, (char *)&in + got, sizeof in - got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            die("the connection ended");
        got += (size_t)n;
        if (got < sizeof in)
            continue;
        if (in != right)
            die("a message is missing or came twice");
        got = 0;
        right++;
        tries = 0;
    }
    is_done = true;
    pthread_join(sender, NULL);
    pthread_join(disturber, NULL);
    close(ep);
    say("%s: %u messages\n", names[way], right);
}

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    NEED(sigaction(signal, &action, NULL));
}

int main(void)
{
    p = pair_open();
    ping_pong_within(p.a, p.b, 100);
    static char stack[1 << 16];
    NEED(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL));
    static const int flags[] = {0, SA_ONSTACK, SA_RESTART};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        with_mask = i != 2;
        say("flags %d\n", (int)i);
        handle(SIGUSR1, jump, flags[i]);
        handle(SIGUSR2, jump_inside, flags[i]);
        for (enum way way = 0; way < WAYS; way++)
            messages(way);
    }
    ping_pong_within(p.a, p.b, 100);
    pair_close(p);
    return 0;
}
