// Both directions at once, 256 MB each, in pieces of random sizes, with rolling checksums.
//: lane required
//: ends thread exec
//: builds plain
//: timeout 120
#include "common.h"

enum { TOTAL = 256 << 20, PIECE = 1 << 18 };

struct stream {
    int fd;
    uint32_t seed;
    uint64_t digest;
    size_t bytes;
};

/* Cheaper than FNV, and still sensitive to order and to every byte. */
static uint64_t roll(uint64_t state, const uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state = (state ^ words[i]) * 0x9e3779b97f4a7c15ull;
    return state;
}

static void make_words(uint64_t *words, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t x = *state;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = *state = x;
    }
}

static void *send_stream(void *argument)
{
    struct stream *s = argument;
    uint64_t *piece = malloc(PIECE);
    uint64_t state = s->seed;
    uint32_t random = s->seed;
    for (size_t left = TOTAL; left > 0;) {
        make_words(piece, PIECE / 8, &state);
        s->digest = roll(s->digest, piece, PIECE / 8);
        for (size_t at = 0; at < PIECE;) {
            size_t len = 1 + next_random(&random) % (next_random(&random) % 4 ? 3000 : 150000);
            if (len > PIECE - at)
                len = PIECE - at;
            write_all(s->fd, (char *)piece + at, len);
            at += len;
        }
        left -= PIECE;
    }
    free(piece);
    shutdown(s->fd, SHUT_WR);
    return NULL;
}

static void receive_stream(struct stream *s)
{
    uint64_t *piece = malloc(PIECE);
    uint32_t random = s->seed + 77;
    size_t have = 0;
    for (;;) {
        size_t len = 1 + next_random(&random) % 100000;
        if (len > PIECE - have)
            len = PIECE - have;
        ssize_t n = read(s->fd, (char *)piece + have, len);
        if (n < 0)
            die("read");
        if (n == 0)
            break;
        have += (size_t)n;
        s->bytes += (size_t)n;
        if (have == PIECE) {
            s->digest = roll(s->digest, piece, PIECE / 8);
            have = 0;
        }
    }
    free(piece);
}

static void end_with(int fd, uint32_t seed)
{
    struct stream out = {.fd = fd, .seed = seed}, in = {.fd = fd, .seed = seed};
    pthread_t sender;
    pthread_create(&sender, NULL, send_stream, &out);
    receive_stream(&in);
    pthread_join(sender, NULL);
    say("sent sum %016llx\n", (unsigned long long)out.digest);
    say("received %zu bytes, sum %016llx\n", in.bytes, (unsigned long long)in.digest);
    close(fd);
}

static void client(int fd)
{
    end_with(fd, 1001);
}

static void server(int fd)
{
    end_with(fd, 2002);
}

TWO_ENDS(client, server)
