// XDP programs and AF_XDP sockets for the tests of a network card, with nothing but system calls:
// what a guest has is the host's, and not every host has libxdp.
//
//   xdp verdict DEVICE drop|pass|tx|abort|bad|redirect:OTHER MILLISECONDS
//       attaches a program of one verdict (natively) for that long
//   xdp swap DEVICE FIRST SECOND TIMES
//       replaces one verdict by the other and back, that often
//   xdp xsk DEVICE QUEUE zerocopy|copy drop|forward|send PACKETS MILLISECONDS
//       an AF_XDP socket that receives and drops, sends back, or sends by itself; prints how many
//       it received and sent. Exit status 1 unless it reached PACKETS in time
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

static int xsk_program(int socket, unsigned queue) {
    union bpf_attr attributes = {
        .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 64};
    int map = bpf(BPF_MAP_CREATE, &attributes);
    if (map < 0) {
        die("making a map");
    }
    attributes = (union bpf_attr){0};
    attributes.map_fd = map;
    attributes.key = (uintptr_t)&queue;
    attributes.value = (uintptr_t)&socket;
    if (bpf(BPF_MAP_UPDATE_ELEM, &attributes) != 0) {
        die("filling a map");
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
    return load(code, sizeof code / sizeof *code);
}

static int xsk(const char *device, unsigned queue, int zerocopy, const char *job, long packets, long ms) {
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
    set(fd, XDP_TX_RING, &size, sizeof size);
    struct xdp_mmap_offsets offsets;
    socklen_t len = sizeof offsets;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len) != 0) {
        die("offsets");
    }
    struct ring rx = map_ring(fd, offsets.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
    struct ring tx = map_ring(fd, offsets.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    struct ring fill = map_ring(fd, offsets.fr, XDP_UMEM_PGOFF_FILL_RING, 8);
    struct ring done = map_ring(fd, offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, 8);
    // Half of the frames are for receiving, the others for sending.
    for (uint32_t i = 0; i < RING; i++) {
        ((uint64_t *)fill.entries)[i] = (uint64_t)i * FRAME_LEN;
    }
    __atomic_store_n(fill.producer, RING, __ATOMIC_RELEASE);
    unsigned index = index_of(device);
    struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP,
        .sxdp_flags = (zerocopy ? XDP_ZEROCOPY : XDP_COPY) | XDP_USE_NEED_WAKEUP,
        .sxdp_ifindex = index,
        .sxdp_queue_id = queue,
    };
    // The program first: a driver need not have queues for XDP before.
    int program = xsk_program(fd, queue);
    int link = attach(index, program);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        die("binding");
    }
    struct xdp_options options = {0};
    len = sizeof options;
    if (getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &len) != 0 ||
        !(options.flags & XDP_OPTIONS_ZEROCOPY) != !zerocopy) {
        die("not the mode that was asked for");
    }
    // After the bind, because the map takes bound sockets only on old kernels.
    int forward = strcmp(job, "forward") == 0, send = strcmp(job, "send") == 0;
    long received = 0, sent = 0, end = now_ms() + ms;
    uint64_t next = (uint64_t)RING * FRAME_LEN;
    uint32_t outstanding = 0;
    while ((send ? sent : received) < packets && now_ms() < end) {
        uint32_t count = ready(&done);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t frame = ((uint64_t *)done.entries)[(*done.consumer + i) % RING];
            if (forward) {
                ((uint64_t *)fill.entries)[(*fill.producer + i) % RING] = frame & ~(uint64_t)(FRAME_LEN - 1);
            }
        }
        if (forward) {
            __atomic_store_n(fill.producer, *fill.producer + count, __ATOMIC_RELEASE);
        }
        __atomic_store_n(done.consumer, *done.consumer + count, __ATOMIC_RELEASE);
        sent += count;
        outstanding -= count;

        count = ready(&rx);
        if (count > BATCH) {
            count = BATCH;
        }
        if (forward && count > space(&tx)) {
            count = space(&tx);
        }
        for (uint32_t i = 0; i < count; i++) {
            struct xdp_desc desc = ((struct xdp_desc *)rx.entries)[(*rx.consumer + i) % RING];
            if (forward) {
                ((struct xdp_desc *)tx.entries)[(*tx.producer + i) % RING] = desc;
            } else {
                ((uint64_t *)fill.entries)[(*fill.producer + i) % RING] = desc.addr & ~(uint64_t)(FRAME_LEN - 1);
            }
        }
        __atomic_store_n(rx.consumer, *rx.consumer + count, __ATOMIC_RELEASE);
        if (forward) {
            __atomic_store_n(tx.producer, *tx.producer + count, __ATOMIC_RELEASE);
            outstanding += count;
        } else {
            __atomic_store_n(fill.producer, *fill.producer + count, __ATOMIC_RELEASE);
        }
        received += count;

        for (int i = 0; send && i < BATCH && outstanding < RING && space(&tx); i++) {
            memset(memory + next, 0xFF, 6);
            memset(memory + next + 6, 0x02, 6);
            memory[next + 12] = (char)0x88;
            memory[next + 13] = (char)0xB5;
            ((struct xdp_desc *)tx.entries)[*tx.producer % RING] = (struct xdp_desc){.addr = next, .len = 64};
            __atomic_store_n(tx.producer, *tx.producer + 1, __ATOMIC_RELEASE);
            next += FRAME_LEN;
            if (next == (uint64_t)FRAMES * FRAME_LEN) {
                next = (uint64_t)RING * FRAME_LEN;
            }
            outstanding++;
        }
        if (outstanding && (*tx.flags & XDP_RING_NEED_WAKEUP || !zerocopy)) {
            if (sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
                errno != ENOBUFS && errno != ENETDOWN) {
                die("waking for sending");
            }
        }
        if (!ready(&rx) && (!send || !ready(&done))) {
            struct pollfd watched = {fd, POLLIN, 0};
            poll(&watched, 1, 1);
        }
    }
    printf("received=%ld sent=%ld\n", received, sent);
    close(link);
    return (send ? sent : received) >= packets ? 0 : 1;
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
    if (count == 8 && strcmp(words[1], "xsk") == 0) {
        return xsk(words[2], atol(words[3]), strcmp(words[4], "zerocopy") == 0, words[5], atol(words[6]),
                   atol(words[7]));
    }
    fprintf(stderr, "usage: xdp verdict|swap|xsk ...\n");
    return 2;
}
