// A signal handler writes to a connection that the interrupted code is using.
//: lane required
#include "common.h"

enum { RECORD = 8, ROUNDS = 20000 };

static struct pair main_pair, handler_pair;
static atomic_int handler_writes, handler_failures;

static void on_alarm(int signal)
{
    (void)signal;
    int saved = errno;
    char record[RECORD] = "handler";
    if (send(handler_pair.a, record, RECORD, MSG_DONTWAIT) == RECORD)
        handler_writes++;
    else
        handler_failures++;
    errno = saved;
}

int main(void)
{
    main_pair = pair_open();
    handler_pair = pair_open();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);

    char out[RECORD], in[RECORD];
    int wrong = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        fill(out, sizeof out, i);
        write_all(main_pair.a, out, sizeof out);
        read_exact(main_pair.b, in, sizeof in);
        wrong += memcmp(in, out, sizeof in) != 0;
        /* The handler's own stream, read by the code that it interrupts. */
        while (recv(handler_pair.b, in, RECORD, MSG_DONTWAIT) == RECORD) {
            wrong += memcmp(in, "handler", RECORD) != 0;
            handler_writes--;
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    say("wrong records %d, failed writes of the handler %d\n", wrong, handler_failures);
    say("nothing lost: %d\n", AWAIT(pending(handler_pair.b) == handler_writes * RECORD));
    pair_close(main_pair);
    pair_close(handler_pair);
    return 0;
}
