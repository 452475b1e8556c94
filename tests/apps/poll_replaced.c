// A descriptor gets another connection while a thread polls the first one under its number.
//: lane required
#include "common.h"

static int polled;
static atomic_int sleeper_tid, woken = -1;

static void *sleeper(void *unused)
{
    (void)unused;
    struct pollfd p = {.fd = polled, .events = POLLIN};
    sleeper_tid = (int)syscall(SYS_gettid);
    woken = poll(&p, 1, 1000);
    return NULL;
}

/* One way only, so that nothing but this direction has a lane to use. */
static void push(int from, int to, int count)
{
    char bytes[64] = {0};
    for (int i = 0; i < count; i++) {
        write_all(from, bytes, sizeof bytes);
        read_exact(to, bytes, sizeof bytes);
    }
}

int main(void)
{
    struct pair first = pair_cold(), second = pair_cold();
    ping_pong_within(first.a, first.b, 1);
    polled = first.b;
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, NULL) != 0)
        die("pthread_create");
    /* Blocked, or through, where this thread got no processor for a second. */
    AWAIT(sleeper_tid != 0);
    AWAIT(woken >= 0 || thread_sleeps(getpid(), sleeper_tid));
    SHOW(dup2(second.b, first.b) == first.b);
    NEED(close(second.b));
    pthread_join(thread, NULL);
    say("woken %d\n", woken);
    push(second.a, first.b, 200);
    nap_ms(knob("APP_PAUSE_MS", 50));
    push(second.a, first.b, 200);
    say("done\n");
    return 0;
}
