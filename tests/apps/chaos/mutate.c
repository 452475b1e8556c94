/* Faults of the checker's own making: each is one that Sluice could have, and the suite must report it. */
#include "chaos.h"

#include <arpa/inet.h>

/* Where direction 0 of connection 0 is hurt. */
static uint64_t place(const struct direction *d)
{
    return d->total / 2;
}

static bool is_hurt(unsigned connection, unsigned direction, enum mutation what)
{
    return what != NONE && state->mutation == what && connection == 0 && direction == 0;
}

/* What a sender gives to the call instead of the stream's bytes. */
void mutate_before_send(struct flow *flow, uint64_t offset, size_t *count_)
{
    const struct direction *d = outward(flow);
    enum mutation what = (enum mutation)state->mutation;
    uint64_t at = place(d), end = offset + *count_;
    if (!is_hurt(flow->connection, flow->side, what) || what == HANG_READER)
        return;
    /* The others come between two calls that send. */
    if (what > FLIP_BIT && offset < at && end > at)
        *count_ = (size_t)(at - offset);
    if (what > FLIP_BIT || end <= at + 1)
        return;
    if (what == LOSE_BYTE || what == DOUBLE_BYTE) {
        uint64_t from = offset > at ? offset : at;
        uint64_t shifted = what == LOSE_BYTE ? from + 1 : from - 1;
        fill(flow->connection, flow->side, shifted, flow->bytes + (from - offset), (size_t)(end - from));
    } else if (offset <= at) {
        uint8_t *bytes = flow->bytes + (at - offset);
        if (what == SWAP_BYTES) {
            uint8_t first = bytes[0];
            bytes[0] = bytes[1];
            bytes[1] = first;
        } else {
            bytes[0] ^= 1;
        }
    } else {
        return;
    }
    if (atomic_exchange(&state->mutated, 1) == 0)
        count(MUTATED);
}

/* The others, at the offset of a flow. Returns whether the flow is to go on as one that was hurt so. */
bool mutate(struct flow *flow, enum mutation what, uint64_t offset)
{
    bool reads = what == HANG_READER;
    unsigned direction = reads ? !flow->side : flow->side;
    struct direction *d = &state->connection[flow->connection].directions[direction];
    if (!is_hurt(flow->connection, direction, what) || offset < place(d) || atomic_exchange(&state->mutated, 1) != 0)
        return false;
    count(MUTATED);
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    switch (what) {
    case LOSE_TAIL:
        d->offered = d->sent = (uint64_t)d->total;
        break;
    case EARLY_END:
        shutdown(flow->fd, SHUT_WR);
        break;
    case RESET_ONE:
        connect(flow->fd, &nobody, sizeof nobody);
        break;
    case CRASH:
        _exit(3);
    case HANG_READER:
        for (;;)
            pause();
    default:
        break;
    }
    return true;
}
