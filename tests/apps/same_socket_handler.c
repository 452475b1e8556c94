// A signal handler sends and receives on the same descriptors as the code it interrupts.
//: lane required
#include "common.h"

enum { ROUNDS = 3000 };

static struct pair p;
static atomic_long received, sent;

static void take(int flags)
{
    char in[64];
    ssize_t n = recv(p.b, in, sizeof in, flags);
    if (n > 0)
        received += n;
}

static void give(void)
{
    ssize_t n = send(p.a, "0123456789", 10, MSG_DONTWAIT);
    if (n > 0)
        sent += n;
}

static void on_alarm(int signal)
{
    (void)signal;
    int saved = errno;
    give();
    take(MSG_DONTWAIT);
    give();
    errno = saved;
}

int main(void)
{
    p = pair_open();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        give();
        take(MSG_DONTWAIT);
        for (volatile int spin = 0; spin < 2000; spin++)
            ;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    AWAIT((take(MSG_DONTWAIT), received == sent));
    say("every byte arrived once: %d\n", received == sent);
    SHOW(recv(p.b, &(char[1]){0}, 1, MSG_DONTWAIT));
    pair_close(p);
    return 0;
}
