// sendfile with and without an offset pointer, past the end, from and to the wrong things.
//: lane required
#include "common.h"

#include <sys/sendfile.h>

enum { SIZE = 300000 };
static char content[SIZE], in[SIZE];

int main(void)
{
    struct pair p = pair_open();
    fill(content, SIZE, 8);
    int file = (int)NEED(memfd_create("file", 0));
    write_all(file, content, SIZE);

    NEED(lseek(file, 100, SEEK_SET));
    SHOW(sendfile(p.a, file, NULL, 5000));
    SHOW(lseek(file, 0, SEEK_CUR));
    read_exact(p.b, in, 5000);
    say("same bytes: %d\n", memcmp(in, content + 100, 5000) == 0);

    off_t offset = 7000;
    SHOW(sendfile(p.a, file, &offset, 3000));
    say("offset %lld\n", (long long)offset);
    SHOW(lseek(file, 0, SEEK_CUR));
    read_exact(p.b, in, 3000);
    say("same bytes: %d\n", memcmp(in, content + 7000, 3000) == 0);

    off64_t offset64 = SIZE - 10;
    SHOW(sendfile64(p.a, file, &offset64, 3000));
    say("offset %lld\n", (long long)offset64);
    read_exact(p.b, in, 10);
    SHOW(sendfile64(p.a, file, &offset64, 3000));
    offset = -1;
    SHOW(sendfile(p.a, file, &offset, 10));
    SHOW(sendfile(p.a, file, NULL, 0));
    SHOW(sendfile(p.a, p.b, NULL, 10));
    SHOW(sendfile(999, file, NULL, 10));
    SHOW(sendfile(p.a, 999, NULL, 10));
    SHOW(pending(p.b));

    /* Before and after: the stream stays in order. */
    SHOW(write(p.a, "head", 4));
    offset = 0;
    SHOW(sendfile(p.a, file, &offset, 100));
    SHOW(write(p.a, "tail", 4));
    read_exact(p.b, in, 108);
    say("in order: %d\n", !memcmp(in, "head", 4) && !memcmp(in + 4, content, 100) &&
                              !memcmp(in + 104, "tail", 4));

    /* More than fits, non-blocking, with a reader that follows. */
    set_nonblocking(p.a, true);
    offset = 0;
    size_t got = 0;
    while (got < SIZE) {
        if (offset < SIZE && sendfile(p.a, file, &offset, (size_t)(SIZE - offset)) < 0 &&
            errno != EAGAIN)
            die("sendfile");
        ssize_t n = recv(p.b, in + got, SIZE - got, MSG_DONTWAIT);
        if (n > 0)
            got += (size_t)n;
    }
    say("same bytes: %d\n", memcmp(in, content, SIZE) == 0);

    int write_only = (int)NEED(open("/dev/null", O_WRONLY));
    SHOW(sendfile(p.a, write_only, NULL, 10));
    SHOW(shutdown(p.a, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    offset = 0;
    SHOW(sendfile(p.a, file, &offset, 10));
    say("offset %lld\n", (long long)offset);
    pair_close(p);
    return 0;
}
