// Transfers of nothing, with and without data there, before and after the end.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char in[8];
    struct iovec none = {in, 0};

    SHOW(write(p.a, in, 0));
    SHOW(write(p.a, NULL, 0));
    SHOW(send(p.a, in, 0, 0));
    SHOW(send(p.a, in, 0, MSG_DONTWAIT));
    SHOW(sendto(p.a, NULL, 0, 0, NULL, 0));
    SHOW(writev(p.a, &none, 1));
    SHOW(writev(p.a, NULL, 0));
    SHOW(pending(p.b));

    /* With nothing to read, read() of nothing returns and recv() of nothing waits. */
    SHOW(read(p.b, in, 0));
    SHOW(readv(p.b, &none, 1));
    SHOW(recv(p.b, in, 0, MSG_DONTWAIT));
    SHOW(recv(p.b, in, 0, MSG_DONTWAIT | MSG_PEEK));

    SHOW(write(p.a, "x", 1));
    await_pending(p.b, 1);
    SHOW(read(p.b, in, 0));
    SHOW(read(p.b, NULL, 0));
    SHOW(recv(p.b, in, 0, 0));
    SHOW(recv(p.b, in, 0, MSG_PEEK));
    SHOW(recv(p.b, in, 0, MSG_WAITALL));
    SHOW(readv(p.b, &none, 1));
    SHOW(readv(p.b, NULL, 0));
    SHOW(pending(p.b));
    SHOW(read(p.b, in, 8));

    SHOW(shutdown(p.a, SHUT_WR));
    await_events(p.b, POLLIN | POLLRDHUP);
    SHOW(read(p.b, in, 0));
    SHOW(recv(p.b, in, 0, 0));
    signal(SIGPIPE, SIG_IGN);
    SHOW(write(p.a, in, 0));
    SHOW(send(p.a, in, 0, 0));
    SHOW(write(p.a, in, 1));
    pair_close(p);
    SHOW(read(p.a, in, 0));
    SHOW(write(p.a, in, 0));
    return 0;
}
