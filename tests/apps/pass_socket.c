// A used connection is passed to another process (SCM_RIGHTS), used there, and passed back.
//: lane required
#include "passing.h"

static void exchange(int a, int b, uint32_t seed)
{
    char out[5000], in[5000];
    for (uint32_t i = 0; i < 50; i++) {
        fill(out, sizeof out, seed + i);
        write_all(a, out, sizeof out);
        read_exact(b, in, sizeof in);
        if (memcmp(in, out, sizeof in) != 0)
            say("bytes differ\n");
        write_all(b, in, 77);
        read_exact(a, in, 77);
    }
}

static void stranger(int channel)
{
    char in[100];
    int fd = receive_fd(channel);
    SHOW(read(fd, in, 10));
    SHOW(read(fd, in, 100));
    SHOW(write(fd, "from the stranger", 17));
    char byte;
    read_exact(channel, &byte, 1);
    write_all(fd, "left by the stranger", 20);
    send_fd(channel, fd);
    close(fd);

    /* Both ends of a connection it has never seen. */
    int a = receive_fd(channel), b = receive_fd(channel);
    SHOW(read(b, in, sizeof in));
    exchange(a, b, 900);
    nap_ms(knob("APP_PAUSE_MS", 50));
    exchange(a, b, 950);
    SHOW(close(a));
    SHOW(read(b, in, sizeof in));
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 2)
        stranger(atoi(argv[1]));
    char in[100];
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    int curtain = curtain_make();
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(curtain, 1));
        char number[16];
        snprintf(number, sizeof number, "%d", channel[1]);
        execl("/proc/self/exe", argv[0], number, (char *)NULL);
        die("execl");
    }
    close(channel[1]);
    struct pair p = pair_open(), q = pair_open();

    /* Unread bytes travel with the descriptor. */
    SHOW(write(p.a, "unread when passed", 18));
    send_fd(channel[0], p.b);
    SHOW(close(p.b));
    SHOW(read(p.a, in, sizeof in));
    write_all(channel[0], "g", 1);
    p.b = receive_fd(channel[0]);
    read_exact(p.a, in, 20);
    say("%.20s\n", in);
    exchange(p.a, p.b, 100);
    nap_ms(knob("APP_PAUSE_MS", 50));
    exchange(p.a, p.b, 200);
    exchange(p.b, p.a, 300);

    SHOW(write(q.a, "unread too", 10));
    send_fd(channel[0], q.a);
    send_fd(channel[0], q.b);
    SHOW(close(q.a));
    SHOW(close(q.b));
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    curtain_lift(curtain);

    /* To ourselves: one more name of the same stream. */
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, channel));
    send_fd(channel[0], p.b);
    int twin = receive_fd(channel[1]);
    SHOW(write(p.a, "0123456789", 10));
    SHOW(read(p.b, in, 4));
    SHOW(read(twin, in, 100));
    SHOW(close(p.b));
    exchange(p.a, twin, 400);
    SHOW(close(twin));
    SHOW(read(p.a, in, 1));
    close(p.a);
    return 0;
}
