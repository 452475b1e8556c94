//! Daemons and relays that end in the middle, and such as are not who they say.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{Talk, Two};

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

/// Waits until a client of `ends` has ended because its connection was reset.
fn expect_reset(client: Job) -> Verdict {
    let said = client.finish(LIMIT)?.describe();
    ensure(said.contains("connection reset by peer"), || said.clone())
}

/// Captured connections go on when a daemon is killed, and new ones are captured by the next one.
fn daemon_killed(side: Side) -> Verdict {
    let mut two = Two::new(4)?;
    let Talk {
        ends,
        server,
        to,
        mut open,
    } = two.talk()?;
    let records = two.start_stream(CONNECTIONS, 20_000)?;
    more_rounds(&mut open, 50)?;
    two.fleet.end(side, Signal::KILL)?;
    more_rounds(&mut open, 50)?;
    // Nobody captures, or nobody is there to be connected to: new ones go their own way.
    two.run_client(&ends, &to, 100_000)?;
    two.fleet.start(side)?;
    two.await_capture()?;
    more_rounds(&mut open, 50)?;
    records.check_complete(LIMIT)?;
    open.stop(LIMIT)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A relay's connections are reset with it; the next one captures new ones.
fn relay_killed(side: Side) -> Verdict {
    let two = Two::new(4)?;
    let Talk {
        ends,
        server,
        to,
        mut open,
    } = two.talk()?;
    more_rounds(&mut open, 20)?;
    let before = two.relay(side)?;
    two.kill_relay(side)?;
    expect_reset(open)?;
    // In the gap there is nobody to be captured by, or to connect to.
    two.run_client(&ends, &to, 100_000)?;
    two.await_capture()?;
    ensure(two.relay(side)? != before, || two.fleet.describe())?;
    // By the relays, although one of them knows no more what was said before.
    let served = two.counts(Side::Right)?.served;
    two.run_client(&ends, &to, 100_000)?;
    two.await_counts(Side::Right, "served", |now| now.served == served + 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// After a clean end connections have their time, new ones go their own way, and nothing stays.
fn ended() -> Verdict {
    let mut two = Two::with_choice(4, ["drain_seconds = 12", ""])?;
    let Talk {
        ends,
        server,
        to,
        mut open,
    } = two.talk()?;
    more_rounds(&mut open, 20)?;
    let relay = two.relay(Side::Left)?;
    // What comes to the other host from here by relays is known there.
    let here = two.await_counts(Side::Left, "open", |now| now.open == 1)?;
    let served = here.captured - here.direct;
    two.await_counts(Side::Right, "served", |now| now.served == served)?;
    two.fleet.end(Side::Left, Signal::TERM)?;
    more_rounds(&mut open, 50)?;
    two.run_client(&ends, &to, 100_000)?;
    // Twelve seconds later, time enough for the above on a busy machine, the rest is reset, and the relay is gone.
    expect_reset(open)?;
    let process = format!("/proc/{}/cmdline", relay.as_raw_nonzero());
    let is_gone = || Ok(std::fs::read(&process).unwrap_or_default().is_empty());
    let gone = wait_until(LIMIT, is_gone)?;
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
            let answer = two.fleet.host(Side::Left).inside(|| {
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
    let silent = two.fleet.host(Side::Left).inside(|| {
        let at = SocketAddr::new(two.address(Side::Right), RELAY_PORT);
        (0..200)
            .map(|_| TcpStream::connect(at))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let before = two.counts(Side::Left)?;
    two.run_client(&ends, &to, 100_000)?;
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
