// splice of a message that is there as a whole, while its sender sleeps and can take nothing back;
// into a pipe that gets full, and into one that nobody reads.
//: lane required
//: timeout 120
#include "common.h"

enum { TURNS = 200, LARGE = 900000 };

static char out[LARGE], in[LARGE];

static void sender(int fd)
{
    char c;
    for (int i = 0; i < TURNS; i++) {
        read_exact(fd, &c, 1);
        write_all(fd, &c, 1);
    }
    write_all(fd, out, sizeof out);
    read_exact(fd, &c, 1);
}

/* Reads what a pipe has. */
static size_t drain(int pipe_end, size_t have, size_t len)
{
    read_exact(pipe_end, in + have, len);
    return have + len;
}

int main(void)
{
    struct pair p = pair_open();
    int tube[2];
    char c = 'x';
    NEED(pipe(tube));
    fill(out, sizeof out, 5);
    signal(SIGPIPE, SIG_IGN);

    /* In another process: nobody in this one can take the bytes back for it. */
    pid_t child = NEED(fork());
    if (child == 0) {
        close(p.a);
        sender(p.b);
        _exit(0);
    }
    close(p.b);
    for (int i = 0; i < TURNS; i++) {
        write_all(p.a, &c, 1);
        read_exact(p.a, &c, 1);
    }
    nap_ms(knob("APP_PAUSE_MS", 50));
    size_t moved = 0, have = 0;
    while (moved < sizeof out) {
        ssize_t n = splice(p.a, NULL, tube[1], NULL, sizeof out - moved, SPLICE_F_MOVE);
        if (n <= 0)
            die("splice");
        moved += (size_t)n;
        have = drain(tube[0], have, (size_t)n);
    }
    say("same bytes: %d\n", have == sizeof out && memcmp(in, out, sizeof out) == 0);
    write_all(p.a, &c, 1);
    NEED(waitpid(child, NULL, 0));
    close(p.a);

    /* A pipe that may get full: EAGAIN, and nothing is lost or taken twice. */
    p = pair_open();
    write_all(p.b, out, 200000);
    moved = have = 0;
    while (moved < 200000) {
        ssize_t n = splice(p.a, NULL, tube[1], NULL, 200000 - moved, SPLICE_F_NONBLOCK);
        if (n > 0) {
            moved += (size_t)n;
            continue;
        }
        if (n == 0 || errno != EAGAIN)
            die("splice");
        have = drain(tube[0], have, moved - have);
    }
    have = drain(tube[0], have, moved - have);
    say("same bytes: %d\n", memcmp(in, out, 200000) == 0);
    pair_close(p);

    /* Nobody reads the pipe: the bytes stay the connection's. */
    p = pair_open();
    write_all(p.b, out, 3000);
    await_pending(p.a, 3000);
    close(tube[0]);
    SHOW(splice(p.a, NULL, tube[1], NULL, 3000, 0));
    SHOW(read(p.a, in, sizeof in));
    say("same bytes: %d\n", memcmp(in, out, 3000) == 0);
    pair_close(p);
    return 0;
}
