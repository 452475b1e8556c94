/* Directions of a connection change hands: by dup, fork, exec, and a message to another process. */
#include "chaos.h"

#include <fcntl.h>
#include <signal.h>

int helper_socket = -1, helper_pid;
atomic_int hand_overs_under_way;
/* This process has one connection and nothing else to lose. */
bool may_exec_self;

struct parcel {
    uint32_t connection, side, mask, habits, leg;
};

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/*
 * Into this thread and those that it starts. Not into threads that only wait for others, so that the kernel chooses
 * one that sends or receives; and not between exec and the handler, where it would end the process.
 */
void let_signals(bool in)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(in ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

void close_all_but(int fd)
{
    enum { MOST = 256 };
    for (int other = 3; other < MOST; other++)
        if (other != fd)
            close(other);
}

/* Goes on by another descriptor of the same socket. */
static void duplicate(struct flow *flow, enum operation how)
{
    int fd = dup(flow->fd);
    if (fd >= 0 && how == DUP2) {
        int other = dup(0);
        if (dup2(fd, other) != other)
            violation("DUP2", flow->connection, flow->side, "%s", strerror(errno));
        close(fd);
        fd = other;
    }
    if (fd < 0) {
        violation("DUP", flow->connection, flow->side, "%s", strerror(errno));
        return;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    close_own(flow);
    if (flow->fd != flow->end->fd || atomic_fetch_sub(&flow->end->holders, 1) == 1)
        close(flow->fd);
    flow->fd = fd;
}

static int pass(struct flow *flow, int mask)
{
    if (helper_socket < 0)
        return 0;
    struct parcel parcel = {flow->connection, flow->side, (uint32_t)mask, habits(flow), flow->leg + 1};
    union control control = {0};
    struct iovec piece = {&parcel, sizeof parcel};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &flow->fd, sizeof(int));
    hand_overs_under_way++;
    hold(flow, mask, helper_pid);
    ssize_t sent;
    do
        sent = sendmsg(helper_socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        int error = errno;
        hold(flow, mask, getpid());
        note(BUSY, flow->connection, flow->side, 0, -error);
        if (error == EBUSY)
            count(BUSY);
        else if (!is_killed((uint64_t)helper_pid))
            violation("PASS", flow->connection, flow->side, "%s", strerror(error));
        mask = 0;
    }
    hand_overs_under_way--;
    return mask;
}

static void exec_with(struct flow *flow, int fd, int mask)
{
    char words[6][24];
    unsigned numbers[6] = {flow->connection, flow->side, (unsigned)mask, habits(flow), flow->leg + 1, (unsigned)fd};
    for (int i = 0; i < 6; i++)
        snprintf(words[i], sizeof words[i], "%u", numbers[i]);
    fcntl(fd, F_SETFD, 0);
    let_signals(false);
    execl(own_path, own_path, "continue", state_path, words[0], words[1], words[2], words[3], words[4], words[5],
          (char *)NULL);
    violation("EXEC", flow->connection, flow->side, "%s", strerror(errno));
    let_signals(true);
}

/* In the child of a fork; does not return. */
static void go_on_as_child(struct flow *flow, enum operation how, int mask)
{
    forget_log_place();
    join_round(CONTINUED, 0);
    hold(flow, mask, getpid());
    helper_socket = -1;
    if (how == EXEC) {
        int fd = flow->fd;
        int other = below(&flow->random, 3) ? 3 + (int)below(&flow->random, 12) : fd;
        if (other != fd) {
            if (dup2(fd, other) != other)
                violation("DUP2", flow->connection, flow->side, "in a child: %s", strerror(errno));
            fd = other;
        }
        close_all_but(fd);
        exec_with(flow, fd, mask);
        _exit(1);
    }
    close_all_but(flow->fd);
    struct end end = {.fd = -1};
    struct flow child = *flow;
    child.end = &end;
    child.mask = mask;
    child.leg++;
    child.hand_overs_left = 0;
    prepare(&child);
    watch_partner(&child);
    run_flow(&child);
    leave_round();
    if (below(&child.random, 2))
        exit(0);
    _exit(0);
}

int give_away(struct flow *flow, enum operation how, int mask)
{
    count(how);
    note(how, flow->connection, flow->side, outward(flow)->sent, mask);
    if (how == DUP || how == DUP2) {
        duplicate(flow, how);
        return 0;
    }
    if (how == PASS)
        return pass(flow, mask);
    if (how == EXEC_SELF) {
        if (may_exec_self && mask == (IN | OUT) && flow->mask == mask) {
            close_own(flow);
            exec_with(flow, flow->fd, mask);
        }
        return 0;
    }
    hand_overs_under_way++;
    int child = fork();
    if (child == 0)
        go_on_as_child(flow, how, mask);
    if (child > 0)
        hold(flow, mask, child);
    else
        violation("FORK", flow->connection, flow->side, "%s", strerror(errno));
    hand_overs_under_way--;
    return child > 0 ? mask : 0;
}

void start_helper(void)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
        return;
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    helper_pid = fork();
    if (helper_pid == 0) {
        char word[16];
        snprintf(word, sizeof word, "%d", pair[1]);
        let_signals(false);
        execl(own_path, own_path, "helper", state_path, word, (char *)NULL);
        _exit(1);
    }
    close(pair[1]);
    helper_socket = pair[0];
}

struct arrival {
    struct parcel parcel;
    int fd;
};

static void *take_up(void *argument)
{
    struct arrival arrival = *(struct arrival *)argument;
    free(argument);
    let_signals(true);
    continue_flow(arrival.parcel.connection, arrival.parcel.side, (int)arrival.parcel.mask, arrival.parcel.habits,
                  arrival.parcel.leg, arrival.fd);
    return NULL;
}

/* The process that takes what others pass, until they are all gone. */
int helper(int socket)
{
    enum { MOST = 64 };
    pthread_t threads[MOST];
    int number = 0;
    join_round(HELPER, 0);
    let_signals(false);
    while (number < MOST) {
        struct arrival *arrival = calloc(1, sizeof *arrival);
        union control control;
        struct iovec piece = {&arrival->parcel, sizeof arrival->parcel};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header == NULL || header->cmsg_type != SCM_RIGHTS) {
            violation("PASS", arrival->parcel.connection, arrival->parcel.side, "no descriptor came");
            continue;
        }
        memcpy(&arrival->fd, CMSG_DATA(header), sizeof(int));
        if (pthread_create(&threads[number], NULL, take_up, arrival) == 0)
            number++;
    }
    for (int i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
    leave_round();
    return 0;
}
