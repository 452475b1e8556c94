/*
 * A connection with bytes that are unread, and whose sender sleeps: with lanes they lie in its ring.
 */
#ifndef SLUICE_APPS_UNREAD_H
#define SLUICE_APPS_UNREAD_H

#include "common.h"

/* Up to this size a message is wholly there before it is read, on any machine. */
#define PIECE_WHOLE 30000

UNUSED static void number(char *to, long value)
{
    snprintf(to, 16, "%ld", value);
}

/* For the next peers: whether nobody keeps the connection open while they are waited for. */
static bool peer_awaits_end;

/* As `warm`, where the other side is another process, which calls `answer_pings`. */
UNUSED static void send_pings(int fd)
{
    char in[4];
    for (int half = 0; half < 2; half++) {
        for (long i = 0; i < knob("APP_WARM", 64); i++) {
            write_all(fd, "ping", 4);
            read_exact(fd, in, 4);
        }
        nap_ms(half == 0 ? knob("APP_PAUSE_MS", 50) : 0);
    }
}

UNUSED static void answer_pings(int fd)
{
    char in[4];
    for (long i = 0; i < 2 * knob("APP_WARM", 64); i++) {
        read_exact(fd, in, 4);
        write_all(fd, in, 4);
    }
}

/* A message of `piece` bytes goes while the other side is busy, and more of it after a while; then the sender
   sleeps until it is answered. */
static void peer(int port, size_t piece)
{
    int fd = connect_loopback(port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    char in[64], *out = malloc(piece);
    send_pings(fd);
    fill(out, piece, 7);
    write_all(fd, out, piece);
    ssize_t n = read(fd, in, 6);
    if (n < 0)
        say("peer: %s\n", error_name(errno));
    else
        say("peer: %.*s\n", (int)n, in);
    if (peer_awaits_end) {
        /* The end, and not that bytes were lost. */
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(read(fd, in, 1));
    }
    close(fd);
    _exit(0);
}

struct talk {
    int fd;
    pid_t peer;
    int curtain;
};

UNUSED static struct talk talk_open(size_t piece)
{
    struct talk t;
    int listener = listen_loopback(1);
    int port = port_of(listener);
    t.curtain = curtain_make();
    t.peer = (pid_t)NEED(fork());
    if (t.peer == 0) {
        close(listener);
        NEED(dup2(t.curtain, 1));
        peer(port, piece);
    }
    t.fd = (int)NEED(accept(listener, NULL, NULL));
    close(listener);
    set_int(t.fd, IPPROTO_TCP, TCP_NODELAY, 1);
    answer_pings(t.fd);
    int unread = 0;
    /* What is more than the kernel's buffers hold need not have come. */
    int expected = piece > PIECE_WHOLE ? 1 : (int)piece;
    AWAIT((ioctl(t.fd, FIONREAD, &unread), unread >= expected));
    AWAIT(thread_sleeps(t.peer, t.peer));
    return t;
}

UNUSED static void talk_end(struct talk t)
{
    int status;
    NEED(waitpid(t.peer, &status, 0));
    say("peer's status %d\n", status);
    curtain_lift(t.curtain);
}

#endif
