// Pointers into nowhere give EFAULT and cost no byte of the stream.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(munmap(page + 4096, 4096));
#ifdef UNMAPPED
    char *nowhere = page + 4096;
#else
    /* Below what can ever be mapped: null pointers, and members of what they point to. */
    char *nowhere = (char *)64;
#endif
    char in[200];
    volatile size_t hundred = 100;

    SHOW(write(p.a, nowhere, hundred));
    SHOW(send(p.a, nowhere, hundred, 0));
    SHOW(write(p.a, (char *)1, hundred));
    struct iovec part = {nowhere, 100};
    SHOW(writev(p.a, &part, 1));
    SHOW(writev(p.a, (struct iovec *)nowhere, 1));
    struct iovec mixed[] = {{in, 10}, {nowhere, 10}};
    SHOW(writev(p.a, mixed, 2));
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    SHOW(sendmsg(p.a, &message, 0));
    SHOW(sendmsg(p.a, (struct msghdr *)nowhere, 0));
    SHOW(pending(p.b));

    memcpy(in, "the bytes that must not be lost", 31);
    SHOW(write(p.a, in, 31));
    await_pending(p.b, 31);
    SHOW(read(p.b, nowhere, hundred));
    SHOW(recv(p.b, nowhere, hundred, 0));
    SHOW(recv(p.b, nowhere, hundred, MSG_PEEK));
    SHOW(readv(p.b, &part, 1));
    SHOW(recvmsg(p.b, &message, 0));
    SHOW(recvmsg(p.b, (struct msghdr *)nowhere, 0));
    SHOW(ioctl(p.b, FIONREAD, nowhere));
    SHOW(pending(p.b));
    struct iovec enough[] = {{in, 31}, {nowhere, 10}};
    SHOW(readv(p.b, enough, 2));
    say("%.31s\n", in);

#ifdef UNMAPPED
    mprotect(page, 4096, PROT_READ);
#else
    page = nowhere;
#endif
    SHOW(write(p.b, "0123456789", 10));
    await_pending(p.a, 10);
    SHOW(read(p.a, page, hundred));
    SHOW(read(p.a, in, hundred));
    say("%.10s\n", in);

    SHOW(getsockname(p.a, (struct sockaddr *)in, (socklen_t *)nowhere));
    socklen_t four = 4;
    SHOW(getsockopt(p.a, SOL_SOCKET, SO_ERROR, nowhere, &four));
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_KEEPALIVE, nowhere, 4));
    SHOW(poll((struct pollfd *)nowhere, 1, 0));
    int e = (int)NEED(epoll_create1(0));
    SHOW(epoll_ctl(e, EPOLL_CTL_ADD, p.a, (struct epoll_event *)nowhere));
    struct epoll_event event = {.events = EPOLLOUT};
    SHOW(epoll_ctl(e, EPOLL_CTL_ADD, p.a, &event));
    SHOW(epoll_wait(e, (struct epoll_event *)nowhere, 1, 0));
    SHOW(epoll_wait(e, &event, 1, 0));
    pair_close(p);
    return 0;
}
