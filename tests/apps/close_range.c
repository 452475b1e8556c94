// close_range with and without its flags, and a reused descriptor number.
//: lane required
#include <linux/close_range.h>

#include "common.h"

int main(void)
{
    char in[10];
    struct pair p = pair_open();
    int kept = (int)NEED(fcntl(p.b, F_DUPFD, 500));
    SHOW(close_range(300, 200, 0));
    SHOW(close_range(3, 4, 0x1000));
    unsigned low = (unsigned)(p.a < p.b ? p.a : p.b), high = (unsigned)(p.a < p.b ? p.b : p.a);

    SHOW(close_range(low, high, CLOSE_RANGE_CLOEXEC));
    SHOW(fcntl(p.a, F_GETFD));
    SHOW(fcntl(p.b, F_GETFD));
    SHOW(write(p.a, "x", 1));
    SHOW(read(p.b, in, 10));

    SHOW(close_range((unsigned)p.b, (unsigned)p.b, 0));
    SHOW(read(p.b, in, 10));
    SHOW(write(p.a, "y", 1));
    SHOW(read(kept, in, 10));
    int again = (int)NEED(open("/dev/null", O_RDONLY));
    say("the number is reused: %d\n", again == p.b);
    SHOW(read(again, in, 10));
    SHOW(close_range(3, ~0U, 0));
    SHOW(write(p.a, "z", 1));
    SHOW(read(kept, in, 10));

    p = pair_open();
    SHOW(write(p.a, "new", 3));
    SHOW(read(p.b, in, 10));
    closefrom(3);
    SHOW(read(p.b, in, 10));
    p = pair_open();
    SHOW(write(p.a, "again", 5));
    SHOW(read(p.b, in, 10));
    pair_close(p);
    return 0;
}
