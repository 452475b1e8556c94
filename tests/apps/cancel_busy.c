// Cancelling a thread whose calls never wait: each of them is a cancellation point (pthreads(7)).
//: lane required
#include "common.h"

static struct pair p;
static int set;
static atomic_int rounds;

static void *transfers(void *how)
{
    char byte = 'x';
    struct msghdr message = {.msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1};
    for (;; rounds++) {
        switch ((intptr_t)how) {
        case 0:
            write(p.a, &byte, 1);
            read(p.b, &byte, 1);
            break;
        case 1:
            send(p.a, &byte, 1, 0);
            recv(p.b, &byte, 1, 0);
            break;
        case 2:
            sendmsg(p.a, &message, 0);
            recvmsg(p.b, &message, 0);
            break;
        }
    }
    return NULL;
}

static void *waits(void *unused)
{
    struct epoll_event event;
    for (;; rounds++)
        epoll_wait(set, &event, 1, -1);
    return unused;
}

static void cancel(const char *what, void *(*body)(void *), void *how)
{
    pthread_t thread;
    void *result = NULL;
    rounds = 0;
    pthread_create(&thread, NULL, body, how);
    AWAIT(rounds > 100);
    pthread_cancel(thread);
    bool joined = AWAIT(pthread_tryjoin_np(thread, &result) == 0);
    say("%s: joined %d, canceled %d\n", what, joined, result == PTHREAD_CANCELED);
    if (!joined)
        exit(1);
    char rest[16];
    while (recv(p.b, rest, sizeof rest, MSG_DONTWAIT) > 0)
        ;
}

int main(void)
{
    p = pair_open();
    cancel("read and write", transfers, (void *)0);
    cancel("recv and send", transfers, (void *)1);
    cancel("recvmsg and sendmsg", transfers, (void *)2);
    set = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event));
    write_all(p.a, "x", 1);
    await_pending(p.b, 1);
    cancel("epoll_wait", waits, NULL);
    pair_close(p);
    return 0;
}
