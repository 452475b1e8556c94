/*
 * Very many connections that come and go at random, with every byte checked.
 *
 *   churn server
 *   churn client PORT CONNECTIONS SECONDS SEED [cuts]
 *
 * The server echoes. The client keeps CONNECTIONS open. Each does one exchange
 * after the other, of a random size, with a random pause between them, and what
 * comes back must be what was sent. After some exchanges it ends in one of
 * three ways: both directions closed in turn, closed at once, or reset in the
 * middle of an exchange; then another one takes its place. A connection that
 * waits for a byte for longer than STALL_SECONDS hangs. Connections that the
 * other end cuts are an error unless the last word is there.
 *
 * The client prints "N connections, M bytes" and what went wrong; exit status 1
 * if anything did.
 */
#include "common.h"

enum { CONNECTIONS_MAX = 4000, PIECE = 16384, STALL_SECONDS = 60, EVENTS = 256 };

/* ---- what both ends do ------------------------------------------------- */

static int epoll_fd;

static void watch(int operation, int fd, uint32_t events, void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    NEED(epoll_ctl(epoll_fd, operation, fd, &event));
}

static void may_open_many(void)
{
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
}

static bool is_cut(int error)
{
    return error == ECONNRESET || error == EPIPE;
}

/* ---- the server -------------------------------------------------------- */

struct echo {
    int fd;
    /* The wait that reported it last. */
    unsigned long wait;
    /* Of `bytes`, what was read and not written yet. */
    size_t from, to;
    bool ended;
    char bytes[PIECE];
};

static void forget(struct echo *e)
{
    close(e->fd);
    e->fd = -1;
}

/* False when the connection is over. */
static bool write_back(struct echo *e)
{
    while (e->from < e->to) {
        ssize_t n = send(e->fd, e->bytes + e->from, e->to - e->from, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(EPOLL_CTL_MOD, e->fd, EPOLLOUT, e);
            return true;
        }
        if (n < 0)
            return false;
        e->from += (size_t)n;
    }
    e->from = e->to = 0;
    return !e->ended;
}

static bool serve(struct echo *e, uint32_t events)
{
    if (events & EPOLLOUT) {
        if (!write_back(e))
            return false;
        if (e->to == 0)
            watch(EPOLL_CTL_MOD, e->fd, EPOLLIN, e);
        return true;
    }
    ssize_t n = read(e->fd, e->bytes, sizeof e->bytes);
    if (n < 0)
        return errno == EAGAIN;
    e->ended = n == 0;
    e->to = (size_t)n;
    return write_back(e);
}

static _Noreturn void serve_all(void)
{
    int listener = listen_loopback(1024);
    NEED(fcntl(listener, F_SETFL, O_NONBLOCK));
    say("port %d\n", port_of(listener));
    watch(EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    for (unsigned long wait = 1;; wait++) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(epoll_fd, events, EVENTS, -1);
        if (count < 0 && errno == EINTR)
            continue;
        NEED(count);
        for (int i = 0; i < count; i++) {
            struct echo *e = events[i].data.ptr;
            if (e != NULL) {
                if (e->wait == wait) {
                    fprintf(stderr, "descriptor %d: reported twice by one epoll_wait\n", e->fd);
                    _exit(1);
                }
                e->wait = wait;
                errno = 0;
                if (!serve(e, events[i].events)) {
                    if (errno != 0)
                        fprintf(stderr, "descriptor %d: %s\n", e->fd, error_name(errno));
                    forget(e);
                }
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (fd < 0)
                continue;
            e = calloc(1, sizeof *e);
            if (e == NULL)
                die("calloc");
            e->fd = fd;
            watch(EPOLL_CTL_ADD, fd, EPOLLIN, e);
        }
        /* Not before: another event of this wait must not find them freed. */
        for (int i = 0; i < count; i++) {
            struct echo *e = events[i].data.ptr;
            if (e != NULL && e->fd < 0)
                free(e);
        }
    }
}

/* ---- the client -------------------------------------------------------- */

enum way { IN_TURN, AT_ONCE, RESET, WAYS };

struct talk {
    int fd;
    uint32_t seed;
    int exchanges_left;
    enum way way;
    /* Of the present exchange. */
    size_t size, sent, received;
    uint32_t out_state, in_state;
    /* No exchange before this time; what comes after STALL_SECONDS without progress is a hang. */
    long long rest_until_ms, progress_ms;
    bool resting, said_end;
    uint32_t events;
};

static struct talk talks[CONNECTIONS_MAX];
static uint32_t chance;
static unsigned long long connections, bytes_checked, cut_by_peer;
static bool failed, may_be_cut;
static int server_port;

static void complain(const struct talk *t, const char *what)
{
    say("connection %u: %s (exchange of %zu bytes, %zu sent, %zu received)\n", t->seed, what,
        t->size, t->sent, t->received);
    failed = true;
}

/* The other end has ended a connection that was not to end. */
static void cut(const struct talk *t, const char *how)
{
    cut_by_peer++;
    if (!may_be_cut)
        complain(t, how);
}

static uint32_t below(uint32_t limit)
{
    return next_random(&chance) % limit;
}

static void want(struct talk *t, uint32_t events)
{
    if (t->events != events)
        watch(EPOLL_CTL_MOD, t->fd, events, t);
    t->events = events;
}

static void begin_exchange(struct talk *t)
{
    t->seed += 7919;
    t->size = below(8) == 0 ? below(200000) : below(2000);
    t->size++;
    t->sent = t->received = 0;
    t->out_state = t->in_state = t->seed | 1;
    t->resting = false;
    t->progress_ms = now_ms();
    want(t, EPOLLIN | EPOLLOUT);
}

static void rest(struct talk *t)
{
    t->resting = true;
    t->progress_ms = now_ms();
    t->rest_until_ms = t->progress_ms + below(400);
    want(t, EPOLLIN);
}

static void open_one(struct talk *t)
{
    int fd = connect_loopback(server_port);
    NEED(fcntl(fd, F_SETFL, O_NONBLOCK));
    *t = (struct talk){.fd = fd,
                       .seed = next_random(&chance),
                       .exchanges_left = 1 + (int)below(12),
                       .way = (enum way)below(WAYS),
                       .events = EPOLLIN};
    watch(EPOLL_CTL_ADD, fd, EPOLLIN, t);
    connections++;
    rest(t);
}

static void end_one(struct talk *t)
{
    close(t->fd);
    t->fd = -1;
}

static void reset_one(struct talk *t)
{
    struct linger linger = {1, 0};
    NEED(setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    end_one(t);
}

static void send_more(struct talk *t)
{
    while (t->sent < t->size) {
        char piece[PIECE];
        size_t length = t->size - t->sent < sizeof piece ? t->size - t->sent : sizeof piece;
        uint32_t state = t->out_state;
        for (size_t i = 0; i < length; i++)
            piece[i] = (char)(next_random(&state) >> 11);
        ssize_t n = send(t->fd, piece, length, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && is_cut(errno))
                cut(t, error_name(errno)), end_one(t);
            else if (errno != EAGAIN)
                complain(t, error_name(errno)), end_one(t);
            return;
        }
        for (ssize_t i = 0; i < n; i++)
            next_random(&t->out_state);
        t->sent += (size_t)n;
        t->progress_ms = now_ms();
        if (t->way == RESET && t->exchanges_left == 1 && t->sent > t->size / 2) {
            reset_one(t);
            return;
        }
    }
    want(t, EPOLLIN);
}

/* What is at the end of all exchanges. */
static void finish(struct talk *t)
{
    if (t->way == IN_TURN) {
        NEED(shutdown(t->fd, SHUT_WR));
        t->said_end = true;
        t->resting = false;
        want(t, EPOLLIN);
    } else {
        end_one(t);
    }
}

static void receive_more(struct talk *t)
{
    for (;;) {
        char piece[PIECE];
        ssize_t n = read(t->fd, piece, sizeof piece);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 && is_cut(errno)) {
            cut(t, error_name(errno));
            end_one(t);
            return;
        }
        if (n < 0) {
            complain(t, error_name(errno));
            end_one(t);
            return;
        }
        t->progress_ms = now_ms();
        if (n == 0) {
            if (!t->said_end)
                cut(t, "ended by its peer");
            end_one(t);
            return;
        }
        if ((size_t)n > t->sent - t->received) {
            complain(t, "more came back than was sent");
            end_one(t);
            return;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] != (char)(next_random(&t->in_state) >> 11)) {
                complain(t, "another byte came back");
                end_one(t);
                return;
            }
        }
        t->received += (size_t)n;
        bytes_checked += (unsigned long long)n;
        if (t->received == t->size) {
            if (--t->exchanges_left == 0)
                finish(t);
            else
                rest(t);
            return;
        }
    }
}

static void look_at_time(struct talk *t, long long now)
{
    if (t->resting && now >= t->rest_until_ms)
        begin_exchange(t);
    else if (!t->resting && now - t->progress_ms > STALL_SECONDS * 1000LL) {
        complain(t, "hangs");
        end_one(t);
    }
}

static int talk_all(int port, int count, int seconds, uint32_t seed)
{
    server_port = port;
    chance = seed * 2654435761u + 1;
    for (int i = 0; i < count; i++)
        open_one(&talks[i]);
    long long until = now_ms() + seconds * 1000LL;
    while (now_ms() < until && !failed) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(epoll_fd, events, EVENTS, 20);
        if (ready < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct talk *t = events[i].data.ptr;
            if (t->fd >= 0 && (events[i].events & EPOLLOUT))
                send_more(t);
            if (t->fd >= 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                receive_more(t);
        }
        long long now = now_ms();
        for (int i = 0; i < count && !failed; i++) {
            if (talks[i].fd < 0)
                open_one(&talks[i]);
            else
                look_at_time(&talks[i], now);
        }
    }
    say("%llu connections, %llu bytes, %llu cut\n", connections, bytes_checked, cut_by_peer);
    return failed;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    may_open_many();
    epoll_fd = (int)NEED(epoll_create1(EPOLL_CLOEXEC));
    if (argc == 2 && strcmp(argv[1], "server") == 0)
        serve_all();
    may_be_cut = argc == 7 && strcmp(argv[6], "cuts") == 0;
    if ((argc == 6 || may_be_cut) && strcmp(argv[1], "client") == 0
        && atoi(argv[3]) <= CONNECTIONS_MAX)
        return talk_all(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), (uint32_t)atoi(argv[5]));
    fprintf(stderr, "usage: see the top of churn.c\n");
    return 2;
}
