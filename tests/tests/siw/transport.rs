//! The device iwarp of `sluice verbs` and siw: the same program at both ends.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::guest::stranger::Borrowed;
use sluice_tests::job::Job;
use sluice_tests::suite::{Verdict, fail};
use sluice_tests::verbs::cm::{self, PortSpace};
use sluice_tests::verbs::sluice_verbs;

use crate::{LIMIT, PORT, SIZES, borrow, in_guest, row};

const ROUNDS: &str = "20";
/// siw does not send what was posted while its queue pair was locked (`siw_sq_resume`), until more is posted: so tools of
/// perftest are started again.
const ATTEMPTS: usize = 8;
const ATTEMPT: Duration = Duration::from_secs(20);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for family in [4, 6] {
        for crc in [false, true] {
            let how = format!("ipv{family}/crc-{}", if crc { "on" } else { "off" });
            let name = format!("sluice-asks-siw/{how}");
            trials.push(row(name, move || asks(family, crc)));
            let name = format!("siw-asks-sluice/{how}");
            trials.push(row(name, move || serves(family, crc)));
        }
    }
    for tool in PERFTEST {
        trials.push(row(format!("sluice-asks-siw/{tool}"), move || {
            measures(tool)
        }));
    }
    for tool in PERFTEST.into_iter().filter(|tool| *tool != STOPS) {
        trials.push(row(format!("siw-asks-sluice/{tool}"), move || {
            is_measured(tool)
        }));
    }
    trials
}

/// Those of perftest that siw has operations for.
const PERFTEST: [&str; 6] = [
    "ib_read_lat",
    "ib_read_bw",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_lat",
    "ib_write_bw",
];
/// Its client in the guest stops before its first WRITE: it has acknowledged our last SEND and says nothing more, on
/// either connection.
const STOPS: &str = "ib_write_lat";
/// One each way.
pub const USUAL_TOOLS: [&str; 2] = ["sluice-asks-siw/ib_read_lat", "siw-asks-sluice/ib_send_bw"];
const MEASURED: [&str; 4] = ["-R", "-n", "100", "-p"];

/// A program of perftest here, and its server in the guest.
fn measures(tool: &str) -> Verdict {
    let lab = borrow()?;
    let port = PORT.to_string();
    let to = lab.guest.address(4).to_string();
    answered(&lab, || {
        let mut server = in_guest(&lab, tool, &[&MEASURED[..], &[&port]].concat())?;
        lab.guest
            .await_rdma_listener(&lab.host, &mut server, PORT, LIMIT)?;
        let client = here(&lab, true, tool, &[&MEASURED[..], &[&port, &to]].concat())?;
        Ok((server, client))
    })
}

/// The other way round.
fn is_measured(tool: &str) -> Verdict {
    let lab = borrow()?;
    let port = PORT.to_string();
    let to = lab.host.v4().to_string();
    answered(&lab, || {
        let server = listening(&lab, true, tool, &[&MEASURED[..], &[&port]].concat())?;
        let client = in_guest(&lab, tool, &[&MEASURED[..], &[&port, &to]].concat())?;
        Ok((server, client))
    })
}

/// A server and a client, which are started anew as long as siw sleeps. The server may end with an error of its own when
/// the client has gone.
fn answered(lab: &Borrowed, start: impl Fn() -> Verdict<(Job, Job)>) -> Verdict {
    let mut seen = String::new();
    for attempt in 1..=ATTEMPTS {
        let (server, client) = start()?;
        match client.finish(ATTEMPT) {
            Ok(outcome) if outcome.status.success() => {
                server.finish(LIMIT)?;
                return Ok(());
            }
            ended => seen = format!("{ended:?}\n{}", server.describe()),
        }
        println!("siw slept, attempt {attempt}: {seen}");
    }
    fail(format!("{seen}\n{}", lab.guest.console()))
}

/// A server here, once it listens.
fn listening(lab: &Borrowed, crc: bool, program: &str, arguments: &[&str]) -> Verdict<Job> {
    let mut server = here(lab, crc, program, arguments)?;
    let runtime = lab.host.runtime().to_owned();
    server.await_ready(LIMIT, "rdma_cm listener", || {
        cm::listens(&runtime, PortSpace::Tcp, PORT)
    })?;
    Ok(server)
}

/// A program here, over the device.
fn here(lab: &Borrowed, crc: bool, program: &str, arguments: &[&str]) -> Verdict<Job> {
    let device = ["--device".to_owned(), "iwarp".to_owned()];
    let mut command = sluice_verbs(program, arguments, &device)?;
    command.env("SLUICE_VERBS_CRC", if crc { "1" } else { "0" });
    lab.host.place(&mut command);
    Job::start(command, lab.path(), &format!("{program} here"))
}

fn asks(family: u8, crc: bool) -> Verdict {
    let lab = borrow()?;
    let any = if family == 6 { "::" } else { "0.0.0.0" };
    let port = PORT.to_string();
    let to = lab.guest.address(family).to_string();
    for size in SIZES.map(|size| size.to_string()) {
        let arguments = ["-s", "-V", "-a", any, "-p", &port, "-S", &size];
        let mut server = in_guest(&lab, "rping", &arguments)?;
        lab.guest
            .await_rdma_listener(&lab.host, &mut server, PORT, LIMIT)?;
        let arguments = [
            "-c", "-V", "-a", &to, "-p", &port, "-S", &size, "-C", ROUNDS,
        ];
        let client = here(&lab, crc, "rping", &arguments)?.finish(LIMIT)?;
        if !client.status.success() {
            let seen = [client.describe(), server.describe(), lab.guest.console()];
            return fail(format!("{size} bytes: {}", seen.join("\n")));
        }
        // It ends with an error of its own when the client has gone.
        server.finish(LIMIT)?;
    }
    Ok(())
}

fn serves(family: u8, crc: bool) -> Verdict {
    let lab = borrow()?;
    let port = PORT.to_string();
    for size in SIZES.map(|size| size.to_string()) {
        let at = match family {
            6 => lab.host.v6().to_string(),
            _ => lab.host.v4().to_string(),
        };
        let arguments = [
            "-s", "-V", "-a", &at, "-p", &port, "-S", &size, "-C", ROUNDS,
        ];
        let server = listening(&lab, crc, "rping", &arguments)?;
        let arguments = [
            "-c", "-V", "-a", &at, "-p", &port, "-S", &size, "-C", ROUNDS,
        ];
        let client = in_guest(&lab, "rping", &arguments)?.finish(LIMIT)?;
        if !client.status.success() {
            let seen = [client.describe(), server.describe(), lab.guest.console()];
            return fail(format!("{size} bytes: {}", seen.join("\n")));
        }
        server.finish(LIMIT)?;
    }
    Ok(())
}
