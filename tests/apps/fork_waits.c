// One thread forks children that end at once, another one waits for whichever ends, and a third opens connections and
// closes them. A last child lives and goes on with its connection.
//: lane required
#include "common.h"

enum { CHILDREN = 1500 };

static atomic_bool stops;

static void *forks(void *unused)
{
    (void)unused;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0)
            die("fork");
    }
    return NULL;
}

static void *opens(void *unused)
{
    (void)unused;
    while (!atomic_load(&stops)) {
        struct pair p = pair_cold();
        ping_pong_within(p.a, p.b, 8);
        pair_close(p);
    }
    return NULL;
}

int main(void)
{
    struct pair p = pair_open();
    pthread_t threads[2];
    NEED(-pthread_create(&threads[0], NULL, forks, NULL));
    NEED(-pthread_create(&threads[1], NULL, opens, NULL));
    int ended = 0, wrong = 0, status;
    while (ended < CHILDREN) {
        pid_t pid = waitpid(-1, &status, 0);
        if (pid > 0) {
            ended++;
            wrong += status != 0;
        }
    }
    NEED(-pthread_join(threads[0], NULL));
    atomic_store(&stops, true);
    NEED(-pthread_join(threads[1], NULL));
    say("%d ended, %d of them wrong\n", ended, wrong);

    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        close(p.a);
        char in[32];
        for (int i = 0; i < 20; i++) {
            read_exact(p.b, in, sizeof in);
            write_all(p.b, in, sizeof in);
        }
        exit(0);
    }
    close(p.b);
    char out[32], in[32];
    for (uint32_t i = 0; i < 20; i++) {
        fill(out, sizeof out, i);
        write_all(p.a, out, sizeof out);
        read_exact(p.a, in, sizeof in);
        if (memcmp(in, out, sizeof in) != 0)
            say("bytes differ\n");
    }
    SHOW(read(p.a, in, 1));
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    close(p.a);
    return 0;
}
