// XDP programs and AF_XDP sockets for the tests of a network card, with nothing but system calls:
// what a guest has is the host's, and not every host has libxdp.
//
//   xdp verdict DEVICE drop|pass|tx|abort|bad|write-drop|write-tx|redirect:OTHER MILLISECONDS
//       attaches a program of one verdict (natively) for that long; "write-" ones exchange the two
//       addresses of a frame before
//   xdp swap DEVICE FIRST SECOND TIMES
//       replaces one verdict by the other and back, that often
//   xdp xsk DEVICE QUEUE zerocopy|copy drop|forward|send PACKETS MILLISECONDS
//       an AF_XDP socket that receives and drops, sends back, or sends by itself; prints how many
//       it received and sent, and before that "bound" when all sockets are. Exit status 1 unless it
//       reached PACKETS in time. QUEUE can be FIRST-LAST: a socket for each
//   xdp starve DEVICE QUEUE told|untold PACKETS MILLISECONDS
//       an AF_XDP socket without a copy that gives buffers only when there are none left, and calls
//       when it is told to, or never. Exit status 1 unless it reached PACKETS in time
//   xdp flags DEVICE QUEUE MILLISECONDS
//       whether the program is told to call when buffers lack and not when they do not, on a device
//       to which nothing comes
//   xdp share DEVICE QUEUE ROUNDS
//       a socket without a copy that receives, and that a process of its own keeps calling for; to it comes,
//       in each round, another that shares its memory and sends. Exit status 1 unless all was sent
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 4096, FRAME_LEN = 4096, RING = 2048, BATCH = 64 };

static void die(const char *what) {
    fprintf(stderr, "xdp: %s: %s\n", what, strerror(errno));
    exit(1);
}

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int bpf(int command, union bpf_attr *attributes) {
    return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static int load(const struct bpf_insn *code, size_t count) {
    union bpf_attr attributes = {
        .prog_type = BPF_PROG_TYPE_XDP,
        .insns = (uintptr_t)code,
        .insn_cnt = count,
        .license = (uintptr_t)"GPL",
    };
    int fd = bpf(BPF_PROG_LOAD, &attributes);
    if (fd < 0) {
        die("loading a program");
    }
    return fd;
}

#define MOV(reg, value) ((struct bpf_insn){BPF_ALU64 | BPF_MOV | BPF_K, reg, 0, 0, value})
#define CALL(function) ((struct bpf_insn){BPF_JMP | BPF_CALL, 0, 0, 0, function})
#define EXIT ((struct bpf_insn){BPF_JMP | BPF_EXIT, 0, 0, 0, 0})

static unsigned index_of(const char *device) {
    unsigned index = if_nametoindex(device);
    if (!index) {
        die(device);
    }
    return index;
}

static int verdict(const char *name) {
    static const struct {
        const char *name;
        int action;
    } known[] = {{"abort", XDP_ABORTED}, {"drop", XDP_DROP}, {"pass", XDP_PASS}, {"tx", XDP_TX}, {"bad", 77}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) == 0) {
            struct bpf_insn code[] = {MOV(0, known[i].action), EXIT};
            return load(code, 2);
        }
    }
    if (strcmp(name, "write-drop") == 0 || strcmp(name, "write-tx") == 0) {
        struct bpf_insn code[] = {
            // r2 = data, r3 = data_end; nothing where both addresses are not there
            {BPF_LDX | BPF_MEM | BPF_W, 2, 1, 0, 0},
            {BPF_LDX | BPF_MEM | BPF_W, 3, 1, 4, 0},
            {BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0},
            {BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 12},
            {BPF_JMP | BPF_JGT | BPF_X, 4, 3, 8, 0},
            {BPF_LDX | BPF_MEM | BPF_W, 4, 2, 0, 0},
            {BPF_LDX | BPF_MEM | BPF_H, 5, 2, 4, 0},
            {BPF_LDX | BPF_MEM | BPF_W, 6, 2, 6, 0},
            {BPF_LDX | BPF_MEM | BPF_H, 7, 2, 10, 0},
            {BPF_STX | BPF_MEM | BPF_W, 2, 6, 0, 0},
            {BPF_STX | BPF_MEM | BPF_H, 2, 7, 4, 0},
            {BPF_STX | BPF_MEM | BPF_W, 2, 4, 6, 0},
            {BPF_STX | BPF_MEM | BPF_H, 2, 5, 10, 0},
            MOV(0, strcmp(name, "write-tx") == 0 ? XDP_TX : XDP_DROP),
            EXIT,
        };
        return load(code, sizeof code / sizeof *code);
    }
    if (strncmp(name, "redirect:", 9) == 0) {
        struct bpf_insn code[] = {MOV(1, (int)index_of(name + 9)), MOV(2, 0), CALL(23), EXIT};
        return load(code, 4);
    }
    fprintf(stderr, "xdp: there is no verdict %s\n", name);
    exit(2);
}

static int attach(unsigned device, int program) {
    union bpf_attr attributes = {0};
    attributes.link_create.prog_fd = program;
    attributes.link_create.target_ifindex = device;
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
    int fd = bpf(BPF_LINK_CREATE, &attributes);
    if (fd < 0) {
        die("attaching a program");
    }
    return fd;
}

static void replace(int link, int program) {
    union bpf_attr attributes = {0};
    attributes.link_update.link_fd = link;
    attributes.link_update.new_prog_fd = program;
    if (bpf(BPF_LINK_UPDATE, &attributes) < 0) {
        die("replacing a program");
    }
}

// One of the socket's four rings.
struct ring {
    uint32_t *producer, *consumer, *flags;
    void *entries;
};

static struct ring map_ring(int fd, struct xdp_ring_offset offset, uint64_t page, size_t entry) {
    size_t len = offset.desc + RING * entry;
    char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
    if (start == MAP_FAILED) {
        die("mapping a ring");
    }
    return (struct ring){(uint32_t *)(start + offset.producer), (uint32_t *)(start + offset.consumer),
                         (uint32_t *)(start + offset.flags), start + offset.desc};
}

static uint32_t ready(struct ring *ring) {
    return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - *ring->consumer;
}

static uint32_t space(struct ring *ring) {
    return RING - (*ring->producer - __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE));
}

static void set(int fd, int option, const void *value, socklen_t len) {
    if (setsockopt(fd, SOL_XDP, option, value, len) != 0) {
        die("setting up a socket");
    }
}

// The program that gives each queue's packets to its socket: one for all sockets of this process.
static void give_packets(unsigned device, int socket, unsigned queue) {
    static int map = -1;
    union bpf_attr attributes = {
        .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 64};
    int first = map < 0;
    if (first) {
        map = bpf(BPF_MAP_CREATE, &attributes);
        if (map < 0) {
            die("making a map");
        }
    }
    attributes = (union bpf_attr){0};
    attributes.map_fd = map;
    attributes.key = (uintptr_t)&queue;
    attributes.value = (uintptr_t)&socket;
    if (bpf(BPF_MAP_UPDATE_ELEM, &attributes) != 0) {
        die("filling a map");
    }
    if (!first) {
        return;
    }
    struct bpf_insn code[] = {
        // r2 = context->rx_queue_index
        {BPF_LDX | BPF_MEM | BPF_W, 2, 1, 16, 0},
        {BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map},
        {0, 0, 0, 0, 0},
        MOV(3, XDP_PASS),
        CALL(51),
        EXIT,
    };
    attach(device, load(code, sizeof code / sizeof *code));
}

// A socket with its rings and its memory, and what went through it.
struct xsk {
    int fd;
    struct ring rx, tx, fill, done;
    char *memory;
    long received, sent;
    // The next frame to send, and how many are on their way.
    uint64_t next;
    uint32_t outstanding;
};

// The first frames are in the fill ring already.
static struct xsk open_socket(const char *device, unsigned queue, int zerocopy, int told, uint32_t filled, int sends) {
    struct xsk xsk = {0};
    int fd = socket(AF_XDP, SOCK_RAW, 0);
    if (fd < 0) {
        die("AF_XDP");
    }
    char *memory = mmap(NULL, (size_t)FRAMES * FRAME_LEN, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        die("memory");
    }
    struct xdp_umem_reg umem = {
        .addr = (uintptr_t)memory, .len = (uint64_t)FRAMES * FRAME_LEN, .chunk_size = FRAME_LEN};
    set(fd, XDP_UMEM_REG, &umem, sizeof umem);
    int size = RING;
    set(fd, XDP_UMEM_FILL_RING, &size, sizeof size);
    set(fd, XDP_UMEM_COMPLETION_RING, &size, sizeof size);
    set(fd, XDP_RX_RING, &size, sizeof size);
    if (sends) {
        set(fd, XDP_TX_RING, &size, sizeof size);
    }
    struct xdp_mmap_offsets offsets;
    socklen_t len = sizeof offsets;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len) != 0) {
        die("offsets");
    }
    struct ring rx = map_ring(fd, offsets.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
    struct ring tx = {0};
    if (sends) {
        tx = map_ring(fd, offsets.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    }
    struct ring fill = map_ring(fd, offsets.fr, XDP_UMEM_PGOFF_FILL_RING, 8);
    struct ring done = map_ring(fd, offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, 8);
    for (uint32_t i = 0; i < filled; i++) {
        ((uint64_t *)fill.entries)[i] = (uint64_t)i * FRAME_LEN;
    }
    __atomic_store_n(fill.producer, filled, __ATOMIC_RELEASE);
    unsigned index = index_of(device);
    struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP,
        .sxdp_flags = (zerocopy ? XDP_ZEROCOPY : XDP_COPY) | (told ? XDP_USE_NEED_WAKEUP : 0),
        .sxdp_ifindex = index,
        .sxdp_queue_id = queue,
    };
    // The program first: a driver need not have queues for XDP before.
    give_packets(index, fd, queue);
    // A socket that has ended leaves its queue a little later.
    for (long end = now_ms() + 90000; bind(fd, (struct sockaddr *)&address, sizeof address) != 0;) {
        if (errno != EBUSY || now_ms() >= end) {
            die("binding");
        }
        usleep(1000);
    }
    struct xdp_options options = {0};
    len = sizeof options;
    if (getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &len) != 0 ||
        !(options.flags & XDP_OPTIONS_ZEROCOPY) != !zerocopy) {
        die("not the mode that was asked for");
    }
    xsk.fd = fd;
    xsk.rx = rx;
    xsk.tx = tx;
    xsk.fill = fill;
    xsk.done = done;
    xsk.memory = memory;
    return xsk;
}

static struct xsk open_xsk(const char *device, unsigned queue, int zerocopy, int told, uint32_t filled) {
    return open_socket(device, queue, zerocopy, told, filled, 1);
}

// Puts some frames into the fill ring.
static void give(struct xsk *xsk, uint32_t from, uint32_t until) {
    for (uint32_t i = from; i < until; i++) {
        ((uint64_t *)xsk->fill.entries)[(*xsk->fill.producer + i - from) % RING] = (uint64_t)i * FRAME_LEN;
    }
    __atomic_store_n(xsk->fill.producer, *xsk->fill.producer + until - from, __ATOMIC_SEQ_CST);
}

static int told_to_call(struct xsk *xsk) {
    return (__atomic_load_n(xsk->fill.flags, __ATOMIC_SEQ_CST) & XDP_RING_NEED_WAKEUP) != 0;
}

static void call(struct xsk *xsk) {
    if (recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL) < 0 && errno != EAGAIN && errno != ENETDOWN) {
        die("calling for receiving");
    }
}

// Keeps every packet until there is no buffer left anywhere, and only then gives all back. Only
// looks at its rings, unless it is told to call. There is none to begin with.
static int starve(const char *device, unsigned queue, int told, long packets, long ms) {
    struct xsk xsk = open_xsk(device, queue, 1, told, 0);
    long received = 0, end = now_ms() + ms;
    while (received < packets) {
        unsigned char came[RING] = {0};
        uint32_t kept = 0;
        give(&xsk, 0, RING);
        while (kept < RING) {
            if (now_ms() >= end) {
                printf("received=%ld\n", received + kept);
                return 1;
            }
            if (told && told_to_call(&xsk)) {
                call(&xsk);
            }
            uint32_t count = ready(&xsk.rx);
            for (uint32_t i = 0; i < count; i++) {
                struct xdp_desc desc = ((struct xdp_desc *)xsk.rx.entries)[(*xsk.rx.consumer + i) % RING];
                // IPv4, in a buffer that was given and has not come yet.
                if (desc.addr >= (uint64_t)RING * FRAME_LEN || desc.len < 60 || came[desc.addr / FRAME_LEN]++ ||
                    memcmp(xsk.memory + desc.addr + 12, "\x08\x00\x45", 3) != 0) {
                    fprintf(stderr, "xdp: a wrong packet at %llx of %u\n", desc.addr, desc.len);
                    return 1;
                }
            }
            __atomic_store_n(xsk.rx.consumer, *xsk.rx.consumer + count, __ATOMIC_RELEASE);
            kept += count;
        }
        received += kept;
        // Until the driver has seen that there is nothing.
        usleep(20000);
    }
    printf("received=%ld\n", received);
    return 0;
}

// On a device to which nothing comes: whether the flag follows the fill ring, both ways.
static int flags(const char *device, unsigned queue, long ms) {
    struct xsk xsk = open_xsk(device, queue, 1, 1, 0);
    long end = now_ms() + ms;
    while (!told_to_call(&xsk)) {
        if (now_ms() >= end) {
            fprintf(stderr, "xdp: not told to call with an empty fill ring\n");
            return 1;
        }
    }
    // Fewer than the device has room for.
    give(&xsk, 0, 16);
    call(&xsk);
    if (!told_to_call(&xsk)) {
        fprintf(stderr, "xdp: not told to call with few buffers\n");
        return 1;
    }
    give(&xsk, 16, RING);
    while (told_to_call(&xsk)) {
        call(&xsk);
        if (now_ms() >= end) {
            fprintf(stderr, "xdp: told to call with a full fill ring\n");
            return 1;
        }
    }
    return 0;
}

enum job { DROP, FORWARD, SEND };

// Half of the frames are for receiving, the others for sending. Whether there is nothing to do.
static int turn(struct xsk *xsk, int zerocopy, enum job job) {
    struct ring *rx = &xsk->rx, *tx = &xsk->tx, *fill = &xsk->fill, *done = &xsk->done;
    uint32_t count = ready(done);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t frame = ((uint64_t *)done->entries)[(*done->consumer + i) % RING];
        if (job == FORWARD) {
            ((uint64_t *)fill->entries)[(*fill->producer + i) % RING] = frame & ~(uint64_t)(FRAME_LEN - 1);
        }
    }
    if (job == FORWARD) {
        __atomic_store_n(fill->producer, *fill->producer + count, __ATOMIC_RELEASE);
    }
    __atomic_store_n(done->consumer, *done->consumer + count, __ATOMIC_RELEASE);
    xsk->sent += count;
    xsk->outstanding -= count;

    count = ready(rx);
    if (count > BATCH) {
        count = BATCH;
    }
    if (job == FORWARD && count > space(tx)) {
        count = space(tx);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct xdp_desc desc = ((struct xdp_desc *)rx->entries)[(*rx->consumer + i) % RING];
        if (job == FORWARD) {
            ((struct xdp_desc *)tx->entries)[(*tx->producer + i) % RING] = desc;
        } else {
            ((uint64_t *)fill->entries)[(*fill->producer + i) % RING] = desc.addr & ~(uint64_t)(FRAME_LEN - 1);
        }
    }
    __atomic_store_n(rx->consumer, *rx->consumer + count, __ATOMIC_RELEASE);
    if (job == FORWARD) {
        __atomic_store_n(tx->producer, *tx->producer + count, __ATOMIC_RELEASE);
        xsk->outstanding += count;
    } else {
        __atomic_store_n(fill->producer, *fill->producer + count, __ATOMIC_RELEASE);
    }
    xsk->received += count;

    for (int i = 0; job == SEND && i < BATCH && xsk->outstanding < RING && space(tx); i++) {
        char *frame = xsk->memory + xsk->next;
        memset(frame, 0xFF, 6);
        memset(frame + 6, 0x02, 6);
        frame[12] = (char)0x88;
        frame[13] = (char)0xB5;
        ((struct xdp_desc *)tx->entries)[*tx->producer % RING] = (struct xdp_desc){.addr = xsk->next, .len = 64};
        __atomic_store_n(tx->producer, *tx->producer + 1, __ATOMIC_RELEASE);
        xsk->next += FRAME_LEN;
        if (xsk->next == (uint64_t)FRAMES * FRAME_LEN) {
            xsk->next = (uint64_t)RING * FRAME_LEN;
        }
        xsk->outstanding++;
    }
    if (xsk->outstanding && (*tx->flags & XDP_RING_NEED_WAKEUP || !zerocopy)) {
        if (sendto(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
            errno != ENOBUFS && errno != ENETDOWN) {
            die("waking for sending");
        }
    }
    return !ready(rx) && (job != SEND || !ready(done));
}

static int xsk(const char *device, const char *queues, int zerocopy, const char *word, long packets, long ms) {
    enum { QUEUES = 8 };
    static struct xsk all[QUEUES];
    struct pollfd watched[QUEUES];
    enum job job = strcmp(word, "forward") == 0 ? FORWARD : strcmp(word, "send") == 0 ? SEND : DROP;
    char *dash = strchr(queues, '-');
    unsigned first = atol(queues), count = dash ? atol(dash + 1) - first + 1 : 1;
    if (count < 1 || count > QUEUES) {
        fprintf(stderr, "xdp: %s are not one to %d queues\n", queues, QUEUES);
        return 2;
    }
    for (unsigned i = 0; i < count; i++) {
        all[i] = open_xsk(device, first + i, zerocopy, 1, RING);
        all[i].next = (uint64_t)RING * FRAME_LEN;
        watched[i] = (struct pollfd){all[i].fd, POLLIN, 0};
    }
    puts("bound");
    fflush(stdout);
    long received = 0, sent = 0, end = now_ms() + ms;
    while ((job == SEND ? sent : received) < packets && now_ms() < end) {
        int idle = 1;
        received = sent = 0;
        for (unsigned i = 0; i < count; i++) {
            idle &= turn(&all[i], zerocopy, job);
            received += all[i].received;
            sent += all[i].sent;
        }
        if (idle) {
            poll(watched, count, 1);
        }
    }
    printf("received=%ld sent=%ld\n", received, sent);
    return (job == SEND ? sent : received) >= packets ? 0 : 1;
}

// The second socket of the same memory, device and queue, which sends some frames.
static void send_beside(struct xsk *first, unsigned index, unsigned queue) {
    int fd = socket(AF_XDP, SOCK_RAW, 0), size = RING;
    if (fd < 0) {
        die("AF_XDP");
    }
    set(fd, XDP_TX_RING, &size, sizeof size);
    struct xdp_mmap_offsets offsets;
    socklen_t len = sizeof offsets;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len) != 0) {
        die("offsets");
    }
    struct ring tx = map_ring(fd, offsets.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    for (uint32_t i = 0; i < BATCH; i++) {
        ((struct xdp_desc *)tx.entries)[i] = (struct xdp_desc){.addr = (uint64_t)(RING + i) * FRAME_LEN, .len = 64};
    }
    // They lie there when the socket comes: whoever looks next finds them.
    __atomic_store_n(tx.producer, BATCH, __ATOMIC_RELEASE);
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP,
                                   .sxdp_flags = XDP_SHARED_UMEM,
                                   .sxdp_ifindex = index,
                                   .sxdp_queue_id = queue,
                                   .sxdp_shared_umem_fd = first->fd};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        die("binding a socket that shares");
    }
    for (long end = now_ms() + 90000; ready(&first->done) < BATCH;) {
        if (now_ms() >= end) {
            fprintf(stderr, "xdp: %u of %d frames were sent\n", ready(&first->done), BATCH);
            exit(1);
        }
        if (sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
            errno != ENOBUFS && errno != ENETDOWN) {
            die("waking for sending");
        }
    }
    __atomic_store_n(first->done.consumer, *first->done.consumer + BATCH, __ATOMIC_RELEASE);
}

static int share(const char *device, unsigned queue, long rounds) {
    for (long round = 0; round < rounds; round++) {
        // Bound anew each time, by a process whose end takes everything away: what is tried is the first
        // socket that sends.
        pid_t user = fork();
        if (user < 0) {
            die("fork");
        }
        if (user == 0) {
            struct xsk xsk = open_socket(device, queue, 1, 1, RING, 0);
            memset(xsk.memory + (size_t)RING * FRAME_LEN, 0xFF, (size_t)BATCH * FRAME_LEN);
            pid_t caller = fork();
            if (caller < 0) {
                die("fork");
            }
            while (caller == 0) {
                call(&xsk);
            }
            usleep(20000);
            send_beside(&xsk, index_of(device), queue);
            kill(caller, SIGKILL);
            waitpid(caller, NULL, 0);
            _exit(0);
        }
        int status;
        if (waitpid(user, &status, 0) != user || status != 0) {
            return 1;
        }
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 5 && strcmp(words[1], "verdict") == 0) {
        int link = attach(index_of(words[2]), verdict(words[3]));
        usleep(atol(words[4]) * 1000);
        close(link);
        return 0;
    }
    if (count == 6 && strcmp(words[1], "swap") == 0) {
        int programs[2] = {verdict(words[3]), verdict(words[4])};
        int link = attach(index_of(words[2]), programs[0]);
        for (long i = 0; i < atol(words[5]); i++) {
            replace(link, programs[(i + 1) % 2]);
        }
        close(link);
        return 0;
    }
    if (count == 7 && strcmp(words[1], "starve") == 0) {
        return starve(words[2], atol(words[3]), strcmp(words[4], "told") == 0, atol(words[5]), atol(words[6]));
    }
    if (count == 5 && strcmp(words[1], "share") == 0) {
        return share(words[2], atol(words[3]), atol(words[4]));
    }
    if (count == 5 && strcmp(words[1], "flags") == 0) {
        return flags(words[2], atol(words[3]), atol(words[4]));
    }
    if (count == 8 && strcmp(words[1], "xsk") == 0) {
        return xsk(words[2], words[3], strcmp(words[4], "zerocopy") == 0, words[5], atol(words[6]),
                   atol(words[7]));
    }
    fprintf(stderr, "usage: xdp verdict|swap|xsk|starve|flags|share ...\n");
    return 2;
}
