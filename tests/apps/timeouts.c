// SO_RCVTIMEO and SO_SNDTIMEO end waits with EAGAIN, and only waits.
//: lane required
#include "common.h"

static char data[1 << 16];

int main(void)
{
    struct pair p = pair_open();
    struct timeval brief = {0, 30000}, none = {0, 0};
    char in[64];

    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief));
    SHOW(recv(p.b, in, sizeof in, 0));
    SHOW(read(p.b, in, sizeof in));
    SHOW(recv(p.b, in, sizeof in, MSG_WAITALL));
    SHOW(recv(p.b, in, sizeof in, MSG_PEEK));
    SHOW(write(p.a, "12345", 5));
    SHOW(recv(p.b, in, 10, MSG_WAITALL));
    SHOW(write(p.a, "12345", 5));
    await_pending(p.b, 5);
    SHOW(recv(p.b, in, 10, 0));
    struct msghdr message = {.msg_iov = &(struct iovec){in, 10}, .msg_iovlen = 1};
    SHOW(recvmsg(p.b, &message, 0));
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));

    struct timeval got = {-1, -1};
    socklen_t len = sizeof got;
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief));
    SHOW(getsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &got, &len));
    say("%ld s, positive: %d\n", (long)got.tv_sec, got.tv_usec > 0);
    fill(data, sizeof data, 5);
    /* Until everything between the two ends is full; the last writes time out. */
    uint64_t sent = 0, sent_sum = SUM_START;
    int timeouts = 0;
    while (timeouts < 3) {
        ssize_t n = write(p.a, data, sizeof data);
        if (n > 0) {
            sent += (uint64_t)n;
            sent_sum = sum_more(sent_sum, data, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            timeouts++;
        } else {
            die("write");
        }
    }
    say("timed out %d times, something was sent: %d\n", timeouts, sent > 0);
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none));
    close(p.a);
    uint64_t received = 0, received_sum = SUM_START;
    ssize_t n;
    while ((n = read(p.b, data, sizeof data)) > 0) {
        received += (uint64_t)n;
        received_sum = sum_more(received_sum, data, (size_t)n);
    }
    say("end %zd, received all: %d, same sum: %d\n", n, received == sent, received_sum == sent_sum);
    close(p.b);

    struct timeval wrong = {0, 1000000};
    p = pair_open();
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
    SHOW(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &brief, 1));
    pair_close(p);
    return 0;
}
