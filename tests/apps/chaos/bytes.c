/* Random numbers from the seed, and the bytes of a stream from their offsets. */
#include "chaos.h"

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static const uint64_t STEP = 0x9e3779b97f4a7c15u;

struct random random_of(uint64_t a, uint64_t b, uint64_t c)
{
    return (struct random){mixed(mixed(mixed(mixed(state->seed + STEP) + a) + b) + c)};
}

uint64_t below(struct random *random, uint64_t limit)
{
    random->now += STEP;
    return limit == 0 ? 0 : mixed(random->now) % limit;
}

/* From one byte to the buffer's; small ones are more frequent. */
size_t some_size(struct random *random)
{
    static const uint32_t MOST[] = {64, 64, 4096, 4096, 4096, 65536, 65536, 65536, BUFFER_BYTES};
    return 1 + below(random, MOST[below(random, sizeof MOST / sizeof *MOST)]);
}

bool is_allowed(enum operation what)
{
    return state->allowed >> what & 1;
}

enum operation allowed(struct random *random, enum operation preferred, enum operation first, enum operation last)
{
    if (is_allowed(preferred))
        return preferred;
    uint64_t span = last - first + 1, from = below(random, span);
    for (uint64_t i = 0; i < span; i++) {
        enum operation other = first + (from + i) % span;
        if (is_allowed(other))
            return other;
    }
    return preferred;
}

void fill(unsigned connection, unsigned direction, uint64_t offset, uint8_t *bytes, size_t count)
{
    uint64_t key = mixed(state->seed * 77 + connection * 2 + direction + 1);
    size_t i = 0;
    while (i < count) {
        uint64_t eight = mixed(key + ((offset + i) >> 3) * STEP);
        unsigned at = (offset + i) & 7;
        if (at == 0 && count - i >= 8) {
            memcpy(bytes + i, &eight, 8);
            i += 8;
        } else {
            bytes[i++] = (uint8_t)(eight >> (8 * at));
        }
    }
}

/* Where wrong bytes belong, for whoever looks for the cause. */
const char *find_bytes(unsigned connection, uint64_t offset, const uint8_t *bytes, size_t count)
{
    enum { AROUND = 4 << 20, NEEDED = 6, COMPARED = 32 };
    static _Thread_local char found[96];
    uint8_t *near = malloc(2 * AROUND);
    snprintf(found, sizeof found, "nowhere within %d MiB", AROUND >> 20);
    for (unsigned direction = 0; near != NULL && count >= NEEDED && direction < 2; direction++) {
        uint64_t from = offset > AROUND ? offset - AROUND : 0;
        fill(connection, direction, from, near, 2 * AROUND);
        uint8_t *place = memmem(near, 2 * AROUND, bytes, count < COMPARED ? count : COMPARED);
        if (place != NULL) {
            int64_t at = (int64_t)(from + (uint64_t)(place - near));
            snprintf(found, sizeof found, "direction %u offset %lld (%+lld)", direction, (long long)at,
                     (long long)at - (long long)offset);
        }
    }
    free(near);
    return found;
}

/* Up to eight pieces, of which some are empty. */
size_t cut_up(struct random *random, uint8_t *bytes, size_t count, struct iovec pieces[8])
{
    size_t number = 0, at = 0;
    while (number < 7 && at < count) {
        size_t length = below(random, count - at + 1);
        pieces[number++] = (struct iovec){bytes + at, length};
        at += length;
    }
    pieces[number++] = (struct iovec){bytes + at, count - at};
    return number;
}
