// io_uring reads and writes on connections, fresh ones and ones that have been used; rings that the
// program enters, and rings that a thread of the kernel polls.
//: lane any
#include "ring.h"

static char in[5000], out[5000];

static void exchange(struct ring *ring, struct pair p)
{
    fill(out, sizeof out, 11);
    say_result("send", ring_submit(ring, IORING_OP_SEND, p.a, out, 3000));
    read_exact(p.b, in, 3000);
    say("same bytes: %d\n", memcmp(in, out, 3000) == 0);
    SHOW(write(p.b, out, 2000));
    await_pending(p.a, 2000);
    say_result("recv", ring_submit(ring, IORING_OP_RECV, p.a, in, sizeof in));
    say("same bytes: %d\n", memcmp(in, out, 2000) == 0);
    say_result("write", ring_submit(ring, IORING_OP_WRITE, p.b, out, 100));
    await_pending(p.a, 100);
    say_result("read", ring_submit(ring, IORING_OP_READ, p.a, in, 40));
    SHOW(read(p.a, in + 40, 100));
    say("same bytes: %d\n", memcmp(in, out, 100) == 0);
}

/* The kernel knows the connection by the number under which it is registered. */
static void exchange_registered(struct ring *ring, struct pair p)
{
    int files[2] = {p.a, p.b};
    SHOW(syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, files, 2));
    long result;
    struct io_uring_sqe *sqe = ring_entry(ring, IORING_OP_SEND, 0);
    sqe->flags = IOSQE_FIXED_FILE;
    sqe->addr = (uint64_t)(uintptr_t)out;
    sqe->len = 700;
    ring_enter(ring, &result);
    say_result("send", result);
    await_pending(p.b, 700);
    sqe = ring_entry(ring, IORING_OP_RECV, 1);
    sqe->flags = IOSQE_FIXED_FILE;
    sqe->addr = (uint64_t)(uintptr_t)in;
    sqe->len = sizeof in;
    ring_enter(ring, &result);
    say_result("recv", result);
    say("same bytes: %d\n", memcmp(in, out, 700) == 0);
    SHOW(syscall(SYS_io_uring_register, ring->fd, IORING_UNREGISTER_FILES, NULL, 0));
}

int main(void)
{
    static const uint32_t forms[] = {0, IORING_SETUP_SQPOLL};
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        say("-- form %zu\n", form);
        struct pair p = pair_cold(), beside = pair_open(), registered = pair_open();
        struct ring ring;
        if (!ring_open(&ring, forms[form]))
            skip("io_uring is not available");
        for (int warmed = 0; warmed < 2; warmed++) {
            say("-- warmed %d\n", warmed);
            if (warmed)
                warm(p.a, p.b);
            exchange(&ring, p);
        }
        exchange_registered(&ring, registered);
        SHOW(shutdown(p.b, SHUT_WR));
        say_result("recv", ring_submit(&ring, IORING_OP_RECV, p.a, in, sizeof in));
        say_result("close", ring_submit(&ring, IORING_OP_CLOSE, p.a, NULL, 0));
        SHOW(read(p.a, in, 1));
        SHOW(read(p.b, in, 1));
        close(p.b);
        warm(beside.a, beside.b);
        SHOW(close(ring.fd));
        warm(beside.a, beside.b);
        pair_close(beside);
        pair_close(registered);
    }
    return 0;
}
