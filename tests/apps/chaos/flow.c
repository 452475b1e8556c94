/* What the threads of one end of a connection do: wait, send, receive, hand over, until both directions have ended. */
#include "chaos.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

/* What random numbers are for, so that each use has its own. */
enum { FOR_END = 1, FOR_TURNS, FOR_FLOW = 100 };
enum { NONBLOCKING = 1, IN_TURNS = 2 };

struct direction *outward(const struct flow *flow)
{
    return &state->connection[flow->connection].directions[flow->side];
}

struct direction *inward(const struct flow *flow)
{
    return &state->connection[flow->connection].directions[!flow->side];
}

unsigned habits(const struct flow *flow)
{
    return (flow->nonblocking ? NONBLOCKING : 0) | (flow->in_turns ? IN_TURNS : 0);
}

void hold(const struct flow *flow, int mask, int pid)
{
    if (mask & OUT)
        outward(flow)->sender = (uint64_t)pid;
    if (mask & IN)
        inward(flow)->receiver = (uint64_t)pid;
}

/* What to do after a call that failed, by errno. */
int call_failed(struct flow *flow, bool sends)
{
    int error = errno;
    unsigned direction = sends ? flow->side : !flow->side;
    const struct direction *d = sends ? outward(flow) : inward(flow);
    const char *call = operation_names[sends ? d->send_call : d->receive_call];
    if (error == EAGAIN) {
        count(AGAIN);
        return TRY_AGAIN;
    }
    if (error == EINTR) {
        count(INTERRUPTED);
        return WAS_INTERRUPTED;
    }
    count(error == EPIPE ? BROKEN_PIPE : RESET);
    /* Behind the peer's FIN and reset, a connection that its former program has reset, too, says EPIPE to a read (Linux,
     * tcp_disconnect keeps the error of tcp_reset). */
    bool was_handed_on = flow->leg > 0;
    bool is_an_end = error == ECONNRESET || error == ENOTCONN || (error == EPIPE && (sends || was_handed_on));
    if (!is_an_end || !is_cut(flow->connection))
        violation("ERROR", flow->connection, direction, "%s: %s; offered %llu, sent %llu, received %llu", call,
                  strerror(error), (unsigned long long)d->offered, (unsigned long long)d->sent,
                  (unsigned long long)d->received);
    return OVER;
}

void prepare(struct flow *flow)
{
    flow->epoll = flow->pipe[0] = flow->pipe[1] = -1;
    flow->edge_ready = 0;
    flow->short_before = flow->gave_away = false;
    flow->bytes = malloc(BUFFER_BYTES);
    flow->expected = malloc(BUFFER_BYTES);
    if (flow->bytes == NULL || flow->expected == NULL)
        exit(2);
    flow->random = random_of(flow->connection, flow->side * 8 + (unsigned)flow->mask, FOR_FLOW + flow->leg);
}

void close_own(struct flow *flow)
{
    if (flow->epoll >= 0)
        close(flow->epoll);
    if (flow->pipe[0] >= 0) {
        close(flow->pipe[0]);
        close(flow->pipe[1]);
    }
    flow->epoll = flow->pipe[0] = flow->pipe[1] = -1;
    flow->edge_ready = 0;
}

static void let_go(struct flow *flow)
{
    struct linger linger = {0, 0};
    socklen_t length = sizeof linger;
    if (getsockopt(flow->fd, SOL_SOCKET, SO_LINGER, &linger, &length) == 0 && linger.l_onoff &&
        !is_cut(flow->connection))
        violation("LINGER", flow->connection, flow->side, "it was set, to %d s", linger.l_linger);
    close_own(flow);
    if (flow->fd != flow->end->fd || atomic_fetch_sub(&flow->end->holders, 1) == 1)
        close(flow->fd);
    free(flow->bytes);
    free(flow->expected);
}

/* Whether the process that has the other half of this end was killed and left it. */
static bool is_partner_dead(const struct flow *flow)
{
    const struct direction *out = outward(flow), *in = inward(flow);
    return (!out->sender_ended && is_killed(out->sender)) || (!in->receiver_ended && is_killed(in->receiver));
}

static void *end_with_partner(void *argument)
{
    struct flow *flow = argument;
    const struct direction *out = outward(flow), *in = inward(flow);
    uint64_t own = (uint64_t)getpid();
    while ((out->sender == own && !out->sender_ended) || (in->receiver == own && !in->receiver_ended)) {
        enum { LOOK_AGAIN_US = 30000 };
        usleep(LOOK_AGAIN_US);
        if (is_partner_dead(flow)) {
            cut(flow->connection, ABORT_SHUT);
            shutdown(flow->fd, SHUT_RDWR);
            break;
        }
    }
    close(flow->fd);
    free(flow);
    return NULL;
}

/* An end whose halves are in two processes ends with the first that is killed. */
void watch_partner(const struct flow *flow)
{
    if (!state->may_be_cut)
        return;
    struct flow *copy = malloc(sizeof *copy);
    *copy = *flow;
    copy->fd = dup(flow->fd);
    fcntl(copy->fd, F_SETFD, FD_CLOEXEC);
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_with_partner, copy) == 0)
        pthread_detach(thread);
}

static void pause_sometimes(struct flow *flow)
{
    if (flow->pauses_us <= 0 || is_cut(flow->connection))
        return;
    uint64_t dice = below(&flow->random, 400), us = 0;
    if (flow->is_slow && dice < 60)
        us = 20000 + below(&flow->random, 180000);
    else if (dice < 2)
        us = below(&flow->random, 200000);
    else if (dice < 12)
        us = below(&flow->random, 3000);
    else if (dice < 30)
        us = below(&flow->random, 200);
    if (us > 0) {
        flow->pauses_us -= (int64_t)us + 100;
        usleep((useconds_t)us);
    }
}

/* Of requests and answers: what is this end's to do now, and how many bytes of it are left. */
static size_t turn(const struct flow *flow, int *want)
{
    const struct connection *c = &state->connection[flow->connection];
    struct random random = random_of(flow->connection, 0, FOR_TURNS);
    uint64_t begin[2] = {0, 0};
    uint64_t done[2];
    done[flow->side] = outward(flow)->sent;
    done[!flow->side] = inward(flow)->received;
    for (;;) {
        bool is_over = true;
        for (unsigned direction = 0; direction < 2; direction++) {
            uint64_t length = below(&random, 12) ? 1 + below(&random, 2000) : some_size(&random);
            uint64_t left = c->directions[direction].total - begin[direction];
            begin[direction] += length < left ? length : left;
            is_over &= left == 0;
            if (done[direction] < begin[direction]) {
                *want = direction == flow->side ? OUT : IN;
                return begin[direction] - done[direction];
            }
        }
        if (is_over) {
            *want = flow->mask;
            return BUFFER_BYTES;
        }
    }
}

static bool all_is_sent(struct flow *flow, bool had_both)
{
    struct direction *out = outward(flow);
    if (out->sent < out->total)
        return false;
    out->is_fin = 1;
    note(FIN, flow->connection, flow->side, out->sent, 0);
    /* What closes at once need not say that it will not send any more. */
    bool closes = had_both && flow->mask == OUT && inward(flow)->is_eof && !flow->gave_away && flow->end->holders <= 1;
    if (!(closes && below(&flow->random, 2)) && shutdown(flow->fd, SHUT_WR) != 0 && !is_cut(flow->connection))
        violation("SHUTDOWN", flow->connection, flow->side, "%s", strerror(errno));
    out->sender_ended = 1;
    flow->mask &= ~OUT;
    return true;
}

static void hand_over(struct flow *flow, uint64_t at)
{
    while (flow->hand_overs_left > 0 && at >= flow->hand_overs[flow->hand_overs_left - 1].at) {
        enum operation how = flow->hand_overs[--flow->hand_overs_left].how;
        int mask = flow->mask;
        bool is_divided = how == FORK || how == EXEC || how == PASS;
        if (is_divided && mask == (IN | OUT) && !flow->in_turns)
            mask = 1 + (int)below(&flow->random, 3);
        int given = give_away(flow, how, mask);
        flow->mask &= ~given;
        flow->gave_away |= given != 0;
    }
}

static bool abort_at(struct flow *flow, uint64_t at)
{
    enum operation how = flow->end->abort;
    if (how == 0 || at < flow->end->abort_at || flow->gave_away)
        return false;
    count(how);
    cut(flow->connection, how);
    note(how, flow->connection, flow->side, at, 0);
    struct linger reset = {1, 0};
    if (how == ABORT_LINGER)
        setsockopt(flow->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (how == ABORT_SHUT || flow->end->holders > 1 || flow->mask != (IN | OUT))
        shutdown(flow->fd, SHUT_RDWR);
    if (flow->mask & OUT)
        outward(flow)->sender_ended = 1;
    if (flow->mask & IN)
        inward(flow)->receiver_ended = 1;
    return true;
}

static bool is_hurt_now(struct flow *flow)
{
    uint64_t sent = outward(flow)->sent;
    if (!(flow->mask & OUT))
        return false;
    mutate(flow, LOSE_TAIL, sent);
    mutate(flow, CRASH, sent);
    mutate(flow, RESET_ONE, sent);
    if (!mutate(flow, EARLY_END, sent))
        return false;
    outward(flow)->sender_ended = 1;
    flow->mask &= ~OUT;
    return true;
}

/* One call that receives. False when the flow has nothing more to do now. */
static bool receive_now(struct flow *flow, size_t limit, bool blocks, int *ready)
{
    size_t size = some_size(&flow->random);
    if (is_cut(flow->connection))
        size = BUFFER_BYTES;
    else if (flow->is_slow && size > 3000)
        size = 1 + size % 3000;
    int got = receive_some(flow, size < limit ? size : limit, blocks);
    if (got == TRY_AGAIN) {
        flow->edge_ready &= ~IN;
        *ready &= ~IN;
    }
    if (got == 0 || got == OVER) {
        inward(flow)->receiver_ended = 1;
        flow->mask &= ~IN;
        if (got == OVER) {
            if (flow->mask & OUT)
                outward(flow)->sender_ended = 1;
            flow->mask = 0;
        }
        return false;
    }
    return !(flow->in_turns && got > 0);
}

static bool send_now(struct flow *flow, size_t limit, bool blocks, int *ready)
{
    struct direction *out = outward(flow);
    size_t size = some_size(&flow->random), left = out->total - out->sent;
    size = size < limit ? size : limit;
    size = size < left ? size : left;
    if (size == 0)
        return false;
    int sent = send_some(flow, size, blocks);
    if (sent == TRY_AGAIN) {
        flow->edge_ready &= ~OUT;
        *ready &= ~OUT;
    }
    if (sent == OVER) {
        out->sender_ended = 1;
        flow->mask &= ~OUT;
        return false;
    }
    return !(flow->in_turns && sent > 0);
}

static void step(struct flow *flow)
{
    size_t limit = BUFFER_BYTES;
    int want = flow->mask;
    if (flow->in_turns) {
        limit = turn(flow, &want);
        if ((want & flow->mask) == 0) {
            want = flow->mask;
            limit = BUFFER_BYTES;
        }
        want &= flow->mask;
    }
    bool blocks = (want == OUT || want == IN) && !flow->nonblocking && below(&flow->random, 2);
    int ready = blocks ? want : await(flow, want);
    for (uint64_t times = 1 + below(&flow->random, 4); times > 0 && ready != 0; times--) {
        if ((ready & IN) && !receive_now(flow, limit, blocks, &ready))
            break;
        if ((ready & OUT) && (flow->mask & OUT) && !send_now(flow, limit, blocks, &ready))
            break;
    }
}

void run_flow(struct flow *flow)
{
    int had = flow->mask;
    while (flow->mask != 0) {
        if (is_hurt_now(flow) || ((flow->mask & OUT) && all_is_sent(flow, had == (IN | OUT))))
            continue;
        uint64_t at = (had & OUT ? outward(flow)->sent : 0) + (had & IN ? inward(flow)->received : 0);
        hand_over(flow, at);
        if (flow->mask == 0 || abort_at(flow, at))
            break;
        step(flow);
        pause_sometimes(flow);
    }
    let_go(flow);
}

static void *run_thread(void *argument)
{
    struct flow *flow = argument;
    run_flow(flow);
    free(flow);
    return NULL;
}

/* ---- several threads receive what an epoll instance of each, or one of all, reports --------------------------- */

static void watch_by(int epoll, int operation, int fd, enum operation how)
{
    uint32_t more = how == POOL_EXCLUSIVE ? (uint32_t)EPOLLEXCLUSIVE
                    : how == POOL_EDGE    ? (uint32_t)EPOLLET
                    : how == POOL_ONCE    ? (uint32_t)EPOLLONESHOT
                                          : 0;
    struct epoll_event event = {EPOLLIN | more, {.fd = fd}};
    if (epoll_ctl(epoll, operation, fd, &event) != 0) {
        perror("epoll_ctl of a pool");
        exit(2);
    }
}

static void drain(struct flow *flow)
{
    bool goes_on = true;
    while (goes_on && !flow->end->is_over) {
        size_t size = is_cut(flow->connection) ? BUFFER_BYTES : some_size(&flow->random);
        int got = receive_some(flow, size, false);
        if (got == 0 || got == OVER) {
            flow->end->is_over = true;
            inward(flow)->receiver_ended = 1;
        }
        goes_on = got != TRY_AGAIN && (flow->wait == POOL_EDGE || below(&flow->random, 2));
    }
}

static void *run_in_pool(void *argument)
{
    /* Of an instance that reports once, one thread hears of the end; the others look after this time. */
    enum { LOOK_AGAIN_MS = 200 };
    struct flow *flow = argument;
    bool is_own = flow->wait == POOL_EXCLUSIVE;
    if (is_own) {
        flow->epoll = epoll_create1(EPOLL_CLOEXEC);
        watch_by(flow->epoll, EPOLL_CTL_ADD, flow->fd, flow->wait);
    }
    while (!flow->end->is_over) {
        struct epoll_event event;
        count(flow->wait);
        if (epoll_wait(flow->epoll, &event, 1, LOOK_AGAIN_MS) <= 0)
            continue;
        pthread_mutex_lock(&flow->end->lock);
        drain(flow);
        if (flow->wait == POOL_ONCE && !flow->end->is_over)
            watch_by(flow->epoll, EPOLL_CTL_MOD, flow->fd, flow->wait);
        pthread_mutex_unlock(&flow->end->lock);
        pause_sometimes(flow);
    }
    if (!is_own)
        flow->epoll = -1;
    let_go(flow);
    free(flow);
    return NULL;
}

/* ---- an end begins --------------------------------------------------------------------------------------------- */

static void plan_troubles(struct flow *flow, struct end *end, struct random *random, uint64_t span, uint64_t all)
{
    bool is_spared = state->mutation != NONE && flow->connection == 0;
    if (below(random, 6) == 0) {
        end->abort = ABORT_CLOSE + below(random, 3);
        end->abort_at = below(random, all + 1);
        if (is_spared || !is_allowed(end->abort))
            end->abort = 0;
        return;
    }
    if (below(random, 2) == 0 || is_spared)
        return;
    int number = 1 + (int)below(random, 3);
    for (int i = 0; i < number; i++) {
        struct hand_over one = {.how = DUP + below(random, 6)};
        one.at = below(random, span * 3 / 4 + 1);
        if (!is_allowed(one.how))
            continue;
        int place = flow->hand_overs_left++;
        for (; place > 0 && flow->hand_overs[place - 1].at < one.at; place--)
            flow->hand_overs[place] = flow->hand_overs[place - 1];
        flow->hand_overs[place] = one;
    }
}

static void start_thread(const struct flow *plan, int mask, void *(*body)(void *), unsigned number)
{
    struct flow *flow = malloc(sizeof *flow);
    *flow = *plan;
    flow->mask = mask;
    int epoll = flow->epoll;
    prepare(flow);
    flow->epoll = epoll;
    flow->random.now += number;
    if (number == 0)
        watch_partner(flow);
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, flow) == 0)
        pthread_detach(thread);
}

/* All receivers of a pool have one place in the stream, and a lock for it. */
static void start_pool(struct flow *plan, struct random *random)
{
    enum { THREADS = 3 };
    plan->wait = allowed(random, POOL_EXCLUSIVE + below(random, 4), POOL_EXCLUSIVE, POOL_ONCE);
    plan->hand_overs_left = 0;
    if (plan->wait != POOL_EXCLUSIVE) {
        plan->epoll = epoll_create1(EPOLL_CLOEXEC);
        watch_by(plan->epoll, EPOLL_CTL_ADD, plan->fd, plan->wait);
    }
    for (unsigned number = 0; number < THREADS; number++)
        start_thread(plan, IN, run_in_pool, number);
}

void start_end(int fd, unsigned connection, unsigned side)
{
    enum { ONE_THREAD = 2, POOL = 3, STYLES };
    struct random random = random_of(connection, side, FOR_END);
    struct end *end = calloc(1, sizeof *end);
    pthread_mutex_init(&end->lock, NULL);
    end->fd = fd;
    struct flow plan = {.end = end, .connection = connection, .side = side, .fd = fd, .epoll = -1,
                        .pauses_us = 1500000};
    /* The suite gives these fewer bytes: to find the turn takes time. */
    plan.in_turns = connection % 2 == 1;
    uint64_t style = below(&random, STYLES);
    if (style == POOL && !is_allowed(POOL_EXCLUSIVE) && !is_allowed(POOL_LEVEL) && !is_allowed(POOL_EDGE) &&
        !is_allowed(POOL_ONCE))
        style = 0;
    bool is_one = plan.in_turns || style == ONE_THREAD;
    plan.nonblocking = below(&random, 3) == 0;
    plan.is_slow = below(&random, 5) == 0;
    plan.may_splice = below(&random, 6) == 0;
    if (plan.nonblocking)
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    int one = 1;
    if (below(&random, 2))
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    plan.wait = allowed(&random, POLL + below(&random, 6), POLL, EPOLL_ONCE);
    uint64_t all = outward(&plan)->total + inward(&plan)->total;
    plan_troubles(&plan, end, &random, is_one ? all : all / 2, all);
    hold(&plan, IN | OUT, getpid());
    end->holders = is_one ? 1 : style == POOL ? 4 : 2;
    if (is_one) {
        start_thread(&plan, IN | OUT, run_thread, 0);
    } else {
        struct flow sender = plan;
        if (sender.hand_overs_left > 0 && below(&random, 2))
            sender.hand_overs_left = 0;
        start_thread(&sender, OUT, run_thread, 0);
        plan.wait = allowed(&random, POLL + below(&random, 6), POLL, EPOLL_ONCE);
        if (style == POOL)
            start_pool(&plan, &random);
        else
            start_thread(&plan, IN, run_thread, 0);
    }
    state->connection[connection].is_started[side] = 1;
}

void continue_flow(unsigned connection, unsigned side, int mask, unsigned habits_, unsigned leg, int fd)
{
    struct end end = {.fd = -1};
    struct flow flow = {.end = &end, .connection = connection, .side = side, .fd = fd, .mask = mask, .leg = leg,
                        .pauses_us = 300000};
    flow.nonblocking = habits_ & NONBLOCKING;
    flow.in_turns = habits_ & IN_TURNS;
    prepare(&flow);
    flow.wait = allowed(&flow.random, POLL + below(&flow.random, 6), POLL, EPOLL_ONCE);
    hold(&flow, mask, getpid());
    watch_partner(&flow);
    run_flow(&flow);
}
