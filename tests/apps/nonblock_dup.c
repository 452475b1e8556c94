// O_NONBLOCK belongs to the open socket, FD_CLOEXEC to the descriptor: toggled through dups.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char in[10];
    int twin = (int)NEED(dup(p.b));

    SHOW(fcntl(p.b, F_SETFL, fcntl(p.b, F_GETFL) | O_NONBLOCK));
    say("twin O_NONBLOCK %d\n", !!(fcntl(twin, F_GETFL) & O_NONBLOCK));
    SHOW(read(twin, in, 10));
    SHOW(fcntl(twin, F_SETFL, fcntl(twin, F_GETFL) & ~O_NONBLOCK));
    say("first O_NONBLOCK %d\n", !!(fcntl(p.b, F_GETFL) & O_NONBLOCK));
    SHOW(write(p.a, "ab", 2));
    SHOW(read(p.b, in, 1));
    SHOW(read(twin, in, 10));

    int on = 1;
    SHOW(ioctl(twin, FIONBIO, &on));
    SHOW(read(p.b, in, 10));

    SHOW(fcntl(twin, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(p.b, F_GETFD));
    SHOW(fcntl(twin, F_GETFD));
    say("access mode %ld\n", (long)fcntl(twin, F_GETFL) & O_ACCMODE);
    SHOW(fcntl(twin, F_SETFL, O_NONBLOCK | O_APPEND));
    say("O_APPEND %d\n", !!(fcntl(p.b, F_GETFL) & O_APPEND));
    SHOW(fcntl(twin, F_SETFL, 0));

    SHOW(close(p.b));
    SHOW(write(p.a, "cd", 2));
    SHOW(read(twin, in, 10));
    SHOW(write(twin, "ef", 2));
    SHOW(read(p.a, in, 10));
    SHOW(fcntl(p.b, F_GETFL));
    SHOW(fcntl(twin, 9999));
    close(twin);
    SHOW(read(p.a, in, 10));
    close(p.a);

    /* SOCK_NONBLOCK from the start. */
    int fd = (int)NEED(socket(family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    say("O_NONBLOCK %d FD_CLOEXEC %ld\n", !!(fcntl(fd, F_GETFL) & O_NONBLOCK),
        (long)fcntl(fd, F_GETFD));
    close(fd);
    return 0;
}
