//! The programs of librdmacm, and perftest over it, unmodified, under `sluice verbs`: they
//! check what they receive, and their exit status says so.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::job::{Job, Outcome, command, find_program};
use sluice_tests::lab::find_sluice;
use sluice_tests::net::free_port;
use sluice_tests::suite::{self, Verdict, ensure, skip, trial};
use tempfile::TempDir;

/// For one program, on a machine that does other things too. Several wait for a byte of memory to
/// change and never give their processor away: where others want it, each of their turns takes as
/// long as the kernel lets them have it.
const LIMIT: Duration = Duration::from_secs(180);

const TCP: &str = "0106";
const UDP: &str = "0111";
const IB: &str = "013f";

/// How a program is told where to listen.
#[derive(Clone, Copy)]
enum Port {
    /// `-p` and a free port.
    Option,
    /// Always the same one.
    Fixed(u16),
}

/// Programs of one pair, in a rendezvous directory of their own.
struct Stage {
    dir: TempDir,
    sluice: PathBuf,
}

impl Stage {
    fn new() -> Verdict<Self> {
        Ok(Self {
            dir: tempfile::Builder::new()
                .prefix("sluice-rdmacm-")
                .tempdir()?,
            sluice: find_sluice()?,
        })
    }

    fn start(&self, label: &str, program: &str, arguments: &[&str]) -> Verdict<Job> {
        let Some(path) = find_program(program) else {
            return skip(format!("{program} is not installed; scripts/setup test"));
        };
        let mut command: Command = command(&self.sluice);
        command
            .args(["verbs", "--"])
            .arg(path)
            .args(arguments)
            .env_remove("LD_LIBRARY_PATH")
            .env("XDG_RUNTIME_DIR", self.dir.path());
        Job::start(command, self.dir.path(), label)
    }

    /// Whether somebody listens on a port of a port space. Its name in the rendezvous
    /// directory says so; a connection would be taken for the client's.
    fn listens(&self, port_space: &str, port: u16) -> bool {
        let wanted = format!("-{port_space}-{port:04x}-");
        fs::read_dir(self.dir.path().join("sluice-verbs")).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with("cm-") && name.ends_with(".sock") && name.contains(&wanted)
            })
        })
    }
}

impl Stage {
    /// Whether somebody is a member of a group: groups are folders with a file for each
    /// process that has members.
    fn has_group(&self) -> bool {
        fs::read_dir(self.dir.path().join("sluice-verbs")).is_ok_and(|entries| {
            entries
                .flatten()
                .filter_map(|entry| fs::read_dir(entry.path()).ok())
                .any(|mut members| members.next().is_some())
        })
    }
}

/// One pair of programs.
struct Pair {
    name: &'static str,
    server: (&'static str, &'static [&'static str]),
    client: (&'static str, &'static [&'static str]),
    port: Port,
    port_space: &'static str,
    /// The client takes the server's address without an option.
    bare_address: bool,
    /// The server ends by itself.
    server_ends: bool,
}

const PLAIN: Pair = Pair {
    name: "",
    server: ("", &[]),
    client: ("", &[]),
    port: Port::Option,
    port_space: TCP,
    bare_address: false,
    server_ends: true,
};

const fn same(name: &'static str, program: &'static str, options: &'static [&'static str]) -> Pair {
    Pair {
        name,
        server: (program, options),
        client: (program, options),
        ..PLAIN
    }
}

const fn perftest(
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
) -> Pair {
    Pair {
        bare_address: true,
        ..same(name, program, options)
    }
}

const PAIRS: &[Pair] = &[
    Pair {
        client: (
            "rping",
            &["-c", "-v", "-V", "-C", "1000", "-a", "127.0.0.1"],
        ),
        bare_address: false,
        ..same(
            "rping",
            "rping",
            &["-s", "-v", "-V", "-C", "1000", "-a", "127.0.0.1"],
        )
    },
    same("ucmatose", "ucmatose", &[]),
    same(
        "ucmatose-ten",
        "ucmatose",
        &["-c", "10", "-C", "100", "-S", "1000"],
    ),
    same("ucmatose-migrate", "ucmatose", &["-m"]),
    Pair {
        port: Port::Fixed(7174),
        port_space: UDP,
        ..same("udaddy", "udaddy", &[])
    },
    Pair {
        port: Port::Fixed(7174),
        port_space: UDP,
        ..same("udaddy-ten", "udaddy", &["-c", "10", "-C", "50"])
    },
    // Its server has no end.
    Pair {
        server_ends: false,
        ..same("cmtime", "cmtime", &["-c", "100"])
    },
    Pair {
        client: ("rdma_client", &[]),
        ..same("rdma_client", "rdma_server", &[])
    },
    Pair {
        client: ("rdma_xclient", &["-c", "r"]),
        ..same("rdma_xclient", "rdma_xserver", &["-c", "r"])
    },
    Pair {
        client: ("rdma_xclient", &["-c", "x"]),
        port_space: IB,
        ..same("rdma_xclient-xrc", "rdma_xserver", &["-c", "x"])
    },
    same("rstream", "rstream", &["-T", "a"]),
    same("rstream-blocking", "rstream", &["-T", "b"]),
    same("rstream-nonblocking", "rstream", &["-T", "n"]),
    same(
        "rstream-verify",
        "rstream",
        &["-T", "v", "-S", "65536", "-I", "100"],
    ),
    same("rstream-resolve", "rstream", &["-T", "r"]),
    same("rstream-sizes", "rstream", &["-S", "all"]),
    same("riostream", "riostream", &[]),
    same(
        "riostream-async",
        "riostream",
        &["-T", "a", "-S", "4096", "-I", "200"],
    ),
    same(
        "riostream-verify",
        "riostream",
        &["-T", "v", "-S", "65536", "-I", "100"],
    ),
    perftest("ib_write_lat", "ib_write_lat", &["-R", "-n", "1000"]),
    perftest("ib_write_bw", "ib_write_bw", &["-R", "-n", "1000"]),
    perftest("ib_read_bw", "ib_read_bw", &["-R", "-n", "1000"]),
    perftest("ib_atomic_lat", "ib_atomic_lat", &["-R", "-n", "1000"]),
    perftest("ib_atomic_bw", "ib_atomic_bw", &["-R", "-n", "1000"]),
    perftest("ib_read_lat", "ib_read_lat", &["-R", "-n", "1000"]),
    perftest("ib_send_lat", "ib_send_lat", &["-R", "-n", "1000"]),
    perftest("ib_send_bw", "ib_send_bw", &["-R", "-n", "1000"]),
    perftest(
        "ib_send_bw-events",
        "ib_send_bw",
        &["-R", "-e", "-n", "1000"],
    ),
    perftest(
        "ib_send_bw-16",
        "ib_send_bw",
        &["-R", "-q", "16", "-n", "1000"],
    ),
    // It exchanges its parameters over a connection first.
    perftest(
        "ib_send_lat-ud",
        "ib_send_lat",
        &["-R", "-c", "UD", "-n", "1000"],
    ),
];

fn run(pair: &Pair) -> Verdict {
    let stage = Stage::new()?;
    let (number, chosen) = match pair.port {
        Port::Option => {
            let number = free_port()?;
            (number, vec!["-p".to_owned(), number.to_string()])
        }
        Port::Fixed(number) => (number, Vec::new()),
    };
    let arguments = |options: &[&str], address: &[&str]| -> Vec<String> {
        let options = options.iter().copied().map(str::to_owned);
        let address = address.iter().copied().map(str::to_owned);
        options
            .chain(chosen.iter().cloned())
            .chain(address)
            .collect()
    };
    let start = |label, program, arguments: Vec<String>| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        stage.start(label, program, &arguments)
    };
    let (program, options) = pair.server;
    let mut server = start("server", program, arguments(options, &[]))?;
    server.await_ready(LIMIT, "rdma_cm listener", || {
        stage.listens(pair.port_space, number)
    })?;
    let (program, options) = pair.client;
    let address: &[&str] = match (pair.bare_address, program) {
        (true, _) => &["127.0.0.1"],
        (false, "rping") => &[],
        (false, _) => &["-s", "127.0.0.1"],
    };
    let client = start("client", program, arguments(options, address))?.finish(LIMIT);
    let client = match client {
        Ok(client) if client.status.success() => client,
        Ok(client) => {
            println!("{}", server.describe());
            client.success()?
        }
        Err(problem) => {
            println!("{}", server.describe());
            return Err(problem);
        }
    };
    if !pair.server_ends {
        // Its descriptors close, and that is the end.
        server.stop(LIMIT)?;
        return Ok(());
    }
    quiet(&client)?;
    quiet(&server.finish(LIMIT)?.success()?)
}

/// Some of the examples print an error and end with 0 all the same.
fn quiet(outcome: &Outcome) -> Verdict {
    let text = outcome.text();
    ensure(
        !text.contains("failed") && !text.contains("mismatch") && !text.contains("rror, "),
        || outcome.describe(),
    )
}

/// Both ends of a multicast group: the receiver ends when it has all messages.
fn multicast(group: &'static str, source: &'static str) -> Verdict {
    let stage = Stage::new()?;
    let mut receiver = stage.start("receiver", "mckey", &["-m", group, "-b", source])?;
    receiver.await_ready(LIMIT, "multicast group", || stage.has_group())?;
    // It waits for as many messages as the sender sends, which ends at once.
    let sender = stage.start("sender", "mckey", &["-m", group, "-b", source, "-s"])?;
    sender.finish(LIMIT)?.success()?;
    receiver.finish(LIMIT)?.success()?;
    Ok(())
}

/// Copies a file; the server waits for more until it is stopped.
fn rcopy() -> Verdict {
    let stage = Stage::new()?;
    let number = free_port()?;
    let port = number.to_string();
    let (from, to) = (stage.dir.path().join("from"), stage.dir.path().join("to"));
    // More than the buffers of a connection, and no whole number of anything.
    let bytes: Vec<u8> = (0..3_000_017u32).map(|i| (i ^ i >> 9) as u8).collect();
    fs::write(&from, &bytes)?;
    let mut server = stage.start("server", "rcopy", &["-p", &port])?;
    server.await_ready(LIMIT, "rdma_cm listener", || stage.listens(TCP, number))?;
    let target = format!("127.0.0.1:{}", to.display());
    let source = from.to_string_lossy();
    let client = stage.start("client", "rcopy", &[&source, &target, "-p", &port])?;
    client.finish(LIMIT)?.success()?;
    server.stop(LIMIT)?;
    ensure(fs::read(&to)? == bytes, || {
        "the copy is different".to_owned()
    })
}

/// Datagrams and their echoes; the server goes on until it is stopped.
fn udpong() -> Verdict {
    let stage = Stage::new()?;
    let number = free_port()?;
    let port = number.to_string();
    let echo = ["-T", "e", "-p", &port];
    let mut server = stage.start(
        "server",
        "udpong",
        &[&echo[..], &["-b", "127.0.0.1"]].concat(),
    )?;
    // 127.0.0.1 as proc_pid_net(5) writes it.
    let bound = format!(" 0100007F:{number:04X} ");
    server.await_ready(LIMIT, "datagram socket", || {
        fs::read_to_string("/proc/net/udp").is_ok_and(|table| table.contains(&bound))
    })?;
    let more = ["-C", "100", "-s", "127.0.0.1"];
    let client = stage.start("client", "udpong", &[&echo[..], &more].concat())?;
    quiet(&client.finish(LIMIT)?.success()?)?;
    server.stop(LIMIT)?;
    Ok(())
}

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = PAIRS
        .iter()
        .map(|pair| trial(pair.name, move || run(pair)))
        .collect();
    trials.push(trial("rcopy", rcopy));
    trials.push(trial("udpong", udpong));
    trials.push(trial("mckey-ipv6", || multicast("ff0e::1", "::1")));
    trials.push(trial("mckey-ipv4", || multicast("239.1.2.3", "127.0.0.1")));
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
