/* One call that sends, in all ways there are. */
#include "chaos.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

static enum operation choose(struct flow *flow, bool blocks)
{
    static const enum operation KINDS[] = {SEND,    SEND,    SEND,    SEND,     SEND,     SEND,       WRITE,
                                           WRITE,   WRITE,   WRITEV,  WRITEV,   SENDMSG,  SENDMSG,    SENDMSG,
                                           SENDMSG, SENDFILE, SENDFILE, SPLICE_OUT, MORE, SEND};
    struct random *random = &flow->random;
    enum operation call = allowed(random, KINDS[below(random, sizeof KINDS / sizeof *KINDS)], SEND, MORE);
    if (call == SPLICE_OUT && !(flow->may_splice && blocks))
        call = SEND;
    /* These have no flag that keeps them from waiting. */
    if (!blocks && !flow->nonblocking && (call == WRITE || call == WRITEV || call == SENDFILE))
        call = SENDMSG;
    return call;
}

static ssize_t by_sendfile(struct flow *flow, size_t count)
{
    enum { BEGIN = 100 };
    int file = memfd_create("chaos", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, flow->bytes, count, BEGIN) != (ssize_t)count) {
        perror("a file to send");
        exit(2);
    }
    off_t at = BEGIN;
    ssize_t sent = sendfile(flow->fd, file, &at, count);
    int error = errno;
    close(file);
    if (sent > 0 && at != BEGIN + sent)
        violation("SENDFILE", flow->connection, flow->side, "offset %ld after %zd bytes", (long)at, sent);
    errno = error;
    return sent;
}

/* All of it: what is in the pipe has to come out. */
static int by_splice(struct flow *flow, size_t count)
{
    struct direction *d = outward(flow);
    if (flow->pipe[0] < 0 && pipe2(flow->pipe, O_CLOEXEC) != 0)
        return WAS_INTERRUPTED;
    ssize_t held = write(flow->pipe[1], flow->bytes, count);
    if (held < 0)
        return WAS_INTERRUPTED;
    for (ssize_t left = held; left > 0;) {
        ssize_t moved = splice(flow->pipe[0], NULL, flow->fd, NULL, (size_t)left, 0);
        if (moved > 0) {
            left -= moved;
            d->sent += (uint64_t)moved;
        } else if (moved == 0) {
            violation("SPLICE", flow->connection, flow->side, "0 of %zd bytes", left);
            return OVER;
        } else if (errno == EAGAIN) {
            usleep(1000);
        } else if (errno != EINTR) {
            return call_failed(flow, true);
        }
    }
    return (int)held;
}

int send_some(struct flow *flow, size_t count_, bool blocks)
{
    enum { PIPE_BYTES = 14 * 4096 };
    struct direction *d = outward(flow);
    uint64_t offset = d->sent;
    struct iovec pieces[8];
    struct msghdr message = {.msg_iov = pieces};
    bool asks = !blocks && (!flow->nonblocking || below(&flow->random, 2));
    int flags = MSG_NOSIGNAL | (asks ? MSG_DONTWAIT : 0);
    enum operation call = choose(flow, blocks);
    if (call == SPLICE_OUT && count_ > PIPE_BYTES)
        count_ = PIPE_BYTES;
    fill(flow->connection, flow->side, offset, flow->bytes, count_);
    mutate_before_send(flow, offset, &count_);
    if (offset + count_ > d->offered)
        d->offered = offset + count_;
    d->send_call = call;
    count(call);
    ssize_t sent;
    switch (call) {
    case WRITE:
        sent = write(flow->fd, flow->bytes, count_);
        break;
    case WRITEV:
        sent = writev(flow->fd, pieces, (int)cut_up(&flow->random, flow->bytes, count_, pieces));
        break;
    case SENDMSG:
        message.msg_iovlen = cut_up(&flow->random, flow->bytes, count_, pieces);
        sent = sendmsg(flow->fd, &message, flags);
        break;
    case SENDFILE:
        sent = by_sendfile(flow, count_);
        break;
    case SPLICE_OUT:
        sent = by_splice(flow, count_);
        note(call, flow->connection, flow->side, offset, sent);
        return (int)sent;
    case MORE:
        if (offset + count_ < d->total && !flow->in_turns)
            flags |= MSG_MORE;
        /* fall through */
    default:
        sent = send(flow->fd, flow->bytes, count_, flags);
    }
    note(call, flow->connection, flow->side, offset, sent < 0 ? -errno : sent);
    if (sent < 0)
        return call_failed(flow, true);
    if (sent == 0 || sent > (ssize_t)count_) {
        violation("SENT", flow->connection, flow->side, "%s returned %zd of %zu", operation_names[call], sent, count_);
        return OVER;
    }
    d->sent = offset + (uint64_t)sent;
    return (int)sent;
}
