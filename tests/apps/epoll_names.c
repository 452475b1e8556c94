// One connection under two names, watched by the other one than the program reads and writes by, and
// by both.
//: lane required
#include "common.h"

static int set;
static atomic_int sleeper_tid, woken;

static void *sleeper(void *unused)
{
    (void)unused;
    sleeper_tid = (int)syscall(SYS_gettid);
    struct epoll_event event = {0};
    woken = epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000);
    return NULL;
}

static int by_number(const void *left, const void *right)
{
    const struct epoll_event *a = left, *b = right;
    return (a->data.u32 > b->data.u32) - (a->data.u32 < b->data.u32);
}

static void look(void)
{
    struct epoll_event events[4] = {0};
    int count = (int)SHOW(epoll_wait(set, events, 4, 0));
    qsort(events, count > 0 ? (size_t)count : 0, sizeof *events, by_number);
    for (int i = 0; i < count; i++)
        say("%u: %#x\n", events[i].data.u32, events[i].events);
}

static void watch(int fd, uint32_t number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* A thread sleeps, and is to be told of what comes. */
static void wake_sleepers(struct pair p, int rounds)
{
    int told = 0;
    for (int i = 0; i < rounds; i++) {
        pthread_t thread;
        sleeper_tid = 0;
        woken = -2;
        if (pthread_create(&thread, NULL, sleeper, NULL) != 0)
            die("pthread_create");
        await_blocked(&sleeper_tid);
        char byte;
        NEED(write(p.a, "x", 1));
        pthread_join(thread, NULL);
        told += woken == 1;
        NEED(read(p.b, &byte, 1));
        ping_pong_within(p.a, p.b, 20);
    }
    say("told %d of %d times\n", told, rounds);
}

int main(void)
{
    set = (int)NEED(epoll_create1(0));

    say("-- watched by the other name, by a thread that is slow at first\n");
    struct pair p = pair_cold();
    for (int i = 0; i < 20; i++) {
        ping_pong_within(p.a, p.b, 1);
        nap_ms(4);
    }
    int twin = (int)NEED(dup(p.b));
    watch(twin, 2);
    wake_sleepers(p, 1);
    ping_pong_within(p.a, p.b, 200);
    wake_sleepers(p, 10);
    look();

    say("-- watched by the other name, and fast\n");
    struct pair q = pair_open();
    int second = (int)NEED(dup(q.b));
    watch(second, 4);
    wake_sleepers(q, 10);

    say("-- watched by both\n");
    watch(q.b, 3);
    SHOW(write(q.a, "xyz", 3));
    await_pending(q.b, 3);
    look();
    look();
    char in[8];
    SHOW(read(second, in, sizeof in));
    look();
    wake_sleepers(q, 5);
    SHOW(close(second));
    wake_sleepers(q, 5);
    return 0;
}
