// A fresh connection is passed (SCM_RIGHTS) to another process, which talks by it and closes it. The process that
// passed it has kept it, and goes on with it.
//: lane any
#include "passing.h"

enum { TURNS = 100 };

/* With unread bytes a last close would be a reset, and without any an end. */
static void keep(bool leaves_bytes)
{
    say("- %s\n", leaves_bytes ? "bytes are left" : "nothing is left");
    int channel[2], status;
    char in[8];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t worker = (pid_t)NEED(fork());
    if (worker == 0) {
        int fd = receive_fd(channel[1]);
        for (int i = 0; i < TURNS; i++) {
            read_exact(fd, in, 4);
            write_all(fd, in, 4);
        }
        if (leaves_bytes)
            await_pending(fd, 4);
        close(fd);
        _exit(0);
    }
    struct pair p = pair_cold();
    /* This end is never introduced to the other one. */
    SHOW(recv(p.a, in, 1, MSG_OOB));
    send_fd(channel[0], p.b);
    for (int i = 0; i < TURNS; i++) {
        write_all(p.a, "ping", 4);
        read_exact(p.a, in, 4);
    }
    if (leaves_bytes)
        write_all(p.a, "left", 4);
    NEED(waitpid(worker, &status, 0));
    say("worker's status %d\n", status);
    SHOW(write(p.b, "still", 5));
    SHOW(recv(p.a, in, 5, MSG_WAITALL));
    SHOW(write(p.a, "open", 4));
    SHOW(recv(p.b, in, 4, MSG_WAITALL));
    say("%.4s\n", in);
    close(channel[0]);
    close(channel[1]);
    pair_close(p);
}

int main(void)
{
    keep(false);
    keep(true);
    return 0;
}
