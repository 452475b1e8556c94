// select with more descriptors than an fd_set has room for: larger sets, as Perl and libevent have them, and as many
// descriptors as the limit allows, with sets for those that there are.
//: lane required
#include "common.h"

enum { LIMIT = 4096, HIGH = 1500 };

typedef unsigned long word;

struct sets {
    word read[LIMIT / 64], write[LIMIT / 64];
};

static void add(word *set, int fd)
{
    set[fd / 64] |= 1ul << fd % 64;
}

static bool has(const word *set, int fd)
{
    return set[fd / 64] >> fd % 64 & 1;
}

static int wait_for(struct sets *sets, int count, bool polls)
{
    struct timeval zero = {0, 0}, long_time = {PATIENCE_SECONDS, 0};
    return (int)SHOW(select(count, (fd_set *)sets->read, (fd_set *)sets->write, NULL,
                            polls ? &zero : &long_time));
}

static void large_sets(struct pair p, int high)
{
    struct sets sets;
    int other[2];
    NEED(pipe(other));
    memset(&sets, 0, sizeof sets);
    add(sets.read, high);
    wait_for(&sets, high + 1, true);
    say("none left %d\n", !has(sets.read, high));

    write_all(p.a, "x", 1);
    add(sets.read, high);
    add(sets.read, other[0]);
    wait_for(&sets, high + 1, false);
    say("readable %d, the pipe %d\n", has(sets.read, high), has(sets.read, other[0]));

    memset(&sets, 0, sizeof sets);
    add(sets.read, high);
    add(sets.read, other[0]);
    add(sets.write, high);
    add(sets.write, other[1]);
    write_all(other[1], "y", 1);
    wait_for(&sets, LIMIT, false);
    say("readable %d %d, writable %d %d\n", has(sets.read, high), has(sets.read, other[0]),
        has(sets.write, high), has(sets.write, other[1]));

    /* A descriptor that is not open, in the kernel's table and behind its end. */
    memset(&sets, 0, sizeof sets);
    add(sets.read, high);
    add(sets.read, high - 1);
    wait_for(&sets, LIMIT, true);
    memset(&sets, 0, sizeof sets);
    add(sets.read, high);
    add(sets.read, LIMIT - 1);
    wait_for(&sets, LIMIT, true);
    say("readable %d\n", has(sets.read, high));

    /* What is behind the last one does not count. */
    memset(&sets, 0, sizeof sets);
    add(sets.read, high);
    wait_for(&sets, high, true);
    char byte;
    SHOW(read(high, &byte, 1));
    close(other[0]);
    close(other[1]);
}

/* A set of the C library's size, and as many descriptors as there may be. */
static void limit_of_descriptors(struct pair p)
{
    struct {
        fd_set set;
        /* What a longer set would have here are descriptors that are not open. */
        unsigned char behind[LIMIT / 8];
    } sets;
    memset(&sets, 0xff, sizeof sets);
    FD_ZERO(&sets.set);
    FD_SET(p.b, &sets.set);
    write_all(p.a, "x", 1);
    struct timeval time = {PATIENCE_SECONDS, 0};
    SHOW(select(getdtablesize(), &sets.set, NULL, NULL, &time));
    say("readable %d\n", FD_ISSET(p.b, &sets.set) ? 1 : 0);
    char byte;
    SHOW(read(p.b, &byte, 1));
}

int main(void)
{
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = LIMIT;
    if (limit.rlim_max < LIMIT || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        skip("not so many descriptors are allowed");
    struct pair p = pair_open();
    limit_of_descriptors(p);
    SHOW(select(-1, NULL, NULL, NULL, NULL));
    int high = (int)NEED(fcntl(p.b, F_DUPFD, HIGH));
    say("number %d\n", high);
    ping_pong_within(p.a, high, 20);
    large_sets(p, high);
    close(p.b);
    large_sets(p, high);
    close(high);
    close(p.a);
    return 0;
}
