/*
 * The programs of the suite `chaos`: streams whose every byte is checked by its offset, between processes that use
 * sockets in all ways at random.
 *
 *   chaos server STATE ADDRESS PORT
 *   chaos client STATE NUMBER ADDRESS PORT
 *   chaos names
 *
 * The suite (tests/tests/chaos) writes the head of the file STATE, starts one server and some clients, and hurts them.
 * All processes of a round have the file mapped. What a process sends and receives, what it found wrong, and its last
 * events are in the file, and stay there when the process is killed. ADDRESS "-" is both loopback addresses; PORT 0 is
 * the one that the server has written into the state.
 *
 * Each random choice follows from the seed and from what makes it: the connection, its side, its direction, and how
 * often it changed hands. When a thread runs is the scheduler's choice.
 */
#ifndef SLUICE_APPS_CHAOS_H
#define SLUICE_APPS_CHAOS_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 16,
    PROCESSES_MAX = 96,
    EVENTS_MAX = 1024,
    VIOLATIONS_MAX = 32,
    VIOLATION_BYTES = 512,
    BUFFER_BYTES = 1 << 20,
};

/* ---- the state, of 64-bit words; tests/tests/chaos/state.rs reads the same ------------------------------------ */

/* Their names, by which the suite counts and chooses them, are in state.c. */
enum operation {
    SEND, WRITE, WRITEV, SENDMSG, SENDFILE, SPLICE_OUT, MORE,
    RECV, READ, READV, RECVMSG, PEEK, WAITALL, FIONREAD_, SPLICE_IN, TRUNC, RCVTIMEO,
    POLL, PPOLL, SELECT, EPOLL_LEVEL, EPOLL_EDGE, EPOLL_ONCE,
    POOL_EXCLUSIVE, POOL_LEVEL, POOL_EDGE, POOL_ONCE,
    DUP, DUP2, FORK, EXEC, PASS, EXEC_SELF,
    ABORT_CLOSE, ABORT_LINGER, ABORT_SHUT,
    /* What is only counted and noted. */
    STARTED, ENDED, FIN, END_OF_STREAM, AGAIN, INTERRUPTED, RESET, BROKEN_PIPE, BUSY, FIONREAD_SHORT, MUTATED, WRONG,
    OPERATIONS,
};

/* Faults of the checker's own making, each of which it must report. */
enum mutation { NONE, LOSE_BYTE, DOUBLE_BYTE, SWAP_BYTES, FLIP_BIT, LOSE_TAIL, EARLY_END, HANG_READER, RESET_ONE, CRASH };

typedef _Atomic uint64_t word;

/* One direction of a connection: 0 is the client's to the server. Bytes and offsets count from its start. */
struct direction {
    word total;                 /* to be sent */
    word offered;               /* given to calls that send */
    word sent;                  /* taken by them */
    word received;              /* and right */
    word is_fin;                /* the sender has sent all, and says so */
    word is_eof;                /* the receiver has met the end */
    word sender, receiver;      /* processes */
    word sender_ended, receiver_ended;
    word send_call, receive_call; /* the last one of each, an operation */
    word spare[4];
};

struct connection {
    word cut;                   /* the operation that cuts it; 0: none does */
    word is_started[2];         /* by the client, by the server */
    word spare;
    struct direction directions[2];
};

struct event {
    word at_ns;                 /* CLOCK_MONOTONIC */
    word what;                  /* operation, connection << 8, direction << 16, thread << 32 */
    word offset;
    word result;                /* bytes, or an errno as a negative number */
};

enum kind { SERVER = 1, CLIENT, CONTINUED, HELPER };

struct process {
    word pid;
    word kind;
    word number;                /* of a client */
    word is_done;               /* it ends by itself now */
    word is_killed;             /* the suite writes it, and then kills */
    word events;
    word spare[2];
    struct event log[EVENTS_MAX]; /* number i is at i % EVENTS_MAX */
};

struct state {
    word seed;
    word connections, clients;
    word port;
    word is_over;               /* the suite writes it: all end */
    word may_be_cut;            /* the suite kills, stops or signals: reads may be short */
    word mutation, mutated;
    word allowed;               /* one bit for each operation */
    word violations;
    word spare[6];
    word counts[64];
    struct connection connection[CONNECTIONS_MAX];
    struct process process[PROCESSES_MAX];
    char violation[VIOLATIONS_MAX][VIOLATION_BYTES];
};

_Static_assert(sizeof(struct direction) == 16 * 8, "as the suite reads it");
_Static_assert(sizeof(struct connection) == 36 * 8, "as the suite reads it");
_Static_assert(sizeof(struct process) == (8 + 4 * EVENTS_MAX) * 8, "as the suite reads it");
_Static_assert(OPERATIONS <= 64, "one bit each");

extern struct state *state;
extern const char *state_path, *own_path;
extern const char *const operation_names[OPERATIONS];

/* ---- state.c -------------------------------------------------------------------------------------------------- */

void open_state(const char *path);
uint64_t now_ns(void);
void join_round(enum kind kind, unsigned number); /* this process is part of the round, and may be hurt from now on */
void leave_round(void);
bool is_killed(uint64_t pid);
bool is_cut(unsigned connection);
void cut(unsigned connection, enum operation why);
void count(enum operation what);
void note(enum operation what, unsigned connection, unsigned direction, uint64_t offset, int64_t result);
void violation(const char *kind, unsigned connection, unsigned direction, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void forget_log_place(void);    /* of the parent, in a child */

/* ---- bytes.c -------------------------------------------------------------------------------------------------- */

struct random {
    uint64_t now;
};

struct random random_of(uint64_t a, uint64_t b, uint64_t c);
uint64_t below(struct random *random, uint64_t limit);
size_t some_size(struct random *random);
/* `preferred`, or one that the suite allows if that is not allowed, between two operations. */
enum operation allowed(struct random *random, enum operation preferred, enum operation first, enum operation last);
bool is_allowed(enum operation what);
void fill(unsigned connection, unsigned direction, uint64_t offset, uint8_t *bytes, size_t count);
const char *find_bytes(unsigned connection, uint64_t offset, const uint8_t *bytes, size_t count);
size_t cut_up(struct random *random, uint8_t *bytes, size_t count, struct iovec pieces[8]);

/* ---- an end of a connection, and what a thread does with it --------------------------------------------------- */

enum { OUT = 1, IN = 2 };
/* Results of calls below zero; 0 is the end of a stream. */
enum { TRY_AGAIN = -1, OVER = -2, WAS_INTERRUPTED = -3 };

/* What the threads of one end share. */
struct end {
    int fd;
    atomic_int holders;         /* of fd */
    pthread_mutex_t lock;       /* of a pool */
    atomic_bool is_over;        /* a pool's stream */
    enum operation abort;       /* 0: none */
    uint64_t abort_at;
};

struct hand_over {
    uint64_t at;
    enum operation how;
};

struct flow {
    struct end *end;
    unsigned connection, side, leg;
    int fd;
    int mask;                   /* OUT and IN */
    bool nonblocking, in_turns, is_slow, may_splice, short_before;
    int64_t pauses_us;          /* left of them */
    enum operation wait;
    int epoll, edge_ready;
    int pipe[2];
    struct hand_over hand_overs[4];
    int hand_overs_left;        /* the last one comes first */
    bool gave_away;
    struct random random;
    uint8_t *bytes, *expected;
};

struct direction *outward(const struct flow *flow);
struct direction *inward(const struct flow *flow);
int call_failed(struct flow *flow, bool sends);

int send_some(struct flow *flow, size_t count, bool blocks);     /* send.c */
int receive_some(struct flow *flow, size_t count, bool blocks);  /* receive.c */
int await(struct flow *flow, int want);                          /* wait.c: what is ready of it */
int give_away(struct flow *flow, enum operation how, int mask);  /* pass.c: what was given of the mask */
void mutate_before_send(struct flow *flow, uint64_t offset, size_t *count); /* mutate.c */
bool mutate(struct flow *flow, enum mutation what, uint64_t offset);

/* flow.c */
void prepare(struct flow *flow);
void close_own(struct flow *flow);      /* its epoll instance and pipe */
void run_flow(struct flow *flow);
void hold(const struct flow *flow, int mask, int pid);
void watch_partner(const struct flow *flow);
void start_end(int fd, unsigned connection, unsigned side);
void continue_flow(unsigned connection, unsigned side, int mask, unsigned habits, unsigned leg, int fd);
unsigned habits(const struct flow *flow);

/* pass.c */
extern int helper_socket, helper_pid;
extern atomic_int hand_overs_under_way;
extern bool may_exec_self;
void start_helper(void);
int helper(int socket);
void close_all_but(int fd);
void let_signals(bool in);

#endif
