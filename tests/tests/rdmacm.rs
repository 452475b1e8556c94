//! The programs of librdmacm, and perftest over it, unmodified, under `sluice verbs`: they
//! check what they receive, and their exit status says so.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::hosts::ports::{Protocol, listens};
use sluice_tests::job::{Job, command, find_program};
use sluice_tests::lab::find_sluice;
use sluice_tests::net::free_port;
use sluice_tests::suite::{self, Verdict, skip, trial};
use sluice_tests::verbs::cm::{self, End, PortSpace};
use tempfile::TempDir;

/// For one program, on a machine that does other things too. Several wait for a byte of memory to
/// change and never give their processor away: where others want it, each of their turns takes as
/// long as the kernel lets them have it.
const LIMIT: Duration = Duration::from_secs(180);

/// Programs of one pair, in a rendezvous directory of their own.
struct Stage {
    dir: TempDir,
    sluice: PathBuf,
    address: IpAddr,
    started: u32,
}

impl Stage {
    fn new(address: IpAddr) -> Verdict<Self> {
        Ok(Self {
            dir: tempfile::Builder::new()
                .prefix("sluice-rdmacm-")
                .tempdir()?,
            sluice: find_sluice()?,
            address,
            started: 0,
        })
    }
}

impl cm::Stage for Stage {
    fn start(&mut self, end: End, program: &str, arguments: &[&str]) -> Verdict<Job> {
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
        self.started += 1;
        let label = format!("{}-{end:?}", self.started);
        Job::start(command, self.dir.path(), &label)
    }

    fn address(&self, _end: End) -> IpAddr {
        self.address
    }

    fn free_port(&self) -> Verdict<u16> {
        Ok(free_port()?)
    }

    fn await_listener(&mut self, server: &mut Job, space: PortSpace, port: u16) -> Verdict {
        server.await_ready(LIMIT, "rdma_cm listener", || {
            cm::listens(self.dir.path(), space, port)
        })
    }

    /// Groups are folders with a file for each process that has members.
    fn await_member(&mut self, receiver: &mut Job, _group: IpAddr) -> Verdict {
        let directory = self.dir.path().join("sluice-verbs");
        receiver.await_ready(LIMIT, "multicast group", || {
            fs::read_dir(&directory).is_ok_and(|entries| {
                entries
                    .flatten()
                    .filter_map(|entry| fs::read_dir(entry.path()).ok())
                    .any(|mut members| members.next().is_some())
            })
        })
    }

    fn await_datagrams(&mut self, server: &mut Job, port: u16) -> Verdict {
        server.await_ready(LIMIT, "datagram socket", || {
            let mut tables = Protocol::Udp.tables().into_iter();
            tables.any(|table| {
                fs::read_to_string(format!("/proc/net/{table}"))
                    .is_ok_and(|text| listens(&text, Protocol::Udp, port))
            })
        })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn limit(&self) -> Duration {
        LIMIT
    }
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// How often somebody sends to a member that lacks messages.
const SENDERS: u32 = 20;

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = cm::ROWS
        .iter()
        .map(|row| trial(row.name(), move || row.run(&mut Stage::new(V4)?, &[])))
        .collect();
    trials.push(trial("rcopy", || cm::rcopy(&mut Stage::new(V4)?)));
    trials.push(trial("udpong", || cm::udpong(&mut Stage::new(V4)?)));
    for (name, group, source) in [
        ("mckey-ipv6", "ff0e::1", V6),
        ("mckey-ipv4", "239.1.2.3", V4),
    ] {
        trials.push(trial(name, move || {
            let Ok(group) = group.parse() else {
                return suite::fail(format!("{group} is no address"));
            };
            // Datagrams may be lost, and a busy machine is not always quick enough for ten at once.
            cm::mckey(&mut Stage::new(source)?, group, SENDERS)
        }));
    }
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
