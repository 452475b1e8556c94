// The guest's first process, and both ends of the channel by which tests run programs in it.
//
//   agent                          as process 1: sets the guest up, then serves
//   agent run ADDRESS PORT WORD…   runs a program in the guest as if it ran here: same environment,
//                                  same directory, output and exit status come back, signals go there
//
// A program's connection carries, from the client, a length and then strings that end with a zero
// byte: the directory, the environment, an empty string, the program and its arguments; and after
// that one byte for every signal. The agent answers with pieces: a letter (o and e for the outputs,
// x for the wait status), a length and the bytes. Lengths are 32 bits, the highest byte first.
// A connection that ends takes the program with it.
//
// One static file, because it is all there is before the host's file system is mounted.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUEST_MAX = 1 << 20, WORDS_MAX = 4096, PIECE_MAX = 65536 };

extern char **environ;

// Ends the process; as process 1 that would be a panic of the kernel, so the machine is switched off.
static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int error = errno;
    fprintf(stderr, "guest agent: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(error));
    va_end(arguments);
    if (getpid() == 1) {
        sync();
        reboot(RB_POWER_OFF);
    }
    exit(125);
}

// Whether all of it was written; false when the other end is gone.
static int write_all(int fd, const void *bytes, size_t length) {
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return 0;
        }
        bytes = (const char *)bytes + done;
        length -= done;
    }
    return 1;
}

static int read_all(int fd, void *bytes, size_t length) {
    while (length > 0) {
        ssize_t done = read(fd, bytes, length);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return 0;
        }
        bytes = (char *)bytes + done;
        length -= done;
    }
    return 1;
}

static int write_piece(int fd, char kind, const void *bytes, uint32_t length) {
    char head[5] = {kind};
    uint32_t big = htonl(length);
    memcpy(head + 1, &big, 4);
    return write_all(fd, head, 5) && write_all(fd, bytes, length);
}

// ---- the agent's side of one program

struct request {
    char *directory;
    char *environment[WORDS_MAX];
    char *words[WORDS_MAX];
};

static void read_request(int connection, struct request *request) {
    uint32_t length;
    if (!read_all(connection, &length, 4)) {
        // Somebody only looked whether the guest is up.
        exit(0);
    }
    length = ntohl(length);
    char *bytes = length > REQUEST_MAX ? NULL : malloc(length + 1);
    if (bytes == NULL || !read_all(connection, bytes, length)) {
        die("a request of %u bytes", length);
    }
    bytes[length] = 0;
    size_t variables = 0, words = 0;
    char *at = bytes, *end = bytes + length;
    request->directory = at;
    for (at += strlen(at) + 1; at < end && *at; at += strlen(at) + 1) {
        if (variables < WORDS_MAX - 1) {
            request->environment[variables++] = at;
        }
    }
    for (at += 1; at < end; at += strlen(at) + 1) {
        if (words < WORDS_MAX - 1) {
            request->words[words++] = at;
        }
    }
    request->environment[variables] = NULL;
    request->words[words] = NULL;
    if (words == 0) {
        die("a request without a program");
    }
}

static void become(struct request *request, int out, int err) {
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir(request->directory) != 0 && chdir("/") != 0) {
        _exit(126);
    }
    environ = request->environment;
    execvp(request->words[0], request->words);
    dprintf(2, "%s: %s\n", request->words[0], strerror(errno));
    _exit(127);
}

// Passes on what is there. False when the pipe's writers are gone.
static int drain(int pipe, char kind, int connection) {
    static char bytes[PIECE_MAX];
    ssize_t length = read(pipe, bytes, sizeof bytes);
    if (length > 0) {
        // A client that is gone is noticed by the loop.
        write_piece(connection, kind, bytes, length);
    }
    return length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR));
}

static void serve(int connection) {
    static struct request request;
    int out[2], err[2];
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    read_request(connection, &request);
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        die("pipes");
    }
    pid_t child = fork();
    if (child < 0) {
        die("fork");
    }
    if (child == 0) {
        become(&request, out[1], err[1]);
    }
    // Here too: a signal may come before the child has run.
    setpgid(child, child);
    close(out[1]);
    close(err[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    int ended = syscall(SYS_pidfd_open, child, 0);
    if (ended < 0) {
        die("pidfd_open");
    }
    struct pollfd watched[4] = {
        {out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {connection, POLLIN, 0}, {ended, POLLIN, 0}};
    while (!watched[3].revents) {
        if (poll(watched, 4, -1) < 0 && errno != EINTR) {
            die("poll");
        }
        for (int i = 0; i < 2; i++) {
            if (watched[i].revents && !drain(watched[i].fd, "oe"[i], connection)) {
                watched[i].fd = -1;
            }
        }
        if (watched[2].revents) {
            unsigned char number;
            int known = read(connection, &number, 1) == 1;
            kill(-child, known ? number : SIGKILL);
            if (!known) {
                watched[2].fd = -1;
            }
        }
    }
    int status;
    waitpid(child, &status, 0);
    // What it wrote before it ended. Children that it left behind end with it.
    kill(-child, SIGKILL);
    char before;
    for (int i = 0; i < 2; i++) {
        int fd = i == 0 ? out[0] : err[0];
        int length = 1;
        while (ioctl(fd, FIONREAD, &length) == 0 && length > 0 && drain(fd, "oe"[i], connection)) {
        }
    }
    uint32_t big = htonl(status);
    write_piece(connection, 'x', &big, 4);
    // The client closes first, so that nothing is lost by a reset.
    shutdown(connection, SHUT_WR);
    while (read(connection, &before, 1) > 0) {
    }
    exit(0);
}

static void serve_forever(const char *port) {
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(port))};
    int one = 1, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(listener, (struct sockaddr *)&any, sizeof any) != 0 || listen(listener, 64) != 0) {
        die("listening on port %s", port);
    }
    // Process 1 inherits orphans; the kernel buries them.
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            continue;
        }
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (fork() == 0) {
            close(listener);
            serve(connection);
        }
        close(connection);
    }
}

// ---- process 1

static void mount_or_die(const char *what, const char *where, const char *type, unsigned long flags,
                         const char *options) {
    mkdir(where, 0755);
    if (mount(what, where, type, flags, options) != 0) {
        die("mounting %s on %s", type, where);
    }
}

static int by_name(const struct dirent **left, const struct dirent **right) {
    return strcmp((*left)->d_name, (*right)->d_name);
}

static void load_modules(void) {
    struct dirent **names;
    int count = scandir("/modules", &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char path[300];
        snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        // Some are for processors that this one is not.
        if (names[i]->d_name[0] != '.' && syscall(SYS_finit_module, fd, "", 0) != 0) {
            fprintf(stderr, "guest agent: %s: %s\n", path, strerror(errno));
        }
        close(fd);
    }
}

// The host's file system, with everything that is written kept in the guest's memory.
static void enter_root(void) {
    mount_or_die("host", "/lower", "9p", MS_RDONLY,
                 "trans=virtio,version=9p2000.L,cache=loose,msize=512000");
    mount_or_die("tmpfs", "/over", "tmpfs", 0, NULL);
    mkdir("/over/upper", 0755);
    mkdir("/over/work", 0755);
    mount_or_die("overlay", "/root", "overlay", 0,
                 "lowerdir=/lower,upperdir=/over/upper,workdir=/over/work");
    mount_or_die("dev", "/root/dev", "devtmpfs", 0, NULL);
    mount_or_die("shm", "/root/dev/shm", "tmpfs", 0, "mode=1777");
    mount_or_die("pts", "/root/dev/pts", "devpts", 0, NULL);
    mount_or_die("proc", "/root/proc", "proc", 0, NULL);
    mount_or_die("sys", "/root/sys", "sysfs", 0, NULL);
    mount_or_die("run", "/root/run", "tmpfs", 0, "mode=755");
    if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 ||
        chdir("/") != 0) {
        die("entering the host's file system");
    }
}

static void set_up(void) {
    static char script[PIECE_MAX];
    int fd = open("/setup", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, script, sizeof script - 1) <= 0) {
        die("/setup");
    }
    close(fd);
    load_modules();
    enter_root();
    // What comes before is the kernel's and the emulator's alone (tests/src/guest/machine.rs).
    fprintf(stderr, "guest agent: here\n");
    setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-ec", script, NULL);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        errno = 0;
        die("the setup script ended with status %#x", status);
    }
}

// ---- the client

static int connect_to(const char *address, const char *port) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &peer.sin_addr) != 1) {
        errno = EINVAL;
        die("address %s", address);
    }
    if (fd < 0 || connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0) {
        die("connecting to %s port %s", address, port);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void append(char **end, const char *limit, const char *word) {
    size_t length = strlen(word) + 1;
    if (length > (size_t)(limit - *end)) {
        errno = E2BIG;
        die("the request");
    }
    memcpy(*end, word, length);
    *end += length;
}

static void send_request(int fd, char **words) {
    static char bytes[4 + REQUEST_MAX];
    char directory[4096], *end = bytes + 4;
    const char *limit = bytes + sizeof bytes;
    append(&end, limit, getcwd(directory, sizeof directory) ? directory : "/");
    for (char **variable = environ; *variable; variable++) {
        // An empty one would end the list.
        if (**variable) {
            append(&end, limit, *variable);
        }
    }
    append(&end, limit, "");
    for (; *words; words++) {
        append(&end, limit, *words);
    }
    uint32_t big = htonl(end - bytes - 4);
    memcpy(bytes, &big, 4);
    if (!write_all(fd, bytes, end - bytes)) {
        die("sending the request");
    }
}

// Ends as the program in the guest did.
static void end_like(int status) {
    if (WIFSIGNALED(status)) {
        struct sigaction action = {.sa_handler = SIG_DFL};
        sigaction(WTERMSIG(status), &action, NULL);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        // Core files are the guest's business.
        prctl(PR_SET_DUMPABLE, 0);
        raise(WTERMSIG(status));
    }
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 125);
}

static void read_piece(int fd) {
    static char bytes[PIECE_MAX];
    char kind;
    uint32_t length;
    if (!read_all(fd, &kind, 1) || !read_all(fd, &length, 4) ||
        (length = ntohl(length)) > sizeof bytes || !read_all(fd, bytes, length)) {
        die("the guest is gone");
    }
    if (kind == 'x' && length == 4) {
        uint32_t status;
        memcpy(&status, bytes, 4);
        end_like(ntohl(status));
    }
    if (!write_all(kind == 'o' ? 1 : 2, bytes, length)) {
        die("writing output");
    }
}

static void run(const char *address, const char *port, char **words) {
    sigset_t forwarded;
    sigemptyset(&forwarded);
    int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaddset(&forwarded, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &forwarded, NULL);
    int signals = signalfd(-1, &forwarded, SFD_CLOEXEC);
    int fd = connect_to(address, port);
    send_request(fd, words);
    struct pollfd watched[2] = {{fd, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        if (poll(watched, 2, -1) < 0 && errno != EINTR) {
            die("poll");
        }
        struct signalfd_siginfo info;
        if (watched[1].revents && read(signals, &info, sizeof info) == sizeof info) {
            char number = info.ssi_signo;
            write_all(fd, &number, 1);
        }
        if (watched[0].revents) {
            read_piece(fd);
        }
    }
}

int main(int count, char **words) {
    if (getpid() == 1) {
        set_up();
        serve_forever(getenv("agent_port"));
    }
    if (count < 5 || strcmp(words[1], "run") != 0) {
        fprintf(stderr, "usage: agent run ADDRESS PORT PROGRAM [ARGUMENT]...\n");
        return 125;
    }
    run(words[2], words[3], words + 4);
}
