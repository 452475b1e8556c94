/* What all processes of a round share: who they are, what they found, and what they did last. */
#include "chaos.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

struct state *state;
const char *state_path, *own_path;

const char *const operation_names[OPERATIONS] = {
    "send", "write", "writev", "sendmsg", "sendfile", "splice-out", "more",
    "recv", "read", "readv", "recvmsg", "peek", "waitall", "fionread", "splice-in", "trunc", "rcvtimeo",
    "poll", "ppoll", "select", "epoll-level", "epoll-edge", "epoll-once",
    "pool-exclusive", "pool-level", "pool-edge", "pool-once",
    "dup", "dup2", "fork", "exec", "pass", "exec-self",
    "abort-close", "abort-linger", "abort-shut",
    "started", "ended", "fin", "eof", "again", "interrupted", "reset", "broken-pipe", "busy", "fionread-short",
    "mutated", "wrong",
};

/* Of this process, once it has joined. */
static struct process *own;

void open_state(const char *path)
{
    static char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    own_path = self;
    state_path = path;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The place of the process itself if it was there before exec, or a free one. */
static struct process *place_of(uint64_t pid)
{
    for (int i = 0; i < PROCESSES_MAX; i++) {
        struct process *place = &state->process[i];
        if (place->pid == pid && !place->is_done)
            return place;
        uint64_t nobody = 0;
        if (atomic_compare_exchange_strong(&place->pid, &nobody, pid))
            return place;
    }
    fprintf(stderr, "a round has at most %d processes\n", PROCESSES_MAX);
    exit(2);
}

void join_round(enum kind kind, unsigned number)
{
    own = place_of((uint64_t)getpid());
    /* After exec it still is the client that it was. */
    if (own->kind == 0) {
        own->number = number;
        own->kind = kind;
    }
    note(STARTED, 0, 0, kind, 0);
}

void leave_round(void)
{
    note(ENDED, 0, 0, 0, 0);
    own->is_done = 1;
}

void forget_log_place(void)
{
    own = NULL;
}

bool is_killed(uint64_t pid)
{
    for (int i = 0; pid != 0 && i < PROCESSES_MAX; i++)
        if (state->process[i].pid == pid && state->process[i].is_killed)
            return true;
    return false;
}

static bool is_program_killed(enum kind kind, unsigned number)
{
    for (int i = 0; i < PROCESSES_MAX; i++) {
        const struct process *process = &state->process[i];
        if (process->kind == kind && process->number == number && process->is_killed)
            return true;
    }
    return false;
}

/* Whether its ends may see it end early: somebody aborted it, or was killed with a part of it in hand. */
bool is_cut(unsigned connection)
{
    const struct connection *c = &state->connection[connection];
    if (c->cut)
        return true;
    for (int i = 0; i < 2; i++) {
        const struct direction *d = &c->directions[i];
        if ((!d->sender_ended && is_killed(d->sender)) || (!d->receiver_ended && is_killed(d->receiver)))
            return true;
    }
    return (!c->is_started[0] && is_program_killed(CLIENT, connection % state->clients)) ||
           (!c->is_started[1] && is_program_killed(SERVER, 0));
}

void cut(unsigned connection, enum operation why)
{
    uint64_t nothing = 0;
    atomic_compare_exchange_strong(&state->connection[connection].cut, &nothing, why);
}

void count(enum operation what)
{
    atomic_fetch_add(&state->counts[what], 1);
}

void note(enum operation what, unsigned connection, unsigned direction, uint64_t offset, int64_t result)
{
    if (own == NULL)
        return;
    uint64_t thread = (uint64_t)syscall(SYS_gettid);
    struct event *event = &own->log[atomic_fetch_add(&own->events, 1) % EVENTS_MAX];
    event->at_ns = now_ns();
    event->offset = offset;
    event->result = (uint64_t)result;
    event->what = what | connection << 8 | direction << 16 | thread << 32;
}

void violation(const char *kind, unsigned connection, unsigned direction, const char *format, ...)
{
    char text[VIOLATION_BYTES];
    int length = snprintf(text, sizeof text, "%s connection %u direction %u: ", kind, connection, direction);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    note(WRONG, connection, direction, 0, 0);
    uint64_t number = atomic_fetch_add(&state->violations, 1);
    if (number < VIOLATIONS_MAX)
        memcpy(state->violation[number], text, sizeof text);
}
