/* An io_uring by bare system calls, as libuv and other event loops use it. */
#ifndef SLUICE_APPS_RING_H
#define SLUICE_APPS_RING_H

#include "common.h"

#include <linux/io_uring.h>

#define AT(base, offset) ((_Atomic uint32_t *)((base) + (offset)))

struct ring {
    int fd;
    struct io_uring_params params;
    char *sq, *cq;
    struct io_uring_sqe *sqes;
    uint32_t prepared;
};

/* False if this machine has none of this form. */
UNUSED static int ring_open(struct ring *ring, uint32_t flags)
{
    memset(ring, 0, sizeof *ring);
    ring->params.flags = flags;
    ring->params.sq_thread_idle = 1000;
    ring->fd = (int)syscall(SYS_io_uring_setup, 16, &ring->params);
    if (ring->fd < 0)
        return 0;
    struct io_uring_params *p = &ring->params;
    size_t sq_bytes = p->sq_off.array + p->sq_entries * 4;
    size_t cq_bytes = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    int rights = PROT_READ | PROT_WRITE;
    ring->sq = mmap(NULL, sq_bytes, rights, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->cq = mmap(NULL, cq_bytes, rights, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, p->sq_entries * sizeof *ring->sqes, rights, MAP_SHARED, ring->fd,
                      IORING_OFF_SQES);
    if (ring->sq == MAP_FAILED || ring->cq == MAP_FAILED || (void *)ring->sqes == MAP_FAILED)
        die("mmap");
    return 1;
}

/* The next entry, empty; it is submitted by ring_enter. */
UNUSED static struct io_uring_sqe *ring_entry(struct ring *ring, uint8_t opcode, int fd)
{
    uint32_t tail = *AT(ring->sq, ring->params.sq_off.tail);
    uint32_t mask = *AT(ring->sq, ring->params.sq_off.ring_mask);
    uint32_t place = (tail + ring->prepared) & mask;
    struct io_uring_sqe *sqe = &ring->sqes[place];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->user_data = ring->prepared;
    ((uint32_t *)(ring->sq + ring->params.sq_off.array))[place] = place;
    ring->prepared++;
    return sqe;
}

/* Submits what is prepared and waits for as many completions; their results, by user_data. */
UNUSED static void ring_enter(struct ring *ring, long *results)
{
    uint32_t count = ring->prepared;
    uint32_t tail = *AT(ring->sq, ring->params.sq_off.tail);
    atomic_store(AT(ring->sq, ring->params.sq_off.tail), tail + count);
    ring->prepared = 0;
    uint32_t flags = IORING_ENTER_GETEVENTS;
    if (ring->params.flags & IORING_SETUP_SQPOLL)
        flags |= IORING_ENTER_SQ_WAKEUP;
    NEED(syscall(SYS_io_uring_enter, ring->fd, count, count, flags, NULL, 0));
    for (uint32_t at = 0; at < count; at++) {
        uint32_t head = *AT(ring->cq, ring->params.cq_off.head);
        if (head == atomic_load(AT(ring->cq, ring->params.cq_off.tail)))
            die("no completion");
        uint32_t mask = *AT(ring->cq, ring->params.cq_off.ring_mask);
        struct io_uring_cqe *cqes = (struct io_uring_cqe *)(ring->cq + ring->params.cq_off.cqes);
        struct io_uring_cqe *cqe = &cqes[head & mask];
        if (results != NULL)
            results[cqe->user_data] = cqe->res;
        atomic_store(AT(ring->cq, ring->params.cq_off.head), head + 1);
    }
}

UNUSED static long ring_submit(struct ring *ring, uint8_t opcode, int fd, void *data, uint32_t len)
{
    struct io_uring_sqe *sqe = ring_entry(ring, opcode, fd);
    sqe->addr = (uint64_t)(uintptr_t)data;
    sqe->len = len;
    long result;
    ring_enter(ring, &result);
    return result;
}

UNUSED static void say_result(const char *what, long result)
{
    say("%s = %ld %s\n", what, result, result < 0 ? error_name((int)-result) : "");
}

#endif
