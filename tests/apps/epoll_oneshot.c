// Threads that wait on one instance, whose registrations are one-shot: while one of them has a connection no
// other is told of it, before, while and after it gets a lane, and nothing is forgotten.
//: lane required
//: timeout 120
#include "common.h"

#include <stdatomic.h>
#include <sys/epoll.h>

enum { CONNECTIONS = 24, THREADS = 4, ROUNDS = 600 };

static int set;
static struct pair pairs[CONNECTIONS];
static atomic_int holders[CONNECTIONS], twice, answered;

static void *serve(void *arg)
{
    (void)arg;
    while (atomic_load(&answered) < CONNECTIONS * ROUNDS) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, 50) != 1)
            continue;
        int which = (int)event.data.u32;
        if (atomic_fetch_add(&holders[which], 1) != 0)
            atomic_fetch_add(&twice, 1);
        char in[8];
        ssize_t n = recv(pairs[which].b, in, sizeof in, MSG_DONTWAIT);
        if (n > 0) {
            write_all(pairs[which].b, in, (size_t)n);
            atomic_fetch_add(&answered, 1);
        }
        atomic_fetch_sub(&holders[which], 1);
        struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = (uint32_t)which};
        NEED(epoll_ctl(set, EPOLL_CTL_MOD, pairs[which].b, &again));
    }
    return NULL;
}

int main(void)
{
    set = (int)NEED(epoll_create1(0));
    for (int i = 0; i < CONNECTIONS; i++) {
        pairs[i] = pair_cold();
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = (uint32_t)i};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].b, &event));
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, serve, NULL) != 0)
            die("pthread_create");
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char out[8], in[8];
        snprintf(out, sizeof out, "%07d", round % 10000000);
        for (int i = 0; i < CONNECTIONS; i++)
            write_all(pairs[i].a, out, sizeof out);
        for (int i = 0; i < CONNECTIONS; i++) {
            read_exact(pairs[i].a, in, sizeof in);
            wrong += memcmp(in, out, sizeof in) != 0;
        }
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    say("wrong %d, told twice %d, answered %d\n", wrong, atomic_load(&twice), atomic_load(&answered));
    for (int i = 0; i < CONNECTIONS; i++)
        pair_close(pairs[i]);
    return 0;
}
