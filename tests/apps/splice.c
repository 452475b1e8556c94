// splice from a connection to a pipe and on, tee, vmsplice, copy_file_range.
//: lane required
#include "common.h"

static char out[20000], in[20000];

int main(void)
{
    struct pair p = pair_open(), q = pair_open();
    int tube[2], other[2];
    NEED(pipe(tube));
    NEED(pipe(other));
    fill(out, sizeof out, 9);

    SHOW(write(p.a, out, 5000));
    await_pending(p.b, 5000);
    SHOW(splice(p.b, NULL, tube[1], NULL, 3000, 0));
    SHOW(pending(p.b));
    SHOW(tee(tube[0], other[1], 3000, 0));
    SHOW(splice(tube[0], NULL, q.a, NULL, 3000, SPLICE_F_MOVE));
    read_exact(q.b, in, 3000);
    say("same bytes: %d\n", memcmp(in, out, 3000) == 0);
    read_exact(other[0], in, 3000);
    say("same bytes: %d\n", memcmp(in, out, 3000) == 0);
    SHOW(read(p.b, in, sizeof in));
    say("same bytes: %d\n", memcmp(in, out + 3000, 2000) == 0);

    /* SPLICE_F_NONBLOCK speaks of the pipe; the socket has its own flag. */
    set_nonblocking(p.b, true);
    SHOW(splice(p.b, NULL, tube[1], NULL, 100, SPLICE_F_NONBLOCK));
    off_t offset = 0;
    SHOW(splice(p.b, &offset, tube[1], NULL, 100, 0));
    SHOW(splice(p.b, NULL, q.a, NULL, 100, 0));
    SHOW(tee(p.b, tube[1], 100, 0));
    SHOW(copy_file_range(p.b, NULL, q.a, NULL, 100, 0));
    set_nonblocking(p.b, false);
    struct iovec part = {out, 100};
    SHOW(vmsplice(p.b, &part, 1, 0));
    SHOW(vmsplice(tube[1], &part, 1, 0));
    SHOW(splice(tube[0], NULL, p.b, NULL, 100, 0));
    read_exact(p.a, in, 100);
    say("same bytes: %d\n", memcmp(in, out, 100) == 0);

    /* A proxy's loop: connection to pipe to connection, then plain calls again. */
    for (int i = 0; i < 50; i++) {
        size_t len = 1 + (size_t)(i * 397 % 9000);
        fill(out, len, (uint32_t)i);
        write_all(p.a, out, len);
        size_t moved = 0;
        while (moved < len) {
            ssize_t n = splice(p.b, NULL, tube[1], NULL, len - moved, SPLICE_F_MOVE);
            if (n <= 0)
                die("splice in");
            for (ssize_t left = n; left > 0;) {
                ssize_t m = splice(tube[0], NULL, q.a, NULL, (size_t)left, SPLICE_F_MOVE);
                if (m <= 0)
                    die("splice out");
                left -= m;
            }
            moved += (size_t)n;
        }
        read_exact(q.b, in, len);
        if (memcmp(in, out, len) != 0)
            say("round %d: bytes differ\n", i);
    }
    warm(p.a, p.b);
    warm(q.b, q.a);
    SHOW(shutdown(p.a, SHUT_WR));
    SHOW(splice(p.b, NULL, tube[1], NULL, 100, 0));
    signal(SIGPIPE, SIG_IGN);
    SHOW(shutdown(q.a, SHUT_WR));
    write_all(tube[1], "x", 1);
    SHOW(splice(tube[0], NULL, q.a, NULL, 1, 0));
    pair_close(p);
    pair_close(q);
    return 0;
}
