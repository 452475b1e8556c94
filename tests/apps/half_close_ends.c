// Half-close between two ends that wait: all that was sent arrives before the end.
//: lane required
//: ends thread fork exec
#include "common.h"

static void client(int fd)
{
    static __thread char data[100000];
    for (uint32_t i = 0; i < 20; i++) {
        fill(data, sizeof data, i);
        write_all(fd, data, sizeof data);
    }
    SHOW(shutdown(fd, SHUT_WR));
    uint64_t digest = SUM_START;
    size_t total = 0;
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0) {
        digest = sum_more(digest, data, (size_t)n);
        total += (size_t)n;
    }
    say("answer %zu bytes, end %zd, sum %016llx\n", total, n, (unsigned long long)digest);
    SHOW(close(fd));
}

static void server(int fd)
{
    static __thread char data[100000];
    uint64_t digest = SUM_START;
    size_t total = 0;
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0) {
        digest = sum_more(digest, data, (size_t)n);
        total += (size_t)n;
    }
    say("%zu bytes, end %zd, sum %016llx\n", total, n, (unsigned long long)digest);
    for (uint32_t i = 0; i < 20; i++) {
        fill(data, sizeof data, 100 + i);
        write_all(fd, data, sizeof data);
    }
    SHOW(close(fd));
}

TWO_ENDS(client, server)
