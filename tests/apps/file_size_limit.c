// A program that may not write files (ulimit -f 0): memory that has a descriptor is a file, too,
// and making it larger than the limit is answered with a signal.
//: lane any
//: family 4
//: builds plain
#include "common.h"

int main(void)
{
    struct rlimit none = {0, 0};
    /* Standard output is a file here. */
    int curtain[2];
    NEED(pipe(curtain));
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(curtain[1], 1));
        close(curtain[0]);
        close(curtain[1]);
        NEED(setrlimit(RLIMIT_FSIZE, &none));
        struct pair p = pair_open();
        say("two ends\n");
        pair_close(p);
        _exit(0);
    }
    close(curtain[1]);
    char text[256];
    ssize_t n;
    while ((n = read(curtain[0], text, sizeof text)) > 0)
        write_all(1, text, (size_t)n);
    int status = 0;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(status);
    return 0;
}
