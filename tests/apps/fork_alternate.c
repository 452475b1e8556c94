// After fork parent and child go on with one and the same connection, taking turns.
//: lane required
#include "common.h"

enum { TURNS = 40 };

static int baton[2][2];

static void pass(int to)
{
    write_all(baton[to][1], "b", 1);
}

static void wait_baton(int me)
{
    char byte;
    read_exact(baton[me][0], &byte, 1);
}

static void turns(struct pair p, int me)
{
    char out[700], in[700];
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        wait_baton(me);
        /* Sends one message and reads half of what the other side of the fork sent before. */
        fill(out, sizeof out, 2 * turn + (uint32_t)me);
        write_all(p.a, out, sizeof out);
        if (turn > 0 || me > 0) {
            uint32_t previous = 2 * turn + (uint32_t)me - 1;
            read_exact(p.b, in, sizeof in);
            fill(out, sizeof out, previous);
            if (memcmp(in, out, sizeof in) != 0)
                say("turn %u of %s: bytes differ\n", turn, me ? "child" : "parent");
        }
        if (turn % 3 == 0) {
            /* The other direction too. */
            write_all(p.b, out, 10);
            read_exact(p.a, in, 10);
            if (memcmp(in, out, 10) != 0)
                say("turn %u of %s: answer differs\n", turn, me ? "child" : "parent");
        }
        pass(1 - me);
    }
}

int main(void)
{
    struct pair p = pair_open();
    NEED(pipe(baton[0]));
    NEED(pipe(baton[1]));
    char in[2000];

    /* Bytes on the way at the moment of the fork are read by whoever asks first. */
    SHOW(write(p.a, "before the fork", 15));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        wait_baton(1);
        SHOW(read(p.b, in, 6));
        pass(0);
        turns(p, 1);
        wait_baton(1);
        SHOW(close(p.a));
        SHOW(close(p.b));
        pass(0);
        exit(0);
    }
    pass(1);
    wait_baton(0);
    SHOW(read(p.b, in, 100));
    pass(0);
    turns(p, 0);
    wait_baton(0);
    SHOW(read(p.b, in, sizeof in));
    pass(1);
    wait_baton(0);
    int status;
    NEED(waitpid(child, &status, 0));
    say("child status %d\n", status);
    /* The child's closes did not end the stream. */
    SHOW(write(p.a, "still open", 10));
    SHOW(read(p.b, in, 100));
    SHOW(close(p.a));
    SHOW(read(p.b, in, 100));
    close(p.b);

    say("-- the parent closes, the child goes on\n");
    p = pair_open();
    int curtain = curtain_make();
    child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(curtain, 1));
        close(p.b);
        wait_baton(1);
        SHOW(write(p.a, "from the child", 14));
        SHOW(read(p.a, in, 100));
        exit(0);
    }
    SHOW(close(p.a));
    pass(1);
    SHOW(read(p.b, in, 100));
    SHOW(write(p.b, "answer", 6));
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);
    SHOW(read(p.b, in, 100));
    close(p.b);

    say("-- a child that is killed has closed nothing of ours\n");
    p = pair_open();
    child = (pid_t)NEED(fork());
    if (child == 0) {
        write_all(p.a, "child", 5);
        raise(SIGKILL);
    }
    NEED(waitpid(child, &status, 0));
    SHOW(read(p.b, in, 100));
    SHOW(write(p.a, "parent", 6));
    SHOW(read(p.b, in, 100));
    pair_close(p);
    return 0;
}
