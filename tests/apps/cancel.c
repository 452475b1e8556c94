// Cancelling a thread in a blocking call leaves the connection as it was.
//: lane required
#include "common.h"

static struct pair p;
static atomic_int tid, cleaned;
static char big[1 << 16];

static void cleanup(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *reads(void *how)
{
    char in[16];
    pthread_cleanup_push(cleanup, NULL);
    tid = (int)syscall(SYS_gettid);
    struct pollfd one = {.fd = p.b, .events = POLLIN};
    switch ((intptr_t)how) {
    case 0:
        read(p.b, in, sizeof in);
        break;
    case 1:
        recv(p.b, in, sizeof in, MSG_WAITALL);
        break;
    case 2:
        poll(&one, 1, -1);
        break;
    case 3: {
        struct msghdr message = {.msg_iov = &(struct iovec){in, 16}, .msg_iovlen = 1};
        recvmsg(p.b, &message, 0);
        break;
    }
    case 4:
        for (;;)
            write(p.a, big, sizeof big);
    case 5:
        accept(listen_loopback(1), NULL, NULL);
        break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    p = pair_open();
    char in[16];
    for (intptr_t how = 0; how < 6; how++) {
        pthread_t thread;
        void *result;
        tid = 0;
        cleaned = 0;
        pthread_create(&thread, NULL, reads, (void *)how);
        await_blocked(&tid);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        say("%d: canceled %d cleaned %d\n", (int)how, result == PTHREAD_CANCELED, cleaned);
        if (how == 4) {
            /* The cancelled write has filled the connection; empty it. */
            ssize_t n;
            while ((n = recv(p.b, big, sizeof big, MSG_DONTWAIT)) > 0 || pending(p.b) > 0)
                ;
            nap_ms(10);
            while ((n = recv(p.b, big, sizeof big, MSG_DONTWAIT)) > 0)
                ;
        }
        SHOW(write(p.a, "still there", 11));
        await_pending(p.b, 11);
        SHOW(read(p.b, in, sizeof in));
        SHOW(write(p.b, "both ways", 9));
        await_pending(p.a, 9);
        SHOW(read(p.a, in, sizeof in));
    }
    pair_close(p);
    return 0;
}
