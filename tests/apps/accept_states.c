// accept and accept4: flags, addresses, non-blocking, a client that has gone, inherited options.
//: lane any
#include "common.h"

int main(void)
{
    char in[64];
    int listener = listen_loopback(16);
    int port = port_of(listener);
    SHOW(accept4(listener, NULL, NULL, 0x7));
    SHOW(accept(-1, NULL, NULL));
    int pipes[2];
    NEED(pipe(pipes));
    SHOW(accept(pipes[0], NULL, NULL));
    set_nonblocking(listener, true);
    SHOW(accept(listener, NULL, NULL));

    for (int flags = 0; flags < 4; flags++) {
        int client = connect_loopback(port);
        await_events(listener, POLLIN);
        struct sockaddr_storage address, own;
        socklen_t len = sizeof address, own_len = sizeof own;
        int fd = (int)NEED(accept4(listener, (struct sockaddr *)&address, &len,
                                   (flags & 1 ? SOCK_NONBLOCK : 0) | (flags & 2 ? SOCK_CLOEXEC : 0)));
        NEED(getsockname(client, (struct sockaddr *)&own, &own_len));
        say("flags %d: O_NONBLOCK %d FD_CLOEXEC %ld, the client's address %d\n", flags,
            !!(fcntl(fd, F_GETFL) & O_NONBLOCK), (long)fcntl(fd, F_GETFD),
            len == own_len && memcmp(&address, &own, len) == 0);
        close(fd);
        close(client);
    }

    say("-- a client that wrote and left before accept\n");
    int client = connect_loopback(port);
    SHOW(write(client, "gone", 4));
    SHOW(close(client));
    await_events(listener, POLLIN);
    int fd = (int)SHOW_OK(accept(listener, NULL, NULL));
    SHOW(read(fd, in, sizeof in));
    SHOW(read(fd, in, sizeof in));
    close(fd);

    say("-- a short address buffer\n");
    client = connect_loopback(port);
    await_events(listener, POLLIN);
    char address[4];
    socklen_t len = sizeof address;
    fd = (int)SHOW_OK(accept(listener, (struct sockaddr *)address, &len));
    say("length %u\n", len);
    close(fd);
    close(client);

    say("-- one listener, accepting in parent and child\n");
    set_nonblocking(listener, false);
    for (int round = 0; round < 4; round++) {
        pid_t child = (pid_t)NEED(fork());
        if (child == 0) {
            int mine = (int)NEED(accept(listener, NULL, NULL));
            char data[32];
            for (int i = 0; i < 200; i++) {
                read_exact(mine, data, sizeof data);
                write_all(mine, data, sizeof data);
            }
            _exit(0);
        }
        client = connect_loopback(port);
        for (uint32_t i = 0; i < 200; i++) {
            char out[32];
            fill(out, sizeof out, i);
            write_all(client, out, sizeof out);
            read_exact(client, in, 32);
            if (memcmp(in, out, 32) != 0)
                say("bytes differ\n");
        }
        SHOW(read(client, in, 1));
        int status;
        NEED(waitpid(child, &status, 0));
        say("status %d\n", status);
        close(client);
    }

    say("-- two listeners of one port\n");
    int twins[2];
    struct sockaddr_storage where;
    int twin_port = 0;
    for (int i = 0; i < 2; i++) {
        twins[i] = (int)NEED(socket(family(), SOCK_STREAM, 0));
        set_int(twins[i], SOL_SOCKET, SO_REUSEPORT, 1);
        socklen_t where_len = loopback(&where, twin_port);
        SHOW(bind(twins[i], (struct sockaddr *)&where, where_len));
        SHOW(listen(twins[i], 8));
        set_nonblocking(twins[i], true);
        twin_port = port_of(twins[i]);
    }
    int served = 0;
    for (int i = 0; i < 20; i++) {
        client = connect_loopback(twin_port);
        AWAIT((fd = accept(twins[0], NULL, NULL)) >= 0 || (fd = accept(twins[1], NULL, NULL)) >= 0);
        set_nonblocking(fd, false);
        ping_pong_within(client, fd, 100);
        served++;
        close(fd);
        close(client);
    }
    say("served %d\n", served);

    say("-- closing the listener with clients in the queue\n");
    client = connect_loopback(port);
    await_events(listener, POLLIN);
    SHOW(close(listener));
    await_events(client, POLLIN);
    SHOW(read(client, in, 1));
    return 0;
}
