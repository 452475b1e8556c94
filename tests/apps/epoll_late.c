// Connections and instances that come to an instance on which a thread sleeps already.
//: lane required
#include "common.h"

static int set, timer_like, outer, inner;
static atomic_int sleeper_tid, woken;
static atomic_uint what;

static void *sleeper(void *on)
{
    sleeper_tid = (int)syscall(SYS_gettid);
    struct epoll_event event = {0};
    woken = epoll_wait(*(int *)on, &event, 1, PATIENCE_SECONDS * 1000);
    what = event.events;
    return NULL;
}

static pthread_t start(int *on)
{
    pthread_t thread;
    sleeper_tid = 0;
    woken = -2;
    what = 0;
    if (pthread_create(&thread, NULL, sleeper, on) != 0)
        die("pthread_create");
    await_blocked(&sleeper_tid);
    return thread;
}

/* The connection has a lane that is in use; its bytes come behind the registration. */
static void told_of_bytes(struct pair p, int on, int target, pthread_t thread)
{
    struct epoll_event event = {.events = EPOLLIN};
    SHOW(epoll_ctl(on, EPOLL_CTL_ADD, target, &event));
    nap_ms(20);
    SHOW(write(p.a, "x", 1));
    pthread_join(thread, NULL);
    say("woken %d, events %#x\n", woken, what);
    char in[4];
    SHOW(read(p.b, in, sizeof in));
    SHOW(epoll_ctl(on, EPOLL_CTL_DEL, target, NULL));
}

int main(void)
{
    struct pair p = pair_open();
    struct epoll_event event = {.events = EPOLLIN};

    say("-- an instance with nothing in it\n");
    set = (int)NEED(epoll_create1(0));
    told_of_bytes(p, set, p.b, start(&set));
    ping_pong_within(p.a, p.b, 100);

    say("-- an instance with something else in it\n");
    timer_like = (int)NEED(eventfd(0, 0));
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, timer_like, &event));
    told_of_bytes(p, set, p.b, start(&set));
    ping_pong_within(p.a, p.b, 100);

    say("-- bytes that are in the ring already\n");
    pthread_t thread = start(&set);
    SHOW(write(p.a, "x", 1));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event));
    pthread_join(thread, NULL);
    say("woken %d, events %#x\n", woken, what);
    char in[4];
    SHOW(read(p.b, in, sizeof in));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL));
    ping_pong_within(p.a, p.b, 100);

    say("-- an instance that comes to an instance\n");
    outer = (int)NEED(epoll_create1(0));
    inner = (int)NEED(epoll_create1(0));
    NEED(epoll_ctl(inner, EPOLL_CTL_ADD, p.b, &event));
    ping_pong_within(p.a, p.b, 100);
    told_of_bytes(p, outer, inner, start(&outer));
    ping_pong_within(p.a, p.b, 100);

    say("-- an instance with bytes already\n");
    thread = start(&outer);
    SHOW(write(p.a, "x", 1));
    SHOW(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
    pthread_join(thread, NULL);
    say("woken %d, events %#x\n", woken, what);
    SHOW(read(p.b, in, sizeof in));
    return 0;
}
