/* Waits for a socket, by each call that can. Most have no limit: a wake-up that is lost is a hang, which the suite sees. */
#include "chaos.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

static int events_of(int want, int in, int out)
{
    return (want & IN ? in : 0) | (want & OUT ? out : 0);
}

static int by_poll(struct flow *flow, int want, int limit_ms, int *ready)
{
    struct pollfd fds[2] = {{flow->fd, (short)events_of(want, POLLIN, POLLOUT), 0}, {-1, POLLIN, 0}};
    struct timespec limit = {limit_ms / 1000, limit_ms % 1000 * 1000000};
    int found = flow->wait == POLL ? poll(fds, 2, limit_ms) : ppoll(fds, 2, limit_ms < 0 ? NULL : &limit, NULL);
    if (found > 0) {
        short what = fds[0].revents;
        *ready = (what & (POLLERR | POLLHUP) ? want : 0) | (what & POLLIN ? IN : 0) | (what & POLLOUT ? OUT : 0);
    }
    return found;
}

static int by_select(struct flow *flow, int want, int limit_ms, int *ready)
{
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    if (want & IN)
        FD_SET(flow->fd, &in);
    if (want & OUT)
        FD_SET(flow->fd, &out);
    struct timeval limit = {limit_ms / 1000, limit_ms % 1000 * 1000};
    int found = select(flow->fd + 1, &in, &out, NULL, limit_ms < 0 ? NULL : &limit);
    if (found > 0)
        *ready = (FD_ISSET(flow->fd, &in) ? IN : 0) | (FD_ISSET(flow->fd, &out) ? OUT : 0);
    return found;
}

static void control(struct flow *flow, int operation, uint32_t events)
{
    struct epoll_event event = {events, {.u64 = (uint64_t)flow->fd}};
    if (epoll_ctl(flow->epoll, operation, flow->fd, &event) != 0)
        violation("EPOLL_CTL", flow->connection, flow->side, "%d: %s", operation, strerror(errno));
}

static int by_epoll(struct flow *flow, int want, int limit_ms, int *ready)
{
    bool is_edge = flow->wait == EPOLL_EDGE;
    uint32_t once = flow->wait == EPOLL_ONCE ? EPOLLONESHOT : 0;
    uint32_t wanted = (uint32_t)events_of(want, EPOLLIN, EPOLLOUT);
    if (flow->epoll < 0) {
        flow->epoll = epoll_create1(EPOLL_CLOEXEC);
        flow->edge_ready = 0;
        control(flow, EPOLL_CTL_ADD, is_edge ? EPOLLIN | EPOLLOUT | EPOLLET : once);
    }
    if (!is_edge)
        control(flow, EPOLL_CTL_MOD, wanted | once);
    else if (flow->edge_ready & want)
        limit_ms = 0;
    struct epoll_event event;
    int found = epoll_wait(flow->epoll, &event, 1, limit_ms);
    int error = errno;
    if (found > 0) {
        if (event.data.u64 != (uint64_t)flow->fd)
            violation("EPOLL", flow->connection, flow->side, "another one's data");
        *ready = (event.events & EPOLLIN ? IN : 0) | (event.events & EPOLLOUT ? OUT : 0);
        if (event.events & (EPOLLERR | EPOLLHUP))
            *ready = IN | OUT;
    }
    if (is_edge)
        *ready = flow->edge_ready |= *ready;
    errno = error;
    return found;
}

int await(struct flow *flow, int want)
{
    int limit_ms = below(&flow->random, 4) ? -1 : (int)below(&flow->random, 100);
    int ready = 0, found;
    uint64_t offset = want & IN ? inward(flow)->received : outward(flow)->sent;
    unsigned direction = want & IN ? !flow->side : flow->side;
    count(flow->wait);
    note(flow->wait, flow->connection, direction, offset, want);
    if (want & IN)
        inward(flow)->receive_call = flow->wait;
    if (want & OUT)
        outward(flow)->send_call = flow->wait;
    if (flow->wait == SELECT)
        found = by_select(flow, want, limit_ms, &ready);
    else if (flow->wait == POLL || flow->wait == PPOLL)
        found = by_poll(flow, want, limit_ms, &ready);
    else
        found = by_epoll(flow, want, limit_ms, &ready);
    if (found < 0 && errno == EINTR)
        count(INTERRUPTED);
    else if (found < 0)
        violation("WAIT", flow->connection, direction, "%s: %s", operation_names[flow->wait], strerror(errno));
    note(flow->wait, flow->connection, direction, offset, 256 + (ready & want));
    return ready & want;
}
