// Urgent data: MSG_OOB, SO_OOBINLINE, SIOCATMARK, POLLPRI, SIGURG.
//: lane required
#include "common.h"

static atomic_int urgent_signals;

static void on_urgent(int signal)
{
    (void)signal;
    urgent_signals++;
}

static int at_mark(int fd)
{
    int flag = -1;
    return ioctl(fd, SIOCATMARK, &flag) < 0 ? -errno : flag;
}

int main(void)
{
    struct pair p = pair_open();
    char in[100];

    struct sigaction action = {.sa_handler = on_urgent, .sa_flags = SA_RESTART};
    sigaction(SIGURG, &action, NULL);
    SHOW(fcntl(p.b, F_SETOWN, getpid()));

    SHOW(send(p.a, "before", 6, 0));
    await_pending(p.b, 6);
    SHOW(send(p.a, "!", 1, MSG_OOB));
    await_events(p.b, POLLPRI);
    AWAIT(urgent_signals == 1);
    SHOW(send(p.a, "after", 5, 0));
    SHOW(at_mark(p.b));
    SHOW(recv(p.b, in, 1, MSG_OOB | MSG_PEEK));
    SHOW(recv(p.b, in, 1, MSG_OOB));
    say("urgent byte %c\n", in[0]);
    SHOW(recv(p.b, in, 1, MSG_OOB));
    SHOW(recv(p.b, in, sizeof in, 0));
    SHOW(at_mark(p.b));
    AWAIT(recv(p.b, in, sizeof in, MSG_PEEK | MSG_DONTWAIT) == 5);
    SHOW(recv(p.b, in, sizeof in, 0));
    SHOW(at_mark(p.b));

    set_int(p.a, SOL_SOCKET, SO_OOBINLINE, 1);
    SHOW(send(p.b, "ab", 2, 0));
    SHOW(send(p.b, "cd", 2, MSG_OOB));
    SHOW(send(p.b, "ef", 2, 0));
    AWAIT(recv(p.a, in, sizeof in, MSG_PEEK | MSG_DONTWAIT) == 3);
    SHOW(recv(p.a, in, sizeof in, 0));
    SHOW(at_mark(p.a));
    AWAIT(pending(p.a) == 3);
    SHOW(recv(p.a, in, sizeof in, 0));
    say("%.3s\n", in);

    /* The stream goes on as before. */
    warm(p.a, p.b);
    SHOW(write(p.a, "end", 3));
    await_pending(p.b, 3);
    SHOW(read(p.b, in, sizeof in));
    pair_close(p);
    return 0;
}
