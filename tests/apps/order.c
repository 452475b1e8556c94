// What a process wrote before is reported before what it wrote after, whichever way each went: pairs
// of connections, each of them new (by TCP), old (on a lane) or kept on TCP for good; the writer is a fork,
// two threads of one in turn, or a program of its own; epoll in both modes, poll, select, and a
// read that does not wait behind one that did. A few tries may go wrong on a busy machine, where the
// reader is interrupted between two looks (docs/decisions/0030).
//: lane required
//: timeout 180
#include "common.h"
#include <sys/epoll.h>

enum { TRIES = 100, OLD = 4 };

/* One side of the connections: the writer's or the reader's. */
struct side {
    int old[OLD], kept, fresh[2];
};

static int commands[2];

/* Writes on the first of two connections, and when that has returned, on the second. */
static void *write_second(void *arg)
{
    write_all(*(int *)arg, "2", 1);
    return NULL;
}

static void try_write(int first, int second, bool threads)
{
    write_all(first, "1", 1);
    if (threads) {
        pthread_t thread;
        pthread_create(&thread, NULL, write_second, &second);
        pthread_join(thread, NULL);
    } else {
        write_second(&second);
    }
}

enum way { LEVEL, EDGE, POLL, SELECT, READ };
static const char *const names[] = {"level", "edge", "poll", "select", "read"};

/* Whether `first` was seen no later than `second`. Reads both. */
static bool see(enum way way, int first, int second)
{
    char c;
    bool seen_first = false, ordered = true;
    int set = -1;
    if (way == LEVEL || way == EDGE) {
        set = (int)NEED(epoll_create1(0));
        int fds[] = {second, first};
        for (int i = 0; i < 2; i++) {
            struct epoll_event event = {.events = EPOLLIN | (way == EDGE ? EPOLLET : 0),
                                        .data.fd = fds[i]};
            NEED(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event));
        }
    }
    write_all(commands[1], "g", 1);
    if (way == READ) {
        read_exact(second, &c, 1);
        ordered = recv(first, &c, 1, MSG_DONTWAIT) == 1;
        if (!ordered)
            read_exact(first, &c, 1);
        return ordered;
    }
    for (int left = 2; left > 0;) {
        int ready[2], count = 0;
        if (way == POLL) {
            struct pollfd entries[] = {{second, POLLIN, 0}, {first, POLLIN, 0}};
            NEED(poll(entries, 2, -1));
            for (int i = 1; i >= 0; i--)
                if (entries[i].revents != 0)
                    ready[count++] = entries[i].fd;
        } else if (way == SELECT) {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(first, &in);
            FD_SET(second, &in);
            NEED(select((first > second ? first : second) + 1, &in, NULL, NULL, NULL));
            if (FD_ISSET(first, &in))
                ready[count++] = first;
            if (FD_ISSET(second, &in))
                ready[count++] = second;
        } else {
            struct epoll_event events[8];
            int n = (int)NEED(epoll_wait(set, events, 8, -1));
            for (int i = 0; i < n; i++)
                ready[count++] = events[i].data.fd;
        }
        for (int i = 0; i < count; i++) {
            if (recv(ready[i], &c, 1, MSG_DONTWAIT) != 1)
                continue;
            left--;
            if (ready[i] == first)
                seen_first = true;
            else if (!seen_first)
                ordered = false;
        }
    }
    if (set >= 0)
        close(set);
    return ordered;
}

enum age { NEW, AGED, KEPT };
static const char *const ages[] = {"new", "old", "kept"};
static const enum age kinds[][2] = {{NEW, AGED},  {AGED, NEW},  {AGED, AGED}, {NEW, NEW},
                                    {KEPT, AGED}, {AGED, KEPT}, {KEPT, NEW},  {NEW, KEPT}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

enum writer { FORK, THREADS, PROGRAM };
static const char *const writers[] = {"process", "threads", "program"};

/* The connection of a try that is written first (0) or second (1), known to both sides. */
static int pick(const struct side *side, int kind, int which, int try)
{
    switch (kinds[kind][which]) {
    case NEW:
        return side->fresh[which];
    case KEPT:
        return side->kept;
    default:
        return side->old[(try + which) % OLD];
    }
}

static void write_tries(const struct side *side, int kind, bool threads)
{
    for (int i = 0; i < TRIES; i++) {
        char c;
        read_exact(commands[0], &c, 1);
        /* From asleep to polling, and in between. */
        usleep((useconds_t)(i % 8) * 100);
        try_write(pick(side, kind, 0, i), pick(side, kind, 1, i), threads);
    }
}

static void read_tries(const struct side *side, int kind, enum way way, enum writer writer)
{
    int wrong = 0;
    for (int i = 0; i < TRIES; i++)
        wrong += !see(way, pick(side, kind, 0, i), pick(side, kind, 1, i));
    if (getenv("APP_VERBOSE"))
        fprintf(stderr, "%s then %s, %s, %s: %d of %d\n", ages[kinds[kind][0]],
                ages[kinds[kind][1]], names[way], writers[writer], wrong, TRIES);
    say("%s then %s, %s, %s: %s\n", ages[kinds[kind][0]], ages[kinds[kind][1]], names[way],
        writers[writer], wrong * 20 <= TRIES ? "ordered" : "NOT ordered");
}

/* An option that only the kernel can honour, for a moment: the connection stays on TCP. */
static void keep_on_tcp(int fd)
{
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 2);
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
}

static int connect_one(int port)
{
    int fd = connect_loopback(port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
}

static int accept_one(int listener)
{
    int fd = (int)NEED(accept(listener, NULL, NULL));
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
}

/* The writer that is a program of its own: the reader accepts what it connects, in the same order. */
static int program(int port)
{
    struct side side;
    char in[8] = "ping";
    for (int i = 0; i < OLD; i++) {
        side.old[i] = connect_one(port);
        for (int half = 0; half < 2; half++) {
            for (long n = 0; n < knob("APP_WARM", 64); n++) {
                write_all(side.old[i], in, 4);
                read_exact(side.old[i], in, 4);
            }
            nap_ms(half == 0 ? knob("APP_PAUSE_MS", 50) : 0);
        }
    }
    side.kept = connect_one(port);
    keep_on_tcp(side.kept);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int way = LEVEL; way <= READ; way++) {
            side.fresh[0] = connect_one(port);
            side.fresh[1] = connect_one(port);
            write_tries(&side, kind, false);
            close(side.fresh[0]);
            close(side.fresh[1]);
        }
    }
    return 0;
}

static void with_program(char *own_name)
{
    int listener = listen_loopback(8);
    char port[16];
    snprintf(port, sizeof port, "%d", port_of(listener));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(commands[0], 0));
        execl("/proc/self/exe", own_name, port, (char *)NULL);
        die("execl");
    }
    struct side side;
    char in[4];
    for (int i = 0; i < OLD; i++) {
        side.old[i] = accept_one(listener);
        for (long n = 0; n < 2 * knob("APP_WARM", 64); n++) {
            read_exact(side.old[i], in, 4);
            write_all(side.old[i], in, 4);
        }
    }
    side.kept = accept_one(listener);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int way = LEVEL; way <= READ; way++) {
            side.fresh[0] = accept_one(listener);
            side.fresh[1] = accept_one(listener);
            read_tries(&side, kind, (enum way)way, PROGRAM);
            close(side.fresh[0]);
            close(side.fresh[1]);
        }
    }
    NEED(waitpid(child, NULL, 0));
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        commands[0] = 0;
        return program(atoi(argv[1]));
    }
    NEED(pipe2(commands, O_CLOEXEC));
    struct side writes, reads;
    for (int i = 0; i < OLD; i++) {
        struct pair old = pair_open();
        writes.old[i] = old.a;
        reads.old[i] = old.b;
    }
    struct pair kept = pair_cold();
    writes.kept = kept.a;
    reads.kept = kept.b;
    keep_on_tcp(writes.kept);
    for (int writer = FORK; writer <= THREADS; writer++) {
        for (int kind = 0; kind < KINDS; kind++) {
            for (int way = LEVEL; way <= READ; way++) {
                struct pair fresh[2] = {pair_cold(), pair_cold()};
                for (int i = 0; i < 2; i++) {
                    writes.fresh[i] = fresh[i].a;
                    reads.fresh[i] = fresh[i].b;
                }
                pid_t child = (pid_t)NEED(fork());
                if (child == 0) {
                    write_tries(&writes, kind, writer == THREADS);
                    _exit(0);
                }
                read_tries(&reads, kind, (enum way)way, (enum writer)writer);
                NEED(waitpid(child, NULL, 0));
                pair_close(fresh[0]);
                pair_close(fresh[1]);
            }
        }
    }
    with_program(argv[0]);
    return 0;
}
