// A program executes itself with connected descriptors that have carried traffic before.
//: lane required
#include "common.h"

static void exchange(int a, int b, uint32_t rounds)
{
    char out[3000], in[3000];
    for (uint32_t i = 0; i < rounds; i++) {
        fill(out, sizeof out, i);
        write_all(a, out, sizeof out);
        read_exact(b, in, sizeof in);
        if (memcmp(out, in, sizeof in) != 0)
            say("bytes differ\n");
        write_all(b, in, 100);
        read_exact(a, in, 100);
    }
}

int main(int argc, char **argv)
{
    char in[100];
    if (argc == 4) {
        int generation = atoi(argv[1]), a = atoi(argv[2]), b = atoi(argv[3]);
        say("generation %d\n", generation);
        SHOW(read(b, in, 8));
        SHOW(read(b, in, sizeof in));
        exchange(a, b, 100);
        nap_ms(knob("APP_PAUSE_MS", 50));
        exchange(a, b, 100);
        if (generation < 3) {
            char next[16];
            snprintf(next, sizeof next, "%d", generation + 1);
            SHOW(write(a, "left in the stream", 18));
            execl("/proc/self/exe", argv[0], next, argv[2], argv[3], (char *)NULL);
            die("execl");
        }
        SHOW(shutdown(a, SHUT_WR));
        SHOW(read(b, in, sizeof in));
        return 0;
    }
    struct pair p = pair_open();
    struct pair not_inherited = pair_open();
    fcntl(not_inherited.a, F_SETFD, FD_CLOEXEC);
    fcntl(not_inherited.b, F_SETFD, FD_CLOEXEC);
    char a[16], b[16];
    snprintf(a, sizeof a, "%d", p.a);
    snprintf(b, sizeof b, "%d", p.b);

    /* A failed exec changes nothing. */
    SHOW(execl("/nonexistent", "nonexistent", (char *)NULL));
    SHOW(execl("/etc/passwd", "passwd", (char *)NULL));
    exchange(p.a, p.b, 10);
    exchange(not_inherited.a, not_inherited.b, 10);

    SHOW(write(p.a, "left in the stream", 18));
    execl("/proc/self/exe", argv[0], "1", a, b, (char *)NULL);
    die("execl");
}
