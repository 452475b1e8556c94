// FIONREAD and SIOCOUTQ count the bytes on the way, FIONBIO switches blocking.
//: lane required
#include <linux/sockios.h>

#include "common.h"

static int unsent(int fd)
{
    int n = -1;
    return ioctl(fd, SIOCOUTQ, &n) < 0 ? -errno : n;
}

int main(void)
{
    struct pair p = pair_open();
    char out[5000], in[5000];
    fill(out, sizeof out, 6);
    int n = -1;

    SHOW(pending(p.a));
    SHOW(pending(p.b));
    AWAIT(unsent(p.a) == 0);
    SHOW(unsent(p.a));
    SHOW(write(p.a, out, 5000));
    await_pending(p.b, 5000);
    SHOW(pending(p.b));
    SHOW(ioctl(p.b, SIOCINQ, &n));
    say("SIOCINQ %d\n", n);
    SHOW(recv(p.b, in, 10, MSG_PEEK));
    SHOW(pending(p.b));
    SHOW(read(p.b, in, 1234));
    SHOW(pending(p.b));
    SHOW(read(p.b, in, 5000));
    SHOW(pending(p.b));
    AWAIT(unsent(p.a) == 0);
    SHOW(unsent(p.a));
    SHOW(ioctl(p.a, SIOCOUTQNSD, &n));
    say("SIOCOUTQNSD %d\n", n);

    n = 1;
    SHOW(ioctl(p.b, FIONBIO, &n));
    say("O_NONBLOCK %d\n", !!(fcntl(p.b, F_GETFL) & O_NONBLOCK));
    SHOW(read(p.b, in, 10));
    n = 0;
    SHOW(ioctl(p.b, FIONBIO, &n));
    say("O_NONBLOCK %d\n", !!(fcntl(p.b, F_GETFL) & O_NONBLOCK));
    SHOW(ioctl(p.b, FIOCLEX));
    say("FD_CLOEXEC %ld\n", (long)fcntl(p.b, F_GETFD));
    SHOW(ioctl(p.b, FIONCLEX));
    say("FD_CLOEXEC %ld\n", (long)fcntl(p.b, F_GETFD));

    SHOW(write(p.a, "tail", 4));
    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLRDHUP);
    SHOW(pending(p.b));
    SHOW(read(p.b, in, 100));
    SHOW(pending(p.b));
    int listener = listen_loopback(1);
    SHOW(pending(listener));
    SHOW(ioctl(p.b, 0x5421 + 0x70000, &n));
    pair_close(p);
    SHOW(ioctl(p.b, FIONREAD, &n));
    return 0;
}
