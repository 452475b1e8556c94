// io_uring reads and writes on connections, fresh ones and ones that have been used.
//: lane any
#include "common.h"

#include <linux/io_uring.h>

static int ring;
static struct io_uring_params params;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

#define AT(base, offset) ((_Atomic uint32_t *)((base) + (offset)))

static long submit(uint8_t opcode, int fd, void *data, uint32_t len)
{
    uint32_t tail = *AT(sq, params.sq_off.tail), mask = *AT(sq, params.sq_off.ring_mask);
    struct io_uring_sqe *sqe = &sqes[tail & mask];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->addr = (uint64_t)(uintptr_t)data;
    sqe->len = len;
    ((uint32_t *)(sq + params.sq_off.array))[tail & mask] = tail & mask;
    atomic_store(AT(sq, params.sq_off.tail), tail + 1);
    NEED(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    uint32_t head = *AT(cq, params.cq_off.head);
    if (head == atomic_load(AT(cq, params.cq_off.tail)))
        die("no completion");
    uint32_t cq_mask = *AT(cq, params.cq_off.ring_mask);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    long result = cqes[head & cq_mask].res;
    atomic_store(AT(cq, params.cq_off.head), head + 1);
    return result;
}

static void say_result(const char *what, long result)
{
    say("%s = %ld %s\n", what, result, result < 0 ? error_name((int)-result) : "");
}

int main(void)
{
    char in[5000], out[5000];
    struct pair p = pair_cold();
    ring = (int)syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0)
        skip("io_uring is not available");
    size_t sq_bytes = params.sq_off.array + params.sq_entries * 4;
    size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int rights = PROT_READ | PROT_WRITE;
    sq = mmap(NULL, sq_bytes, rights, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    cq = mmap(NULL, cq_bytes, rights, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    sqes = mmap(NULL, params.sq_entries * sizeof *sqes, rights, MAP_SHARED, ring, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
        die("mmap");

    for (int warmed = 0; warmed < 2; warmed++) {
        say("-- warmed %d\n", warmed);
        if (warmed)
            warm(p.a, p.b);
        fill(out, sizeof out, 11);
        say_result("send", submit(IORING_OP_SEND, p.a, out, 3000));
        read_exact(p.b, in, 3000);
        say("same bytes: %d\n", memcmp(in, out, 3000) == 0);
        SHOW(write(p.b, out, 2000));
        await_pending(p.a, 2000);
        say_result("recv", submit(IORING_OP_RECV, p.a, in, sizeof in));
        say("same bytes: %d\n", memcmp(in, out, 2000) == 0);
        say_result("write", submit(IORING_OP_WRITE, p.b, out, 100));
        await_pending(p.a, 100);
        say_result("read", submit(IORING_OP_READ, p.a, in, 40));
        SHOW(read(p.a, in + 40, 100));
        say("same bytes: %d\n", memcmp(in, out, 100) == 0);
    }
    SHOW(shutdown(p.b, SHUT_WR));
    say_result("recv", submit(IORING_OP_RECV, p.a, in, sizeof in));
    say_result("close", submit(IORING_OP_CLOSE, p.a, NULL, 0));
    SHOW(read(p.a, in, 1));
    SHOW(read(p.b, in, 1));
    close(p.b);
    return 0;
}
