//! Daemons and links that end while bytes are under way: every stream arrives whole, or breaks.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::job::Job;
use sluice_tests::stream;
use sluice_tests::suite::{Problem, Verdict, ensure, fail, trial};

use crate::hosts::{LIMIT, SIDES, Side, Two, Way};
use crate::programs::WAYS;

const CONNECTIONS: usize = 4;
const RECORDS: u32 = 3000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for side in SIDES {
        let name = format!("killed/{side:?}-daemon").to_lowercase();
        trials.push(trial(name, move || daemon_killed(side)));
    }
    for (number, faults) in [("1-s", 1000), ("5-s", 5000)] {
        trials.push(trial(format!("cut/{number}"), move || cut(faults)));
    }
    trials.push(trial("wrong-key", wrong_key));
    trials
}

/// Both ends of a transfer; `records` 0: until somebody ends it.
fn flow(two: &Two, records: u32) -> Verdict<[Job; 2]> {
    let binary = two.stream()?;
    let mut command = two.command(Side::Right, true, &binary);
    command.args(["server", "thread", &CONNECTIONS.to_string()]);
    let mut server = two.start_program(command, "server")?;
    let port = stream::await_port(&mut server, LIMIT)?;
    let mut command = two.command(Side::Left, true, &binary);
    command.args([
        "client",
        &port.to_string(),
        &CONNECTIONS.to_string(),
        &records.to_string(),
    ]);
    Ok([two.start_program(command, "client")?, server])
}

/// What each end gets is an exact prefix; new connections have rings when the daemon is back.
fn daemon_killed(side: Side) -> Verdict {
    let mut two = Two::new(WAYS[0])?;
    let [client, server] = flow(&two, 0)?;
    // Any moment of the transfer will do.
    std::thread::sleep(Duration::from_millis(700));
    two.kill(side)?;
    std::thread::sleep(Duration::from_millis(300));
    // Streams that were not in the middle of a ring segment go on by TCP, until this.
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    // With its successor all is as before.
    two.start(side)?;
    two.await_session()?;
    complete(&two)
}

fn complete(two: &Two) -> Verdict {
    let [client, server] = flow(two, RECORDS)?;
    for end in [client, server] {
        stream::check_complete(&end.finish(LIMIT)?.success()?, CONNECTIONS, RECORDS)?;
    }
    Ok(())
}

/// Nothing is lost while the link is down, on rings or on TCP.
fn cut(milliseconds: u64) -> Verdict {
    let two = Two::new(Way {
        faults: true,
        ..WAYS[0]
    })?;
    let [client, server] = flow(&two, RECORDS)?;
    std::thread::sleep(Duration::from_millis(300));
    two.pair
        .injector()?
        .while_cut(|| std::thread::sleep(Duration::from_millis(milliseconds)));
    let ends = [client, server].map(|end| {
        let outcome = end.finish(LIMIT)?.success()?;
        stream::check_complete(&outcome, CONNECTIONS, RECORDS)
    });
    for end in ends {
        if let Err(Problem::Failed(text)) = end {
            return fail(format!("{text}\n{}", two.describe()));
        }
    }
    Ok(())
}

/// Daemons that do not know each other's key have nothing to do with one another.
fn wrong_key() -> Verdict {
    let two = Two::with_different_keys(WAYS[0])?;
    complete(&two)?;
    let totals = two.totals()?;
    ensure(totals.lane_bytes() == 0, || format!("{totals:?}"))
}
