//! Programs of rdma-core and perftest that find each other by TCP, with the arguments that they
//! are tested with: the same ones within a host, between hosts and against the kernel.

use std::time::Duration;

use crate::job::Outcome;
use crate::suite::{Verdict, ensure};

/// For one program, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(120);

/// After each of 23 sizes the programs of perftest measure the processor's clock: 200 loops of
/// 0.1 to 2.1 ms that ask for the time and do nothing else. That is 0.2 s on a processor of its
/// own and seconds on one that is shared with many. `ib_send_bw`, where server and client both
/// do it, was seen to take 53 s then, and 2 s when it got the time in larger steps.
const ALL_SIZES_LIMIT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The examples that come with libibverbs, which check what they receive.
    Pingpong,
    /// Latency and bandwidth. The tests look at exit statuses and that all iterations were made;
    /// figures are the benchmark's business.
    Perftest,
}

/// A program and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub program: &'static str,
    /// Names the row among those of its program.
    pub case: &'static str,
    /// Those that are this row's.
    arguments: &'static [&'static str],
    kind: Kind,
}

impl Row {
    pub fn name(&self) -> String {
        format!("{}/{}", self.program, self.case)
    }

    /// All arguments but those that say where the other one is.
    pub fn arguments(&self) -> Vec<&'static str> {
        let mut all = match self.kind {
            // -c validates the received buffer; elsewhere it means something else or nothing.
            Kind::Pingpong => match self.program {
                "ibv_rc_pingpong" | "ibv_uc_pingpong" | "ibv_ud_pingpong" => vec!["-c"],
                _ => Vec::new(),
            },
            // A processor whose clock changes is no reason to end, and neither is a peer that waits
            // for a processor: it is given up after seconds, not after the half of one that perftest
            // chooses for adapters, which answer by themselves.
            Kind::Perftest => vec!["-u", "18"],
        };
        all.extend(self.arguments);
        all
    }

    /// The option that chooses from the GID table.
    pub fn gid_option(&self) -> &'static str {
        match self.kind {
            Kind::Pingpong => "-g",
            Kind::Perftest => "-x",
        }
    }

    /// Whether it can be told, and is, how long to wait for a peer.
    pub fn is_patient(&self) -> bool {
        self.kind == Kind::Perftest
    }

    /// Whether it needs to be told which GID is its own: RoCE has no other addresses, and only
    /// perftest looks for one by itself.
    pub fn needs_gid(&self) -> bool {
        self.kind == Kind::Pingpong
    }

    /// How long server and client may take each.
    pub fn limit(&self) -> Duration {
        if self.arguments.contains(&"-a") {
            ALL_SIZES_LIMIT
        } else {
            LIMIT
        }
    }

    /// Looks at what server and client left, which ended with status 0. `mtu`: the path's, bytes of
    /// payload.
    pub fn check(&self, server: &Outcome, client: &Outcome, mtu: u32) -> Verdict {
        match self.kind {
            Kind::Pingpong => {
                self.check_pingpong(server)?;
                self.check_pingpong(client)
            }
            Kind::Perftest => self.check_results(client, mtu),
        }
    }

    fn check_pingpong(&self, outcome: &Outcome) -> Verdict {
        let text = outcome.text();
        let done = if self.program == "ibv_xsrq_pingpong" {
            text.contains("success")
        } else {
            text.contains("bytes in") && text.contains("iters in")
        };
        ensure(done && !text.contains("invalid data"), || {
            outcome.describe()
        })
    }

    fn check_results(&self, client: &Outcome, mtu: u32) -> Verdict {
        // A row of results begins with the size.
        let rows = client.text();
        let rows = rows
            .lines()
            .filter(|line| {
                let mut words = line.split_whitespace();
                words.next().is_some_and(|word| word.parse::<u64>().is_ok())
                    && words.next().is_some_and(|word| word.parse::<u64>().is_ok())
            })
            .count();
        // From 2 bytes to 8 MiB, or to what fits a datagram.
        let all_sizes = self.arguments.contains(&"-a");
        let wanted = match (all_sizes, self.arguments.contains(&"UD")) {
            (true, true) => mtu.ilog2() as usize,
            (true, false) => 23,
            (false, _) => 1,
        };
        ensure(rows == wanted, || {
            format!(
                "{rows} rows of results, {wanted} wanted\n{}",
                client.describe()
            )
        })
    }
}

/// All rows.
pub fn all() -> Vec<Row> {
    let mut rows = pingpongs();
    rows.extend(perftests());
    rows
}

/// The row with that name.
///
/// # Panics
/// When there is none: the caller's list is wrong.
pub fn named(name: &str) -> Row {
    let row = all().into_iter().find(|row| row.name() == name);
    row.unwrap_or_else(|| panic!("there is no row {name}"))
}

pub fn pingpongs() -> Vec<Row> {
    let rc: &[(&str, &[&str])] = &[
        ("plain", &[]),
        ("events", &["-e"]),
        ("on-demand-paging", &["-o"]),
        ("timestamps", &["-t"]),
        ("new-send", &["-N"]),
        ("device-memory", &["-j"]),
        ("events-new-send", &["-e", "-N"]),
        ("one-byte", &["-s", "1"]),
        ("large", &["-s", "1048576", "-n", "200"]),
        ("deep", &["-r", "64"]),
    ];
    let with_events: &[(&str, &[&str])] = &[("plain", &[]), ("events", &["-e"])];
    let srq: &[(&str, &[&str])] = &[
        ("plain", &[]),
        ("events", &["-e"]),
        ("one-qp", &["-q", "1"]),
    ];
    let programs = [
        ("ibv_rc_pingpong", rc),
        ("ibv_uc_pingpong", with_events),
        ("ibv_ud_pingpong", with_events),
        ("ibv_srq_pingpong", srq),
        ("ibv_xsrq_pingpong", with_events),
    ];
    programs
        .into_iter()
        .flat_map(|(program, cases)| {
            cases.iter().map(move |(case, arguments)| Row {
                program,
                case,
                arguments,
                kind: Kind::Pingpong,
            })
        })
        .collect()
}

pub fn perftests() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |program, case, arguments| {
        rows.push(Row {
            program,
            case,
            arguments,
            kind: Kind::Perftest,
        });
    };
    for program in [
        "ib_send_lat",
        "ib_send_bw",
        "ib_write_lat",
        "ib_write_bw",
        "ib_read_lat",
        "ib_read_bw",
        "ib_atomic_lat",
        "ib_atomic_bw",
    ] {
        let (atomic, bandwidth) = (program.contains("atomic"), program.ends_with("_bw"));
        // More than a queue and a ring hold; two that wait for each other on one processor take turns of its
        // scheduler.
        add(program, "rc", &["-n", "300"]);
        add(program, "duration", &["-D", "1"]);
        if !atomic {
            add(program, "all-sizes", &["-a", "-n", "20"]);
        }
        if bandwidth {
            add(program, "both-ways", &["-b", "-n", "300"]);
            add(program, "16-pairs", &["-q", "16", "-n", "200"]);
        }
        if program.starts_with("ib_send") || program.starts_with("ib_write") {
            add(program, "uc", &["-c", "UC", "-n", "300"]);
            add(program, "inline", &["-I", "64", "-s", "64", "-n", "300"]);
        }
        // The write programs wait for bytes, not for completions.
        if !program.starts_with("ib_write") {
            add(program, "events", &["-e", "-n", "300"]);
        }
    }
    for (program, case, arguments) in SPECIAL {
        add(program, case, arguments);
    }
    rows
}

/// A program, the row's name, and its arguments.
type Case = (&'static str, &'static str, &'static [&'static str]);

/// Rows of one program only.
const SPECIAL: &[Case] = &[
    ("ib_send_lat", "xrc", &["-c", "XRC", "-n", "300"]),
    ("ib_send_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    ("ib_write_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    ("ib_read_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    (
        "ib_send_lat",
        "ud",
        &["-c", "UD", "-s", "1024", "-n", "300"],
    ),
    (
        "ib_send_bw",
        "ud",
        &["-c", "UD", "-s", "1024", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "ud-all-sizes",
        &["-c", "UD", "-a", "-n", "20"],
    ),
    (
        "ib_send_bw",
        "ud-16-pairs",
        &["-c", "UD", "-q", "16", "-n", "200"],
    ),
    ("ib_send_bw", "ud-events", &["-c", "UD", "-e", "-n", "500"]),
    (
        "ib_send_lat",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "20"],
    ),
    (
        "ib_send_bw",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "20"],
    ),
    (
        "ib_write_bw",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "20"],
    ),
    (
        "ib_send_bw",
        "uc-both-ways",
        &["-c", "UC", "-b", "-q", "4", "-n", "200"],
    ),
    (
        "ib_send_lat",
        "shared-receive-queue",
        &["--use-srq", "-n", "300"],
    ),
    (
        "ib_send_bw",
        "shared-receive-queue",
        &["--use-srq", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "16-pairs-one-queue",
        &["--use-srq", "-q", "16", "-n", "200"],
    ),
    (
        "ib_send_bw",
        "ud-shared-receive-queue",
        &["--use-srq", "-c", "UD", "-n", "500"],
    ),
    (
        "ib_atomic_lat",
        "compare-and-swap",
        &["-A", "CMP_AND_SWAP", "-n", "300"],
    ),
    (
        "ib_atomic_bw",
        "compare-and-swap",
        &["-A", "CMP_AND_SWAP", "-n", "1000"],
    ),
    (
        "ib_atomic_lat",
        "fetch-and-add",
        &["-A", "FETCH_AND_ADD", "-n", "300"],
    ),
    (
        "ib_atomic_bw",
        "fetch-and-add",
        &["-A", "FETCH_AND_ADD", "-n", "1000"],
    ),
];
