// connect: blocking, non-blocking, refused, twice, to itself, disconnect, unroutable.
//: lane any
#include "common.h"

static int socket_error(int fd)
{
    int error = -1;
    socklen_t len = sizeof error;
    NEED(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    return error;
}

int main(void)
{
    struct sockaddr_storage address;
    char in[10];
    signal(SIGPIPE, SIG_IGN);
    int listener = listen_loopback(16);
    socklen_t len = loopback(&address, port_of(listener));
    struct sockaddr *to = (struct sockaddr *)&address;

    say("-- before connecting\n");
    int fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    SHOW(read(fd, in, 1));
    SHOW(write(fd, in, 1));
    SHOW(send(fd, in, 1, MSG_NOSIGNAL));
    SHOW(recv(fd, in, 1, MSG_DONTWAIT));
    SHOW(accept(fd, NULL, NULL));
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    SHOW(getpeername(fd, (struct sockaddr *)&peer, &peer_len));
    SHOW(connect(fd, to, 3));

    say("-- blocking\n");
    SHOW(connect(fd, to, len));
    SHOW(connect(fd, to, len));
    SHOW(bind(fd, to, len));
    SHOW(listen(fd, 1));
    int peer_fd = (int)NEED(accept(listener, NULL, NULL));
    SHOW(write(peer_fd, "x", 1));
    SHOW(read(fd, in, sizeof in));
    close(fd);
    close(peer_fd);

    say("-- non-blocking\n");
    fd = (int)NEED(socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(fd, to, len));
    await_events(fd, POLLOUT);
    say("SO_ERROR %d\n", socket_error(fd));
    SHOW(connect(fd, to, len));
    SHOW(connect(fd, to, len));
    peer_fd = (int)NEED(accept(listener, NULL, NULL));
    SHOW(write(fd, "y", 1));
    SHOW(read(peer_fd, in, sizeof in));
    close(fd);
    close(peer_fd);

    say("-- the server speaks first\n");
    fd = (int)NEED(socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(fd, to, len));
    peer_fd = (int)NEED(accept(listener, NULL, NULL));
    SHOW(write(peer_fd, "hello", 5));
    await_events(fd, POLLIN);
    SHOW(read(fd, in, sizeof in));
    close(fd);
    close(peer_fd);

    say("-- refused\n");
    int unused = (int)NEED(socket(family(), SOCK_STREAM, 0));
    struct sockaddr_storage dead;
    socklen_t dead_len = loopback(&dead, 0);
    NEED(bind(unused, (struct sockaddr *)&dead, dead_len));
    dead_len = loopback(&dead, port_of(unused));
    fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    SHOW(connect(fd, (struct sockaddr *)&dead, dead_len));
    say("SO_ERROR %d\n", socket_error(fd));
    SHOW(write(fd, "x", 1));
    SHOW(connect(fd, to, len));
    SHOW(write(fd, "x", 1));
    peer_fd = (int)NEED(accept(listener, NULL, NULL));
    SHOW(read(peer_fd, in, sizeof in));
    close(fd);
    close(peer_fd);
    fd = (int)NEED(socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(fd, (struct sockaddr *)&dead, dead_len));
    await_events(fd, POLLHUP);
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT};
    SHOW(poll(&p, 1, 0));
    say("revents %#x\n", (unsigned)p.revents);
    say("SO_ERROR %s\n", error_name(socket_error(fd)));
    say("SO_ERROR %d\n", socket_error(fd));
    SHOW(read(fd, in, 1));
    close(fd);

    say("-- dissolved with AF_UNSPEC and connected again\n");
    fd = connect_loopback(port_of(listener));
    peer_fd = (int)NEED(accept(listener, NULL, NULL));
    warm(fd, peer_fd);
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    SHOW(connect(fd, &nobody, sizeof nobody));
    SHOW(recv(fd, in, 1, MSG_DONTWAIT));
    await_events(peer_fd, POLLERR);
    SHOW(read(peer_fd, in, 1));
    close(peer_fd);
    SHOW(connect(fd, to, len));
    peer_fd = (int)NEED(accept(listener, NULL, NULL));
    warm(fd, peer_fd);
    SHOW(write(fd, "again", 5));
    SHOW(read(peer_fd, in, sizeof in));
    close(fd);
    close(peer_fd);

    say("-- a socket connected to itself\n");
    fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    dead_len = loopback(&dead, 0);
    NEED(bind(fd, (struct sockaddr *)&dead, dead_len));
    dead_len = loopback(&dead, port_of(fd));
    SHOW(connect(fd, (struct sockaddr *)&dead, dead_len));
    for (int i = 0; i < 200; i++) {
        write_all(fd, "self", 4);
        read_exact(fd, in, 4);
    }
    SHOW(write(fd, "self", 4));
    SHOW(read(fd, in, sizeof in));
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(read(fd, in, sizeof in));
    close(fd);

    say("-- a wait with a limit, to a listener whose queue is full\n");
    int full = listen_loopback(0);
    dead_len = loopback(&dead, port_of(full));
    int queued[8], connected = 0;
    for (int i = 0; i < 8; i++) {
        queued[i] = (int)NEED(socket(family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
        connect(queued[i], (struct sockaddr *)&dead, dead_len);
    }
    nap_ms(50);
    for (int i = 0; i < 8; i++) {
        struct pollfd one = {.fd = queued[i], .events = POLLOUT};
        connected += poll(&one, 1, 0) == 1 && !(one.revents & POLLERR);
    }
    say("some wait: %d\n", connected < 8);
    fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    struct timeval brief = {0, 50000};
    NEED(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief));
    SHOW(connect(fd, (struct sockaddr *)&dead, dead_len));
    SHOW(connect(fd, (struct sockaddr *)&dead, dead_len));
    return 0;
}
