//! The sections of `sluice-verbs(1)`.

use super::page::Block::{Entry, Example, Text};
use super::page::{Page, Section};
use super::statistics;

pub(super) const PAGE: Page = Page {
    name: "sluice-verbs",
    sections: &[
        Section {
            title: "EXAMPLES",
            blocks: &[
                Example("What the program sees:", "sluice verbs -- ibv_devinfo -v"),
                Example(
                    "Whether messages arrive as they were sent:",
                    "sluice verbs -- ibv_rc_pingpong -g 0 -c &\n\
                     sluice verbs -- ibv_rc_pingpong -g 0 -c localhost",
                ),
                Example(
                    "A measurement between two processes of this host:",
                    "sluice verbs -- ib_write_lat &\n\
                     sluice verbs --stats -- ib_write_lat 127.0.0.1",
                ),
                Example(
                    "What a client sends and gets, one packet a line:",
                    "sluice verbs -- rping -s -C 3 &\n\
                     sluice verbs --trace rping.pcapng -- rping -c -a 127.0.0.1 -C 3\n\
                     tshark -r rping.pcapng",
                ),
                Example(
                    "One datagram in a hundred does not arrive, the same ones each time:",
                    "sluice verbs -- ib_send_bw -c UD &\n\
                     sluice verbs --fault loss=1%,seed=7 -- ib_send_bw -c UD 127.0.0.1",
                ),
                Example(
                    "Everything that a shell starts:",
                    "sluice verbs -- bash -c 'ib_send_bw & sleep 1; ib_send_bw localhost'",
                ),
            ],
        },
        Section {
            title: "DEVICES",
            blocks: &[
                Text(
                    "--device shm, the default, joins processes of one user on one host through \
                     shared memory. --device roce speaks RoCEv2 on the host's Ethernet \
                     interfaces, with any RoCEv2 endpoint as a peer; by AF_XDP where the process \
                     may (CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON) and where no other XDP program \
                     is attached, else over UDP. --device roce-udp uses UDP sockets only, which \
                     needs no rights. sluice doctor says what this machine offers.",
                ),
                Text(
                    "--device iwarp is RDMA over TCP (iWARP: RFC 5040, 5041, 5044, 6581) on the \
                     kernel's TCP: it goes wherever a TCP connection goes, through address \
                     translation and over any route, and needs no rights. Any iWARP endpoint is a \
                     peer, Linux's siw among them. Programs connect by librdmacm (perftest: -R): a \
                     queue pair is an end of a TCP connection. There are reliable connections \
                     only; no datagrams, and no SEND with immediate data. A SEND or WRITE is \
                     complete when its bytes are on their way, and what the peer refuses is known \
                     by the end of the connection. The bytes are neither encrypted nor \
                     authenticated, as over RoCEv2.",
                ),
                Text(
                    "--device window:PATH joins programs that share memory: the file PATH, which \
                     sluice window create has made, mapped in several containers, network \
                     namespaces or virtual machines. Each program takes a slot of the window; \
                     where none is free there is no device, and standard error says so. What the \
                     device does is what it does over shared memory, and peers are known by \
                     numbers alone; librdmacm's messages go over the window, too. docs/windows.md \
                     has the rest.",
                ),
                Text(
                    "The device is named sluice0. It has one port, an active Ethernet port, \
                     and a GID for each address of the host, IPv4 ones mapped. Index 0 is the \
                     device's own GID over shared memory, and the first address that is neither \
                     link-local nor the loopback's over RoCEv2, so programs that ask for an index \
                     take 0. A program without sluice finds what the machine \
                     has, and so do programs that gain rights when they are executed and \
                     statically linked ones, about which sluice warns.",
                ),
                Text(
                    "Over shared memory, peers are processes of the same user on the same host, \
                     in any network namespace, that meet in the same folder (FILES). Over RoCEv2 \
                     the address of a GID is the peer's, and packets go to its UDP port 4791.",
                ),
            ],
        },
        Section {
            title: "TRACES",
            blocks: &[
                Text(
                    "Messages between processes of one host, or of hosts that share a window, are \
                     no packets. A trace has those that an adapter would send for them: cut at the path MTU of the queue \
                     pair, numbered from the PSN that the program set, with the keys and \
                     addresses that the program used, GIDs as IP addresses, acknowledgements \
                     and refusals, and a valid ICRC. Ethernet addresses are made up.",
                ),
                Text(
                    "Over --device iwarp a trace has the bytes that went to TCP and came of it, \
                     in segments that are made up: the kernel's own, and what it repeated and \
                     acknowledged, are not seen. Sequence numbers count from 0.",
                ),
                Text(
                    "A process traces what its queue pairs ask for and the answers, and what \
                     peers ask through it. What a peer reads or writes in this process's \
                     memory by itself is in the peer's trace only. Between two queue pairs of \
                     one process each packet is there once. A child that was forked after its \
                     parent had begun a trace is not traced.",
                ),
                Text(
                    "Requests have the PSNs of the queue pair that sends them, and their \
                     answers those of the requests. A datagram has its sender's PSN in both \
                     traces. In the trace of a responder the requests of a connected peer are \
                     counted from the PSN that the program expects first; what the peer does \
                     by itself is not counted, so that the PSNs behind it are lower than in \
                     the peer's trace by as many packets.",
                ),
                Text(
                    "Connection management is traced as the datagrams of queue pair 1 that a \
                     wire would have carried (REQ, REP, RTU, REJ, DREQ, DREP, SIDR_REQ, \
                     SIDR_REP), where one is sent and where it arrives. None gets lost and \
                     none is repeated, but a request for which several listeners are asked is \
                     there for each of them, and one that finds no listener is nowhere. The \
                     names of connections and transactions are made from the addresses, the \
                     PSNs count the datagrams of the process, and the GUID of the adapter is 0.",
                ),
                Text(
                    "Nothing waits for the file. Up to 64 MiB wait to be written; packets \
                     beyond that are left out, and counted in the file's interface statistics \
                     (pcapng; Wireshark has them among the capture file properties) \
                     and, at the end of the program, on standard error. Their PSNs are left \
                     out too. A program that is killed leaves what it had sent up to a few \
                     milliseconds before, and the count of about a second before. One without \
                     queue pairs and connections leaves an empty file.",
                ),
                Text(
                    "Wireshark guesses at payloads. One whose third and fourth bytes are zero \
                     is taken for an Ethertype and what belongs to it, others for NFS over \
                     RDMA and the like, and may be called malformed for that.",
                ),
            ],
        },
        Section {
            title: "ENGINE THREADS",
            blocks: &[
                Text(
                    "A program that polls its completion queues receives and sends in its own \
                     threads. For one that sleeps, or computes while its peers read and write \
                     its memory, an engine thread does, and sleeps when nothing comes. With \
                     --engines N there are N of them, each with sockets of its own and a share \
                     of the queue pairs: queue pair number Q is on engine thread Q mod N and on \
                     no other. Threads of the program that use queue pairs of different \
                     engine threads, with a completion queue each, do not wait for each other.",
                ),
                Text(
                    "More than one is of use where the machine has processors to spare, many \
                     queue pairs are busy, and the program does not poll all of them from one \
                     thread. Otherwise they cost: a thread that polls looks in N places, and \
                     packets that came with others for another share are handed over between \
                     threads.",
                ),
                Text(
                    "Over UDP the kernel gives a packet to the right engine thread, as long as \
                     the process was the first of its user in the network namespace that uses \
                     RoCEv2; otherwise, and with AF_XDP where the interface has fewer receive \
                     queues than there are engine threads (ethtool -l), engine threads pass \
                     packets on to each other.",
                ),
            ],
        },
        Section {
            title: "FAULTS",
            blocks: &[
                Text(
                    "Faults happen to what the program sends; for both directions give them to \
                     both programs. The sender never hears of one: it gets the completions \
                     that it would get from a network. At its end each process that had \
                     packets says on standard error what happened to them. Which packets it \
                     happens to depends on the seed, on how many queue pairs were made before, \
                     and on how many packets these have sent. A trace has what the program \
                     sent, before anything happens to it.",
                ),
                Text(
                    "Over shared memory (--device shm) messages are no packets. A datagram \
                     (UD) is treated as one: it is lost, arrives twice, or arrives after the \
                     next one; a damaged one is dropped, as by the check of its ICRC. A \
                     message of an unreliable connection (UC) has as many chances as it would \
                     have packets of the path MTU, and is lost if one of them is lost, damaged \
                     or late, as its receiver drops all of these; a packet that comes twice \
                     changes nothing. Reliable connections (RC, XRC) have nothing below them \
                     there that could lose anything: nothing happens to them, and the library \
                     says so when the first one is made.",
                ),
            ],
        },
        statistics::STATISTICS,
        Section {
            title: "ENVIRONMENT",
            blocks: &[
                Entry(
                    "SLUICE_LIBDIR",
                    "The folder whose folder verbs has libibverbs.so.1 and librdmacm.so.1. By \
                     default they are looked for beside sluice and in ../lib/sluice from there.",
                ),
                Entry(
                    "LD_LIBRARY_PATH",
                    "The folder of the libraries is put before what is there, for the program \
                     and what it starts.",
                ),
                Entry(
                    "LD_PRELOAD",
                    "libibverbs.so.1 is put before what is there, for the program and what it \
                     starts. --no-preload leaves it as it is.",
                ),
                Entry(
                    "ASAN_OPTIONS",
                    "Gets verify_asan_link_order=0 before what is there: AddressSanitizer's \
                     runtime works behind another library, but refuses to start there.",
                ),
                Entry(
                    "SLUICE_VERBS_DEVICES",
                    "The devices that the library shows. --device sets it; the library alone, \
                     found without sluice, shows shm.",
                ),
                Entry(
                    "SLUICE_VERBS_ENGINES",
                    "How many engine threads each device over a network has, 1 to 64. \
                     --engines sets it. With another value there is no such device, and \
                     standard error says so.",
                ),
                Entry(
                    "SLUICE_VERBS_CRC",
                    "With 1 --device iwarp asks its peers for CRC32C over every frame; both \
                     directions of a connection have it if either end asks (default 0: TCP's \
                     checksum is what there is).",
                ),
                Entry(
                    "SLUICE_VERBS_SILENCE_S",
                    "After how many seconds without a sign of life another host of --device \
                     window:PATH is dead to this program, 3 to 3600 (default 3): its requests \
                     to it end with an error, and its slot can be taken. More is for hosts that \
                     stand still for longer than that, as virtual machines do that are paused or \
                     moved; who is to keep its slot needs the same at all programs of the \
                     window. With another value there is no such device.",
                ),
                Entry(
                    "SLUICE_VERBS_STEER_MS",
                    "How long after a burst packets are steered past the kernel on interfaces \
                         whose driver copies packets either way (veth), where that slows others \
                         down: 10 to 60000 milliseconds (default 200, and for other values).",
                ),
                Entry(
                    "SLUICE_VERBS_ARENA",
                    "With off the library leaves the program's memory alone. Otherwise it \
                     serves allocations that are page-aligned and not smaller than a page \
                     (posix_memalign(3)) and anonymous shared mmap(2) from memory that peers can map, so that one-sided operations \
                     are copies.",
                ),
                Entry(
                    "SLUICE_VERBS_CMA",
                    "With 0 memory that peers cannot map is not read and written by \
                     process_vm_readv(2) and process_vm_writev(2), but by the process that \
                     owns it.",
                ),
                Entry(
                    "XDG_RUNTIME_DIR",
                    "Where programs meet, see FILES. Two programs that do not have the same \
                     one do not find each other.",
                ),
                Entry(
                    "SLUICE_VERBS_STATS_FILE",
                    "A file to which the library appends a line of JSON for each queue pair, \
                     and one for each device at the end (STATISTICS). --stats sets it for its own use; without --stats you may.",
                ),
                Entry(
                    "SLUICE_VERBS_FAULT",
                    "The list of faults. --fault sets it, with a seed.",
                ),
                Entry(
                    "SLUICE_VERBS_TRACE_FILE",
                    "The file of a trace. --trace sets it. A process takes it if it is empty \
                     and no other has it open.",
                ),
            ],
        },
        Section {
            title: "FILES",
            blocks: &[
                Entry(
                    "$XDG_RUNTIME_DIR/sluice-verbs, or /tmp/sluice-UID/verbs",
                    "The sockets by which programs find each other, and who is in which \
                     multicast group. It must be the user's own and closed to others. What a \
                     program that was killed leaves there is cleared by the next one.",
                ),
                Entry(
                    "$XDG_RUNTIME_DIR/sluice-verbs-roce-N, or /tmp/sluice-UID/verbs-roce-N",
                    "The same for processes that speak RoCEv2 in network namespace N (the \
                     inode of /proc/self/ns/net). It goes with the last of them; if they were \
                     killed, with the next program that speaks RoCEv2 in any namespace.",
                ),
                Entry(
                    "../lib/sluice/verbs/libibverbs.so.1, librdmacm.so.1",
                    "As seen from sluice: the library and its second name, a link. Both must \
                     be one file.",
                ),
            ],
        },
        Section {
            title: "EXIT STATUS",
            blocks: &[
                Text("The program's own, which replaces sluice. Otherwise, as env(1):"),
                Entry(
                    "125",
                    "Sluice itself failed: the libraries are not there, or are two files, or \
                     the file of a trace cannot be written.",
                ),
                Entry("126", "The program was found and could not be executed."),
                Entry("127", "The program was not found."),
                Text(
                    "With --stats sluice ends with the program's status or by the signal that \
                     ended it.",
                ),
            ],
        },
    ],
};
