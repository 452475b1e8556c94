// Both ends poll by reading: their sockets do not block and they wait in no call.
//: lane required
//: family 4
#include "common.h"

enum { BYTES = 64, ROUNDS = 3000 };

static void get(int fd, char *data)
{
    for (size_t got = 0; got < BYTES;) {
        ssize_t n = recv(fd, data + got, BYTES - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            die("recv");
        got += n > 0 ? (size_t)n : 0;
    }
}

static void *echo(void *argument)
{
    int fd = *(int *)argument;
    char data[BYTES];
    for (int i = 0; i < ROUNDS; i++) {
        get(fd, data);
        write_all(fd, data, BYTES);
    }
    return NULL;
}

int main(void)
{
    struct pair p = pair_cold();
    pthread_t thread;
    char out[BYTES], in[BYTES];
    uint64_t seen = SUM_START;
    set_nonblocking(p.a, true);
    set_nonblocking(p.b, true);
    NEED(-pthread_create(&thread, NULL, echo, &p.b));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        fill(out, BYTES, i);
        write_all(p.a, out, BYTES);
        get(p.a, in);
        seen = sum_more(seen, in, BYTES);
        if (memcmp(out, in, BYTES) != 0)
            say("answer %u differs\n", i);
        if (i % 1000 == 500)
            nap_ms(knob("APP_PAUSE_MS", 50));
    }
    pthread_join(thread, NULL);
    say("%016llx\n", (unsigned long long)seen);
    pair_close(p);
    return 0;
}
