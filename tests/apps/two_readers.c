// Two threads read one socket, two others write the other end: no byte twice, none lost.
//: lane required
#include "common.h"

enum { RECORDS = 20000 };

static struct pair p;
static atomic_uchar seen[2 * RECORDS];
static atomic_int doubled, short_reads;

static void *writes(void *which)
{
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint32_t record = (uint32_t)(intptr_t)which * RECORDS + i;
        /* One write of four bytes: TCP keeps small writes of two threads whole. */
        if (write(p.a, &record, sizeof record) != sizeof record)
            die("write");
    }
    return NULL;
}

static void *reads(void *unused)
{
    (void)unused;
    uint32_t record;
    for (;;) {
        ssize_t n = recv(p.b, &record, sizeof record, MSG_WAITALL);
        if (n == 0)
            return NULL;
        if (n != sizeof record)
            short_reads++;
        else if (record < 2 * RECORDS && atomic_fetch_add(&seen[record], 1) != 0)
            doubled++;
    }
}

int main(void)
{
    p = pair_open();
    pthread_t readers[2], writers[2];
    for (intptr_t i = 0; i < 2; i++) {
        pthread_create(&readers[i], NULL, reads, NULL);
        pthread_create(&writers[i], NULL, writes, (void *)i);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(writers[i], NULL);
    SHOW(shutdown(p.a, SHUT_WR));
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    int missing = 0;
    for (int i = 0; i < 2 * RECORDS; i++)
        missing += seen[i] == 0;
    say("missing %d doubled %d short %d\n", missing, doubled, short_reads);
    pair_close(p);
    return 0;
}
