//! Peers that vanish: the other side's requests end with an error, after as long as the queue
//! pair's attributes say.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::suite::{Verdict, ensure, fail, trial};
use sluice_tests::verbs::Own;

use sluice_tests::verbs::link::{DEVICES, LIMIT, Link, Running, Way};

/// `IBV_WC_RETRY_EXC_ERR` (ibv_poll_cq(3)).
const RETRIES_EXCEEDED: u64 = 12;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (number, device) in DEVICES.into_iter().enumerate() {
        let way = Way {
            device,
            family: if number == 0 { 4 } else { 6 },
            mtu: 1500,
        };
        for events in ["0", "1"] {
            let name = |what| {
                let waits = if events == "1" { "sleeps" } else { "polls" };
                format!("vanish/{what}/{waits}/{}", way.name())
            };
            trials.push(trial(name("cut"), move || cut(way, events)));
            trials.push(trial(name("killed"), move || killed(way, events)));
        }
    }
    trials
}

/// A stream whose queue pairs have the timeout and the repetitions. A peer that got no processor for as long
/// before it flows has vanished, too: that is tried again.
fn flowing(link: &mut Link, timeout: u32, retries: u32, events: &str) -> Verdict<Running> {
    const TRIES: u32 = 5;
    let (timeout, retries) = (timeout.to_string(), retries.to_string());
    let arguments = ["-T", &timeout, "-R", &retries, "-e", events];
    for last in 1.. {
        let mut running = link.start_own(Own::Stream, &arguments)?;
        let flows = running.client.await_text("flowing", LIMIT);
        if flows.is_ok() || last == TRIES {
            return flows.map(|()| running);
        }
    }
    unreachable!("the last try returns")
}

/// For a machine on which the program waits for a processor.
const BUSY: Duration = Duration::from_secs(60);

/// Each transmission is given up after the timeout at the earliest and after four times that at
/// the latest (IBTA 9.7.6.1.3), and there is one more than repetitions. The client's clock tells how long that
/// was, and where it got no processor to look at it, ours since the peer went.
fn ends_in_time(running: Running, timeout: u32, retries: u32) -> Verdict {
    let start = Instant::now();
    let outcome = running.client.finish(LIMIT)?.success()?;
    let text = outcome.text();
    let found = text.lines().find_map(|line| {
        let (status, time) = line.strip_prefix("status ")?.split_once(" after ")?;
        let time = time.strip_suffix(" us")?;
        Some((status.parse::<u64>().ok()?, time.parse::<u64>().ok()?))
    });
    let Some((status, micros)) = found else {
        return fail(outcome.describe());
    };
    let wanted = Duration::from_nanos((4096 << timeout) * u64::from(retries + 1));
    let took = Duration::from_micros(micros);
    ensure(status == RETRIES_EXCEEDED, || outcome.describe())?;
    let longest = took.max(start.elapsed());
    ensure(longest >= wanted / 2 && took <= wanted * 4 + BUSY, || {
        format!("failed after {took:?}, {wanted:?} is what the attributes say")
    })
}

fn cut(way: Way, events: &str) -> Verdict {
    let (timeout, retries) = (16, 2);
    let mut link = Link::with_injector(way)?;
    let running = flowing(&mut link, timeout, retries, events)?;
    link.injector()?
        .while_cut(|| ends_in_time(running, timeout, retries))
}

fn killed(way: Way, events: &str) -> Verdict {
    let (timeout, retries) = (15, 3);
    let mut link = Link::new(way)?;
    let running = flowing(&mut link, timeout, retries, events)?;
    running.server.signal(Signal::KILL)?;
    ends_in_time(running, timeout, retries)
}
