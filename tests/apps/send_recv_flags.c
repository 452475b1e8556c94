// The flags of send and recv, and the address arguments of sendto and recvfrom.
//: lane required
#include "common.h"

/* Wholly there before it is read, on any machine. */
#define LARGE 30000

static char out[10000], in[10000];

int main(void)
{
    struct pair p = pair_open();
    fill(out, sizeof out, 2);

    SHOW(send(p.a, out, 100, 0));
    await_pending(p.b, 100);
    SHOW(recv(p.b, in, 40, MSG_PEEK));
    SHOW(recv(p.b, in, 400, MSG_PEEK));
    say("same bytes: %d\n", memcmp(in, out, 100) == 0);
    SHOW(recv(p.b, in, 60, 0));
    SHOW(recv(p.b, in + 60, 400, MSG_PEEK | MSG_DONTWAIT));
    SHOW(recv(p.b, in + 60, 400, 0));
    say("same bytes: %d\n", memcmp(in, out, 100) == 0);

    SHOW(recv(p.b, in, 10, MSG_DONTWAIT));
    SHOW(recv(p.b, in, 10, MSG_DONTWAIT | MSG_PEEK));
    SHOW(recv(p.b, in, 10, MSG_DONTWAIT | MSG_WAITALL));

    /* WAITALL with everything there, and cut short by the end of the stream below. */
    SHOW(send(p.a, out, 50, MSG_NOSIGNAL));
    SHOW(send(p.a, out + 50, 50, MSG_DONTWAIT));
    SHOW(recv(p.b, in, 100, MSG_WAITALL));
    say("same bytes: %d\n", memcmp(in, out, 100) == 0);

    /* On a stream TRUNC discards instead of copying. */
    SHOW(send(p.a, out, 100, 0));
    await_pending(p.b, 100);
    memset(in, 'x', sizeof in);
    SHOW(recv(p.b, in, 30, MSG_TRUNC));
    say("untouched: %d\n", in[0] == 'x' && in[29] == 'x');
    SHOW(recv(p.b, in, 30, MSG_TRUNC | MSG_PEEK));
    SHOW(recv(p.b, in, 100, 0));
    say("same bytes: %d\n", memcmp(in, out + 30, 70) == 0);
    SHOW(send(p.a, out, 100, 0));
    await_pending(p.b, 100);
    SHOW(recv(p.b, NULL, 30, MSG_TRUNC));
    struct iovec nowhere = {NULL, 20};
    struct msghdr discarded = {.msg_iov = &nowhere, .msg_iovlen = 1};
    SHOW(recvmsg(p.b, &discarded, MSG_TRUNC));
    SHOW(recv(p.b, in, 100, 0));
    say("same bytes: %d\n", memcmp(in, out + 50, 50) == 0);
    /* More than fits any buffer of a library. */
    char *large = malloc(LARGE);
    fill(large, LARGE, 3);
    write_all(p.a, large, LARGE);
    await_pending(p.b, LARGE);
    SHOW(recv(p.b, NULL, LARGE, MSG_TRUNC | MSG_PEEK));
    SHOW(recv(p.b, NULL, LARGE - 10, MSG_TRUNC));
    SHOW(recv(p.b, in, 100, 0));
    say("same bytes: %d\n", memcmp(in, large + LARGE - 10, 10) == 0);
    write_all(p.a, large, LARGE);
    SHOW(recv(p.b, NULL, LARGE - 10, MSG_TRUNC | MSG_WAITALL));
    SHOW(recv(p.b, in, 100, 0));
    free(large);

    /* MORE may hold bytes back, but not for ever and not past the next send. */
    SHOW(send(p.b, out, 10, MSG_MORE));
    SHOW(send(p.b, out + 10, 10, 0));
    await_pending(p.a, 20);
    SHOW(recv(p.a, in, 100, 0));
    SHOW(send(p.b, out + 20, 10, MSG_MORE));
    await_pending(p.a, 10);
    SHOW(recv(p.a, in, 100, 0));

    struct sockaddr_storage address;
    socklen_t len = loopback(&address, 9);
    SHOW(sendto(p.a, out, 10, 0, (struct sockaddr *)&address, len));
    await_pending(p.b, 10);
    memset(&address, 0xff, sizeof address);
    len = sizeof address;
    SHOW(recvfrom(p.b, in, 100, 0, (struct sockaddr *)&address, &len));
    say("address length %u, untouched: %d\n", len, ((unsigned char *)&address)[0] == 0xff);
    SHOW(sendto(p.a, out, 10, 0, NULL, 0));
    SHOW(recvfrom(p.b, in, 10, MSG_WAITALL, NULL, NULL));

    SHOW(recv(p.b, in, 10, MSG_ERRQUEUE | MSG_DONTWAIT));
    SHOW(recv(p.b, in, 10, MSG_ERRQUEUE));
    SHOW(recv(p.b, in, 10, MSG_OOB));
    SHOW(send(p.a, out, 10, MSG_CONFIRM | MSG_DONTROUTE | MSG_EOR));
    SHOW(recv(p.b, in, 10, MSG_WAITALL | MSG_CMSG_CLOEXEC));

    SHOW(send(p.a, out, 25, 0));
    SHOW(shutdown(p.a, SHUT_WR));
    SHOW(recv(p.b, in, 100, MSG_WAITALL));
    SHOW(recv(p.b, in, 100, MSG_WAITALL));
    SHOW(recv(p.b, in, 100, MSG_PEEK));
    SHOW(recv(p.b, in, 100, MSG_DONTWAIT));
    SHOW(send(p.a, out, 1, MSG_NOSIGNAL));
    pair_close(p);
    return 0;
}
