// Calls of the C library that enter the kernel by themselves: formatted printing, also by its
// fortified names, and asynchronous I/O. Each lies between plain calls on the same socket.
//: lane required
//: family 4
//: timeout 120
#include "common.h"
#include <aio.h>

static int printed(int fd, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vdprintf(fd, format, args);
    va_end(args);
    return n;
}

static void show_line(int fd, int len)
{
    char line[64] = {0};
    read_exact(fd, line, (size_t)len);
    say("%s", line);
}

static void printing(void)
{
    struct pair p = pair_open();
    SHOW(write(p.a, "plain first\n", 12));
    SHOW(dprintf(p.a, "dprintf %4d\n", 1));
    SHOW(write(p.a, "plain again\n", 12));
    for (int i = 0; i < 3; i++)
        show_line(p.b, 12 + (i == 1));
    close(p.a), close(p.b);

    p = pair_open();
    SHOW(write(p.a, "plain first\n", 12));
    SHOW(printed(p.a, "vdprintf %3d\n", 2));
    SHOW(write(p.a, "plain again\n", 12));
    for (int i = 0; i < 3; i++)
        show_line(p.b, 12 + (i == 1));
    close(p.a), close(p.b);
}

static long finish(struct aiocb *cb)
{
    const struct aiocb *list[1] = {cb};
    struct timespec limit = {5, 0};
    while (aio_error(cb) == EINPROGRESS)
        if (aio_suspend(list, 1, &limit) < 0 && errno != EINTR)
            break;
    int error = aio_error(cb);
    if (error == 0)
        return aio_return(cb);
    say("aio: %s\n", error_name(error));
    return -1;
}

static void asynchronous(void)
{
    struct pair p = pair_open();
    char out[12] = "written.aio\n", in[32] = {0};
    SHOW(write(p.a, "plain first\n", 12));
    struct aiocb w = {.aio_fildes = p.a, .aio_buf = out, .aio_nbytes = 12};
    SHOW(aio_write(&w));
    SHOW(finish(&w));
    SHOW(write(p.a, "plain again\n", 12));
    for (int i = 0; i < 3; i++)
        show_line(p.b, 12);

    struct aiocb r = {.aio_fildes = p.a, .aio_buf = in, .aio_nbytes = 12};
    SHOW(write(p.b, "read by aio\n", 12));
    await_pending(p.a, 12);
    SHOW(aio_read(&r));
    SHOW(finish(&r));
    say("%s", in);

    /* One that waits for what comes later. */
    memset(in, 0, sizeof in);
    r = (struct aiocb){.aio_fildes = p.b, .aio_buf = in, .aio_nbytes = 12};
    SHOW(aio_read(&r));
    nap_ms(20);
    SHOW(write(p.a, "comes later\n", 12));
    SHOW(finish(&r));
    say("%s", in);
    close(p.a), close(p.b);

    p = pair_open();
    memset(in, 0, sizeof in);
    r = (struct aiocb){.aio_fildes = p.b, .aio_buf = in, .aio_nbytes = 12};
    w = (struct aiocb){.aio_fildes = p.a, .aio_buf = out, .aio_nbytes = 12};
    r.aio_lio_opcode = LIO_READ;
    w.aio_lio_opcode = LIO_WRITE;
    struct aiocb *both[2] = {&r, &w};
    SHOW(lio_listio(LIO_NOWAIT, both, 2, NULL));
    SHOW(finish(&w));
    SHOW(finish(&r));
    say("%s", in);
    close(p.a), close(p.b);
}

int main(void)
{
    printing();
    asynchronous();
    return 0;
}
