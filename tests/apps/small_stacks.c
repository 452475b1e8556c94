// Calls from threads whose stack is as small as it may be.
//: lane required
#include "common.h"

#include <sys/sendfile.h>

enum { FILE_BYTES = 50000, SPARE = 12 * 1024 };

struct task {
    void (*call)(struct task *);
    struct pair p;
    int file;
};

static void by_select(struct task *task)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(task->p.b, &set);
    struct timeval time = {0, 1000};
    SHOW(select(task->p.b + 1, &set, NULL, NULL, &time));
}

static void by_poll(struct task *task)
{
    struct pollfd entries[20];
    for (int i = 0; i < 20; i++)
        entries[i] = (struct pollfd){.fd = task->p.b, .events = POLLIN};
    SHOW(poll(entries, 20, 1));
    SHOW(poll(entries, 1, 1));
}

static void by_epoll(struct task *task)
{
    int ep = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(ep, EPOLL_CTL_ADD, task->p.b, &event));
    SHOW(epoll_wait(ep, &event, 1, 1));
    close(ep);
}

static void by_sendfile(struct task *task)
{
    off_t offset = 0;
    SHOW(sendfile(task->p.a, task->file, &offset, FILE_BYTES));
}

static void by_discard(struct task *task)
{
    SHOW(send(task->p.a, "0123456789", 10, 0));
    SHOW(recv(task->p.b, NULL, 10, MSG_TRUNC | MSG_WAITALL));
}

static void by_readv(struct task *task)
{
    char bytes[10];
    struct iovec parts[] = {{bytes, 4}, {bytes + 4, 6}};
    SHOW(writev(task->p.a, parts, 2));
    SHOW(readv(task->p.b, parts, 2));
}

static void *run(void *argument)
{
    struct task *task = argument;
    task->call(task);
    return NULL;
}

static void in_small_stack(struct task *task, const char *name, void (*call)(struct task *))
{
    say("- %s\n", name);
    task->call = call;
    pthread_attr_t attributes;
    pthread_t thread;
    NEED(-pthread_attr_init(&attributes));
    /* `say` wants some, and so does the thread itself. */
    NEED(-pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN + SPARE));
    NEED(-pthread_create(&thread, &attributes, run, task));
    NEED(-pthread_join(thread, NULL));
}

int main(void)
{
    static char bytes[FILE_BYTES], in[FILE_BYTES];
    fill(bytes, sizeof bytes, 1);
    struct task task = {.p = pair_open(), .file = (int)NEED(memfd_create("file", 0))};
    write_all(task.file, bytes, sizeof bytes);
    in_small_stack(&task, "select", by_select);
    in_small_stack(&task, "poll", by_poll);
    in_small_stack(&task, "epoll", by_epoll);
    in_small_stack(&task, "discard", by_discard);
    in_small_stack(&task, "readv", by_readv);
    in_small_stack(&task, "sendfile", by_sendfile);
    read_exact(task.p.b, in, sizeof in);
    say("the file is %s\n", memcmp(in, bytes, sizeof in) == 0 ? "right" : "wrong");
    pair_close(task.p);
    return 0;
}
