// Runs a program under a seccomp filter, as container runtimes and service managers do.
//
//   filtered_exec allow PROGRAM ARGS...         a filter that lets everything through
//   filtered_exec errno CALL PROGRAM ARGS...    answers the call with EPERM
//   filtered_exec kill CALL PROGRAM ARGS...     kills for the call
//
// CALL is the number of a system call.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    unsigned int call = 0, verdict = SECCOMP_RET_ALLOW;
    char **program = argv + 2;
    if (strcmp(argv[1], "allow") != 0) {
        verdict = strcmp(argv[1], "kill") == 0 ? SECCOMP_RET_KILL_PROCESS
                                               : SECCOMP_RET_ERRNO | EPERM;
        call = (unsigned int)atoi(argv[2]);
        program++;
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, verdict),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof filter / sizeof filter[0], filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0) {
        perror("filtered_exec: no filter");
        return 3;
    }
    execvp(program[0], program);
    perror("filtered_exec");
    return 127;
}
