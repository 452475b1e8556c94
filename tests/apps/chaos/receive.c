/* One call that receives, in all ways there are, and the check of what came. */
#include "chaos.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/time.h>

static int wrong_bytes(struct flow *flow, const uint8_t *bytes, size_t count, uint64_t offset)
{
    const struct direction *d = inward(flow);
    size_t first = 0;
    while (bytes[first] == flow->expected[first])
        first++;
    violation("BYTES", flow->connection, !flow->side,
              "at %llu (%zu of %zu by %s) %02x and not %02x: bytes of %s; offered %llu, sent %llu",
              (unsigned long long)(offset + first), first, count, operation_names[d->receive_call], bytes[first],
              flow->expected[first], find_bytes(flow->connection, offset + first, bytes + first, count - first),
              (unsigned long long)d->offered, (unsigned long long)d->sent);
    return OVER;
}

/* These came next; without bytes their number alone is looked at. */
static int check(struct flow *flow, const uint8_t *bytes, size_t count, bool is_taken)
{
    struct direction *d = inward(flow);
    uint64_t offset = d->received;
    if (flow->short_before) {
        violation("WAITALL", flow->connection, !flow->side, "less than asked for, and more came at %llu",
                  (unsigned long long)offset);
        return OVER;
    }
    if (bytes != NULL) {
        fill(flow->connection, !flow->side, offset, flow->expected, count);
        if (memcmp(bytes, flow->expected, count) != 0)
            return wrong_bytes(flow, bytes, count, offset);
    }
    if (offset + count > d->offered) {
        violation("INVENTED", flow->connection, !flow->side, "%llu received, %llu offered",
                  (unsigned long long)(offset + count), (unsigned long long)d->offered);
        return OVER;
    }
    if (is_taken)
        d->received = offset + count;
    return (int)count;
}

static int end_of_stream(struct flow *flow, enum operation call)
{
    struct direction *d = inward(flow);
    bool is_whole = d->is_fin && d->received == d->sent;
    note(END_OF_STREAM, flow->connection, !flow->side, d->received, d->is_fin);
    if (!is_whole && !is_cut(flow->connection))
        violation("EOF", flow->connection, !flow->side, "at %llu by %s: sent %llu, offered %llu, fin %llu",
                  (unsigned long long)d->received, operation_names[call], (unsigned long long)d->sent,
                  (unsigned long long)d->offered, (unsigned long long)d->is_fin);
    d->is_eof = 1;
    return 0;
}

static enum operation choose(struct flow *flow, bool blocks)
{
    static const enum operation KINDS[] = {RECV,    RECV,    RECV,    RECV, RECV, READ,    READ,    READ,
                                           READV,   READV,   RECVMSG, RECVMSG, RECVMSG, PEEK, PEEK, WAITALL,
                                           WAITALL, FIONREAD_, FIONREAD_, TRUNC, RCVTIMEO, SPLICE_IN};
    struct random *random = &flow->random;
    enum operation call = allowed(random, KINDS[below(random, sizeof KINDS / sizeof *KINDS)], RECV, RCVTIMEO);
    if (call == SPLICE_IN && !(flow->may_splice && blocks))
        call = RECV;
    if ((call == WAITALL || call == RCVTIMEO) && (!blocks || flow->nonblocking))
        call = RECV;
    /* These have no flag that keeps them from waiting. */
    if (!blocks && !flow->nonblocking && (call == READ || call == READV))
        call = RECVMSG;
    return call;
}

/* All that FIONREAD has promised comes, however many calls that takes. */
static int by_fionread(struct flow *flow, size_t count_, int flags)
{
    struct direction *d = inward(flow);
    int promised = -1;
    if (ioctl(flow->fd, FIONREAD, &promised) != 0) {
        /* As tcp(7) says of a socket that is not connected any more. */
        if (errno != EINVAL)
            violation("FIONREAD", flow->connection, !flow->side, "%s", strerror(errno));
        return WAS_INTERRUPTED;
    }
    note(FIONREAD_, flow->connection, !flow->side, d->received, promised);
    if (promised <= 0) {
        ssize_t got = recv(flow->fd, flow->bytes, count_, flags | MSG_DONTWAIT);
        if (got < 0)
            return call_failed(flow, false);
        return got == 0 ? end_of_stream(flow, FIONREAD_) : check(flow, flow->bytes, (size_t)got, true);
    }
    if (promised > BUFFER_BYTES)
        promised = BUFFER_BYTES;
    ssize_t got = recv(flow->fd, flow->bytes, (size_t)promised, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR)
        return WAS_INTERRUPTED;
    if (got < promised)
        count(FIONREAD_SHORT);
    note(FIONREAD_SHORT, flow->connection, !flow->side, d->received, got < 0 ? -errno : got);
    if (got < 0)
        return call_failed(flow, false);
    if (got == 0 && !is_cut(flow->connection)) {
        violation("FIONREAD", flow->connection, !flow->side, "%d promised, and the stream ends at %llu", promised,
                  (unsigned long long)d->received);
        return OVER;
    }
    return got == 0 ? end_of_stream(flow, FIONREAD_) : check(flow, flow->bytes, (size_t)got, true);
}

static ssize_t by_timeout(struct flow *flow, size_t count_)
{
    struct timeval limit = {0, 1000 + (long)below(&flow->random, 50000)}, none = {0, 0};
    setsockopt(flow->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    uint64_t begin = now_ns();
    ssize_t got = recv(flow->fd, flow->bytes, count_, 0);
    int error = errno;
    /* The kernel counts in ticks, of 10 ms at most. */
    enum { TICK_US = 10000 };
    uint64_t took_us = (now_ns() - begin) / 1000;
    if (got < 0 && error == EAGAIN && took_us + TICK_US < (uint64_t)limit.tv_usec)
        violation("RCVTIMEO", flow->connection, !flow->side, "%ld us were over after %llu us", (long)limit.tv_usec,
                  (unsigned long long)took_us);
    setsockopt(flow->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    errno = error;
    return got;
}

static ssize_t by_splice(struct flow *flow, size_t count_)
{
    enum { PIPE_BYTES = 50000 };
    if (flow->pipe[0] < 0 && pipe2(flow->pipe, O_CLOEXEC) != 0) {
        errno = EINTR;
        return -1;
    }
    ssize_t got = splice(flow->fd, NULL, flow->pipe[1], NULL, count_ > PIPE_BYTES ? PIPE_BYTES : count_, 0);
    for (ssize_t at = 0; at < got;) {
        ssize_t more = read(flow->pipe[0], flow->bytes + at, (size_t)(got - at));
        if (more > 0)
            at += more;
    }
    return got;
}

int receive_some(struct flow *flow, size_t count_, bool blocks)
{
    struct direction *d = inward(flow);
    struct iovec pieces[8];
    struct msghdr message = {.msg_iov = pieces};
    int flags = !blocks && (!flow->nonblocking || below(&flow->random, 2)) ? MSG_DONTWAIT : 0;
    enum operation call = choose(flow, blocks);
    ssize_t got;
    d->receive_call = call;
    count(call);
    mutate(flow, HANG_READER, d->received);
    switch (call) {
    case READ:
        got = read(flow->fd, flow->bytes, count_);
        break;
    case READV:
        got = readv(flow->fd, pieces, (int)cut_up(&flow->random, flow->bytes, count_, pieces));
        break;
    case RECVMSG:
        message.msg_iovlen = cut_up(&flow->random, flow->bytes, count_, pieces);
        got = recvmsg(flow->fd, &message, flags);
        break;
    case PEEK:
        got = recv(flow->fd, flow->bytes, count_, MSG_PEEK | flags);
        break;
    case WAITALL:
        got = recv(flow->fd, flow->bytes, count_, MSG_WAITALL);
        break;
    case FIONREAD_:
        return by_fionread(flow, count_, flags);
    case TRUNC:
        got = recv(flow->fd, below(&flow->random, 2) ? flow->bytes : NULL, count_, MSG_TRUNC | flags);
        break;
    case RCVTIMEO:
        got = by_timeout(flow, count_);
        break;
    case SPLICE_IN:
        got = by_splice(flow, count_);
        break;
    default:
        got = recv(flow->fd, flow->bytes, count_, flags);
    }
    note(call, flow->connection, !flow->side, d->received, got < 0 ? -errno : got);
    if (got < 0) {
        int result = call_failed(flow, false);
        return call == RCVTIMEO && result == TRY_AGAIN ? WAS_INTERRUPTED : result;
    }
    if (got > (ssize_t)count_) {
        violation("RECEIVED", flow->connection, !flow->side, "%s returned %zd of %zu", operation_names[call], got,
                  count_);
        return OVER;
    }
    if (got == 0)
        return call == PEEK ? WAS_INTERRUPTED : end_of_stream(flow, call);
    int result = check(flow, call == TRUNC ? NULL : flow->bytes, (size_t)got, call != PEEK);
    /* Where nobody disturbs it, less than asked for means that the end has come. */
    if (call == WAITALL && got < (ssize_t)count_ && result > 0 && !state->may_be_cut && !is_cut(flow->connection))
        flow->short_before = true;
    return call == PEEK && result > 0 ? WAS_INTERRUPTED : result;
}
