// sendmsg, recvmsg, sendmmsg and recvmmsg with vectors, names, control buffers and flags.
//: lane required
#include "common.h"

static char out[8000], in[8000];

static void show_flags(int flags)
{
    say("msg_flags %s%s%s\n", flags & MSG_TRUNC ? "TRUNC " : "", flags & MSG_CTRUNC ? "CTRUNC " : "",
        flags & MSG_OOB ? "OOB " : "");
}

int main(void)
{
    struct pair p = pair_open();
    fill(out, sizeof out, 3);

    struct iovec parts[3] = {{out, 100}, {out + 100, 3000}, {out + 3100, 17}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    SHOW(sendmsg(p.a, &message, 0));
    await_pending(p.b, 3117);

    struct sockaddr_storage name;
    char control[256];
    struct iovec into[2] = {{in, 1000}, {in + 1000, 7000}};
    struct msghdr received = {.msg_name = &name,
                              .msg_namelen = sizeof name,
                              .msg_iov = into,
                              .msg_iovlen = 2,
                              .msg_control = control,
                              .msg_controllen = sizeof control,
                              .msg_flags = -1};
    SHOW(recvmsg(p.b, &received, MSG_PEEK));
    say("namelen %u controllen %zu\n", received.msg_namelen, received.msg_controllen);
    received.msg_namelen = sizeof name;
    received.msg_controllen = sizeof control;
    SHOW(recvmsg(p.b, &received, 0));
    say("namelen %u controllen %zu\n", received.msg_namelen, received.msg_controllen);
    show_flags(received.msg_flags);
    say("same bytes: %d\n", memcmp(in, out, 3117) == 0);
    SHOW(recvmsg(p.b, &received, MSG_DONTWAIT));

    struct msghdr empty = {0};
    SHOW(sendmsg(p.a, &empty, 0));
    struct msghdr too_many = {.msg_iov = parts, .msg_iovlen = IOV_MAX + 1};
    SHOW(sendmsg(p.a, &too_many, 0));

    struct mmsghdr many[4];
    memset(many, 0, sizeof many);
    struct iovec each[4] = {{out, 10}, {out + 10, 20}, {out + 30, 0}, {out + 30, 40}};
    for (int i = 0; i < 4; i++) {
        many[i].msg_hdr.msg_iov = &each[i];
        many[i].msg_hdr.msg_iovlen = 1;
    }
    SHOW(sendmmsg(p.b, many, 4, 0));
    for (int i = 0; i < 4; i++)
        say("msg_len %u\n", many[i].msg_len);
    await_pending(p.a, 70);

    struct iovec slots[4] = {{in, 15}, {in + 15, 15}, {in + 30, 30}, {in + 60, 30}};
    for (int i = 0; i < 4; i++) {
        memset(&many[i], 0, sizeof many[i]);
        many[i].msg_hdr.msg_iov = &slots[i];
        many[i].msg_hdr.msg_iovlen = 1;
    }
    SHOW(recvmmsg(p.a, many, 4, MSG_WAITFORONE, NULL));
    for (int i = 0; i < 4; i++)
        say("msg_len %u\n", many[i].msg_len);
    say("same bytes: %d\n", memcmp(in, out, 70) == 0);
    SHOW(recvmmsg(p.a, many, 4, MSG_DONTWAIT, NULL));

    SHOW(write(p.b, out, 5));
    await_pending(p.a, 5);
    struct timespec limit = {1, 0};
    SHOW(recvmmsg(p.a, many, 4, MSG_DONTWAIT, &limit));
    say("msg_len %u\n", many[0].msg_len);
    limit.tv_nsec = -1;
    SHOW(recvmmsg(p.a, many, 4, MSG_DONTWAIT, &limit));

    SHOW(shutdown(p.a, SHUT_WR));
    SHOW(sendmsg(p.a, &message, MSG_NOSIGNAL));
    SHOW(sendmmsg(p.a, many, 2, MSG_NOSIGNAL));
    SHOW(recvmsg(p.b, &received, 0));
    SHOW(recvmmsg(p.b, many, 2, 0, NULL));
    pair_close(p);
    SHOW(recvmsg(p.a, &received, 0));
    SHOW(sendmmsg(p.a, many, 1, 0));
    return 0;
}
