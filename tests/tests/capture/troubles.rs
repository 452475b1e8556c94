//! Daemons and relays that end in the middle, and such as are not who they say.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::job::Job;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{LIMIT, SIDES, Side, Two};

const CONNECTIONS: usize = 4;

/// Where relays listen for one another.
const RELAY_PORT: u16 = 4796;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (side, name) in [(Side::Left, "near"), (Side::Right, "far")] {
        trials.push(trial(format!("daemon_killed/{name}"), move || {
            daemon_killed(side)
        }));
        trials.push(trial(format!("relay_killed/{name}"), move || {
            relay_killed(side)
        }));
    }
    trials.push(trial("ended", ended));
    trials.push(trial("strangers", strangers));
    trials
}

/// Waits until a client of `ends` has done so many rounds more.
pub fn more_rounds(job: &mut Job, rounds: usize) -> Verdict {
    let output = job.stdout_path().to_owned();
    let done = move || {
        let text = std::fs::read_to_string(&output).unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with("round "))
            .count()
    };
    let wanted = done() + rounds;
    job.await_ready(LIMIT, "rounds", || done() >= wanted)
}

/// Captured connections go on when a daemon is killed, and new ones are captured by the next one.
fn daemon_killed(side: Side) -> Verdict {
    let mut two = Two::new(4)?;
    let (ends, binary) = (two.ends()?, two.stream()?);
    let mut server = two.server(&ends, "ends-server")?;
    let to = two.listening(&mut server)?;
    let arguments = ["client", &to, "1000000", "ping"];
    let mut open = two.start_program(two.program(Side::Left, &ends, &arguments), "open")?;
    let count = CONNECTIONS.to_string();
    let command = two.program(Side::Right, &binary, &["server", "thread", &count]);
    let mut records = two.start_program(command, "server")?;
    let port = stream::await_port(&mut records, LIMIT)?.to_string();
    let arguments = ["client", &port, &count, "20000"];
    let client = two.start_program(two.program(Side::Left, &binary, &arguments), "client")?;
    more_rounds(&mut open, 50)?;
    two.end(side, Signal::KILL)?;
    more_rounds(&mut open, 50)?;
    // Nobody captures, or nobody is there to be connected to: new ones go their own way.
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "meanwhile")?
        .finish(LIMIT)?
        .success()?;
    two.start(side)?;
    two.await_capture()?;
    more_rounds(&mut open, 50)?;
    stream::check_complete(&client.finish(LIMIT)?.success()?, CONNECTIONS, 20000)?;
    stream::check_complete(&records.finish(LIMIT)?.success()?, CONNECTIONS, 20000)?;
    open.stop(LIMIT)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A relay's connections are reset with it; the next one captures new ones.
fn relay_killed(side: Side) -> Verdict {
    let two = Two::new(4)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let arguments = ["client", &to, "1000000", "ping"];
    let mut open = two.start_program(two.program(Side::Left, &ends, &arguments), "open")?;
    more_rounds(&mut open, 20)?;
    let before = two.relay(side)?;
    two.kill_relay(side)?;
    let outcome = open.finish(LIMIT)?;
    let said = outcome.describe();
    ensure(said.contains("connection reset by peer"), || said.clone())?;
    // In the gap there is nobody to be captured by, or to connect to.
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "meanwhile")?
        .finish(LIMIT)?
        .success()?;
    two.await_capture()?;
    ensure(two.relay(side)? != before, || two.describe())?;
    // By the relays, although one of them knows no more what was said before.
    let served = two.counts(Side::Right)?.served;
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "again")?
        .finish(LIMIT)?
        .success()?;
    two.await_counts(Side::Right, "served", |now| now.served == served + 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// After a clean end connections have their time, new ones go their own way, and nothing stays.
fn ended() -> Verdict {
    let mut two = Two::with_choice(4, ["drain_seconds = 3", ""])?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let arguments = ["client", &to, "1000000", "ping"];
    let mut open = two.start_program(two.program(Side::Left, &ends, &arguments), "open")?;
    more_rounds(&mut open, 20)?;
    let relay = two.relay(Side::Left)?;
    // What comes to the other host from here by relays is known there.
    let here = two.await_counts(Side::Left, "open", |now| now.open == 1)?;
    let served = here.captured - here.direct;
    two.await_counts(Side::Right, "served", |now| now.served == served)?;
    two.end(Side::Left, Signal::TERM)?;
    more_rounds(&mut open, 50)?;
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "direct")?
        .finish(LIMIT)?
        .success()?;
    // Three seconds later the rest is reset, and the relay is gone.
    let outcome = open.finish(LIMIT)?;
    let said = outcome.describe();
    ensure(said.contains("connection reset by peer"), || said.clone())?;
    let process = format!("/proc/{}/cmdline", relay.as_raw_nonzero());
    let is_gone = || Ok(std::fs::read(&process).unwrap_or_default().is_empty());
    let gone = sluice_tests::job::wait_until(LIMIT, is_gone)?;
    ensure(gone, || "the relay is still there".into())?;
    let now = two.counts(Side::Right)?.served;
    ensure(now == served, || {
        format!("{served} and then {now} were served")
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// Whoever connects to a relay and proves nothing gets nothing, and costs nobody anything.
fn strangers() -> Verdict {
    let two = Two::new(4)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    for side in SIDES {
        let at = SocketAddr::new(two.address(side), RELAY_PORT);
        let before = two.counts(side)?.refused;
        for said in [&b""[..], &[1; 85], &[0; 4096], b"GET / HTTP/1.0\r\n\r\n"] {
            let answer = two.host(Side::Left).inside(|| {
                let mut stream = TcpStream::connect(at)?;
                stream.set_read_timeout(Some(LIMIT))?;
                // It may be reset before all is said, which is as good.
                let _ = stream.write_all(said);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = Vec::new();
                match stream.read_to_end(&mut answer) {
                    Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error),
                    _ => Ok(answer),
                }
            })?;
            ensure(answer.is_empty(), || format!("{answer:?}"))?;
        }
        two.await_counts(side, "refused", |now| now.refused >= before + 4)?;
    }
    // Some that say nothing at all, for as long as they may.
    let silent = two.host(Side::Left).inside(|| {
        let at = SocketAddr::new(two.address(Side::Right), RELAY_PORT);
        (0..200)
            .map(|_| TcpStream::connect(at))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let before = two.counts(Side::Left)?;
    let command = two.program(Side::Left, &ends, &["client", &to, "100000"]);
    two.start_program(command, "client")?
        .finish(LIMIT)?
        .success()?;
    two.await_counts(Side::Left, "captured", |now| {
        now.captured == before.captured + 1 && now.direct == before.direct
    })?;
    for mut stream in silent {
        stream.set_read_timeout(Some(LIMIT))?;
        match stream.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return fail(format!("a stranger may stay: {error}")),
            Ok(_) => return fail("a relay speaks to strangers"),
        }
    }
    server.stop(LIMIT)?;
    Ok(())
}
