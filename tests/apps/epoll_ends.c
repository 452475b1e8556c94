// Edge-triggered and one-shot loops under load: no event may be lost.
//: lane required
//: ends thread fork exec
#include "common.h"

enum { ROUNDS = 3000 };

static void client(int fd)
{
    char data[600];
    uint32_t random = 99;
    for (int i = 0; i < ROUNDS; i++) {
        size_t len = 1 + next_random(&random) % 512;
        fill(data, len, (uint32_t)i);
        write_all(fd, data, len);
        if (i % 7 == 0)
            read_exact(fd, data, 1);
        if (i % 500 == 0)
            nap_ms(3);
    }
    meet();
    shutdown(fd, SHUT_WR);
    SHOW(read(fd, data, 1));
    close(fd);
}

/* Answers one byte for every seventh message; modes take turns. */
static void server(int fd)
{
    static const uint32_t modes[] = {EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT, 0};
    uint32_t random = 99;
    size_t total = 0, until_answer = 0, expected = 0;
    uint64_t digest = SUM_START;
    size_t answer_at[ROUNDS / 7 + 2];
    int answers = 0, answered = 0;
    for (int i = 0; i < ROUNDS; i++) {
        expected += 1 + next_random(&random) % 512;
        if (i % 7 == 0)
            answer_at[answers++] = expected;
    }
    (void)until_answer;
    int set = (int)NEED(epoll_create1(0));
    set_nonblocking(fd, true);
    uint32_t mode = modes[0];
    struct epoll_event event = {.events = EPOLLIN | mode};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    bool met = false, ended = false;
    int wakes = 0;
    while (!ended) {
        int n = epoll_wait(set, &event, 1, PATIENCE_SECONDS * 1000);
        if (n != 1) {
            say("an event was lost: epoll_wait = %d after %zu bytes\n", n, total);
            break;
        }
        char data[333];
        ssize_t got;
        while ((got = read(fd, data, sizeof data)) > 0) {
            digest = sum_more(digest, data, (size_t)got);
            total += (size_t)got;
            while (answered < answers && total >= answer_at[answered]) {
                write_all(fd, "k", 1);
                answered++;
            }
        }
        if (got == 0)
            ended = true;
        else if (errno != EAGAIN)
            die("read");
        if (total == expected && !met) {
            met = true;
            say("%zu bytes, sum %016llx, %d answers\n", total, (unsigned long long)digest, answered);
            meet();
        }
        mode = modes[++wakes / 100 % 4];
        event.events = EPOLLIN | mode;
        NEED(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    }
    say("ended %d\n", ended);
    close(fd);
}

TWO_ENDS(client, server)
