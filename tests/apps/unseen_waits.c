// A program that reads and writes through the C library and waits by epoll calls of its own, as
// some runtimes do: it must not sleep while its bytes are elsewhere. The same where only the wait is its own, and the
// registration goes through the C library. And one whose socket does not block and that reads again and again instead
// of waiting.
//: lane any
//: family 4
#include "common.h"

/* The system call itself, with no function of the C library. */
static long raw(long number, long a, long b, long c, long d)
{
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

struct echo {
    int fd;
    /* The instance, and the registration, are made through the C library. */
    bool is_registered;
    /* In another instance, which is waited for. */
    bool is_nested;
};

static void *echo(void *argument)
{
    struct echo *echo = argument;
    int fd = echo->fd, inner = -1;
    char data[4096];
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    set_nonblocking(fd, true);
    int instance;
    if (echo->is_registered) {
        instance = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
        if (echo->is_nested) {
            inner = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
            NEED(epoll_ctl(instance, EPOLL_CTL_ADD, inner, &event));
        }
        NEED(epoll_ctl(echo->is_nested ? inner : instance, EPOLL_CTL_ADD, fd, &event));
    } else {
        instance = (int)raw(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0);
        raw(SYS_epoll_ctl, instance, EPOLL_CTL_ADD, fd, (long)&event);
    }
    for (;;) {
        ssize_t n = read(fd, data, sizeof data);
        if (n > 0) {
            write_all(fd, data, (size_t)n);
        } else if (n == 0) {
            break;
        } else if (errno != EAGAIN) {
            return "an error";
        } else if (raw(SYS_epoll_wait, instance, (long)&event, 1, PATIENCE_SECONDS * 1000) <= 0) {
            return "no event";
        }
    }
    if (inner >= 0)
        close(inner);
    close(instance);
    return "the end";
}

static void exchange(int fd, bool waits)
{
    char out[64], in[64];
    for (uint32_t i = 0; i < 2000; i++) {
        fill(out, sizeof out, i);
        write_all(fd, out, sizeof out);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (waits && poll(&entry, 1, PATIENCE_SECONDS * 1000) != 1) {
            say("no answer to %u\n", i);
            return;
        }
        for (size_t got = 0; got < sizeof in;) {
            ssize_t n = read(fd, in + got, sizeof in - got);
            if (n == 0 || (n < 0 && errno != EAGAIN)) {
                say("answer %u: %s\n", i, n == 0 ? "EOF" : error_name(errno));
                return;
            }
            got += n > 0 ? (size_t)n : 0;
        }
        if (memcmp(out, in, sizeof in) != 0)
            say("answer %u differs\n", i);
        /* Time to be matched, and for the other end to fall asleep. */
        if (i % 500 == 3)
            nap_ms(knob("APP_PAUSE_MS", 50));
    }
    say("all answers came\n");
}

int main(void)
{
    for (int how = 0; how < 6; how++) {
        bool waits = how & 1;
        struct pair p = pair_cold();
        struct echo other = {.fd = p.b, .is_registered = how >= 2, .is_nested = how >= 4};
        pthread_t thread;
        void *end;
        NEED(-pthread_create(&thread, NULL, echo, &other));
        set_nonblocking(p.a, !waits);
        exchange(p.a, waits);
        close(p.a);
        pthread_join(thread, &end);
        say("the other end saw %s\n", (char *)end);
        close(p.b);
    }
    return 0;
}
