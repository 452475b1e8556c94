// vfork and exec, posix_spawn with file actions, system and popen, with a connection open.
//: lane required
#include "common.h"

#include <spawn.h>

extern char **environ;

static void exchange(struct pair p, const char *what)
{
    char in[64];
    write_all(p.a, what, strlen(what));
    read_exact(p.b, in, strlen(what));
    write_all(p.b, what, strlen(what));
    read_exact(p.a, in, strlen(what));
    say("%s: %d\n", what, memcmp(in, what, strlen(what)) == 0);
}

int main(void)
{
    struct pair p = pair_open();
    int status;

    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    NEED(waitpid(child, &status, 0));
    say("vfork and exec: %d\n", status);
    exchange(p, "after vfork");

    child = vfork();
    if (child == 0) {
        close(p.a);
        close(p.b);
        _exit(7);
    }
    NEED(waitpid(child, &status, 0));
    say("vfork, close, exit: %d\n", WEXITSTATUS(status));
    exchange(p, "after vfork with closes");

    child = vfork();
    if (child == 0) {
        dup2(p.a, 0);
        dup2(p.a, 1);
        execl("/bin/cat", "cat", (char *)NULL);
        _exit(1);
    }
    /* cat echoes what arrives at our own end a, until it is killed. */
    char in[64];
    write_all(p.b, "through cat", 11);
    read_exact(p.b, in, 11);
    say("%.11s\n", in);
    kill(child, SIGKILL);
    NEED(waitpid(child, &status, 0));
    exchange(p, "after cat");

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, p.b, 1);
    posix_spawn_file_actions_addclose(&actions, p.a);
    char *arguments[] = {"sh", "-c", "echo spawned", NULL};
    SHOW(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ));
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    read_exact(p.a, in, 8);
    say("%.8s", in);
    exchange(p, "after posix_spawn");

    char line[100];
    snprintf(line, sizeof line, "echo from system >&%d", p.a);
    SHOW(system(line));
    read_exact(p.b, in, 12);
    say("%.12s", in);
    exchange(p, "after system");

    FILE *stream = popen("echo popen", "r");
    if (stream && fgets(line, sizeof line, stream))
        say("%s", line);
    say("pclose %d\n", pclose(stream));
    exchange(p, "after popen");
    pair_close(p);
    return 0;
}
