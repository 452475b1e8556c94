// A program that locks its memory: what it has and what it gets later, and not what its connections consist of.
//: lane required
//: needs root
#include "common.h"

#define CONNECTIONS 8
#define KIB_OF_A_CONNECTION 64

/* KiB, of a line of /proc/self/status. */
static long status(const char *name)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        die("no /proc");
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = atol(line + strlen(name));
    fclose(file);
    return kib;
}

/* More memory of the program's, and whether it is locked, and there. */
static void *more(size_t bytes, const char *what)
{
    long before = status("VmLck:");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    unsigned char there[1 << 10];
    NEED(mincore(memory, bytes, there));
    unsigned pages = 0;
    for (size_t i = 0; i < bytes / 4096; i++)
        pages += there[i] & 1;
    say("%s: %ld KiB locked, %u pages there\n", what, status("VmLck:") - before, pages);
    return memory;
}

static void connections(const char *what)
{
    struct pair pairs[CONNECTIONS];
    long before = status("VmLck:");
    for (int i = 0; i < CONNECTIONS; i++)
        pairs[i] = pair_open();
    long locked = status("VmLck:") - before;
    say("%s: %s\n", what, locked <= CONNECTIONS * KIB_OF_A_CONNECTION ? "the connections lock little" : "they lock much");
    if (locked > CONNECTIONS * KIB_OF_A_CONNECTION)
        fprintf(stderr, "%ld KiB\n", locked);
    for (int i = 0; i < CONNECTIONS; i++)
        pair_close(pairs[i]);
}

int main(void)
{
    struct pair p = pair_open();
    void *mine = more(1 << 20, "first");
    NEED(mlockall(MCL_CURRENT));
    long locked = status("VmLck:");
    say("the program's: %s\n", locked >= 1024 && locked < 10 << 10 ? "locked" : "not locked, or more");
    ping_pong_within(p.a, p.b, 50);
    more(1 << 20, "later, without MCL_FUTURE");
    connections("without MCL_FUTURE");
    NEED(munlockall());
    say("unlocked: %ld\n", status("VmLck:"));

    NEED(mlockall(MCL_CURRENT | MCL_FUTURE));
    more(1 << 20, "later, with MCL_FUTURE");
    connections("with MCL_FUTURE");
    more(1 << 20, "later still");
    NEED(munlockall());
    say("unlocked: %ld\n", status("VmLck:"));
    NEED(syscall(SYS_mlockall, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
    more(1 << 20, "on fault");
    connections("on fault");
    NEED(syscall(SYS_munlockall));
    SHOW(mlockall(64));
    SHOW(mlockall(0));

    /* An ordinary user, with a limit that the program fits into and its connections do not. */
    struct pair other = pair_open();
    struct rlimit limit = {10 << 20, 10 << 20}, less = {512 << 10, 10 << 20};
    NEED(setrlimit(RLIMIT_MEMLOCK, &limit));
    NEED(setresuid(65534, 65534, 65534));
    SHOW(mlockall(MCL_CURRENT | MCL_FUTURE));
    ping_pong_within(p.a, p.b, 50);
    ping_pong_within(other.a, other.b, 50);
    more(64 << 10, "as an ordinary user");
    NEED(munlockall());
    NEED(setrlimit(RLIMIT_MEMLOCK, &less));
    SHOW(mlockall(MCL_CURRENT));
    SHOW(mlockall(MCL_FUTURE));
    munmap(mine, 1 << 20);
    pair_close(other);
    pair_close(p);
    return 0;
}
