// A thousand connections of one process, all used, through one epoll instance.
//: lane required
//: builds plain
#include "common.h"

enum { COUNT = 1000 };

static struct pair p[COUNT];

int main(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 2 * COUNT + 100)
        skip("the limit of open files is too low");

    int listener = listen_loopback(128), port = port_of(listener);
    int set = (int)NEED(epoll_create1(0));
    for (uint32_t i = 0; i < COUNT; i++) {
        p[i].a = connect_loopback(port);
        p[i].b = (int)NEED(accept(listener, NULL, NULL));
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, p[i].b, &event));
    }
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < COUNT; i++)
            ping_pong_within(p[i].a, p[i].b, 16);
        nap_ms(knob("APP_PAUSE_MS", 50));
    }
    int wrong = 0;
    for (uint32_t round = 0; round < 5; round++) {
        char out[200], in[200];
        for (uint32_t i = 0; i < COUNT; i++) {
            fill(out, sizeof out, round * COUNT + i);
            write_all(p[i].a, out, sizeof out);
        }
        int answered = 0;
        while (answered < COUNT) {
            struct epoll_event events[64];
            int n = (int)NEED(epoll_wait(set, events, 64, PATIENCE_SECONDS * 1000));
            if (n == 0) {
                say("round %u: only %d of the messages came\n", round, answered);
                break;
            }
            for (int k = 0; k < n; k++) {
                uint32_t i = events[k].data.u32;
                read_exact(p[i].b, in, sizeof in);
                write_all(p[i].b, in, sizeof in);
                answered++;
            }
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            fill(out, sizeof out, round * COUNT + i);
            read_exact(p[i].a, in, sizeof in);
            wrong += memcmp(in, out, sizeof in) != 0;
        }
    }
    say("wrong answers %d\n", wrong);
    /* Every second one closes one side, the others the other. */
    for (int i = 0; i < COUNT; i++)
        close(i % 2 ? p[i].a : p[i].b);
    int ended = 0;
    for (int i = 0; i < COUNT; i++) {
        char in[4];
        ended += read(i % 2 ? p[i].b : p[i].a, in, sizeof in) == 0;
        close(i % 2 ? p[i].b : p[i].a);
    }
    say("ended %d\n", ended);
    struct epoll_event event;
    SHOW(epoll_wait(set, &event, 1, 0));
    return 0;
}
