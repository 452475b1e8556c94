//! Daemons and links that end or lose while bytes are under way: every stream arrives whole, or
//! breaks.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::fleet::{KEY, LIMIT};
use sluice_tests::hosts::faults::Faults;
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::wait_until;
use sluice_tests::programs::between::Churn;
use sluice_tests::stream::{self, Ends};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::hosts::Way;
use crate::matrix::{CONNECTIONS, RECORDS, complete, complete_by_lanes, flow};
use crate::programs::WAYS;

/// How often daemons are killed while connections come and go.
const KILLS: u32 = 3;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for side in SIDES {
        let name = |what| format!("killed/{what}/{side:?}").to_lowercase();
        trials.push(trial(name("stream"), move || daemon_killed(WAYS[0], side)));
        trials.push(trial(name("stream-window"), move || {
            daemon_killed(WAYS[2], side)
        }));
        trials.push(trial(name("under-load"), move || killed_under_load(side)));
    }
    for seconds in [1, 5, 10, 100] {
        trials.push(trial(format!("cut/{seconds}-s"), move || cut(seconds)));
    }
    trials.push(trial("before-the-network", before_the_network));
    for (number, way) in [(4, WAYS[0]), (6, WAYS[1])] {
        trials.push(trial(format!("lost/5-percent/ipv{number}"), move || {
            lossy(way)
        }));
    }
    for (name, connections, seconds) in [
        ("usual", 2000, 15),
        ("400-connections", 400, 60),
        ("10-minutes", 2000, 600),
    ] {
        trials.push(trial(format!("churn/{name}"), move || {
            churn(connections, seconds)
        }));
    }
    trials
}

/// What every run has. The rest takes minutes.
pub fn is_usual(name: &str) -> bool {
    const ROWS: [&str; 9] = [
        "killed/stream/left",
        "killed/stream/right",
        "killed/stream-window/left",
        "killed/under-load/right",
        "cut/1-s",
        "cut/5-s",
        "before-the-network",
        "lost/5-percent/ipv4",
        "churn/usual",
    ];
    ROWS.contains(&name)
}

/// What each end gets is an exact prefix; new connections have rings when the daemon is back.
fn daemon_killed(way: Way, side: Side) -> Verdict {
    let mut two = way.set_up()?;
    let mut ends = flow(&two, "thread", [true; 2], 0)?;
    ends.await_flow(LIMIT)?;
    let Ends { client, server, .. } = ends;
    // Any moment of the transfer will do.
    std::thread::sleep(Duration::from_millis(700));
    two.end(side, Signal::KILL)?;
    std::thread::sleep(Duration::from_millis(300));
    // Streams that were not in the middle of a ring segment go on by TCP, until this.
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    // With its successor all is as before.
    two.start(side)?;
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// Connections come and go while a daemon is killed and started again, several times: what breaks
/// breaks as TCP does, nothing is wrong, and nothing hangs.
fn killed_under_load(side: Side) -> Verdict {
    let mut two = WAYS[0].set_up()?;
    let churn = Churn::start(&two, 200, 8, true)?;
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(1500));
        two.end(side, Signal::KILL)?;
        std::thread::sleep(Duration::from_millis(200));
        two.start(side)?;
    }
    churn.end(&two, LIMIT)?;
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// Nothing is lost while the link is down, on rings or on TCP.
fn cut(seconds: u64) -> Verdict {
    let way = Way {
        faults: true,
        ..WAYS[0]
    };
    let two = way.set_up()?;
    let Ends { client, server, .. } = flow(&two, "thread", [true; 2], RECORDS)?;
    std::thread::sleep(Duration::from_millis(300));
    two.hosts
        .injector()?
        .while_cut(|| std::thread::sleep(Duration::from_secs(seconds)));
    // Lanes are given up after a minute without a control connection: then streams that are in a
    // ring segment break, and the others go on by TCP.
    let may_break = seconds >= 60;
    for end in [client, server] {
        let outcome = end.finish(LIMIT)?.success()?;
        let checked = if may_break {
            stream::check_cut(&outcome, CONNECTIONS)
        } else {
            stream::check_complete(&outcome, CONNECTIONS, RECORDS)
        };
        checked.map_err(|problem| problem.with(|| two.describe()))?;
    }
    // And afterwards all is as before.
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// Daemons that each started while the other host's end of the link was down: the only interface
/// with an address that worked then was the loopback one, whose MTU is another.
fn before_the_network() -> Verdict {
    let way = WAYS[0];
    let mut two = way.hosts()?;
    for side in [Side::Right, Side::Left] {
        let other = two.hosts.host(side.other());
        other.ip(&format!("link set dev {} down", other.device()))?;
        // The kernel tells the other end of the cable after a while.
        let host = two.hosts.host(side);
        let is_idle = || Ok(!host.describe_link()?.contains("state UP"));
        ensure(wait_until(LIMIT, is_idle)?, || "the link stays up".into())?;
        let text = two.head(side, KEY, way.device)? + &two.peer(side.other());
        two.write_config(side, &text)?;
        two.start(side)?;
        let other = two.hosts.host(side.other());
        other.ip(&format!("link set dev {} up", other.device()))?;
    }
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// One in twenty frames of everything is lost: RoCEv2, TCP, and what the daemons say.
fn lossy(way: Way) -> Verdict {
    const LOST: f64 = 0.05;
    let two = Way {
        faults: true,
        ..way
    }
    .set_up()?;
    let injector = two.hosts.injector()?;
    injector.set_both(Faults {
        seed: 5,
        loss: LOST,
        loss_of_others: LOST,
        ..Faults::NONE
    });
    complete_by_lanes(&two)?;
    let counts = [Direction::LeftToRight, Direction::RightToLeft].map(|way| injector.counts(way));
    for direction in counts {
        ensure(direction.lost > 0 && direction.others_lost > 0, || {
            format!("the path was a good one: {direction:?}")
        })?;
    }
    Ok(())
}

/// Very many connections that come and go at random, every byte checked.
fn churn(connections: u32, seconds: u32) -> Verdict {
    let two = WAYS[1].set_up()?;
    let limit = LIMIT + Duration::from_secs(seconds.into());
    // All of it may be over before the first lane if sluiced gets no processor.
    two.run_until_ring_bytes(|| Churn::start(&two, connections, seconds, false)?.end(&two, limit))
}
