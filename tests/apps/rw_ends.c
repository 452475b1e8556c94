// Blocking exchanges of many sizes between two ends that wait for each other.
//: lane required
//: ends thread fork exec
#include "common.h"

static const size_t sizes[] = {1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 16384, 65536, 65537, 200000};

static void client(int fd)
{
    static __thread char out[200000], in[200000];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill(out, sizes[i], (uint32_t)i);
        write_all(fd, out, sizes[i]);
        read_exact(fd, in, sizes[i]);
        say("%zu bytes: sum %016llx same %d\n", sizes[i], (unsigned long long)sum(in, sizes[i]),
            memcmp(in, out, sizes[i]) == 0);
    }
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(read(fd, in, 1));
    close(fd);
}

static void server(int fd)
{
    static __thread char data[65536];
    uint64_t total = 0, digest = SUM_START;
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0) {
        digest = sum_more(digest, data, (size_t)n);
        total += (uint64_t)n;
        write_all(fd, data, (size_t)n);
    }
    say("end of stream %zd after %llu bytes, sum %016llx\n", n, (unsigned long long)total,
        (unsigned long long)digest);
    close(fd);
}

TWO_ENDS(client, server)
