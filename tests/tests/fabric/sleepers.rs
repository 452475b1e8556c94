//! Programs that pause between requests: what does not profit from a lane is left alone entirely, and comes back
//! when it would.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::job::{Job, command};
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{Two, Way};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/apps/scripts/sleeper.py");

/// Requests before the calls are counted, so that the ends have met and agreed.
const BEFORE: u32 = 300;
/// Requests whose calls are counted.
const COUNTED: u32 = 200;
/// Calls beside these in as many requests that are none of the requests', such as a look at sluiced's mail.
const OTHERS_MAX: usize = 8;
/// The last phase only keeps the connection open until then.
const PHASES: u32 = 4;
/// Requests without pauses.
const QUICK: u32 = 20_000;

pub fn trials() -> Vec<Trial> {
    ["roce", "roce-udp"]
        .map(|device| {
            let way = Way {
                device,
                family: 4,
                faults: false,
            };
            trial(format!("sleepers/{device}"), move || sleepers(way))
        })
        .into()
}

fn sleepers(way: Way) -> Verdict {
    let two = way.set_up()?;
    let strace = require("strace")?;
    let python = require("python3")?;
    let address = two.address(Side::Right).to_string();
    let mut server = two.program(Side::Right, true, &python);
    server.args([SCRIPT, "server", &address]);
    let mut server = two.start_program(server, "server")?;
    let port = sluice_tests::stream::await_port(&mut server, LIMIT)?;
    let folder = two.dir().join("phases");
    fs::create_dir(&folder)?;
    let mut client = two.program(Side::Left, true, &python);
    client
        .args([SCRIPT, "client", &address, &port.to_string()])
        .arg(&folder);
    let last = ("slow", 1);
    for (kind, count) in [("slow", BEFORE), ("slow", COUNTED), ("quick", QUICK), last] {
        client.arg(kind).arg(count.to_string());
    }
    let mut client = two.start_program(client, "client")?;

    phase(&mut client, &folder, 1)?;
    let traces = [("client", client.id()), ("server", server.id())]
        .map(|(name, process)| trace(&two, &strace, name, process));
    phase(&mut client, &folder, 2)?;
    for traced in traces {
        only_requests(&traced?)?;
    }
    let slow = connection(&two)?;
    let bytes = |of: &Value, name: &str| of[name].as_u64().unwrap_or(u64::MAX);
    let by_lane =
        |of: &Value| bytes(of, "lane_rx_bytes").saturating_add(bytes(of, "lane_tx_bytes"));
    ensure(by_lane(&slow) == 0 && slow["path"] == "tcp", || {
        slow.to_string()
    })?;

    phase(&mut client, &folder, 3)?;
    let quick = connection(&two)?;
    ensure(by_lane(&quick) > 0, || quick.to_string())?;
    phase(&mut client, &folder, PHASES)?;
    client.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(())
}

fn phase(client: &mut Job, folder: &Path, number: u32) -> Verdict {
    fs::write(folder.join(number.to_string()), "")?;
    // The last one may end before this looks.
    if number == PHASES {
        return Ok(());
    }
    client.await_text(&format!("done {number}"), LIMIT)
}

/// Writes the calls of a process to a file from now on.
fn trace(two: &Two, strace: &Path, name: &str, process: u32) -> Verdict<(Job, PathBuf)> {
    let path = two.dir().join(format!("{name}.calls"));
    let mut trace = command(strace);
    trace.args(["-f", "-o"]).arg(&path);
    trace.args(["-p", &process.to_string()]);
    let mut trace = Job::start(trace, two.dir(), &format!("strace-{name}"))?;
    let said = two.dir().join(format!("strace-{name}.stderr"));
    trace.await_ready(LIMIT, "attached", || {
        fs::read_to_string(&said).is_ok_and(|text| text.contains("attached"))
    })?;
    Ok((trace, path))
}

/// The calls are those of the program's requests, and hardly any others.
fn only_requests((trace, path): &(Job, PathBuf)) -> Verdict {
    trace.signal(rustix::process::Signal::INT)?;
    let text = fs::read_to_string(path)?;
    // "PID call(arguments) = result"; what another thread interrupted is resumed in a second line.
    let calls: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .collect();
    for name in ["sendto", "recvfrom"] {
        let (count, expected) = (calls.iter().filter(|call| **call == name).count(), COUNTED);
        ensure(count.abs_diff(expected as usize) <= 2, || {
            format!("{count} calls of {name} in {expected} requests")
        })?;
    }
    // The client looks for its next phase meanwhile.
    let of_requests = [
        "sendto",
        "recvfrom",
        "clock_nanosleep",
        "newfstatat",
        "stat",
        "write",
    ];
    let mut others = calls;
    others.retain(|call| !of_requests.contains(call));
    ensure(others.len() <= OTHERS_MAX, || format!("also {others:?}"))
}

/// The client's connection, as its host's daemon knows it.
fn connection(two: &Two) -> Verdict<Value> {
    let status = two.status(Side::Left)?;
    let processes = status["processes"].as_array().into_iter().flatten();
    let mut all = processes.flat_map(|it| it["connections"].as_array().into_iter().flatten());
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(one.clone()),
        _ => fail(status.to_string()),
    }
}
