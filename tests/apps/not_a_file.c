// Calls for files on a socket: positions, sizes, mappings.
//: lane required
#include "common.h"

int main(void)
{
    struct pair p = pair_open();
    char data[16] = "0123456789abcde";
    struct iovec part = {data, sizeof data};

    SHOW(write(p.a, data, 16));
    await_pending(p.b, 16);
    SHOW(pread(p.b, data, 16, 0));
    SHOW(pwrite(p.b, data, 16, 0));
    SHOW(preadv(p.b, &part, 1, 0));
    SHOW(pwritev(p.b, &part, 1, 0));
    SHOW(preadv2(p.b, &part, 1, 0, 0));
    SHOW(pwritev2(p.b, &part, 1, 0, 0));
    SHOW(lseek(p.b, 0, SEEK_CUR));
    SHOW(lseek(p.b, 0, SEEK_END));
    SHOW(ftruncate(p.b, 0));
    SHOW(fsync(p.b));
    SHOW(fdatasync(p.b));
    SHOW(posix_fadvise(p.b, 0, 10, POSIX_FADV_NORMAL));
    SHOW(posix_fallocate(p.b, 0, 10));
    say("mmap: %s\n",
        mmap(NULL, 4096, PROT_READ, MAP_SHARED, p.b, 0) == MAP_FAILED ? error_name(errno) : "mapped");
    struct stat status;
    SHOW(fstat(p.b, &status));
    say("a socket: %d, size %lld\n", S_ISSOCK(status.st_mode), (long long)status.st_size);
    SHOW(isatty(p.b));

    /* The offset -1 means the file position: preadv2 is then a readv. */
    SHOW(preadv2(p.b, &part, 1, -1, 0));
    SHOW(pwritev2(p.b, &part, 1, -1, 0));
    await_pending(p.a, 16);
    SHOW(read(p.a, data, 16));
    say("%s\n", data);
    SHOW(preadv2(p.b, &part, 1, -1, RWF_NOWAIT));
    pair_close(p);
    return 0;
}
