// Plain reads and writes, whole and in parts, blocking and not, and vectors.
//: lane required
#include "common.h"

static char out[300000], in[300000];

int main(void)
{
    struct pair p = pair_open();
    fill(out, sizeof out, 1);

    SHOW(write(p.a, out, 1));
    SHOW(read(p.b, in, sizeof in));
    SHOW(write(p.b, out, 4096));
    await_pending(p.a, 4096);
    SHOW(read(p.a, in, 4096));
    say("sum %016llx\n", (unsigned long long)sum(in, 4096));

    /* Several writes are one stream: a read takes all that is there. */
    for (int i = 0; i < 5; i++)
        SHOW(write(p.a, out + i * 100, 100));
    await_pending(p.b, 500);
    SHOW(read(p.b, in, 120));
    SHOW(read(p.b, in + 120, 80));
    SHOW(read(p.b, in + 200, 4096));
    say("same bytes: %d\n", memcmp(in, out, 500) == 0);

    set_nonblocking(p.b, true);
    SHOW(read(p.b, in, 10));
    SHOW(write(p.a, "abc", 3));
    await_pending(p.b, 3);
    SHOW(read(p.b, in, 10));
    SHOW(read(p.b, in, 10));
    set_nonblocking(p.b, false);

    struct iovec parts[5] = {
        {out, 10}, {out + 10, 0}, {out + 10, 4000}, {out + 4010, 1}, {out + 4011, 9000}};
    SHOW(writev(p.b, parts, 5));
    await_pending(p.a, 13011);
    memset(in, 0, sizeof in);
    struct iovec into[4] = {{in, 1}, {in + 1, 0}, {in + 1, 12000}, {in + 12001, 50000}};
    SHOW(readv(p.a, into, 4));
    say("same bytes: %d\n", memcmp(in, out, 13011) == 0);
    SHOW(readv(p.a, into, -1));
    SHOW(writev(p.a, into, 0));
    SHOW(writev(p.a, into, IOV_MAX + 1));

    /* Larger than any ring: the other side has to read meanwhile. */
    set_nonblocking(p.a, true);
    size_t sent = 0, got = 0;
    while (got < sizeof out) {
        if (sent < sizeof out) {
            ssize_t n = write(p.a, out + sent, sizeof out - sent);
            if (n > 0)
                sent += (size_t)n;
            else if (errno != EAGAIN)
                die("write");
        }
        ssize_t n = recv(p.b, in + got, sizeof in - got, MSG_DONTWAIT);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EAGAIN)
            die("recv");
    }
    say("sent %zu got %zu same bytes: %d\n", sent, got, memcmp(in, out, sizeof out) == 0);

    close(p.a);
    SHOW(read(p.b, in, 10));
    SHOW(read(p.b, in, 10));
    close(p.b);
    SHOW(read(p.b, in, 10));
    SHOW(write(p.b, in, 10));
    SHOW(readv(p.b, into, 1));
    return 0;
}
