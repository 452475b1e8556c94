// What a process wrote before is reported before what it wrote after, whichever way each went: pairs
// of connections, one of them new (by TCP) and one old (on a lane), or both old, or both new; the
// writer is another process, or two threads of it in turn; epoll in both modes, poll, select, and a
// read that does not wait behind one that did. A few tries may go wrong on a busy machine, where the
// reader is interrupted between two looks (docs/decisions/0030).
//: lane required
//: timeout 120
#include "common.h"
#include <sys/epoll.h>

enum { TRIES = 150, OLD = 4 };

struct order {
    int first, second;
};

static int old_writers[OLD], old_readers[OLD];
static int commands[2], answers[2];

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

/* Which connections the writer uses for a try, known to both sides. */
static bool is_new_first(int kind)
{
    return kind == 0 || kind == 3;
}

static bool is_new_second(int kind)
{
    return kind == 1 || kind == 3;
}

static const char *const kinds[] = {"new then old", "old then new", "old then old", "new then new"};

int main(void)
{
    NEED(pipe(commands));
    NEED(pipe(answers));
    struct pair olds[OLD];
    for (int i = 0; i < OLD; i++) {
        olds[i] = pair_open();
        old_writers[i] = olds[i].a;
        old_readers[i] = olds[i].b;
    }
    for (int threads = 0; threads < 2; threads++) {
        for (int kind = 0; kind < 4; kind++) {
            for (int way = LEVEL; way <= READ; way++) {
                struct pair fresh[2] = {pair_cold(), pair_cold()};
                pid_t child = (pid_t)NEED(fork());
                if (child == 0) {
                    for (int i = 0; i < TRIES; i++) {
                        char c;
                        read_exact(commands[0], &c, 1);
                        /* From asleep to polling, and in between. */
                        usleep((useconds_t)(i % 8) * 100);
                        try_write(is_new_first(kind) ? fresh[0].a : old_writers[i % OLD],
                                  is_new_second(kind) ? fresh[1].a : old_writers[(i + 1) % OLD],
                                  threads);
                    }
                    _exit(0);
                }
                int wrong = 0;
                for (int i = 0; i < TRIES; i++) {
                    int first = is_new_first(kind) ? fresh[0].b : old_readers[i % OLD];
                    int second = is_new_second(kind) ? fresh[1].b : old_readers[(i + 1) % OLD];
                    wrong += !see((enum way)way, first, second);
                }
                NEED(waitpid(child, NULL, 0));
                if (getenv("APP_VERBOSE"))
                    fprintf(stderr, "%s, %s, %s: %d of %d\n", kinds[kind], names[way],
                            threads ? "threads" : "process", wrong, TRIES);
                say("%s, %s, %s: %s\n", kinds[kind], names[way], threads ? "threads" : "process",
                    wrong * 20 <= TRIES ? "ordered" : "NOT ordered");
                pair_close(fresh[0]);
                pair_close(fresh[1]);
            }
        }
    }
    return 0;
}
