// Signals, SO_SNDTIMEO and cancellation end a large write to a reader that is slow but steady.
//: lane required
//: alone
#include "common.h"

enum { SIZE = 64 << 20, TAKEN = 1500, PAUSE_US = 50 };

static struct pair p;
static char *data;
static atomic_int tid, stop, done;
static size_t sent, received;

static void on_signal(int signal)
{
    (void)signal;
}

/* Without a sleep, which may last longer than a writer believes a reader that takes nothing. */
static void pause_briefly(void)
{
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < PAUSE_US);
}

static void *read_slowly(void *unused)
{
    (void)unused;
    char in[TAKEN];
    while (!stop) {
        ssize_t n = recv(p.b, in, sizeof in, MSG_DONTWAIT);
        if (n > 0)
            received += (size_t)n;
        pause_briefly();
    }
    return NULL;
}

static void *write_all_at_once(void *unused)
{
    (void)unused;
    tid = (int)syscall(SYS_gettid);
    ssize_t n = write(p.a, data, SIZE);
    say("wrote a part: %d\n", n > 0 && n < SIZE);
    sent += n > 0 ? (size_t)n : 0;
    done = 1;
    return NULL;
}

static pthread_t reader, writer;

static void start(void)
{
    tid = stop = done = 0;
    pthread_create(&reader, NULL, read_slowly, NULL);
    pthread_create(&writer, NULL, write_all_at_once, NULL);
    AWAIT(tid != 0);
}

/* Leaves the connection empty, unless the writer was cancelled and nobody knows what it wrote. */
static void end(void)
{
    stop = 1;
    pthread_join(reader, NULL);
    static char in[1 << 16];
    ssize_t n;
    while (done && received < sent && (n = read(p.b, in, sizeof in)) > 0)
        received += (size_t)n;
}

static void with_signals(int flags)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
    start();
    nap_ms(20);
    AWAIT(done || (pthread_kill(writer, SIGUSR1), false));
    pthread_join(writer, NULL);
    end();
}

int main(void)
{
    data = calloc(1, SIZE);
    p = pair_open();
    say("-- signals\n");
    with_signals(0);
    with_signals(SA_RESTART);

    say("-- a timeout\n");
    struct timeval brief = {0, 30000}, none = {0, 0};
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief));
    start();
    AWAIT(done);
    pthread_join(writer, NULL);
    end();
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none));

    say("all of it arrived: %d\n", received == sent);

    say("-- cancellation\n");
    start();
    nap_ms(20);
    void *result = NULL;
    pthread_cancel(writer);
    bool joined = AWAIT(pthread_tryjoin_np(writer, &result) == 0);
    say("joined %d, canceled %d\n", joined, result == PTHREAD_CANCELED);
    end();
    pair_close(p);
    return 0;
}
