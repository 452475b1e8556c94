// Programs are executed while bytes are unread whose sender sleeps: in the program's place, from
// a fork as its standard input, beside it, without the preload library.
//: lane required
#include "unread.h"

#include <spawn.h>

extern char **environ;

#define PIECE 5000

/* Reads what is left behind the first `from` bytes of the message. */
static void read_rest(int fd, size_t from)
{
    char in[PIECE], want[PIECE];
    fill(want, sizeof want, 7);
    read_exact(fd, in, PIECE - from);
    say("the rest is %s\n", memcmp(in, want + from, PIECE - from) == 0 ? "right" : "wrong");
}

static void answer(int fd)
{
    SHOW(write(fd, "answer", 6));
    char byte;
    SHOW(read(fd, &byte, 1));
}

static void look_all_ways(int fd)
{
    int unread = 0;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    SHOW(ioctl(fd, FIONREAD, &unread));
    say("unread %d\n", unread);
    SHOW(poll(&entry, 1, 0));
    int instance = (int)NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_wait(instance, &event, 1, 20000));
    close(instance);
    char in[10];
    SHOW(recv(fd, in, sizeof in, MSG_PEEK | MSG_DONTWAIT));
}

/* generation 1 and 2 of a program that executes itself before it has read everything */
static void next_generation(char **argv)
{
    struct talk t = {atoi(argv[2]), atoi(argv[3]), atoi(argv[4])};
    int generation = atoi(argv[1]);
    char in[PIECE];
    say("generation %d\n", generation);
    look_all_ways(t.fd);
    read_exact(t.fd, in, 1000);
    if (generation == 1) {
        int copy = (int)NEED(dup(t.fd));
        char fd[16];
        execl("/nonexistent", "nonexistent", (char *)NULL);
        look_all_ways(t.fd);
        number(fd, copy);
        execlp(argv[0], argv[0], "2", fd, argv[3], argv[4], (char *)NULL);
        die("execlp");
    }
    read_rest(t.fd, 2000);
    answer(t.fd);
    NEED(fcntl(t.curtain, F_SETFD, FD_CLOEXEC));
    talk_end(t);
    exit(0);
}

/* Another descriptor for the same connection, by SCM_RIGHTS. */
static int pass_to_self(int fd)
{
    int channel[2];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    char byte = 'f';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, channel));
    int twin = -1;
    if (sendmsg(channel[0], &message, 0) == 1) {
        NEED(recvmsg(channel[1], &message, 0));
        memcpy(&twin, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof twin);
    }
    int saved = errno;
    close(channel[0]);
    close(channel[1]);
    errno = saved;
    return twin;
}

int main(int argc, char **argv)
{
    if (argc == 5)
        next_generation(argv);
    char in[PIECE];
    if (argc == 2 && strcmp(argv[1], "stdin") == 0) {
        read_exact(0, in, 100);
        read_rest(0, 100);
        answer(0);
        return 0;
    }
    if (argc == 2) {
        /* Without the library it sees all or an error, and no part. */
        ssize_t n = recv(0, in, sizeof in, MSG_WAITALL);
        say("%s\n", n == PIECE || (n < 0 && errno == ECONNRESET) ? "all or nothing" : "a part");
        return 0;
    }

    say("- a fork's standard input\n");
    struct talk t = talk_open(PIECE);
    int curtain = curtain_make(), status;
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(t.fd, 0));
        NEED(dup2(curtain, 1));
        close(t.fd);
        execl("/proc/self/exe", argv[0], "stdin", (char *)NULL);
        die("execl");
    }
    close(t.fd);
    talk_end(t);
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);

    say("- vfork and standard input\n");
    t = talk_open(PIECE);
    NEED(fcntl(t.fd, F_SETFD, FD_CLOEXEC));
    curtain = curtain_make();
    child = vfork();
    if (child == 0) {
        dup2(t.fd, 0);
        dup2(curtain, 1);
        execl("/nonexistent", "nonexistent", (char *)NULL);
        execl("/proc/self/exe", argv[0], "stdin", (char *)NULL);
        _exit(1);
    }
    close(t.fd);
    talk_end(t);
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);

    say("- beside it\n");
    t = talk_open(PIECE);
    SHOW(system("exit 3"));
    char *arguments[] = {"true", NULL};
    NEED(posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
    NEED(waitpid(child, &status, 0));
    read_rest(t.fd, 0);
    SHOW(write(t.fd, "answer", 6));
    close(t.fd);
    talk_end(t);

    say("- without the library\n");
    t = talk_open(PIECE);
    curtain = curtain_make();
    child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(t.fd, 0));
        NEED(dup2(curtain, 1));
        close(t.fd);
        char *bare[] = {NULL};
        execle("/proc/self/exe", argv[0], "bare", (char *)NULL, bare);
        die("execle");
    }
    close(t.fd);
    NEED(waitpid(t.peer, &status, 0));
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);
    close(t.curtain);

    say("- passed on\n");
    t = talk_open(PIECE);
    int twin = (int)NEED(pass_to_self(t.fd));
    close(t.fd);
    read_rest(twin, 0);
    answer(twin);
    close(twin);
    talk_end(t);

    say("- in its place\n");
    t = talk_open(PIECE);
    NEED(fcntl(t.curtain, F_SETFD, 0));
    char fd[16], peer_pid[16], peer_curtain[16];
    number(fd, t.fd);
    number(peer_pid, t.peer);
    number(peer_curtain, t.curtain);
    execl("/proc/self/exe", argv[0], "1", fd, peer_pid, peer_curtain, (char *)NULL);
    die("execl");
}
