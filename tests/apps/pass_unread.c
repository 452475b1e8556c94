// Connections are passed to other processes (SCM_RIGHTS) or inherited by other programs, while bytes
// are unread whose sender sleeps: whoever reads gets them, once and in order.
//: lane required
#include "unread.h"

#include <spawn.h>

extern char **environ;

#define SMALL 5000
#define LARGE 900000

static const char *own_path = "/proc/self/exe";

/* Reads `len` bytes that come behind the first `from` ones of the message. */
static void read_part(const char *who, int fd, size_t from, size_t len)
{
    char *want = malloc(from + len), *in = malloc(len);
    fill(want, from + len, 7);
    read_exact(fd, in, len);
    say("%s: %zu bytes behind %zu are %s\n", who, len, from,
        memcmp(in, want + from, len) == 0 ? "right" : "wrong");
    free(want);
    free(in);
}

static void send_fds(int channel, const int *fds, int count)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec part = {"fd", 2};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
    SHOW(sendmsg(channel, &message, 0));
}

/* Room for just as many as were sent. */
static int receive_fds(int channel, int *fds, int count, int flags)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_LEN(4 * sizeof(int))];
    } control;
    char bytes[8];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_LEN((size_t)count * sizeof(int))};
    SHOW(recvmsg(channel, &message, flags));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        return 0;
    say("control %zu, truncated %d\n", header->cmsg_len, message.msg_flags & MSG_CTRUNC ? 1 : 0);
    memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    return (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

static void answer(int fd)
{
    SHOW(write(fd, "answer", 6));
    char byte;
    SHOW(read(fd, &byte, 1));
}

/* Another program, which has the connection under a number that it is told. */
static int next_program(char **argv)
{
    int fd = atoi(argv[2]), channel = atoi(argv[3]);
    if (strcmp(argv[1], "all") == 0) {
        read_part("program", fd, 0, SMALL);
        answer(fd);
        return 0;
    }
    /* In turns with its parent. */
    char byte;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    for (size_t from = 1000; from < SMALL; from += 2000) {
        read_exact(channel, &byte, 1);
        SHOW(poll(&entry, 1, 20000));
        say("unread %d\n", pending(fd));
        read_part("program", fd, from, 1000);
        write_all(channel, "t", 1);
    }
    return 0;
}

static void worker(int channel, size_t piece)
{
    int fds[2] = {-1, -1};
    SHOW(receive_fds(channel, fds, 1, 0));
    say("close-on-exec %d\n", fcntl(fds[0], F_GETFD));
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    SHOW_OK(getpeername(fds[0], (struct sockaddr *)&address, &len));
    read_part("worker", fds[0], 0, piece);
    answer(fds[0]);
    _exit(0);
}

static void to_worker(int type, size_t piece, bool keeps)
{
    int channel[2], status;
    NEED(socketpair(AF_UNIX, type, 0, channel));
    peer_awaits_end = !keeps;
    struct talk t = talk_open(piece);
    peer_awaits_end = false;
    int curtain = curtain_make();
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        NEED(dup2(curtain, 1));
        close(t.fd);
        close(channel[0]);
        worker(channel[1], piece);
    }
    close(channel[1]);
    send_fds(channel[0], &t.fd, 1);
    if (!keeps)
        close(t.fd);
    talk_end(t);
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);
    if (keeps) {
        char byte;
        say("unread %d\n", pending(t.fd));
        SHOW(recv(t.fd, &byte, 1, MSG_DONTWAIT));
        close(t.fd);
    }
    close(channel[0]);
}

static void in_turns(char **argv, bool spawns)
{
    int channel[2], status;
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    NEED(fcntl(channel[0], F_SETFD, FD_CLOEXEC));
    struct talk t = talk_open(SMALL);
    int curtain = curtain_make();
    char fd[16], other[16], byte;
    number(fd, t.fd);
    number(other, channel[1]);
    char *arguments[] = {argv[0], "turns", fd, other, NULL};
    pid_t child;
    if (spawns) {
        posix_spawn_file_actions_t actions;
        NEED(posix_spawn_file_actions_init(&actions));
        NEED(posix_spawn_file_actions_adddup2(&actions, curtain, 1));
        NEED(-posix_spawn(&child, own_path, &actions, NULL, arguments, environ));
        posix_spawn_file_actions_destroy(&actions);
    } else {
        child = (pid_t)NEED(fork());
        if (child == 0) {
            NEED(dup2(curtain, 1));
            execv(own_path, arguments);
            die("execv");
        }
    }
    close(channel[1]);
    for (size_t from = 0; from < SMALL; from += 2000) {
        read_part("parent", t.fd, from, 1000);
        if (from + 1000 < SMALL) {
            write_all(channel[0], "t", 1);
            read_exact(channel[0], &byte, 1);
        }
    }
    say("unread %d\n", pending(t.fd));
    SHOW(recv(t.fd, &byte, 1, MSG_DONTWAIT));
    NEED(waitpid(child, &status, 0));
    say("status %d\n", status);
    curtain_lift(curtain);
    SHOW(write(t.fd, "answer", 6));
    close(t.fd);
    talk_end(t);
    close(channel[0]);
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return next_program(argv);

    say("- to a worker\n");
    to_worker(SOCK_STREAM, SMALL, false);
    to_worker(SOCK_SEQPACKET, SMALL, false);
    to_worker(SOCK_DGRAM, SMALL, true);
    say("- a large message\n");
    to_worker(SOCK_STREAM, LARGE, false);

    say("- peeked, twice, and with other descriptors\n");
    int channel[2], fds[4] = {-1, -1, -1, -1}, null = (int)NEED(open("/dev/null", O_RDWR));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    struct talk t = talk_open(SMALL);
    int both[] = {null, t.fd, channel[0]};
    send_fds(channel[0], both, 3);
    SHOW(receive_fds(channel[1], fds, 3, MSG_PEEK));
    read_part("peeked", fds[1], 0, 100);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    SHOW(receive_fds(channel[1], fds, 3, MSG_CMSG_CLOEXEC));
    say("close-on-exec %d %d %d\n", fcntl(fds[0], F_GETFD), fcntl(fds[1], F_GETFD),
        fcntl(fds[2], F_GETFD));
    read_part("received", fds[1], 100, 100);
    read_part("sender", t.fd, 200, 100);
    /* One more copy, passed on by who was passed it. */
    send_fds(fds[2], &fds[1], 1);
    int again = -1;
    SHOW(receive_fds(channel[1], &again, 1, 0));
    read_part("again", again, 300, 100);
    read_part("sender", t.fd, 400, 100);
    close(t.fd);
    read_part("received", fds[1], 500, 100);
    close(fds[1]);
    read_part("again", again, 600, SMALL - 600);
    answer(again);
    close(again);
    talk_end(t);
    close(channel[0]);
    close(channel[1]);

    say("- a program with its number\n");
    t = talk_open(SMALL);
    int curtain = curtain_make(), status;
    pid_t child = (pid_t)NEED(fork());
    if (child == 0) {
        char fd[16];
        number(fd, t.fd);
        NEED(dup2(curtain, 1));
        execl(own_path, argv[0], "all", fd, "-1", (char *)NULL);
        die("execl");
    }
    talk_end(t);
    NEED(waitpid(child, &status, 0));
    curtain_lift(curtain);
    char byte;
    SHOW(recv(t.fd, &byte, 1, MSG_DONTWAIT));
    close(t.fd);

    say("- in turns with another program\n");
    in_turns(argv, false);
    in_turns(argv, true);
    return 0;
}
