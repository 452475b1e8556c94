// The peer stays while one end executes itself, in mid-conversation and both directions.
//: lane required
#include "common.h"

/* Both sides know the stream: record i is 1000 bytes made from seed i. */
static void conversation(int fd, uint32_t from, uint32_t to, bool first)
{
    char out[1000], in[1000], want[1000];
    for (uint32_t i = from; i < to; i++) {
        fill(out, sizeof out, i);
        fill(want, sizeof want, i + 5000);
        if (first)
            write_all(fd, out, sizeof out);
        read_exact(fd, in, sizeof in);
        if (memcmp(in, first ? want : out, sizeof in) != 0)
            say("record %u differs\n", i);
        if (!first)
            write_all(fd, want, sizeof want);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        int fd = atoi(argv[1]);
        conversation(fd, 300, 600, true);
        close(fd);
        return 0;
    }
    int listener = listen_loopback(4);
    int port = port_of(listener);
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        close(listener);
        int fd = connect_loopback(port);
        conversation(fd, 0, 150, true);
        nap_ms(knob("APP_PAUSE_MS", 50));
        conversation(fd, 150, 300, true);
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl("/proc/self/exe", argv[0], number, (char *)NULL);
        die("execl");
    }
    int fd = (int)NEED(accept(listener, NULL, NULL));
    conversation(fd, 0, 600, false);
    char in[10];
    SHOW(read(fd, in, sizeof in));
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    return 0;
}
