//! The sections of the man pages that no program can derive.

use super::page::{Block, LIBDIR_VARIABLE, Page, SOCKET_VARIABLE, Section, USUAL_STATUS};
use super::{capture, finding, verbs, verbs_status};

use Block::{Entry, Example, Text};

const COLOUR_VARIABLE: Block = Entry(
    "NO_COLOR",
    "If set and not empty, output has no colours, whatever the terminal can show.",
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
/// Every page.
pub static PAGES: [Page; 17] = [
    super::gateway::PAGE,
    super::window::PAGE,
    super::ca::PAGE,
    super::device_plugin::PAGE,
    super::service::ENABLE,
    super::service::DISABLE,
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
                        "Without a daemon one is started, in the background and in the cgroup of \
                         this process. It ends a minute after its last program. Should a service \
                         manager end it with a service, programs keep the lanes that they have, \
                         and the next 'sluice run' starts another. Where 'sluice run' starts it as \
                         process 1 of a container, or takes orphans (prctl(2)), it stays in front \
                         of the program, passes signals on and ends as it ended: the program \
                         would be the daemon's parent otherwise. SIGKILL to it ends the program, too.",
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
                title: "PROGRAMS OF GO",
                blocks: &[Text(
                    "Go's programs make their system calls without the C library. With --static, a program that Go 1.23 or newer has linked without a C library \
                     (CGO_ENABLED=0) is mapped into a program that has the library, and its runtime enters \
                     the kernel through it. This is experimental. The process is the program's own, but \
                     /proc/PID/exe is sluice-static. Every other static program is executed as it is, with a \
                     line on standard error that says why. The same holds for static programs that the program \
                     starts, of which nothing is said where they stay on TCP. Go's programs that have a C library (cgo) \
                     load the library as others do, and with --static it is called by their runtime, too.",
                )],
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
                    Example("A static Go program:", "sluice run --static -- ./server"),
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
                         sleeps (default 100; 10 where its control group has less than one \
                         processor's time). --spin-us sets it.",
                    ),
                    Entry(
                        "SLUICE_MIN_OPS",
                        "Turnarounds on a connection, writes behind reads and reads behind writes, before \
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
                        "ASAN_OPTIONS",
                        "Gets verify_asan_link_order=0 before what is there: AddressSanitizer's \
                         runtime works behind another library, but refuses to start there.",
                    ),
                    Entry(
                        "UV_USE_IO_URING",
                        "Set to 0 for the program unless it is set: some versions of libuv would \
                         have the kernel poll a ring, into which no library sees.",
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
    verbs::PAGE,
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
                         without a control connection. PATH is what carries the bytes now: lane \
                         for shared memory, fabric for a lane to another host, window for one in \
                         memory that both hosts share, tcp for none of them. A connection that has a \
                         lane uses TCP while its readers sleep; WHY TCP says so. Forks of a server \
                         list the connections that they work with.",
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
                    Example(
                        "Try a window, on both of its hosts within 20 seconds:",
                        "sluice doctor --window /dev/shm/window --wait 20",
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
                    Example(
                        "The same where the two hosts share memory:",
                        "sudo sluice bench windows --quick",
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
                        "125",
                        "The program that measures, sluice-bench, is not installed or cannot be run.",
                    ),
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
