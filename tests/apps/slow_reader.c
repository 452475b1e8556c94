// A reader that sleeps: the writer is held back, and nothing is lost when it goes on.
//: lane required
//: ends thread fork
#include "common.h"

enum { TOTAL = 24 << 20 };

static void client(int fd)
{
    static __thread char data[100000];
    size_t sent = 0;
    uint64_t digest = SUM_START;
    set_nonblocking(fd, true);
    int full = 0;
    for (uint32_t i = 0; sent < TOTAL; i++) {
        size_t len = sizeof data, at = 0;
        fill(data, len, i);
        digest = sum_more(digest, data, len);
        while (at < len) {
            ssize_t n = write(fd, data + at, len - at);
            if (n > 0) {
                at += (size_t)n;
            } else if (n < 0 && errno == EAGAIN) {
                struct pollfd p = {.fd = fd, .events = POLLOUT};
                /* While the reader sleeps, nothing must say that there is room for ever. */
                if (poll(&p, 1, 100) == 0 && full++ == 0)
                    meet();
            } else {
                die("write");
            }
        }
        sent += len;
    }
    say("held back %d, sent %zu sum %016llx\n", full > 0, sent, (unsigned long long)digest);
    close(fd);
}

static void server(int fd)
{
    static __thread char data[3000];
    /* Sleeps until the writer has found the connection full. */
    meet();
    uint64_t digest = SUM_START;
    size_t got = 0;
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0) {
        digest = sum_more(digest, data, (size_t)n);
        got += (size_t)n;
        if (got % (4 << 20) < (size_t)n)
            nap_ms(20);
    }
    say("got %zu sum %016llx, end %zd\n", got, (unsigned long long)digest, n);
    close(fd);
}

TWO_ENDS(client, server)
