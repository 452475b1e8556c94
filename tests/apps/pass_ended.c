// A connection whose peer has ended its stream is passed (SCM_RIGHTS) to another program while bytes are unread:
// that program reads all of them, and then the end.
//: lane required
#include "passing.h"
#include "unread.h"

#define PIECE 20000

struct how {
    const char *name;
    /* The peer looks for the end of the other direction again and again, and does not sleep. */
    bool peer_polls;
    /* Both ends have ended their streams, and the peer is gone. */
    bool is_closed;
    /* The program that passes the connection keeps its own descriptor. */
    bool keeps;
};

static const struct how hows[] = {
    {"the peer sleeps", false, false, false},
    {"the peer polls", true, false, false},
    {"the peer polls, and the connection is kept", true, false, true},
    {"both have ended", true, true, false},
    {"both have ended, and the connection is kept", false, true, true},
};

static void sender(int port, bool polls)
{
    int fd = connect_loopback(port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    char in[1], *out = malloc(PIECE);
    send_pings(fd);
    fill(out, PIECE, 7);
    write_all(fd, out, PIECE);
    NEED(shutdown(fd, SHUT_WR));
    ssize_t n;
    do
        n = recv(fd, in, 1, polls ? MSG_DONTWAIT : 0);
    while (n < 0 && errno == EAGAIN);
    _exit(n == 0 ? 0 : 1);
}

/* Another program, which is passed the connection. */
static int receiver(int channel)
{
    char *in = malloc(PIECE + 1), *want = malloc(PIECE);
    int fd = receive_fd(channel);
    size_t total = 0;
    ssize_t n;
    while (total <= PIECE && (n = read(fd, in + total, PIECE + 1 - total)) > 0)
        total += (size_t)n;
    fill(want, PIECE, 7);
    say("%zu bytes, then %zd, %s\n", total, n, memcmp(in, want, total) == 0 ? "right" : "wrong");
    return 0;
}

static void pass(const char *program, struct how how)
{
    say("- %s\n", how.name);
    int channel[2], status, curtain = curtain_make();
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t other = (pid_t)NEED(fork());
    if (other == 0) {
        char text[16];
        number(text, channel[1]);
        close(channel[0]);
        NEED(dup2(curtain, 1));
        execl("/proc/self/exe", program, text, (char *)NULL);
        die("execl");
    }
    close(channel[1]);

    int listener = listen_loopback(1), port = port_of(listener);
    pid_t peer = (pid_t)NEED(fork());
    if (peer == 0) {
        close(listener);
        close(channel[0]);
        sender(port, how.peer_polls);
    }
    int fd = (int)NEED(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    close(listener);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    answer_pings(fd);
    await_events(fd, POLLRDHUP);
    await_pending(fd, PIECE);
    if (how.is_closed) {
        NEED(shutdown(fd, SHUT_WR));
        NEED(waitpid(peer, &status, 0));
    }
    send_fd(channel[0], fd);
    if (!how.keeps)
        close(fd);
    NEED(waitpid(other, &status, 0));
    curtain_lift(curtain);
    if (how.keeps)
        close(fd);
    if (!how.is_closed)
        NEED(waitpid(peer, &status, 0));
    say("peer's status %d\n", status);
    close(channel[0]);
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return receiver(atoi(argv[1]));
    for (size_t at = 0; at < sizeof hows / sizeof hows[0]; at++)
        pass(argv[0], hows[at]);
    return 0;
}
