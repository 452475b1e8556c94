/*
 * The two programs of the matrix suite: a server that accepts and a client that
 * connects, exchanging framed, checksummed records in both directions at once.
 *
 *   stream server thread|fork|prefork CONNECTIONS
 *   stream client PORT CONNECTIONS RECORDS
 *
 * RECORDS is what each side of each connection sends; 0 means "until killed".
 * The server prints "port N" when it listens and learns RECORDS from the client.
 * Each side prints one line per connection:
 *
 *   connection I: received N records, ended by eof|reset|done
 *
 * and before it, "until killed", "connection I: flows" when the first record has come.
 *
 * A record is a header (length, sequence number, checksum) and that many bytes
 * made from the connection's and the record's number. Anything but the exact
 * sequence, cut at the end at most, is "corrupt" and exit status 1.
 */
#include "common.h"

enum { RECORD_MAX = 20000, CONNECTIONS_MAX = 16 };

struct header {
    uint32_t length, sequence;
    uint64_t digest;
};

struct greeting {
    uint32_t connection, records;
};

struct side {
    int fd;
    uint32_t connection, records;
    bool is_server;
    uint64_t received;
    const char *ended;
    bool write_failed;
};

static uint32_t seed_of(const struct side *s, bool from_server, uint32_t sequence)
{
    return s->connection * 1000003u + (from_server ? 500009u : 0) + sequence;
}

static uint32_t length_of(uint32_t seed)
{
    uint32_t state = seed + 12345;
    uint32_t value = next_random(&state);
    /* Mostly small, some large, as real protocols. */
    return value % 8 == 0 ? value / 8 % RECORD_MAX : value / 8 % 300;
}

static bool send_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static void *send_records(void *argument)
{
    struct side *s = argument;
    static __thread char record[sizeof(struct header) + RECORD_MAX];
    for (uint32_t i = 0; s->records == 0 || i < s->records; i++) {
        uint32_t seed = seed_of(s, s->is_server, i);
        struct header header = {.length = length_of(seed), .sequence = i};
        fill(record + sizeof header, header.length, seed);
        header.digest = sum(record + sizeof header, header.length);
        memcpy(record, &header, sizeof header);
        if (!send_all(s->fd, record, sizeof header + header.length)) {
            s->write_failed = true;
            return NULL;
        }
    }
    shutdown(s->fd, SHUT_WR);
    return NULL;
}

/* The number of bytes read, less than asked for only at the stream's end. */
static size_t receive(struct side *s, void *data, size_t len)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = recv(s->fd, (char *)data + got, len - got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != ECONNRESET && errno != EPIPE) {
                say("connection %u: unexpected %s\n", s->connection, error_name(errno));
                exit(1);
            }
            s->ended = "reset";
            break;
        }
        if (n == 0) {
            s->ended = "eof";
            break;
        }
        got += (size_t)n;
    }
    return got;
}

static void corrupt(const struct side *s, const char *what)
{
    say("connection %u: corrupt after %llu records: %s\n", s->connection,
        (unsigned long long)s->received, what);
    exit(1);
}

/* A stream that was cut must still be an exact prefix, down to the last byte. */
static void check_prefix(const struct side *s, const void *got, const void *want, size_t len)
{
    if (memcmp(got, want, len) != 0)
        corrupt(s, "the cut record is no prefix");
}

static void receive_records(struct side *s)
{
    static __thread char got[RECORD_MAX], want[RECORD_MAX];
    for (;;) {
        uint32_t seed = seed_of(s, !s->is_server, (uint32_t)s->received);
        struct header expected = {.length = length_of(seed), .sequence = (uint32_t)s->received};
        fill(want, expected.length, seed);
        expected.digest = sum(want, expected.length);

        struct header header;
        size_t n = receive(s, &header, sizeof header);
        check_prefix(s, &header, &expected, n);
        if (n < sizeof header) {
            if (n > 0 && s->records != 0)
                corrupt(s, "the stream ends within a header");
            break;
        }
        n = receive(s, got, header.length);
        check_prefix(s, got, want, n);
        if (n < header.length)
            break;
        if (sum(got, n) != header.digest)
            corrupt(s, "checksum");
        if (s->received++ == 0 && s->records == 0)
            say("connection %u: flows\n", s->connection);
    }
    if (s->records != 0 && s->received == s->records && strcmp(s->ended, "eof") == 0)
        s->ended = "done";
}

static void run_side(struct side *s)
{
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_records, s) != 0)
        die("pthread_create");
    receive_records(s);
    /* A sender that waits for a dead peer ends too: its connection is gone. */
    pthread_join(sender, NULL);
    close(s->fd);
    say("connection %u: received %llu records, ended by %s\n", s->connection,
        (unsigned long long)s->received, s->ended);
}

static void serve(int fd)
{
    struct greeting greeting;
    read_exact(fd, &greeting, sizeof greeting);
    struct side s = {.fd = fd,
                     .connection = greeting.connection,
                     .records = greeting.records,
                     .is_server = true};
    run_side(&s);
}

static void *serve_thread(void *fd)
{
    serve((int)(intptr_t)fd);
    return NULL;
}

static int serve_all(const char *how, int connections)
{
    int listener = listen_loopback(64);
    say("port %d\n", port_of(listener));
    if (strcmp(how, "thread") == 0) {
        pthread_t threads[CONNECTIONS_MAX];
        for (int i = 0; i < connections; i++) {
            int fd = (int)NEED(accept(listener, NULL, NULL));
            if (pthread_create(&threads[i], NULL, serve_thread, (void *)(intptr_t)fd) != 0)
                die("pthread_create");
        }
        for (int i = 0; i < connections; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }
    bool pre = strcmp(how, "prefork") == 0;
    for (int i = 0; i < connections; i++) {
        int fd = pre ? -1 : (int)NEED(accept(listener, NULL, NULL));
        pid_t child = (pid_t)NEED(fork());
        if (child == 0) {
            /* Workers die with the server, as its kill stands for the whole server's end. */
            if (fd < 0)
                fd = (int)NEED(accept(listener, NULL, NULL));
            close(listener);
            serve(fd);
            exit(0);
        }
        if (fd >= 0)
            close(fd);
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

static void *client_thread_body(void *argument)
{
    run_side(argument);
    return NULL;
}

static int connect_all(int port, int connections, uint32_t records)
{
    pthread_t threads[CONNECTIONS_MAX];
    static struct side sides[CONNECTIONS_MAX];
    for (int i = 0; i < connections; i++) {
        sides[i] = (struct side){.fd = connect_loopback(port),
                                 .connection = (uint32_t)i,
                                 .records = records};
        struct greeting greeting = {(uint32_t)i, records};
        write_all(sides[i].fd, &greeting, sizeof greeting);
        if (pthread_create(&threads[i], NULL, client_thread_body, &sides[i]) != 0)
            die("pthread_create");
    }
    for (int i = 0; i < connections; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && strcmp(argv[1], "server") == 0 && atoi(argv[3]) <= CONNECTIONS_MAX)
        return serve_all(argv[2], atoi(argv[3]));
    if (argc == 5 && strcmp(argv[1], "client") == 0 && atoi(argv[3]) <= CONNECTIONS_MAX)
        return connect_all(atoi(argv[2]), atoi(argv[3]), (uint32_t)atoi(argv[4]));
    fprintf(stderr, "usage: see the top of stream.c\n");
    return 2;
}
