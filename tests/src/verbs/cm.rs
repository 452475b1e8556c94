//! Programs that find each other by librdmacm, with the arguments that they are tested with, and
//! how they are run: within a host, between hosts, and against the kernel.
//!
//! They check what they receive, and their exit status says so. Some print an error and end with 0
//! all the same; [`quiet`] looks for that.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::job::{Job, Outcome, wait_until};
use crate::suite::{Verdict, ensure, fail};

/// The port that `udaddy` has no option for.
const UDADDY_PORT: u16 = 7174;

/// What a listener's number belongs to (rdma_create_id(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSpace {
    Tcp,
    Udp,
    Ib,
}

impl PortSpace {
    /// As the names of listeners in Sluice's directory have it.
    pub fn digits(self) -> &'static str {
        match self {
            PortSpace::Tcp => "0106",
            PortSpace::Udp => "0111",
            PortSpace::Ib => "013f",
        }
    }
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Server,
    Client,
}

/// Where two programs meet.
pub trait Stage {
    fn start(&mut self, end: End, program: &str, arguments: &[&str]) -> Verdict<Job>;

    /// The address of an end, of the family that is tested.
    fn address(&self, end: End) -> IpAddr;

    /// A TCP port that is free at the server's end.
    fn free_port(&self) -> Verdict<u16>;

    /// Waits until the server listens by librdmacm; a connection would be taken for its client's.
    fn await_listener(&mut self, server: &mut Job, space: PortSpace, port: u16) -> Verdict;

    /// Waits until somebody at the server's end is a member of the group.
    fn await_member(&mut self, receiver: &mut Job, group: IpAddr) -> Verdict;

    /// Waits until somebody at the server's end has bound a UDP socket.
    fn await_datagrams(&mut self, server: &mut Job, port: u16) -> Verdict;

    /// A directory that both ends can read and the client can write.
    fn path(&self) -> &Path;

    /// How long a program may take.
    fn limit(&self) -> Duration;
}

/// How a program is told where to listen or to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Option(&'static str),
    /// The last argument, without an option.
    Bare,
    /// Nowhere: it listens on all addresses, with IPv4 only.
    Everywhere,
}

/// A pair of programs.
#[derive(Clone, Copy, Debug)]
pub struct CmRow {
    pub program: &'static str,
    /// Names the row among those of its program.
    pub case: &'static str,
    server: (&'static str, &'static [&'static str]),
    client: (&'static str, &'static [&'static str]),
    listen: Place,
    connect: Place,
    space: PortSpace,
    /// The server ends by itself.
    server_ends: bool,
    /// It moves gigabytes in steps of all sizes: seconds on a processor of its own, minutes on one
    /// that others want too.
    long: bool,
}

/// How much longer those may take.
const LONG: u32 = 5;

const PLAIN: CmRow = CmRow {
    program: "",
    case: "plain",
    server: ("", &[]),
    client: ("", &[]),
    listen: Place::Option("-b"),
    connect: Place::Option("-s"),
    space: PortSpace::Tcp,
    server_ends: true,
    long: false,
};

const fn row(program: &'static str, case: &'static str, options: &'static [&'static str]) -> CmRow {
    CmRow {
        program,
        case,
        server: (program, options),
        client: (program, options),
        ..PLAIN
    }
}

/// Those of perftest 4.5 connect to IPv4 addresses only.
const fn perftest(
    program: &'static str,
    case: &'static str,
    options: &'static [&'static str],
) -> CmRow {
    CmRow {
        listen: Place::Everywhere,
        connect: Place::Bare,
        ..row(program, case, options)
    }
}

const fn datagrams(case: &'static str, options: &'static [&'static str]) -> CmRow {
    CmRow {
        space: PortSpace::Udp,
        ..row("udaddy", case, options)
    }
}

const fn rping(
    case: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
) -> CmRow {
    CmRow {
        server: ("rping", server),
        client: ("rping", client),
        listen: Place::Option("-a"),
        connect: Place::Option("-a"),
        ..row("rping", case, &[])
    }
}

pub const ROWS: &[CmRow] = &[
    rping(
        "plain",
        &["-s", "-v", "-V", "-C", "1000"],
        &["-c", "-v", "-V", "-C", "1000"],
    ),
    // Queue pairs that the program itself makes and takes through their states.
    rping(
        "own-queue-pairs",
        &["-s", "-v", "-V", "-q", "-C", "100"],
        &["-c", "-v", "-V", "-q", "-C", "100"],
    ),
    rping(
        "large",
        &["-s", "-v", "-V", "-S", "65000", "-C", "100"],
        &["-c", "-v", "-V", "-S", "65000", "-C", "100"],
    ),
    row("ucmatose", "plain", &[]),
    row("ucmatose", "ten", &["-c", "10", "-C", "100", "-S", "1000"]),
    row("ucmatose", "migrate", &["-m"]),
    datagrams("plain", &[]),
    datagrams("ten", &["-c", "10", "-C", "50"]),
    // Its server has no end.
    CmRow {
        server_ends: false,
        ..row("cmtime", "plain", &["-c", "100"])
    },
    CmRow {
        server: ("rdma_server", &[]),
        listen: Place::Option("-s"),
        ..row("rdma_client", "plain", &[])
    },
    CmRow {
        server: ("rdma_xserver", &["-c", "r"]),
        listen: Place::Everywhere,
        ..row("rdma_xclient", "plain", &["-c", "r"])
    },
    CmRow {
        server: ("rdma_xserver", &["-c", "x"]),
        listen: Place::Everywhere,
        space: PortSpace::Ib,
        ..row("rdma_xclient", "xrc", &["-c", "x"])
    },
    row(
        "rstream",
        "plain",
        &["-T", "a", "-S", "4096", "-C", "100", "-I", "20"],
    ),
    CmRow {
        long: true,
        ..row("rstream", "async", &["-T", "a"])
    },
    row("rstream", "blocking", &["-T", "b"]),
    row("rstream", "nonblocking", &["-T", "n"]),
    row(
        "rstream",
        "verify",
        &["-T", "v", "-S", "65536", "-I", "100"],
    ),
    row("rstream", "resolve", &["-T", "r"]),
    CmRow {
        long: true,
        ..row("rstream", "sizes", &["-S", "all"])
    },
    row("riostream", "plain", &[]),
    row(
        "riostream",
        "async",
        &["-T", "a", "-S", "4096", "-I", "200"],
    ),
    row(
        "riostream",
        "verify",
        &["-T", "v", "-S", "65536", "-I", "100"],
    ),
    perftest("ib_write_lat", "cm", &["-R", "-n", "300"]),
    perftest("ib_write_bw", "cm", &["-R", "-n", "1000"]),
    perftest("ib_read_lat", "cm", &["-R", "-n", "300"]),
    perftest("ib_read_bw", "cm", &["-R", "-n", "1000"]),
    perftest("ib_atomic_lat", "cm", &["-R", "-n", "300"]),
    perftest("ib_atomic_bw", "cm", &["-R", "-n", "1000"]),
    perftest("ib_send_lat", "cm", &["-R", "-n", "300"]),
    perftest("ib_send_bw", "cm", &["-R", "-n", "1000"]),
    perftest("ib_send_bw", "cm-events", &["-R", "-e", "-n", "1000"]),
    perftest(
        "ib_send_bw",
        "cm-16-pairs",
        &["-R", "-q", "16", "-n", "200"],
    ),
    perftest("ib_write_bw", "cm-both-ways", &["-R", "-b", "-n", "1000"]),
    // It exchanges its parameters over a connection first.
    perftest("ib_send_lat", "cm-ud", &["-R", "-c", "UD", "-n", "300"]),
];

/// The row with that name.
///
/// # Panics
/// When there is none: the caller's list is wrong.
pub fn named(name: &str) -> CmRow {
    let row = ROWS.iter().copied().find(|row| row.name() == name);
    row.unwrap_or_else(|| panic!("there is no row {name}"))
}

impl CmRow {
    pub fn name(&self) -> String {
        format!("{}/{}", self.program, self.case)
    }

    /// Whether the programs can be told an address of the family, 4 or 6.
    pub fn speaks(&self, family: u8) -> bool {
        family == 4 || self.listen != Place::Everywhere
    }

    /// Runs server and client to their ends. `more` comes after the options of both.
    pub fn run(&self, stage: &mut impl Stage, more: &[&str]) -> Verdict {
        let limit = stage.limit() * if self.long { LONG } else { 1 };
        let at = stage.address(End::Server);
        // Where it can be told, an IPv4 server listens on all addresses and an IPv6 one on its own.
        let listen = match (self.listen, at) {
            (Place::Option(option), IpAddr::V6(address)) => {
                vec![option.to_owned(), address.to_string()]
            }
            _ => Vec::new(),
        };
        let connect = match self.connect {
            Place::Option(option) => vec![option.to_owned(), at.to_string()],
            Place::Bare => vec![at.to_string()],
            Place::Everywhere => return fail("the row has no way to name its server"),
        };
        let (number, port) = match self.space {
            PortSpace::Udp => (UDADDY_PORT, Vec::new()),
            _ => {
                let number = stage.free_port()?;
                (number, vec!["-p".to_owned(), number.to_string()])
            }
        };
        let words = |options: &[&str], place: Vec<String>| -> Vec<String> {
            let given = options.iter().chain(more).map(|word| (*word).to_owned());
            given.chain(port.iter().cloned()).chain(place).collect()
        };
        let (program, options) = self.server;
        let arguments = words(options, listen);
        let mut server = stage.start(End::Server, program, &as_words(&arguments))?;
        stage.await_listener(&mut server, self.space, number)?;
        let (program, options) = self.client;
        let arguments = words(options, connect);
        let client = stage.start(End::Client, program, &as_words(&arguments))?;
        let client = finish(client, &server, limit)?;
        if !self.server_ends {
            // Its descriptors close, and that is the end.
            server.stop(limit)?;
            return Ok(());
        }
        quiet(&client)?;
        quiet(&success(server.finish(limit)?)?)
    }
}

/// A good end, which [`ended_early`] has, too.
pub fn success(outcome: Outcome) -> Verdict<Outcome> {
    if ended_early(&outcome) {
        return Ok(outcome);
    }
    outcome.success()
}

/// Whether it is an rping that has ended itself behind its work. It destroys its event channel while
/// its other thread may be on its way to ask it for the next event: that one is told EBADF then, over
/// any librdmacm, and calls exit(-1), perhaps before the last of what the first thread closes is closed.
pub fn ended_early(outcome: &Outcome) -> bool {
    const RACE: &str = "rdma_get_cm_event: Bad file descriptor";
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    outcome.status.code() == Some(255) && stderr.lines().any(|line| line == RACE)
}

/// Waits for a client's good end. What its server said belongs to the picture of a bad one.
fn finish(client: Job, server: &Job, limit: Duration) -> Verdict<Outcome> {
    let outcome = client.finish(limit).and_then(success);
    outcome.inspect_err(|_| println!("{}", server.describe()))
}

/// Fails when the program printed an error.
pub fn quiet(outcome: &Outcome) -> Verdict {
    let text = outcome.text();
    ensure(
        !text.contains("failed") && !text.contains("mismatch") && !text.contains("rror, "),
        || outcome.describe(),
    )
}

/// How long a member may take for what was sent, before it is sent once more.
const GROUP_PATIENCE: Duration = Duration::from_secs(5);

/// A member and a sender of a multicast group: the member ends when it has as many messages as the
/// sender posts. That one leaves without a look at how they fare; `times` is how often it comes, at
/// most, as long as the member lacks some.
pub fn mckey(stage: &mut impl Stage, group: IpAddr, times: u32) -> Verdict {
    let limit = stage.limit();
    let name = group.to_string();
    let [own, peer] = [End::Server, End::Client].map(|end| stage.address(end).to_string());
    let mut member = stage.start(End::Server, "mckey", &["-m", &name, "-b", &own])?;
    stage.await_member(&mut member, group)?;
    for _ in 0..times {
        let sender = stage.start(End::Client, "mckey", &["-m", &name, "-b", &peer, "-s"])?;
        finish(sender, &member, limit)?;
        if wait_until(GROUP_PATIENCE, || Ok(member.poll()?.is_some()))? {
            break;
        }
    }
    quiet(&member.finish(limit)?.success()?)
}

/// Copies a file; the server waits for more until it is stopped. It has no option for an address,
/// and a client's IPv6 address would look like a path.
pub fn rcopy(stage: &mut impl Stage) -> Verdict {
    let limit = stage.limit();
    let number = stage.free_port()?;
    let port = number.to_string();
    let (from, to) = (stage.path().join("from"), stage.path().join("to"));
    // More than the buffers of a connection, and no whole number of anything.
    let bytes: Vec<u8> = (0..3_000_017u32).map(|i| (i ^ i >> 9) as u8).collect();
    fs::write(&from, &bytes)?;
    let mut server = stage.start(End::Server, "rcopy", &["-p", &port])?;
    stage.await_listener(&mut server, PortSpace::Tcp, number)?;
    let target = format!("{}:{}", stage.address(End::Server), to.display());
    let source = from.to_string_lossy();
    let client = stage.start(End::Client, "rcopy", &[&source, &target, "-p", &port])?;
    finish(client, &server, limit)?;
    server.stop(limit)?;
    ensure(fs::read(&to)? == bytes, || {
        "the copy is different".to_owned()
    })
}

/// Datagrams and their echoes; the server goes on until it is stopped.
pub fn udpong(stage: &mut impl Stage) -> Verdict {
    let limit = stage.limit();
    let number = stage.free_port()?;
    let port = number.to_string();
    let address = stage.address(End::Server).to_string();
    let echo = ["-T", "e", "-p", &port];
    let listen = ["-b", &address];
    let mut server = stage.start(End::Server, "udpong", &[&echo[..], &listen].concat())?;
    stage.await_datagrams(&mut server, number)?;
    let connect = ["-C", "100", "-s", &address];
    let client = stage.start(End::Client, "udpong", &[&echo[..], &connect].concat())?;
    quiet(&finish(client, &server, limit)?)?;
    server.stop(limit)?;
    Ok(())
}

/// Whether somebody listens, as a process's name in the rendezvous directory below the runtime
/// directory says.
pub fn listens(runtime: &Path, space: PortSpace, port: u16) -> bool {
    fs::read_dir(runtime.join("sluice-verbs")).is_ok_and(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .into_iter()
            .any(|name| is_listener(&name.to_string_lossy(), space, port))
    })
}

/// Whether a name in that directory is that of a process that listens.
pub fn is_listener(name: &str, space: PortSpace, port: u16) -> bool {
    let wanted = format!("-{}-{port:04x}-", space.digits());
    name.starts_with("cm-") && name.ends_with(".sock") && name.contains(&wanted)
}

fn as_words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}
