//! The device iwarp of `sluice verbs` and siw: the same program at both ends.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::guest::stranger::Borrowed;
use sluice_tests::job::Job;
use sluice_tests::suite::{Verdict, fail};
use sluice_tests::verbs::cm::{self, PortSpace};
use sluice_tests::verbs::sluice_verbs;

use crate::{ATTEMPTS, LIMIT, PORT, SIZES, borrow, row, rping};

const ROUNDS: &str = "20";
/// For a client whose server sleeps (see [`crate::PAUSE`]): it says nothing for good.
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
    trials
}

/// rping here, over the device.
fn here(lab: &Borrowed, crc: bool, arguments: &[&str], label: &str) -> Verdict<Job> {
    let device = ["--device".to_owned(), "iwarp".to_owned()];
    let mut command = sluice_verbs("rping", arguments, &device)?;
    command.env("SLUICE_VERBS_CRC", if crc { "1" } else { "0" });
    lab.host.place(&mut command);
    Job::start(command, lab.path(), label)
}

/// siw's server misses what comes at once, so a client that gets no answer is asked again.
fn asks(family: u8, crc: bool) -> Verdict {
    let lab = borrow()?;
    let any = if family == 6 { "::" } else { "0.0.0.0" };
    let port = PORT.to_string();
    for size in SIZES.map(|size| size.to_string()) {
        let to = lab.guest.address(family).to_string();
        let mut seen = String::new();
        let mut done = false;
        for _ in 0..ATTEMPTS {
            let arguments = ["-s", "-V", "-a", any, "-p", &port, "-S", &size];
            let mut server = rping(&lab, &arguments)?;
            lab.guest
                .await_rdma_listener(&lab.host, &mut server, PORT, LIMIT)?;
            let arguments = [
                "-c", "-V", "-a", &to, "-p", &port, "-S", &size, "-C", ROUNDS,
            ];
            let client = here(&lab, crc, &arguments, "rping here")?;
            match client.finish(ATTEMPT) {
                Ok(outcome) if outcome.status.success() => {
                    // It ends with an error of its own when the client has gone.
                    server.finish(LIMIT)?;
                    done = true;
                    break;
                }
                ended => seen = format!("{ended:?}\n{}", server.describe()),
            }
        }
        if !done {
            return fail(format!("{size} bytes: {seen}\n{}", lab.guest.console()));
        }
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
        let mut server = here(&lab, crc, &arguments, "rping's server here")?;
        let runtime = lab.host.runtime().to_owned();
        server.await_ready(LIMIT, "rdma_cm listener", || {
            cm::listens(&runtime, PortSpace::Tcp, PORT)
        })?;
        let arguments = [
            "-c", "-V", "-a", &at, "-p", &port, "-S", &size, "-C", ROUNDS,
        ];
        let client = rping(&lab, &arguments)?.finish(LIMIT)?;
        if !client.status.success() {
            let seen = [client.describe(), server.describe(), lab.guest.console()];
            return fail(format!("{size} bytes: {}", seen.join("\n")));
        }
        server.finish(LIMIT)?;
    }
    Ok(())
}
