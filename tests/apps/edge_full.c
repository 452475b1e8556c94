// An edge-triggered writer to a full connection is told of room when there is, and not before.
//: lane required
#include "common.h"

#include <sys/sendfile.h>

enum { PIECE = 1 << 16, ROUNDS = 20 };

static struct pair p;
static char data[PIECE];
static int file;

static ssize_t by_write(void)
{
    return write(p.a, data, sizeof data);
}

static ssize_t by_sendfile(void)
{
    off_t offset = 0;
    return sendfile(p.a, file, &offset, PIECE);
}

/* Until no byte fits for a while, as the kernel grows its buffers. */
static size_t fill_up(ssize_t (*put)(void))
{
    size_t sent = 0;
    for (int idle = 0; idle < 5; nap_ms(30)) {
        ssize_t n = put();
        if (n < 0)
            idle++;
        for (; n > 0; n = put()) {
            sent += (size_t)n;
            idle = 0;
        }
    }
    return sent;
}

static void run(const char *what, ssize_t (*put)(void))
{
    say("-- %s\n", what);
    p = pair_open();
    set_nonblocking(p.a, true);
    int set = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, p.a, &event));
    SHOW(epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000));
    say("events %#x\n", event.events);
    size_t sent = fill_up(put), got = 0;
    while (epoll_wait(set, &event, 1, 20) > 0)
        ;
    int refused = 0, reports = 0;
    for (int i = 0; i < ROUNDS; i++) {
        ssize_t n = put();
        if (n > 0)
            sent += (size_t)n;
        refused += n < 0 && errno == EAGAIN;
        reports += epoll_wait(set, &event, 1, 10);
    }
    /* Not always all: the kernel may grow its buffers even now. */
    say("refused: %d, told of room %d times\n", refused >= ROUNDS / 2, reports);
    /* Bytes that come the other way are no news of room. */
    NEED(write(p.b, "x", 1));
    SHOW(epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000));
    say("events %#x\n", event.events);
    char in[PIECE];
    while (got < sent) {
        ssize_t n = NEED(read(p.b, in, sizeof in));
        got += (size_t)n;
    }
    SHOW(epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000));
    say("events %#x\n", event.events);
    SHOW(put());
    close(set);
    pair_close(p);
}

int main(void)
{
    file = (int)NEED(memfd_create("file", 0));
    write_all(file, data, sizeof data);
    run("write", by_write);
    run("sendfile", by_sendfile);
    return 0;
}
