// A socket whose connection is dissolved (AF_UNSPEC) and connected anew has another connection.
//: lane required
#include "common.h"

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    struct pair p = pair_open();
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    char in[64];
    say("-- dissolved with unread bytes\n");
    SHOW(write(p.b, "unread", 6));
    await_pending(p.a, 6);
    SHOW(connect(p.a, &nobody, sizeof nobody));
    SHOW(read(p.a, in, sizeof in));
    SHOW(write(p.a, "x", 1));
    SHOW(pending(p.a));
    SHOW(read(p.b, in, sizeof in));

    say("-- connected anew\n");
    int listener = listen_loopback(8);
    struct sockaddr_storage address;
    socklen_t len = loopback(&address, port_of(listener));
    SHOW(connect(p.a, (struct sockaddr *)&address, len));
    int b = (int)NEED(accept(listener, NULL, NULL));
    set_int(p.a, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(b, IPPROTO_TCP, TCP_NODELAY, 1);
    warm(p.a, b);
    SHOW(write(b, "behind", 6));
    SHOW(shutdown(b, SHUT_WR));
    read_exact(p.a, in, 6);
    SHOW(read(p.a, in, sizeof in));
    return 0;
}
