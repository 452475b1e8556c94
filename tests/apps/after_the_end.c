// What is said of a connection whose peer has reset it or was killed: again and again, beside unread bytes, and by
// select for exceptions alone.
//: lane required
#include "unread.h"

enum how { RESET, KILLED, CLOSED, HOWS };

static const char *const names[] = {"reset", "killed", "closed"};

static void leave(int port, enum how how, size_t unread, int go)
{
    int fd = connect_loopback(port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    char in[1], *out = calloc(1, unread + 1);
    send_pings(fd);
    write_all(fd, out, unread);
    read_exact(go, in, 1);
    if (how == RESET) {
        struct linger now = {1, 0};
        NEED(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    }
    if (how == KILLED)
        raise(SIGKILL);
    close(fd);
    _exit(0);
}

/* A connection whose peer is gone and has left so many bytes. */
static int left_by_peer(enum how how, size_t unread)
{
    int listener = listen_loopback(1), port = port_of(listener), go[2], status;
    NEED(pipe(go));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        close(listener);
        leave(port, how, unread, go[0]);
    }
    int fd = (int)NEED(accept(listener, NULL, NULL));
    close(listener);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    answer_pings(fd);
    await_pending(fd, (int)unread);
    write_all(go[1], "g", 1);
    NEED(waitpid(child, &status, 0));
    AWAIT(({
        struct tcp_info info;
        socklen_t len = sizeof info;
        NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
        info.tcpi_state != TCP_ESTABLISHED;
    }));
    close(go[0]);
    close(go[1]);
    return fd;
}

static void for_exceptions(enum how how)
{
    int fd = left_by_peer(how, 0);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {0, 150000};
    long long begun = now_ms();
    SHOW(select(fd + 1, NULL, NULL, &set, &time));
    say("its time was waited for: %d\n", now_ms() - begun >= 149);
    close(fd);
}

static void reads(enum how how)
{
    int fd = left_by_peer(how, 0);
    char byte;
    SHOW(recv(fd, &byte, 1, 0));
    for (int i = 0; i < 5; i++)
        SHOW(recv(fd, &byte, 1, MSG_DONTWAIT));
    close(fd);
}

static void beside_bytes(enum how how)
{
    int fd = left_by_peer(how, 100);
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLRDHUP};
    for (int i = 0; i < 3; i++) {
        SHOW(poll(&entry, 1, 0));
        say("readable %d, ended %d\n", entry.revents & POLLIN ? 1 : 0,
            entry.revents & POLLRDHUP ? 1 : 0);
    }
    char in[200];
    SHOW(recv(fd, in, sizeof in, 0));
    SHOW(recv(fd, in, sizeof in, 0));
    close(fd);
}

int main(void)
{
    for (int how = 0; how < HOWS; how++) {
        say("-- %s\n", names[how]);
        for_exceptions((enum how)how);
        reads((enum how)how);
        if (how != RESET)
            beside_bytes((enum how)how);
    }
    return 0;
}
