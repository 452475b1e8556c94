// One thread makes epoll instances and closes them while another one forks.
//: lane required
#include "common.h"

enum { FORKS = 400 };

static atomic_bool stops;

static void *makes(void *unused)
{
    (void)unused;
    struct pair p = pair_open();
    long made = 0;
    while (!atomic_load(&stops)) {
        int ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
        struct epoll_event event = {.events = EPOLLIN};
        NEED(epoll_ctl(ep, EPOLL_CTL_ADD, p.b, &event));
        if (made++ % 8 == 0) {
            char byte;
            write_all(p.a, "x", 1);
            if (epoll_wait(ep, &event, 1, PATIENCE_SECONDS * 1000) != 1 || read(p.b, &byte, 1) != 1)
                say("no report\n");
        }
        close(ep);
    }
    pair_close(p);
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        NEED(-pthread_create(&threads[i], NULL, makes, NULL));
    nap_ms(200);
    for (int i = 0; i < FORKS; i++) {
        int status;
        pid_t pid = (pid_t)NEED(fork());
        if (pid == 0)
            _exit(0);
        NEED(waitpid(pid, &status, 0));
        if (status != 0)
            say("status %d\n", status);
    }
    atomic_store(&stops, true);
    for (int i = 0; i < 2; i++)
        NEED(-pthread_join(threads[i], NULL));
    say("all forked\n");
    return 0;
}
