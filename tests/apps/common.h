/*
 * What the programs of the differential suite share.
 *
 * A program prints what it saw (return values, errno names, checksums) and the
 * harness compares the print-outs of a plain run and an accelerated run. A
 * program therefore prints only what TCP determines: never a time, a pid, a
 * port, or how many bytes happened to fit.
 *
 * Directives for the harness are comment lines that start with "//:" in the
 * program's file; tests/src/apps.rs lists them.
 *
 * Environment:
 *   APP_FAMILY    4 (default) or 6: loopback address family
 *   APP_ENDS      thread (default), fork or exec: where the client end of a
 *                 program that has two ends lives
 *   APP_WARM      messages exchanged before and after the pause (default 64)
 *   APP_PAUSE_MS  the pause between them, for the ends to be matched (50)
 */
#ifndef SLUICE_APPS_COMMON_H
#define SLUICE_APPS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Every wait of a program ends after this; the harness has its own limit too. */
#define PATIENCE_SECONDS 40

#define UNUSED __attribute__((unused))

/* ---- printing ---------------------------------------------------------- */

/*
 * Memory that both ends of a two-ended program see, whether they are threads,
 * a forked pair or separate programs. Each end prints into its own part, so
 * that the print-out does not depend on who ran first.
 */
struct stage {
    sem_t turn[2];
    atomic_int port;
    atomic_size_t used[2];
    char out[2][1 << 17];
};

static struct stage *stage_shared;
static __thread int end_here = -1;

UNUSED static void write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            perror("write_all");
            _exit(3);
        }
        p += n;
        len -= (size_t)n;
    }
}

__attribute__((format(printf, 1, 2))) UNUSED static void say(const char *format, ...)
{
    int saved = errno;
    char line[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line) {
        fprintf(stderr, "say: line too long\n");
        _exit(3);
    }
    if (end_here < 0) {
        write_all(1, line, (size_t)n);
    } else {
        size_t at = stage_shared->used[end_here];
        if (at + (size_t)n > sizeof stage_shared->out[0]) {
            fprintf(stderr, "say: too much output\n");
            _exit(3);
        }
        memcpy(stage_shared->out[end_here] + at, line, (size_t)n);
        stage_shared->used[end_here] = at + (size_t)n;
    }
    errno = saved;
}

/* For what the scenario needs and does not test. */
UNUSED static void die(const char *what)
{
    int saved = errno;
    fprintf(stderr, "die: %s: %s\n", what, strerror(saved));
    _exit(3);
}

#define NEED(expr)                                                                                 \
    ({                                                                                             \
        long need_ = (long)(expr);                                                                 \
        if (need_ < 0)                                                                             \
            die(#expr);                                                                            \
        need_;                                                                                     \
    })

/* The harness counts a run that ends with this status as skipped. */
#define EXIT_SKIP 77
UNUSED static void skip(const char *why)
{
    fprintf(stderr, "skip: %s\n", why);
    _exit(EXIT_SKIP);
}

UNUSED static const char *error_name(int e)
{
    const char *name = strerrorname_np(e);
    return name ? name : "(no name)";
}

/* Prints the expression, its value and, when it failed, errno's name. */
#define SHOW(expr)                                                                                 \
    ({                                                                                             \
        errno = 0;                                                                                 \
        long show_ = (long)(expr);                                                                 \
        int error_ = errno;                                                                        \
        if (show_ < 0)                                                                             \
            say("%s = %ld %s\n", #expr, show_, error_name(error_));                                \
        else                                                                                       \
            say("%s = %ld\n", #expr, show_);                                                       \
        errno = error_;                                                                            \
        show_;                                                                                     \
    })

/* The same for values that are only determined to be "a success". */
#define SHOW_OK(expr)                                                                              \
    ({                                                                                             \
        errno = 0;                                                                                 \
        long show_ = (long)(expr);                                                                 \
        int error_ = errno;                                                                        \
        say("%s: %s\n", #expr, show_ < 0 ? error_name(error_) : "ok");                             \
        errno = error_;                                                                            \
        show_;                                                                                     \
    })

UNUSED static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

UNUSED static void nap_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

/* Waits for a condition; says so, which makes the print-outs differ, when it never holds. */
#define AWAIT(cond)                                                                                \
    ({                                                                                             \
        long long until_ = now_ms() + PATIENCE_SECONDS * 1000LL;                                   \
        bool held_;                                                                                \
        while (!(held_ = (cond)) && now_ms() < until_)                                             \
            nap_ms(1);                                                                             \
        if (!held_)                                                                                \
            say("gave up waiting for: %s\n", #cond);                                               \
        held_;                                                                                     \
    })

/* ---- data -------------------------------------------------------------- */

#define SUM_START 14695981039346656037ull

/* FNV-1a, so that a stream's checksum does not depend on how it was cut. */
UNUSED static uint64_t sum_more(uint64_t sum, const void *data, size_t len)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ p[i]) * 1099511628211ull;
    return sum;
}

UNUSED static uint64_t sum(const void *data, size_t len)
{
    return sum_more(SUM_START, data, len);
}

UNUSED static uint32_t next_random(uint32_t *state)
{
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

UNUSED static void fill(void *data, size_t len, uint32_t seed)
{
    unsigned char *p = data;
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < len; i++)
        p[i] = (unsigned char)(next_random(&state) >> 11);
}

UNUSED static int pending(int fd)
{
    int n = -1;
    return ioctl(fd, FIONREAD, &n) < 0 ? -1 : n;
}

/* Bytes can be under way for a moment, on loopback too. */
UNUSED static void await_pending(int fd, int bytes)
{
    AWAIT(pending(fd) >= bytes);
}

/* Waits for events that do arrive, so that a later look is determined. */
UNUSED static void await_events(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    AWAIT(poll(&p, 1, 0) == 1 && (p.revents & events) == events);
}

UNUSED static void read_exact(int fd, void *data, size_t len)
{
    char *p = data;
    while (len > 0) {
        ssize_t n = read(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            say("read_exact: %s with bytes missing\n", n == 0 ? "EOF" : error_name(errno));
            return;
        }
        p += n;
        len -= (size_t)n;
    }
}

/* ---- connections ------------------------------------------------------- */

UNUSED static long knob(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

UNUSED static int family(void)
{
    return knob("APP_FAMILY", 4) == 6 ? AF_INET6 : AF_INET;
}

/* The loopback address, or APP_HOST, an address of either family. */
UNUSED static socklen_t loopback(struct sockaddr_storage *address, int port)
{
    memset(address, 0, sizeof *address);
    const char *host = getenv("APP_HOST");
    if (host && *host) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;
        struct sockaddr_in *in = (struct sockaddr_in *)address;
        if (family() == AF_INET6 && inet_pton(AF_INET6, host, &in6->sin6_addr) == 1) {
            in6->sin6_family = AF_INET6;
            in6->sin6_port = htons((uint16_t)port);
            return sizeof *in6;
        }
        if (inet_pton(AF_INET, host, &in->sin_addr) == 1) {
            in->sin_family = AF_INET;
            in->sin_port = htons((uint16_t)port);
            return sizeof *in;
        }
    }
    if (family() == AF_INET6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;
        in6->sin6_family = AF_INET6;
        in6->sin6_addr = in6addr_loopback;
        in6->sin6_port = htons((uint16_t)port);
        return sizeof *in6;
    }
    struct sockaddr_in *in = (struct sockaddr_in *)address;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_port = htons((uint16_t)port);
    return sizeof *in;
}

UNUSED static int port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    NEED(getsockname(fd, (struct sockaddr *)&address, &len));
    return address.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&address)->sin6_port)
                                         : ntohs(((struct sockaddr_in *)&address)->sin_port);
}

UNUSED static int listen_loopback(int backlog)
{
    struct sockaddr_storage address;
    socklen_t len = loopback(&address, 0);
    int fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    NEED(bind(fd, (struct sockaddr *)&address, len));
    NEED(listen(fd, backlog));
    return fd;
}

UNUSED static int connect_loopback(int port)
{
    struct sockaddr_storage address;
    socklen_t len = loopback(&address, port);
    int fd = (int)NEED(socket(family(), SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&address, len));
    return fd;
}

UNUSED static void set_int(int fd, int level, int option, int value)
{
    NEED(setsockopt(fd, level, option, &value, sizeof value));
}

UNUSED static void set_nonblocking(int fd, bool on)
{
    int flags = (int)NEED(fcntl(fd, F_GETFL));
    NEED(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

/* `a` connected, `b` was accepted. */
struct pair {
    int a, b;
};

UNUSED static struct pair pair_cold(void)
{
    int listener = listen_loopback(8);
    struct pair p;
    p.a = connect_loopback(port_of(listener));
    p.b = (int)NEED(accept(listener, NULL, NULL));
    NEED(close(listener));
    /* Nagle's algorithm would only make the small steps of a scenario slow. */
    set_int(p.a, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(p.b, IPPROTO_TCP, TCP_NODELAY, 1);
    return p;
}

UNUSED static void ping_pong_within(int a, int b, long rounds)
{
    char out[32], in[32];
    for (long i = 0; i < rounds; i++) {
        fill(out, sizeof out, (uint32_t)i);
        write_all(a, out, sizeof out);
        read_exact(b, in, sizeof in);
        write_all(b, in, sizeof in);
        read_exact(a, in, sizeof in);
        if (memcmp(out, in, sizeof in) != 0)
            say("warm-up: bytes differ\n");
    }
}

/* Exchanges enough for the connection to be matched, and then to use its lane. */
UNUSED static void warm(int a, int b)
{
    long rounds = knob("APP_WARM", 64);
    ping_pong_within(a, b, rounds);
    nap_ms(knob("APP_PAUSE_MS", 50));
    ping_pong_within(a, b, rounds);
}

UNUSED static struct pair pair_open(void)
{
    struct pair p = pair_cold();
    warm(p.a, p.b);
    return p;
}

UNUSED static void pair_close(struct pair p)
{
    close(p.a);
    close(p.b);
}

/*
 * A child that runs beside its parent prints behind a curtain (a memfd on its
 * standard output), which the parent lifts when the child has ended.
 */
UNUSED static int curtain_make(void)
{
    return (int)NEED(memfd_create("curtain", MFD_CLOEXEC));
}

UNUSED static void curtain_lift(int curtain)
{
    char data[4096];
    ssize_t n;
    off_t at = 0;
    while ((n = pread(curtain, data, sizeof data, at)) > 0) {
        write_all(1, data, (size_t)n);
        at += n;
    }
    close(curtain);
}

/* ---- threads ----------------------------------------------------------- */

/* True when the thread sleeps and goes on sleeping: it is blocked in a call. */
UNUSED static bool thread_sleeps(pid_t pid, pid_t tid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    for (int look = 0; look < 20; look++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return false;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        if (n <= 0)
            return false;
        text[n] = 0;
        const char *state = strrchr(text, ')');
        if (!state || state[2] != 'S')
            return false;
        nap_ms(1);
    }
    return true;
}

UNUSED static void await_blocked(atomic_int *tid)
{
    AWAIT(*tid != 0);
    AWAIT(thread_sleeps(getpid(), *tid));
}

/* ---- two ends ---------------------------------------------------------- */

static sem_t *turn_of(int end)
{
    return &stage_shared->turn[end];
}

static void await_turn(int end)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 3 * PATIENCE_SECONDS;
    while (sem_timedwait(turn_of(end), &until) < 0)
        if (errno != EINTR) {
            say("gave up waiting for the other end\n");
            return;
        }
}

/* Both ends go on when both have come here. */
UNUSED static void meet(void)
{
    sem_post(turn_of(1 - end_here));
    await_turn(end_here);
}

enum { CLIENT = 0, SERVER = 1 };
typedef void (*end_body)(int fd);

UNUSED static void run_client(end_body body)
{
    end_here = CLIENT;
    await_turn(CLIENT);
    int fd = connect_loopback(stage_shared->port);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    long rounds = knob("APP_WARM", 64);
    char out[32], in[32];
    for (int half = 0; half < 2; half++) {
        for (long i = 0; i < rounds; i++) {
            fill(out, sizeof out, (uint32_t)i);
            write_all(fd, out, sizeof out);
            read_exact(fd, in, sizeof in);
            if (memcmp(out, in, sizeof in) != 0)
                say("warm-up: bytes differ\n");
        }
        if (half == 0)
            nap_ms(knob("APP_PAUSE_MS", 50));
    }
    body(fd);
}

UNUSED static void run_server(end_body body)
{
    end_here = SERVER;
    int listener = listen_loopback(8);
    stage_shared->port = port_of(listener);
    sem_post(turn_of(CLIENT));
    int fd = (int)NEED(accept(listener, NULL, NULL));
    close(listener);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    long messages = 2 * knob("APP_WARM", 64);
    char in[32];
    for (long i = 0; i < messages; i++) {
        read_exact(fd, in, sizeof in);
        write_all(fd, in, sizeof in);
    }
    body(fd);
}

static void *client_thread(void *body)
{
    run_client(*(end_body *)body);
    return NULL;
}

static void print_end(const char *prefix, int end)
{
    const char *p = stage_shared->out[end], *stop = p + stage_shared->used[end];
    while (p < stop) {
        const char *newline = memchr(p, '\n', (size_t)(stop - p));
        size_t len = newline ? (size_t)(newline - p) + 1 : (size_t)(stop - p);
        write_all(1, prefix, strlen(prefix));
        write_all(1, p, len);
        p += len;
    }
}

/*
 * Runs `client` and `server` on a warmed connection between them, the client
 * in a thread, a forked child or a program of its own, and prints first what
 * the client said and then what the server said.
 */
UNUSED static int two_ends(int argc, char **argv, end_body client, end_body server)
{
    int fd;
    if (argc == 3 && strcmp(argv[1], "--client") == 0) {
        fd = (int)strtol(argv[2], NULL, 10);
        stage_shared =
            mmap(NULL, sizeof *stage_shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (stage_shared == MAP_FAILED)
            die("mmap of the stage");
        close(fd);
        run_client(client);
        return 0;
    }

    const char *ends = getenv("APP_ENDS");
    if (!ends || !*ends)
        ends = "thread";
    fd = (int)NEED(memfd_create("stage", 0));
    NEED(ftruncate(fd, sizeof *stage_shared));
    stage_shared = mmap(NULL, sizeof *stage_shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (stage_shared == MAP_FAILED)
        die("mmap of the stage");
    NEED(sem_init(turn_of(CLIENT), 1, 0));
    NEED(sem_init(turn_of(SERVER), 1, 0));

    if (strcmp(ends, "thread") == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, client_thread, &client) != 0)
            die("pthread_create");
        run_server(server);
        pthread_join(thread, NULL);
    } else {
        pid_t child = (pid_t)NEED(fork());
        if (child == 0) {
            if (strcmp(ends, "exec") == 0) {
                char number[16];
                snprintf(number, sizeof number, "%d", fd);
                execl("/proc/self/exe", argv[0], "--client", number, (char *)NULL);
                die("execl");
            }
            run_client(client);
            exit(0);
        }
        run_server(server);
        int status = 0;
        NEED(waitpid(child, &status, 0));
        end_here = -1;
        if (status != 0)
            say("client process ended with status %#x\n", (unsigned)status);
    }
    end_here = -1;
    print_end("client: ", CLIENT);
    print_end("server: ", SERVER);
    return 0;
}

#define TWO_ENDS(client, server)                                                                   \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return two_ends(argc, argv, client, server);                                               \
    }

#endif
