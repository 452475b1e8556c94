// Connections with very high descriptor numbers, and running out of descriptors.
//: lane required
//: builds plain
#include "common.h"

int main(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < 20000)
        skip("the limit of open files is below 20,000");
    files.rlim_cur = 20000;
    NEED(setrlimit(RLIMIT_NOFILE, &files));
    struct pair p = pair_open();

    int high_a = (int)NEED(fcntl(p.a, F_DUPFD, 19900)), high_b = (int)NEED(fcntl(p.b, F_DUPFD, 19900));
    say("numbers %d %d\n", high_a, high_b);
    close(p.a);
    close(p.b);
    ping_pong_within(high_a, high_b, 200);

    /* All the rest is taken; calls that need a new number fail, the others do not. */
    int null = (int)NEED(open("/dev/null", O_RDONLY)), last = null, next;
    while ((next = dup(null)) >= 0)
        last = next;
    say("full: %s, numbers up to 19999 taken: %d\n", error_name(errno), last == 19999);
    SHOW(socket(family(), SOCK_STREAM, 0));
    SHOW(dup(high_a));
    SHOW(fcntl(high_a, F_DUPFD, 0));
    SHOW(epoll_create1(0));
    SHOW(fcntl(high_a, F_DUPFD, 20000));
    ping_pong_within(high_a, high_b, 200);
    ping_pong_within(high_b, high_a, 200);

    /* A client waits in the queue until a number is free. */
    close(null);
    int listener = listen_loopback(4);
    close(last);
    int client = connect_loopback(port_of(listener));
    SHOW(accept(listener, NULL, NULL));
    close(high_a);
    int accepted = (int)NEED(accept(listener, NULL, NULL));
    ping_pong_within(client, accepted, 200);
    char in[4];
    SHOW(read(high_b, in, sizeof in));
    SHOW(setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 20000}));
    ping_pong_within(client, accepted, 200);

    /* A library that says at the end what it did needs a number for its file. */
    SHOW(setrlimit(RLIMIT_NOFILE, &files));
    NEED(syscall(SYS_close_range, 100, 19000, 0));
    return 0;
}
