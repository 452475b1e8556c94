/* The programs of a round: a server, clients, and what goes on with connections of theirs. */
#include "chaos.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { FOR_PROCESS = 50, FOR_DIAL, FOR_WARMTH };
enum { MAGIC = 0xc4a05 };

/* The first bytes of a connection: which one it is. */
struct greeting {
    uint32_t magic, connection;
};

static void handler(int signal)
{
    (void)signal;
}

static void handle_signals(unsigned number)
{
    struct random random = random_of(number, 0, FOR_PROCESS);
    struct sigaction action = {.sa_handler = handler, .sa_flags = below(&random, 2) ? SA_RESTART : 0};
    signal(SIGPIPE, SIG_IGN);
    /* The kernel sends it to what is left of a group whose leader was killed while a member was stopped. */
    signal(SIGHUP, SIG_IGN);
    sigaction(SIGUSR1, &action, NULL);
    let_signals(true);
}

/* Threads that begin a connection, which may be cut by then. */
static atomic_int beginning;

static void begin(void *(*thread)(void *), intptr_t argument)
{
    pthread_t its;
    beginning++;
    if (pthread_create(&its, NULL, thread, (void *)argument) == 0)
        pthread_detach(its);
    else
        beginning--;
}

/* Whether all is over that this process has to do: its connections have begun, and it holds nothing of them. */
static bool is_over(unsigned side, unsigned number)
{
    uint64_t own = (uint64_t)getpid();
    if (beginning > 0 || hand_overs_under_way > 0)
        return false;
    for (unsigned c = 0; c < state->connections; c++) {
        if (side == 0 && c % state->clients != number)
            continue;
        const struct connection *connection = &state->connection[c];
        const struct direction *out = &connection->directions[side], *in = &connection->directions[!side];
        if (!connection->is_started[side] && !is_cut(c))
            return false;
        if ((out->sender == own && !out->sender_ended) || (in->receiver == own && !in->receiver_ended))
            return false;
    }
    return hand_overs_under_way == 0;
}

static int finish(void)
{
    /* Threads that have ended their part close their descriptors. */
    usleep(20000);
    if (helper_socket >= 0)
        close(helper_socket);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    leave_round();
    return 0;
}

static socklen_t parse(const char *address, unsigned port, struct sockaddr_storage *storage)
{
    struct sockaddr_in *four = (struct sockaddr_in *)storage;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)storage;
    memset(storage, 0, sizeof *storage);
    if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, address, &six->sin6_addr) != 1) {
        fprintf(stderr, "%s is no address\n", address);
        exit(2);
    }
    six->sin6_family = AF_INET6;
    six->sin6_port = htons((uint16_t)port);
    return sizeof *six;
}

static bool receive_all(int fd, void *bytes, size_t count_)
{
    size_t at = 0;
    while (at < count_) {
        ssize_t got = recv(fd, (char *)bytes + at, count_ - at, 0);
        if (got > 0)
            at += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return false;
    }
    return true;
}

static bool send_all(int fd, const void *bytes, size_t count_)
{
    size_t at = 0;
    while (at < count_) {
        ssize_t sent = send(fd, (const char *)bytes + at, count_ - at, MSG_NOSIGNAL);
        if (sent > 0)
            at += (size_t)sent;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

/* Most connections talk a little first, so that they are on a lane when it matters. */
static bool warm_up(int fd, unsigned connection, unsigned side)
{
    enum { ROUNDS = 40, PAUSE_AT = 20, PAUSE_US = 40000 };
    struct random random = random_of(connection, 0, FOR_WARMTH);
    char byte = 0;
    if (below(&random, 4) == 0)
        return true;
    for (int round = 0; round < ROUNDS; round++) {
        if (side == 0 && round == PAUSE_AT)
            usleep(PAUSE_US);
        if (side == 0 && !(send_all(fd, &byte, 1) && receive_all(fd, &byte, 1)))
            return false;
        if (side == 1 && !(receive_all(fd, &byte, 1) && send_all(fd, &byte, 1)))
            return false;
    }
    return true;
}

static void *welcome(void *argument)
{
    int fd = (int)(intptr_t)argument;
    let_signals(true);
    struct greeting greeting;
    bool is_one = receive_all(fd, &greeting, sizeof greeting) && greeting.magic == MAGIC &&
                  greeting.connection < state->connections;
    if (is_one && warm_up(fd, greeting.connection, 1))
        start_end(fd, greeting.connection, 1);
    else
        close(fd);
    beginning--;
    return NULL;
}

static int listen_at(const char *address, unsigned port)
{
    struct sockaddr_storage at;
    socklen_t length = parse(strcmp(address, "-") == 0 ? "::" : address, port, &at);
    int listener = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), both = 0, again = 1;
    if (at.ss_family == AF_INET6)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &again, sizeof again);
    if (bind(listener, (struct sockaddr *)&at, length) != 0 || listen(listener, 64) != 0) {
        perror("listen");
        exit(2);
    }
    getsockname(listener, (struct sockaddr *)&at, &length);
    state->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                                 : ((struct sockaddr_in *)&at)->sin_port);
    return listener;
}

static int server(const char *address, unsigned port)
{
    enum { LOOK_AGAIN_MS = 50 };
    join_round(SERVER, 0);
    start_helper();
    let_signals(false);
    struct random random = random_of(0, 1, FOR_PROCESS);
    int listener = listen_at(address, port);
    while (!state->is_over && !is_over(1, 0)) {
        struct pollfd look = {listener, POLLIN, 0};
        if (poll(&look, 1, LOOK_AGAIN_MS) != 1)
            continue;
        int fd = accept4(listener, NULL, NULL, below(&random, 4) ? SOCK_CLOEXEC : 0);
        if (fd >= 0)
            begin(welcome, fd);
    }
    close(listener);
    return finish();
}

static const char *server_address;
static unsigned server_port;

/* As connect(2) asks of who was interrupted: waits for the connection, and asks how it went. */
static int finish_connect(int fd)
{
    struct pollfd look = {fd, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof error;
    while (poll(&look, 1, -1) != 1)
        ;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    return error ? -1 : 0;
}

static void *dial(void *argument)
{
    unsigned connection = (unsigned)(intptr_t)argument;
    struct random random = random_of(connection, 0, FOR_DIAL);
    bool is_six = below(&random, 2);
    let_signals(true);
    usleep((useconds_t)below(&random, 100000));
    const char *address = server_address;
    if (strcmp(address, "-") == 0)
        address = is_six ? "::1" : "127.0.0.1";
    struct sockaddr_storage to;
    socklen_t length = parse(address, server_port ? server_port : (unsigned)state->port, &to);
    int fd = socket(to.ss_family, SOCK_STREAM | (below(&random, 4) ? SOCK_CLOEXEC : 0), 0);
    int result = connect(fd, (struct sockaddr *)&to, length);
    if (result != 0 && errno == EINTR)
        result = finish_connect(fd);
    struct greeting greeting = {MAGIC, connection};
    if (result == 0 && send_all(fd, &greeting, sizeof greeting) && warm_up(fd, connection, 0)) {
        start_end(fd, connection, 0);
        beginning--;
        return NULL;
    }
    if (!is_cut(connection))
        violation("CONNECT", connection, 0, "%s", strerror(errno));
    cut(connection, RESET);
    for (unsigned d = 0; d < 2; d++) {
        struct direction *direction = &state->connection[connection].directions[d];
        direction->sender_ended = direction->receiver_ended = 1;
    }
    close(fd);
    beginning--;
    return NULL;
}

static int client(unsigned number, const char *address, unsigned port)
{
    enum { LOOK_AGAIN_US = 20000 };
    join_round(CLIENT, number);
    unsigned own = 0;
    for (unsigned c = number; c < state->connections; c += (unsigned)state->clients)
        own++;
    struct random random = random_of(number, 2, FOR_PROCESS);
    may_exec_self = own == 1;
    if (!may_exec_self || below(&random, 2))
        start_helper();
    let_signals(false);
    server_address = address;
    server_port = port;
    for (unsigned c = number; c < state->connections; c += (unsigned)state->clients)
        begin(dial, c);
    while (!state->is_over && !is_over(0, number))
        usleep(LOOK_AGAIN_US);
    return finish();
}

static unsigned number_of(const char *word)
{
    return (unsigned)strtoul(word, NULL, 10);
}

static int go_on(char **words)
{
    join_round(CONTINUED, 0);
    continue_flow(number_of(words[0]), number_of(words[1]), (int)number_of(words[2]), number_of(words[3]),
                  number_of(words[4]), (int)number_of(words[5]));
    return finish();
}

int main(int count_, char **words)
{
    const char *what = count_ > 1 ? words[1] : "";
    if (strcmp(what, "names") == 0) {
        for (int i = 0; i < OPERATIONS; i++)
            puts(operation_names[i]);
        return 0;
    }
    if (count_ < 4) {
        fprintf(stderr, "usage: chaos server STATE ADDRESS PORT | client STATE NUMBER ADDRESS PORT | names\n");
        return 2;
    }
    open_state(words[2]);
    handle_signals(strcmp(what, "server") == 0 ? 0 : 1 + number_of(words[3]));
    if (strcmp(what, "server") == 0 && count_ == 5)
        return server(words[3], number_of(words[4]));
    if (strcmp(what, "client") == 0 && count_ == 6)
        return client(number_of(words[3]), words[4], number_of(words[5]));
    if (strcmp(what, "helper") == 0)
        return helper((int)number_of(words[3]));
    if (strcmp(what, "continue") == 0 && count_ == 9)
        return go_on(words + 3);
    return 2;
}
