//! Programs, unmodified; they check what they receive, and their exit status says so.

use std::process::Command;

use libtest_mimic::Trial;
use sluice_tests::job::{Job, find_program, run};
use sluice_tests::lab::{Lab, Mode, find_sluice};
use sluice_tests::net::free_port;
use sluice_tests::suite::{self, Verdict, ensure, skip, trial};
use sluice_tests::verbs::cm::{self, CmRow, PortSpace, ROWS, Stage as _};
use sluice_tests::verbs::link::{self, End, LIMIT, Link};
use sluice_tests::verbs::sluice_verbs;

use crate::way;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, row) in ROWS
        .iter()
        .enumerate()
        .filter(|(_, row)| is_for_streams(row))
    {
        for family in [4, 6] {
            // The plain ones by both versions of IP, the others by one, by turns.
            let wanted = row.case == "plain" || (number % 2 == 0) == (family == 4);
            let family = if row.speaks(family) { family } else { 4 };
            if wanted && !(family == 4 && trials_has(&trials, row)) {
                let way = way(family, number);
                let name = format!("{}/{}", row.name(), way.name());
                trials.push(trial(name, move || {
                    row.run(&mut Link::new(way)?, less(row))
                }));
            }
        }
    }
    let plain = way(4, 0);
    trials.push(trial(format!("rcopy/plain/{}", plain.name()), move || {
        cm::rcopy(&mut Link::new(plain)?)
    }));
    trials.push(trial(format!("qperf/cm/{}", plain.name()), move || {
        link::qperf(plain)
    }));
    trials.push(trial("refused/datagrams".to_owned(), no_datagrams));
    trials.push(trial("refused/nobody-listens".to_owned(), nobody));
    trials.push(trial("engines/two".to_owned(), two_engines));
    trials.push(trial("crc/asked-for-at-one-end".to_owned(), crc));
    trials.push(trial("lane/under-sluice-run".to_owned(), lane));
    trials
}

fn trials_has(trials: &[Trial], row: &CmRow) -> bool {
    let name = row.name();
    trials
        .iter()
        .any(|trial| trial.name().starts_with(&format!("{name}/iwarp/ipv4")))
}

/// Streams connect two queue pairs that are reliable, and nothing else.
fn is_for_streams(row: &CmRow) -> bool {
    row.program != "udaddy" && !["xrc", "cm-ud"].contains(&row.case)
}

/// Options that make a program do less: of two the last one counts.
fn less(row: &CmRow) -> &'static [&'static str] {
    match (row.program, row.case) {
        ("rstream", "plain") => &[],
        ("rstream", _) => &["-S", "20000", "-C", "20", "-I", "20"],
        ("riostream", _) => &["-S", "20000", "-C", "10", "-I", "10"],
        // They wait for bytes in memory and never call the library meanwhile: each of their turns
        // needs a thread to get a processor that the program does not give away.
        ("ib_write_lat", _) => &["-n", "100"],
        _ => &[],
    }
}

/// A program that wants datagrams is told at once that there are none.
fn no_datagrams() -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    let address = link.hosts().right.v4().to_string();
    let client = link.start(End::Left, "udaddy", &["-s", &address])?;
    let client = client.finish(LIMIT)?;
    ensure(!client.status.success(), || client.describe())?;
    ensure(
        client.describe().contains("Operation not supported"),
        || client.describe(),
    )
}

/// A client whose server is not there is told so soon, and not by a signal.
fn nobody() -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    let address = link.hosts().right.v4().to_string();
    let client = link.start(End::Left, "rping", &["-c", "-a", &address, "-C", "1"])?;
    let client = client.finish(LIMIT)?;
    ensure(client.status.code().is_some_and(|code| code != 0), || {
        client.describe()
    })?;
    ensure(client.describe().contains("REJECTED"), || client.describe())
}

/// Queue pairs on two threads each.
fn two_engines() -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    link.set_engines([2, 2]);
    cm::named("ib_send_bw/cm-16-pairs").run(&mut link, &[])?;
    cm::named("ucmatose/ten").run(&mut link, &[])
}

/// One end asks for CRCs: both have them, and the bytes are right.
fn crc() -> Verdict {
    let mut link = Link::new(way(4, 0))?;
    let port = link.free_port()?.to_string();
    let address = link.hosts().right.v4().to_string();
    let arguments = ["-s", "-V", "-S", "60000", "-C", "50", "-p", &port];
    let mut server = link.start(End::Right, "rping", &arguments)?;
    let number = port.parse().unwrap_or_default();
    link.await_listener(&mut server, PortSpace::Tcp, number)?;
    let arguments = [
        "-c", "-V", "-S", "60000", "-C", "50", "-p", &port, "-a", &address,
    ];
    let device = ["--device".to_owned(), "iwarp".to_owned()];
    let mut client: Command = sluice_verbs("rping", &arguments, &device)?;
    client.env("SLUICE_VERBS_CRC", "1");
    link.host(End::Left).place(&mut client);
    let client = run(client, link.hosts().path(), "rping with CRCs", LIMIT)?;
    cm::success(client)?;
    cm::success(server.finish(LIMIT)?)?;
    Ok(())
}

/// Two programs on one host, whose connection takes a lane like any socket's.
fn lane() -> Verdict {
    let lab = Lab::with_library()?;
    suite::until(|| {
        on_one_host(&lab)?;
        Ok(lab.require_lanes())
    })
}

fn on_one_host(lab: &Lab) -> Verdict {
    let port = free_port()?.to_string();
    let start = |arguments: &[&str]| -> Verdict<Job> {
        let Some(rping) = find_program("rping") else {
            return skip("rping is not installed; scripts/setup test");
        };
        let sluice = find_sluice()?;
        let mut command = lab.command(Mode::Accelerated, sluice);
        command
            .args(["verbs", "--device", "iwarp", "--"])
            .arg(rping)
            .args([
                "-V",
                "-C",
                "2000",
                "-S",
                "30000",
                "-a",
                "127.0.0.1",
                "-p",
                &port,
            ])
            .args(arguments)
            .env_remove("LD_LIBRARY_PATH")
            .env("XDG_RUNTIME_DIR", lab.path());
        Job::start(command, lab.path(), arguments.first().unwrap_or(&"rping"))
    };
    let mut server = start(&["-s"])?;
    let number = port.parse().unwrap_or_default();
    server.await_ready(LIMIT, "rdma_cm listener", || {
        cm::listens(lab.path(), PortSpace::Tcp, number)
    })?;
    let client = start(&["-c"])?;
    cm::success(client.finish(LIMIT)?)?;
    server.finish(LIMIT)?;
    Ok(())
}
