// What servers do at their start: close every descriptor, chroot, change user; then serve.
//: lane required
//: needs root
#include "common.h"

#include <grp.h>

static void serve_one(const char *when)
{
    struct pair p = pair_open();
    char out[3000], in[3000];
    int wrong = 0;
    for (uint32_t i = 0; i < 300; i++) {
        fill(out, sizeof out, i);
        write_all(p.a, out, sizeof out);
        read_exact(p.b, in, sizeof in);
        wrong += memcmp(in, out, sizeof in) != 0;
    }
    say("%s: wrong %d\n", when, wrong);
    SHOW(close(p.a));
    SHOW(read(p.b, in, 1));
    SHOW(close(p.b));
}

int main(void)
{
    struct pair before = pair_open();
    char in[100];
    for (int fd = 3; fd < 1024; fd++)
        if (fd != before.a && fd != before.b)
            close(fd);
    warm(before.a, before.b);
    serve_one("after closing 3 to 1023");

    closefrom(3);
    SHOW(write(before.a, "x", 1));
    serve_one("after closefrom");
    NEED(syscall(SYS_close_range, 3, ~0U, 0));
    serve_one("after a raw close_range");

    /* The daemon's way: two forks, a session, the root directory. */
    int curtain = curtain_make();
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(curtain, 1));
        setsid();
        pid_t grandchild = (pid_t)NEED(fork());
        if (grandchild == 0) {
            serve_one("in the grandchild");
            exit(0);
        }
        int status;
        NEED(waitpid(grandchild, &status, 0));
        exit(status != 0);
    }
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    curtain_lift(curtain);

    char empty[] = "empty-XXXXXX"; /* in the harness's directory, which goes away */
    if (!mkdtemp(empty))
        die("mkdtemp");
    struct pair across = pair_open();
    NEED(chroot(empty));
    NEED(chdir("/"));
    SHOW(write(across.a, "into the chroot", 15));
    SHOW(read(across.b, in, sizeof in));
    serve_one("after chroot");
    NEED(setgroups(0, NULL));
    NEED(setresgid(65534, 65534, 65534));
    NEED(setresuid(65534, 65534, 65534));
    SHOW(write(across.a, "as nobody", 9));
    SHOW(read(across.b, in, sizeof in));
    serve_one("as nobody in a chroot");
    pair_close(across);
    return 0;
}
