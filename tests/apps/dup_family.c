// dup, dup2, dup3, F_DUPFD: all names of one stream, which lives until the last is closed.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char in[100];

    int one = (int)NEED(dup(p.b));
    int two = (int)SHOW(dup2(p.b, 200));
    int three = (int)SHOW(dup3(p.b, 201, O_CLOEXEC));
    int four = (int)SHOW(fcntl(p.b, F_DUPFD, 300));
    int five = (int)SHOW(fcntl(p.b, F_DUPFD_CLOEXEC, 300));
    SHOW(fcntl(two, F_GETFD));
    SHOW(fcntl(three, F_GETFD));
    SHOW(fcntl(five, F_GETFD));
    SHOW(dup2(p.b, p.b));
    SHOW(dup3(p.b, p.b, 0));
    SHOW(dup3(p.b, 202, 0x1));
    SHOW(dup2(p.b, -1));
    SHOW(dup2(999, 202));
    SHOW(dup(999));

    SHOW(write(p.a, "abcdefgh", 8));
    await_pending(one, 8);
    SHOW(read(p.b, in, 1));
    SHOW(read(one, in + 1, 1));
    SHOW(read(two, in + 2, 1));
    SHOW(read(three, in + 3, 1));
    SHOW(read(four, in + 4, 1));
    SHOW(read(five, in + 5, 10));
    say("%.8s\n", in);
    for (int i = 0; i < 5; i++)
        write_all((int[]){p.b, one, two, three, four}[i], "01234" + i, 1);
    await_pending(p.a, 5);
    SHOW(read(p.a, in, 100));
    say("%.5s\n", in);

    SHOW(close(p.b));
    SHOW(close(one));
    SHOW(close(two));
    SHOW(close(three));
    SHOW(close(four));
    SHOW(recv(p.a, in, 1, MSG_DONTWAIT));
    SHOW(write(p.a, "still", 5));
    SHOW(read(five, in, 100));

    /* A stream that dup2 replaces is closed by that; the other name lives on. */
    struct pair q = pair_open();
    SHOW(dup2(q.b, five) == five);
    SHOW(read(p.a, in, 1));
    SHOW(close(q.b));
    SHOW(write(q.a, "via the new name", 16));
    SHOW(read(five, in, 100));
    say("%.16s\n", in);
    /* A file over a stream and a stream over a file. */
    int null = (int)NEED(open("/dev/null", O_RDWR));
    SHOW(dup2(null, five) == five);
    SHOW(read(q.a, in, 1));
    SHOW(write(five, "swallowed", 9));
    SHOW(read(five, in, 9));
    close(p.a);
    close(q.a);
    struct pair r = pair_open();
    SHOW(dup2(r.b, null) == null);
    close(r.b);
    SHOW(write(null, "to the stream", 13));
    SHOW(read(r.a, in, 100));
    say("%.13s\n", in);
    return 0;
}
