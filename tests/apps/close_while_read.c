// A descriptor closed or shut down while another thread is blocked in it.
//: lane required
#include "common.h"

static struct pair p;
static atomic_int tid;
static long result;
static int result_errno;
static char in[100];

static void *reads(void *fd)
{
    tid = (int)syscall(SYS_gettid);
    errno = 0;
    result = read((int)(intptr_t)fd, in, sizeof in);
    result_errno = errno;
    return NULL;
}

static pthread_t blocked_reader(int fd)
{
    pthread_t thread;
    tid = 0;
    pthread_create(&thread, NULL, reads, (void *)(intptr_t)fd);
    await_blocked(&tid);
    return thread;
}

static void joined(pthread_t thread)
{
    pthread_join(thread, NULL);
    say("the blocked read returned %ld %s\n", result, result < 0 ? error_name(result_errno) : "");
}

int main(void)
{
    say("-- closed: the read goes on until data comes\n");
    p = pair_open();
    pthread_t thread = blocked_reader(p.b);
    SHOW(close(p.b));
    SHOW(write(p.a, "for the closed one", 18));
    joined(thread);
    AWAIT(recv(p.a, in, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN);
    SHOW(recv(p.a, in, 1, MSG_DONTWAIT));
    close(p.a);

    say("-- shut down for reading: the read ends\n");
    p = pair_open();
    thread = blocked_reader(p.b);
    SHOW(shutdown(p.b, SHUT_RD));
    joined(thread);
    pair_close(p);

    say("-- shut down both ways: the read ends\n");
    p = pair_open();
    thread = blocked_reader(p.b);
    SHOW(shutdown(p.b, SHUT_RDWR));
    joined(thread);
    SHOW(read(p.a, in, 1));
    pair_close(p);

    say("-- the peer closes: the read ends\n");
    p = pair_open();
    thread = blocked_reader(p.b);
    SHOW(close(p.a));
    joined(thread);
    close(p.b);

    say("-- the peer resets: the read fails\n");
    p = pair_open();
    thread = blocked_reader(p.b);
    struct linger at_once = {1, 0};
    SHOW(setsockopt(p.a, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    SHOW(close(p.a));
    joined(thread);
    close(p.b);

    say("-- the number is given to another connection while the read is blocked\n");
    p = pair_open();
    struct pair q = pair_open();
    thread = blocked_reader(p.b);
    SHOW(dup2(q.b, p.b) == p.b);
    SHOW(write(q.a, "new", 3));
    await_pending(p.b, 3);
    SHOW(write(p.a, "old one's data", 14));
    joined(thread);
    SHOW(read(p.b, in, sizeof in));
    pair_close(p);
    pair_close(q);
    return 0;
}
