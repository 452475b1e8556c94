// A peer that is killed, or ends without closing: with unread bytes the connection is reset, and
// without it ends; what a write, a read and poll say of it then, in this order and in others.
//: lane required
#include "common.h"

enum first { WRITE, READ, POLL };
enum end { KILLED, EXITED };

static atomic_int pipes;

static void on_pipe(int signal)
{
    (void)signal;
    pipes++;
}

static void show_poll(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int n = poll(&entry, 1, 0);
    say("poll %d, in %d\n", n, !!(entry.revents & POLLIN));
}

static void try_it(enum end end, enum first first, int unread, int answered)
{
    struct pair p = pair_open();
    say("-- %s, %d unread, %d answered, %s first\n", end == KILLED ? "killed" : "exited", unread,
        answered, first == WRITE ? "write" : first == READ ? "read" : "poll");
    int ready[2], go[2];
    NEED(pipe(ready));
    NEED(pipe(go));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        close(p.a);
        if (answered > 0)
            write_all(p.b, "answers", (size_t)answered);
        write_all(ready[1], "x", 1);
        if (end == EXITED) {
            char c;
            read_exact(go[0], &c, 1);
            _exit(0);
        }
        pause();
    }
    close(p.b);
    char c;
    read_exact(ready[0], &c, 1);
    if (unread > 0)
        write_all(p.a, "a question that nobody reads", (size_t)unread);
    if (end == KILLED)
        NEED(kill(child, SIGKILL));
    else
        write_all(go[1], "x", 1);
    int status;
    NEED(waitpid(child, &status, 0));
    await_events(p.a, POLLRDHUP);
    /* A writer to a ring looks for its reader once a millisecond. */
    nap_ms(5);
    char in[16];
    pipes = 0;
    if (first == POLL)
        show_poll(p.a);
    if (first == WRITE) {
        SHOW(write(p.a, "1", 1));
        await_events(p.a, POLLHUP);
        say("SIGPIPE %d\n", pipes);
    }
    if (answered > 0)
        SHOW(recv(p.a, in, (size_t)answered, MSG_WAITALL));
    SHOW(read(p.a, in, sizeof in));
    SHOW(read(p.a, in, sizeof in));
    if (unread > 0) {
        SHOW(write(p.a, "2", 1));
        say("SIGPIPE %d\n", pipes);
        SHOW(send(p.a, "3", 1, MSG_NOSIGNAL));
        say("SIGPIPE %d\n", pipes);
    }
    close(p.a);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
}

/* A peer that has shut down writing lives, and reads what is there. */
static void half_closed(void)
{
    say("-- half-closed\n");
    struct pair p = pair_open();
    write_all(p.a, "question", 8);
    NEED(shutdown(p.b, SHUT_WR));
    await_events(p.a, POLLRDHUP);
    char in[16];
    SHOW(read(p.a, in, sizeof in));
    SHOW(write(p.a, "another", 7));
    SHOW(recv(p.b, in, 15, MSG_WAITALL));
    close(p.a);
    SHOW(read(p.b, in, sizeof in));
    close(p.b);
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &action, NULL);
    for (int end = KILLED; end <= EXITED; end++)
        for (int first = WRITE; first <= POLL; first++)
            /* What is written behind the end of a peer that had read everything may lie in a ring. */
            for (int unread = first == WRITE ? 20 : 0; unread <= 20; unread += 20)
                for (int answered = 0; answered <= 7; answered += 7)
                    try_it((enum end)end, (enum first)first, unread, answered);
    half_closed();
    return 0;
}
