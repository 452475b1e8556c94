// A program that tries again and again to read, and then waits by the kernel's own asynchronous I/O (io_submit(2),
// IOCB_CMD_POLL), as libev does.
//: lane any
#include "common.h"

#include <linux/aio_abi.h>

enum { ROUNDS = 1500, TRIES = 20 };

static void *echo(void *argument)
{
    int fd = *(int *)argument;
    char data[64];
    uint32_t random = 7;
    ssize_t n;
    while ((n = read(fd, data, sizeof data)) > 0) {
        if (next_random(&random) % 8 == 0)
            usleep(300);
        write_all(fd, data, (size_t)n);
    }
    return NULL;
}

/* Whether the kernel reports that there is something to read. */
static bool wait_by_aio(aio_context_t context, int fd)
{
    struct iocb request = {
        .aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_POLL, .aio_buf = POLLIN};
    struct iocb *list = &request;
    struct io_event event;
    struct timespec time = {PATIENCE_SECONDS / 2, 0};
    if (syscall(SYS_io_submit, context, 1, &list) != 1) {
        say("io_submit: %s\n", error_name(errno));
        return false;
    }
    return syscall(SYS_io_getevents, context, 1, 1, &event, &time) == 1;
}

int main(void)
{
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 8, &context) < 0)
        skip("the kernel has no asynchronous I/O");
    /* What is no control block is the kernel's to refuse. */
    SHOW(syscall(SYS_io_submit, context, 1, NULL));
    struct pair p = pair_cold();
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, echo, &p.b));
    set_nonblocking(p.a, true);
    char out[64], in[64];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        fill(out, sizeof out, i);
        write_all(p.a, out, sizeof out);
        size_t got = 0;
        for (int tries = 0; got < sizeof in;) {
            ssize_t n = recv(p.a, in + got, sizeof in - got, 0);
            if (n > 0) {
                got += (size_t)n;
            } else if (n == 0 || errno != EAGAIN) {
                say("round %u: %s\n", i, n == 0 ? "EOF" : error_name(errno));
                return 1;
            } else if (++tries >= TRIES) {
                tries = 0;
                if (!wait_by_aio(context, p.a)) {
                    say("round %u: no event\n", i);
                    return 1;
                }
            }
        }
        if (memcmp(in, out, sizeof in) != 0)
            say("round %u: bytes differ\n", i);
    }
    say("all rounds\n");
    close(p.a);
    NEED(-pthread_join(thread, NULL));
    close(p.b);
    return 0;
}
