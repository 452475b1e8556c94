//! The sections of the man pages that no program can derive.

use super::{capture, finding, statistics, verbs_status};

/// A section of a page.
pub struct Section {
    pub title: &'static str,
    pub blocks: &'static [Block],
}

/// A part of a section.
pub enum Block {
    /// A paragraph.
    Text(&'static str),
    /// A term and what it means.
    Entry(&'static str, &'static str),
    /// What an example does, and its commands, one a line.
    Example(&'static str, &'static str),
}

/// The sections of one page.
pub struct Page {
    pub name: &'static str,
    pub(super) sections: &'static [Section],
}

use Block::{Entry, Example, Text};

pub(super) const SOCKET_VARIABLE: Block = Entry(
    "SLUICE_SOCKET",
    "The daemon's control socket, if --socket does not name it.",
);
const COLOUR_VARIABLE: Block = Entry(
    "NO_COLOR",
    "If set and not empty, output has no colours, whatever the terminal can show.",
);
pub(super) const LIBDIR_VARIABLE: Block = Entry(
    "SLUICE_LIBDIR",
    "The folder of libsluice_preload.so and sluiced. By default they are looked for beside \
     sluice and in ../lib/sluice from there.",
);
const SOCKETS: [Block; 3] = [
    Entry(
        "/run/sluice/control.sock",
        "The control socket of a daemon for all users ('sluice up --system'). It is preferred if \
         such a daemon runs.",
    ),
    Entry(
        "$XDG_RUNTIME_DIR/sluice/control.sock",
        "The control socket of this user's daemon.",
    ),
    Entry(
        "/tmp/sluice-UID/control.sock",
        "The same where XDG_RUNTIME_DIR is not set, or so long that no socket can be in it (107 \
         bytes with its name; a warning says so then). The directory must belong to the user, be \
         closed to others and be no symbolic link; else it is refused.",
    ),
];
pub(super) const USUAL_STATUS: Section = Section {
    title: "EXIT STATUS",
    blocks: &[
        Entry("0", "Success."),
        Entry("1", "It failed; standard error says why and what to do."),
        Entry("2", "The command line is wrong."),
    ],
};

/// Every page.
pub static PAGES: [Page; 12] = [
    super::gateway::PAGE,
    Page {
        name: "sluice",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example(
                        "Run a server and its client with their connections in shared memory, and \
                         look at them:",
                        "sluice run -- redis-server --port 6400 &\n\
                         sluice run -- redis-benchmark -p 6400\n\
                         sluice status",
                    ),
                    Example(
                        "See whether this machine has what it takes:",
                        "sluice doctor",
                    ),
                ],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE, LIBDIR_VARIABLE, COLOUR_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[Text(
                    "Each command's page says it. 0 is success, 2 a wrong command line.",
                )],
            },
        ],
    },
    Page {
        name: "sluice-run",
        sections: &[
            Section {
                title: "WHAT IS ACCELERATED",
                blocks: &[
                    Text(
                        "A TCP connection gets a lane, a pair of byte rings in shared memory, when \
                         both of its ends run under 'sluice run' on this host and use one daemon. \
                         Programs in containers do if the daemon's socket is mounted there. The \
                         kernel's connection stays open beside the lane: names, firewalls and \
                         errors are the kernel's, and bytes go back to it whenever the lane \
                         cannot carry them.",
                    ),
                    Text(
                        "Seccomp filters under which 'sluice run' itself runs, such as a \
                         container's, are tried first and keep nobody from lanes unless they \
                         refuse a call that lanes need. A program that adds a filter, or is given \
                         one by what starts it, goes by TCP from then on. 'sluice status' does not \
                         list it, since it may not even say that it is there; 'sluice run --stats' \
                         counts its connections, and with --log warn it says why.",
                    ),
                    Text(
                        "The daemon is given the sockets of connections, so only one of the same \
                         user or of root is used. In a user namespace, a daemon of a user without \
                         a number there (it looks like 65534, nobody) is not.",
                    ),
                    Text(
                        "Statically linked programs, programs that gain rights when executed \
                         (setuid) and programs for another architecture cannot load the library. \
                         Sluice says so once on standard error and runs them on TCP.",
                    ),
                ],
            },
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example(
                        "A server and a client:",
                        "sluice run -- nginx -c /etc/nginx/nginx.conf &\n\
                         sluice run -- wrk -c 50 http://127.0.0.1:8080/",
                    ),
                    Example(
                        "The same with a summary at the client's end:",
                        "sluice run --stats -- wrk -c 50 http://127.0.0.1:8080/",
                    ),
                    Example(
                        "Everything that a shell script starts:",
                        "sluice run -- sh ./integration-tests.sh",
                    ),
                    Example(
                        "See why connections stay on TCP, a line for each with its reason, when it \
                         is kept off a lane, leaves it for good, or is closed without one:",
                        "sluice run --log debug -- ./client",
                    ),
                ],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[
                    SOCKET_VARIABLE,
                    LIBDIR_VARIABLE,
                    Entry(
                        "SLUICE_LOG",
                        "What the library and sluice say on standard error: off (the default), \
                         error, warn, info, debug or trace. --log sets it. The library says at \
                         warn what keeps all connections of a process on TCP, at info which \
                         connections get a lane or are moved to TCP for good, at debug also why \
                         others have none. Nothing is said by a process that confines itself.",
                    ),
                    Entry(
                        "SLUICE_SPIN_US",
                        "The longest time in microseconds that a waiting thread polls before it \
                         sleeps. --spin-us sets it.",
                    ),
                    Entry(
                        "SLUICE_MIN_OPS",
                        "Turns on a connection, writes behind reads and reads behind writes, before \
                         it asks for a lane (default 4). Eight operations of one kind in a row \
                         count as one. --min-ops sets it. 0 and 1: the lane is used at any pace.",
                    ),
                    Entry(
                        "SLUICE_ONLY_PORTS, SLUICE_NOT_PORTS",
                        "TCP ports and ranges of them, as in 443,8000-8080, at most 32. With the \
                         first, a connection that has none of these ports at either end stays on \
                         TCP; with the second, one that has. The second wins. It is enough that \
                         one of the two programs is told. A list that cannot be read excludes \
                         everything, and at warn the library says so. --only-ports and --not-ports \
                         set them.",
                    ),
                    Entry(
                        "SLUICE_RING_BYTES",
                        "The ring size of a daemon that is started on the way, a power of two.",
                    ),
                    Entry(
                        "SLUICE_STATS_FILE",
                        "A file to which each process appends one line of JSON at its end. --stats \
                         sets it for its own use; without --stats you may. The file must exist. \
                         It is opened at the end of the process, so one that has changed its root \
                         cannot reach it, and one that has changed its user may not be allowed to: \
                         such lines are lost, and at warn the library says so. One that is killed \
                         writes and says nothing.",
                    ),
                    Entry(
                        "LD_PRELOAD",
                        "The library is put before what is there, for the program and what it \
                         starts.",
                    ),
                    Entry(
                        "UV_USE_IO_URING",
                        "Set to 0 for the program unless it is set: libuv's use of io_uring passes \
                         by every library.",
                    ),
                ],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[
                    Text("The program's own, which replaces sluice. Otherwise, as env(1):"),
                    Entry("125", "Sluice itself failed."),
                    Entry("126", "The program was found and could not be executed."),
                    Entry("127", "The program was not found."),
                    Text(
                        "With --stats sluice ends with the program's status or by the signal that \
                         ended it.",
                    ),
                ],
            },
        ],
    },
    Page {
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
                        "The device is named sluice0. It has one port, an active Ethernet port, \
                         and a GID for each address of the host, IPv4 ones mapped; programs that \
                         ask for an index take 0. A program without sluice finds what the machine \
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
                        "Messages between processes of one host are no packets. A trace has those \
                         that an adapter would send for them: cut at the path MTU of the queue \
                         pair, numbered from the PSN that the program set, with the keys and \
                         addresses that the program used, GIDs as IP addresses, acknowledgements \
                         and refusals, and a valid ICRC. Ethernet addresses are made up.",
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
                    Entry("SLUICE_VERBS_STEER_MS", "See docs/roce.md (default 200)."),
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
    },
    Page {
        name: "sluice-status",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example("This user's connections:", "sluice status"),
                    Example("Why are there connections on TCP?", "sluice status --wide"),
                    Example(
                        "For a script: bytes by lane, over all connections of this user:",
                        "sluice status --json | jq '[.daemons[].status.processes[].connections[].lane_tx_bytes] | add'",
                    ),
                ],
            },
            Section {
                title: "OUTPUT",
                blocks: &[
                    Text(
                        "A daemon with a configuration lists other hosts first. LINK is up when \
                         something has come over the fabric, trying while nothing has, down \
                         without a control connection. PATH is lane for shared memory, fabric for \
                         a lane to another host, tcp for neither.",
                    ),
                    finding::OUTPUT,
                    capture::OUTPUT,
                    Text(
                        "With --json one document: an object whose member daemons is a list with \
                         an object for each daemon, with its socket and owner (uid), and either \
                         status, the daemon's own document, or error, a text.",
                    ),
                    Text(
                        "A process that is older than its daemon, which was started again, is \
                         marked (earlier in JSON): its connections from before keep their lanes \
                         and are not listed. It takes up the new daemon when it announces or \
                         closes a connection, or after a thousand reads and writes of one that \
                         waits for a lane; those are announced again then.",
                    ),
                    Text(
                        "SLEEPS counts waits that ended in the kernel, SPINS waits that ended \
                         while polling.",
                    ),
                ],
            },
            verbs_status::SECTION,
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE, COLOUR_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[
                    Entry(
                        "0",
                        "A daemon answered; or there is a verbs process, and no daemon was named.",
                    ),
                    Entry("1", "Neither; standard error says why."),
                    Entry("2", "The command line is wrong."),
                ],
            },
        ],
    },
    Page {
        name: "sluice-top",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example("This user's connections, live:", "sluice top"),
                    Example("Twice a second:", "sluice top -d 0.5"),
                ],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE, COLOUR_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            USUAL_STATUS,
        ],
    },
    Page {
        name: "sluice-doctor",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example("Look at this machine:", "sluice doctor"),
                    Example(
                        "Whether a driver helps verbs programs (as root; its link may go down for a \
                         moment):",
                        "sluice doctor --interface eth0",
                    ),
                    Example(
                        "In a script, before a measurement:",
                        "sluice doctor > /dev/null || exit 1",
                    ),
                    Example(
                        "Why there are no lanes to another host:",
                        "sluice doctor --peer 10.0.0.2 --config /etc/sluice/sluiced.toml",
                    ),
                ],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE, LIBDIR_VARIABLE, COLOUR_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[
                    Entry("0", "Two programs started now would get lanes."),
                    Entry("1", "They would not; the lines marked missing say why."),
                    Entry("2", "The command line is wrong."),
                ],
            },
        ],
    },
    Page {
        name: "sluice-bench",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example(
                        "A first look, with redis only:",
                        "sluice bench --quick --only redis",
                    ),
                    Example(
                        "Numbers to quote and every floor, with a report to keep:",
                        "sluice bench --full --html report.html",
                    ),
                    Example("RDMA programs within this host:", "sluice bench verbs"),
                    Example(
                        "RDMA programs on two hosts, which are two network namespaces:",
                        "sudo sluice bench roce --quick",
                    ),
                    Example(
                        "Socket programs on two hosts with a sluiced each:",
                        "sudo sluice bench fabric --quick",
                    ),
                ],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[LIBDIR_VARIABLE, COLOUR_VARIABLE],
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[
                    Entry("0", "Every workload that was wanted ran."),
                    Entry(
                        "1",
                        "One failed; standard error has the program's own words.",
                    ),
                    Entry("2", "The command line is wrong."),
                    Entry(
                        "130, 143",
                        "It was interrupted (SIGINT) or told to end (SIGTERM); nothing is left.",
                    ),
                ],
            },
        ],
    },
    Page {
        name: "sluice-up",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example("A daemon for this user that stays:", "sluice up"),
                    Example(
                        "One for all users, from a service manager, as root:",
                        "sluice up --system --foreground",
                    ),
                    Example(
                        "Larger rings for bulk transfers:",
                        "sluice up --ring-bytes 1048576",
                    ),
                    Example(
                        "With lanes to other hosts, and figures for Prometheus:",
                        "sluice up --system --config /etc/sluice/sluiced.toml --metrics 9797",
                    ),
                ],
            },
            finding::SECTION,
            capture::SECTION,
            Section {
                title: "SIGNALS",
                blocks: &[Text(
                    "SIGHUP makes the daemon read its configuration again: peers, keys, rules, \
                     discovery and listening addresses change at once, what does not is logged, \
                     and a file with a fault changes nothing. SIGTERM and SIGINT end it.",
                )],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE, LIBDIR_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            USUAL_STATUS,
        ],
    },
    Page {
        name: "sluice-down",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[Example("Stop this user's daemon:", "sluice down")],
            },
            Section {
                title: "ENVIRONMENT",
                blocks: &[SOCKET_VARIABLE],
            },
            Section {
                title: "FILES",
                blocks: &SOCKETS,
            },
            Section {
                title: "EXIT STATUS",
                blocks: &[
                    Entry("0", "No daemon runs any more."),
                    Entry("1", "It could not be stopped; standard error says why."),
                    Entry("2", "The command line is wrong."),
                ],
            },
        ],
    },
    Page {
        name: "sluice-man",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[Example(
                    "Write the pages and read one:",
                    "sluice man ./pages\nman ./pages/sluice-run.1",
                )],
            },
            USUAL_STATUS,
        ],
    },
    Page {
        name: "sluice-completions",
        sections: &[
            Section {
                title: "EXAMPLES",
                blocks: &[
                    Example(
                        "For bash, in this shell:",
                        "source <(sluice completions bash)",
                    ),
                    Example(
                        "For fish, to stay:",
                        "sluice completions fish > ~/.config/fish/completions/sluice.fish",
                    ),
                ],
            },
            USUAL_STATUS,
        ],
    },
];

/// The hand-written sections of the page called `name`.
pub fn of(name: &str) -> &'static [Section] {
    PAGES
        .iter()
        .find(|page| page.name == name)
        .map_or(&[], |page| page.sections)
}

/// Every command line in an example.
#[cfg(test)]
pub fn example_commands() -> Vec<&'static str> {
    let mut lines = Vec::new();
    for page in &PAGES {
        for section in page.sections {
            for block in section.blocks {
                if let Example(_, commands) = block {
                    lines.extend(commands.lines());
                }
            }
        }
    }
    lines
}
