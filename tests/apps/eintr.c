// A signal during a blocking read or write, with and without SA_RESTART.
//: lane required
#include "common.h"

static atomic_int caught, main_tid;
static struct pair p;
static char big[1 << 16];

static void on_signal(int signal)
{
    (void)signal;
    caught++;
}

static void signal_main(void)
{
    int before = caught;
    await_blocked(&main_tid);
    syscall(SYS_tgkill, getpid(), (int)main_tid, SIGUSR1);
    AWAIT(caught > before);
}

static void *interrupt(void *unused)
{
    (void)unused;
    signal_main();
    return NULL;
}

static void *interrupt_then_send(void *unused)
{
    (void)unused;
    signal_main();
    await_blocked(&main_tid);
    write_all(p.a, "after", 5);
    return NULL;
}

static void *interrupt_then_drain(void *total)
{
    signal_main();
    ssize_t n;
    char data[4096];
    while ((n = read(p.b, data, sizeof data)) > 0)
        *(size_t *)total += (size_t)n;
    return NULL;
}

/*
 * Until no byte fits for a while: one EAGAIN means no more than that there was no room at that
 * instant, as the kernel grows its buffers and bytes go on to the receiver's.
 */
static void fill_up(size_t *sent)
{
    for (int idle = 0; idle < 3; nap_ms(50)) {
        ssize_t n = send(p.a, big, sizeof big, MSG_DONTWAIT);
        if (n < 0) {
            idle++;
            continue;
        }
        for (idle = 0; n > 0; n = send(p.a, big, sizeof big, MSG_DONTWAIT))
            *sent += (size_t)n;
    }
}

int main(void)
{
    main_tid = (int)syscall(SYS_gettid);
    char in[100];
    pthread_t thread;
    struct sigaction action = {.sa_handler = on_signal};

    p = pair_open();
    say("-- without SA_RESTART\n");
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(read(p.b, in, sizeof in));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(recv(p.b, in, sizeof in, MSG_PEEK));
    pthread_join(thread, NULL);
    struct msghdr message = {.msg_iov = &(struct iovec){in, 100}, .msg_iovlen = 1};
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(recvmsg(p.b, &message, 0));
    pthread_join(thread, NULL);
    write_all(p.a, "half", 4);
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(recv(p.b, in, sizeof in, MSG_WAITALL));
    pthread_join(thread, NULL);

    say("-- with SA_RESTART the read goes on\n");
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, interrupt_then_send, NULL);
    SHOW(read(p.b, in, sizeof in));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, interrupt_then_send, NULL);
    SHOW(recv(p.b, in, 5, MSG_WAITALL));
    pthread_join(thread, NULL);

    say("-- with a receive timeout SA_RESTART does not count\n");
    struct timeval limit = {PATIENCE_SECONDS, 0};
    NEED(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(read(p.b, in, sizeof in));
    pthread_join(thread, NULL);

    say("-- writes into a full connection\n");
    action.sa_flags = 0;
    sigaction(SIGUSR1, &action, NULL);
    size_t sent = 0, drained = 0;
    fill_up(&sent);
    pthread_create(&thread, NULL, interrupt, NULL);
    /* On a busy machine TCP may find room for a part only now. */
    ssize_t n = write(p.a, big, sizeof big);
    say("interrupted: %d\n", n < 0 ? errno == EINTR : n < (ssize_t)sizeof big);
    sent += n > 0 ? (size_t)n : 0;
    pthread_join(thread, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    struct timeval none = {0, 0};
    NEED(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    pthread_create(&thread, NULL, interrupt_then_drain, &drained);
    /* How much of it depends on when the receiver has made room. */
    n = write(p.a, big, sizeof big);
    say("a write that went on sent something: %d\n", n > 0);
    sent += (size_t)n;
    close(p.a);
    pthread_join(thread, NULL);
    say("all sent bytes arrived: %d\n", sent == drained);

    say("-- accept and connect's wait\n");
    action.sa_flags = 0;
    sigaction(SIGUSR1, &action, NULL);
    int listener = listen_loopback(1);
    pthread_create(&thread, NULL, interrupt, NULL);
    SHOW(accept(listener, NULL, NULL));
    pthread_join(thread, NULL);
    close(p.b);
    return 0;
}
