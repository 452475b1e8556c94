// Many threads wait on one epoll instance with one-shot members; two instances share members.
//: lane required
#include "common.h"

enum { PAIRS = 8, THREADS = 4, MESSAGES = 400 };

static int set;
static struct pair p[PAIRS];
static atomic_int handled[PAIRS], total, at_once[PAIRS], overlaps;

static void *worker(void *unused)
{
    (void)unused;
    long long until = now_ms() + PATIENCE_SECONDS * 1000LL;
    while (total < PAIRS * MESSAGES && now_ms() < until) {
        struct epoll_event event;
        int n = epoll_wait(set, &event, 1, 100);
        if (n <= 0)
            continue;
        uint32_t i = event.data.u32;
        if (atomic_fetch_add(&at_once[i], 1) != 0)
            overlaps++;
        char message[16];
        ssize_t got;
        while ((got = recv(p[i].b, message, sizeof message, MSG_DONTWAIT)) > 0) {
            handled[i] += (int)got;
            total += (int)got;
            write_all(p[i].b, message, (size_t)got);
        }
        atomic_fetch_sub(&at_once[i], 1);
        event.events = EPOLLIN | EPOLLONESHOT;
        NEED(epoll_ctl(set, EPOLL_CTL_MOD, p[i].b, &event));
    }
    return NULL;
}

static void *driver(void *number)
{
    int i = (int)(intptr_t)number;
    char byte;
    for (int message = 0; message < MESSAGES; message++) {
        write_all(p[i].a, "m", 1);
        read_exact(p[i].a, &byte, 1);
    }
    return NULL;
}

static atomic_int woken[2], sleeping_tid[2];
static int shared_set[2];

static void *waiter(void *number)
{
    int i = (int)(intptr_t)number;
    sleeping_tid[i] = (int)syscall(SYS_gettid);
    struct epoll_event event;
    woken[i] = epoll_wait(shared_set[i], &event, 1, PATIENCE_SECONDS * 1000);
    return NULL;
}

int main(void)
{
    set = (int)NEED(epoll_create1(0));
    for (uint32_t i = 0; i < PAIRS; i++) {
        p[i] = pair_open();
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = i};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, p[i].b, &event));
    }
    pthread_t threads[THREADS], drivers[PAIRS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < PAIRS; i++)
        pthread_create(&drivers[i], NULL, driver, (void *)(intptr_t)i);
    for (int i = 0; i < PAIRS; i++)
        pthread_join(drivers[i], NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < PAIRS; i++)
        say("connection %d: %d messages\n", i, handled[i]);
    say("one-shot members handled by two threads at once: %d\n", overlaps);

    say("-- one member of two instances wakes both\n");
    pthread_t waiters[2];
    for (int i = 0; i < 2; i++) {
        shared_set[i] = (int)NEED(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN};
        NEED(epoll_ctl(shared_set[i], EPOLL_CTL_ADD, p[0].b, &event));
        pthread_create(&waiters[i], NULL, waiter, (void *)(intptr_t)i);
    }
    for (int i = 0; i < 2; i++)
        await_blocked(&sleeping_tid[i]);
    SHOW(write(p[0].a, "x", 1));
    for (int i = 0; i < 2; i++)
        pthread_join(waiters[i], NULL);
    say("woken %d %d\n", woken[0], woken[1]);
    char in[4];
    SHOW(read(p[0].b, in, sizeof in));

    say("-- exclusive: at least one wakes, and a level is kept\n");
    for (int i = 0; i < 2; i++) {
        woken[i] = 0;
        sleeping_tid[i] = 0;
        NEED(epoll_ctl(shared_set[i], EPOLL_CTL_DEL, p[0].b, NULL));
        struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
        NEED(epoll_ctl(shared_set[i], EPOLL_CTL_ADD, p[0].b, &event));
        pthread_create(&waiters[i], NULL, waiter, (void *)(intptr_t)i);
    }
    for (int i = 0; i < 2; i++)
        await_blocked(&sleeping_tid[i]);
    SHOW(write(p[0].a, "x", 1));
    AWAIT(woken[0] + woken[1] >= 1);
    /* epoll_ctl(2) promises one or more of them. */
    struct epoll_event event;
    int still = (int)NEED(epoll_wait(shared_set[0], &event, 1, 0));
    still += (int)NEED(epoll_wait(shared_set[1], &event, 1, 0));
    say("the level is reported: %d\n", still >= 1);
    SHOW(write(p[0].a, "y", 1));
    for (int i = 0; i < 2; i++)
        pthread_join(waiters[i], NULL);
    return 0;
}
