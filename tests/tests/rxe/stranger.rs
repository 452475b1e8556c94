//! Programs with one end here, under `sluice verbs`, and one in the guest, on the kernel's device.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::guest::RXE;
use sluice_tests::guest::stranger::{self, Stranger};
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::job::{Job, Outcome, run};
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_tests::verbs::rows::{Row, named};
use sluice_tests::verbs::{Own, gid_index, sluice_verbs};

/// For one program, when one of its ends is emulated.
pub const LIMIT: Duration = Duration::from_secs(150);

/// What the cable carries besides headers, bytes, at an MTU of 1500.
const PATH_MTU: u32 = 1024;

/// Rows of the other suites, and how often their programs go to and fro here.
const ROWS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong/plain", "100"),
    ("ibv_rc_pingpong/events", "50"),
    ("ibv_uc_pingpong/plain", "50"),
    ("ibv_ud_pingpong/plain", "50"),
    ("ibv_srq_pingpong/plain", "100"),
    ("ib_send_lat/rc", "50"),
    ("ib_send_lat/uc", "50"),
    ("ib_send_lat/ud", "50"),
    ("ib_send_bw/rc", "20"),
    ("ib_send_bw/ud", "20"),
    ("ib_write_lat/rc", "50"),
    ("ib_write_lat/uc", "50"),
    ("ib_write_bw/rc", "20"),
    ("ib_write_bw/uc", "20"),
    ("ib_read_lat/rc", "50"),
    ("ib_read_bw/rc", "20"),
    ("ib_atomic_lat/fetch-and-add", "50"),
    ("ib_atomic_lat/compare-and-swap", "50"),
    ("ib_atomic_bw/fetch-and-add", "50"),
];

/// Programs of ours, which check every byte.
const OWN: &[(Own, &str, &[&str])] = &[
    (Own::Traffic, "rc", &["-n", "300", "-b", "6000"]),
    (
        Own::Traffic,
        "rc-events",
        &["-n", "200", "-b", "6000", "-e", "1", "-s", "5"],
    ),
    (
        Own::Datagrams,
        "uc",
        &["-c", "UC", "-b", "3000", "-n", "96"],
    ),
    (
        Own::Datagrams,
        "ud",
        &["-c", "UD", "-b", "1024", "-n", "96"],
    ),
];

/// Who listens and waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Sluice,
    Kernel,
}

/// One of the ways in which the two can meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    pub server: Server,
    /// Sluice's.
    pub device: &'static str,
    pub family: u8,
    /// Of the cable.
    pub mtu: u32,
}

impl Meeting {
    pub fn name(self) -> String {
        let who = match self.server {
            Server::Sluice => "kernel-to-sluice",
            Server::Kernel => "sluice-to-kernel",
        };
        format!("{who}/{}/ipv{}/mtu-{}", self.device, self.family, self.mtu)
    }
}

/// Every program meets both ways, once with each device; both versions of IP have their turns.
fn meetings(number: usize) -> [Meeting; 2] {
    let devices = match number % 2 {
        0 => ["roce", "roce-udp"],
        _ => ["roce-udp", "roce"],
    };
    let family = [4, 4, 6, 6][number % 4];
    [
        Meeting {
            server: Server::Sluice,
            device: devices[0],
            family,
            mtu: 1500,
        },
        Meeting {
            server: Server::Kernel,
            device: devices[1],
            family,
            mtu: 1500,
        },
    ]
}

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, (row, iterations)) in ROWS.iter().enumerate() {
        let row = named(row);
        for meeting in meetings(number) {
            let name = format!("{}/{}", row.name(), meeting.name());
            trials.push(trial(name, move || program(&row, iterations, meeting)));
        }
    }
    for (number, (own, case, arguments)) in OWN.iter().enumerate() {
        for meeting in meetings(number) {
            // What matters most: both devices, both ways.
            for (device, mtu) in [
                ("roce", 1500),
                ("roce-udp", 1500),
                ("roce", 9000),
                ("roce-udp", 9000),
            ] {
                let meeting = Meeting {
                    device,
                    mtu,
                    ..meeting
                };
                let name = format!("{own:?}/{case}/{}", meeting.name());
                trials.push(trial(name, move || checked(*own, arguments, meeting)));
            }
        }
    }
    trials
}

fn program(row: &Row, iterations: &str, meeting: Meeting) -> Verdict {
    program_in(&*stranger::borrow()?, row, iterations, meeting)
}

pub fn program_in(lab: &Stranger, row: &Row, iterations: &str, meeting: Meeting) -> Verdict {
    let mut arguments = row.arguments();
    // The last -n counts.
    arguments.extend(["-n", iterations]);
    let (server, client) = pair(lab, row.program, row.gid_option(), &arguments, meeting)?;
    row.check(&server, &client, PATH_MTU)
}

fn checked(own: Own, arguments: &[&str], meeting: Meeting) -> Verdict {
    checked_in(&*stranger::borrow()?, own, arguments, meeting)
}

pub fn checked_in(lab: &Stranger, own: Own, arguments: &[&str], meeting: Meeting) -> Verdict {
    let dir = tempfile::tempdir_in(lab.path())?;
    let program = own.compile(dir.path())?;
    let (server, client) = pair(lab, &program.to_string_lossy(), "-g", arguments, meeting)?;
    for outcome in [server, client] {
        // Unreliable messages may be lost, above all by an emulated receiver, but not all.
        ensure(!outcome.text().contains("came: 0 "), || outcome.describe())?;
    }
    Ok(())
}

/// Runs server and client to their ends, which must be good ones.
fn pair(
    lab: &Stranger,
    program: &str,
    gid_option: &str,
    arguments: &[&str],
    meeting: Meeting,
) -> Verdict<(Outcome, Outcome)> {
    lab.set_mtu(meeting.mtu)?;
    let dir = tempfile::tempdir_in(lab.path())?;
    let mut here = Here::new(lab, dir.path(), meeting)?;
    let mut there = There::new(lab, dir.path(), meeting)?;
    let port = match meeting.server {
        Server::Sluice => lab.host.free_port(Protocol::Tcp)?,
        // Nobody else listens in the guest.
        Server::Kernel => 18700,
    };
    let port_word = port.to_string();
    let words = |index: &str, peer: Option<String>| -> Vec<String> {
        let own = ["-p", &port_word, gid_option, index];
        let all = own.iter().chain(arguments);
        all.map(|word| (*word).to_owned()).chain(peer).collect()
    };
    // What the two agree on goes by TCP over IPv4.
    let (mut server, client) = match meeting.server {
        Server::Sluice => {
            let server = here.start(program, &words(&here.index, None))?;
            let peer = lab.host.v4().to_string();
            (
                server,
                there.command(program, &words(&there.index, Some(peer)))?,
            )
        }
        Server::Kernel => {
            let server = there.start(program, &words(&there.index, None))?;
            let peer = lab.guest.v4().to_string();
            (
                server,
                here.command(program, &words(&here.index, Some(peer)))?,
            )
        }
    };
    match meeting.server {
        Server::Sluice => lab
            .host
            .await_listener(&mut server, Protocol::Tcp, port, LIMIT)?,
        Server::Kernel => {
            lab.guest
                .await_listener(&lab.host, &mut server, Protocol::Tcp, port, LIMIT)?;
        }
    }
    let client = match run(client, dir.path(), "client", LIMIT) {
        Ok(client) => client,
        Err(problem) => {
            println!("{}", server.describe());
            return Err(problem);
        }
    };
    if !client.status.success() {
        println!("{}", server.describe());
    }
    let client = client.success()?;
    Ok((server.finish(LIMIT)?.success()?, client))
}

/// This side.
struct Here<'a> {
    lab: &'a Stranger,
    dir: &'a Path,
    device: [String; 2],
    index: String,
}

impl<'a> Here<'a> {
    fn new(lab: &'a Stranger, dir: &'a Path, meeting: Meeting) -> Verdict<Here<'a>> {
        let device = ["--device".to_owned(), meeting.device.to_owned()];
        let mut here = Here {
            lab,
            dir,
            device,
            index: String::new(),
        };
        let command = here.command("ibv_devinfo", &["-v".to_owned()])?;
        let outcome = run(command, dir, "devinfo-here", LIMIT)?.success()?;
        let address = lab.host.address(meeting.family);
        match gid_index(&outcome.text(), address) {
            Some(index) => here.index = index,
            None => return fail(format!("no GID of {address}\n{}", outcome.describe())),
        }
        Ok(here)
    }

    fn command(&self, program: &str, words: &[String]) -> Verdict<Command> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = sluice_verbs(program, &words, &self.device)?;
        self.lab.host.place(&mut command);
        Ok(command)
    }

    fn start(&mut self, program: &str, words: &[String]) -> Verdict<Job> {
        Job::start(self.command(program, words)?, self.dir, "server")
    }
}

/// The guest's side.
struct There<'a> {
    lab: &'a Stranger,
    dir: &'a Path,
    index: String,
}

impl<'a> There<'a> {
    fn new(lab: &'a Stranger, dir: &'a Path, meeting: Meeting) -> Verdict<There<'a>> {
        let mut command = lab.guest.command(&lab.host, "ibv_devinfo");
        command.args(["-d", RXE, "-v"]);
        let outcome = run(command, dir, "devinfo-there", LIMIT)?.success()?;
        let address = lab.guest.address(meeting.family);
        let Some(index) = gid_index(&outcome.text(), address) else {
            return fail(format!("no GID of {address}\n{}", outcome.describe()));
        };
        Ok(There { lab, dir, index })
    }

    fn command(&self, program: &str, words: &[String]) -> Verdict<Command> {
        let mut command = self.lab.guest.command(&self.lab.host, program);
        command.args(words).args(["-d", RXE]);
        Ok(command)
    }

    fn start(&mut self, program: &str, words: &[String]) -> Verdict<Job> {
        Job::start(self.command(program, words)?, self.dir, "server")
    }
}
