// Writing after the peer has gone: the first write passes, then RST, EPIPE and SIGPIPE.
//: lane required
#include "common.h"

static atomic_int pipes;

static void on_pipe(int signal)
{
    (void)signal;
    pipes++;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &action, NULL);
    struct pair p = pair_open();
    char in[8];

    SHOW(close(p.b));
    await_events(p.a, POLLRDHUP);
    SHOW(write(p.a, "1", 1));
    await_events(p.a, POLLERR | POLLHUP);
    SHOW(write(p.a, "2", 1));
    say("SIGPIPE %d\n", pipes);
    SHOW(write(p.a, "3", 1));
    say("SIGPIPE %d\n", pipes);
    SHOW(send(p.a, "4", 1, MSG_NOSIGNAL));
    say("SIGPIPE %d\n", pipes);
    struct iovec part = {"5", 1};
    SHOW(writev(p.a, &part, 1));
    say("SIGPIPE %d\n", pipes);
    SHOW(read(p.a, in, sizeof in));
    close(p.a);

    say("-- after our own SHUT_WR\n");
    p = pair_open();
    SHOW(shutdown(p.a, SHUT_WR));
    SHOW(write(p.a, "x", 1));
    say("SIGPIPE %d\n", pipes);
    SHOW(send(p.a, "x", 1, 0));
    say("SIGPIPE %d\n", pipes);
    SHOW(send(p.a, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    say("SIGPIPE %d\n", pipes);
    pair_close(p);

    say("-- with the default action the process dies\n");
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        struct pair q = pair_open();
        close(q.b);
        AWAIT(write(q.a, "x", 1) < 0);
        _exit(0);
    }
    int status = 0;
    NEED(waitpid(child, &status, 0));
    say("killed by SIGPIPE: %d\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    return 0;
}
