//! Queues of the devices: whether there is a shared one for what arrives, and how many queue pairs two hosts have.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::fleet::{KEY, LIMIT, repeat_until};
use sluice_tests::hosts::faults::Faults;
use sluice_tests::hosts::injector::Direction;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::wait_until;
use sluice_tests::stream::{self, Ends};
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::hosts::{Two, Way};
use crate::matrix::{CONNECTIONS, RECORDS, complete, complete_by_lanes, flow};
use crate::programs::WAYS;

/// Daemons with this variable take every device for one without shared receive queues.
const NO_SRQ: &str = "SLUICE_TEST_NO_SRQ";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for way in WAYS {
        let name = format!("no-srq/{}/ipv{}", way.device, way.family);
        trials.push(trial(name, move || without_shared_receives(way)));
        let name = format!("several/{}/ipv{}", way.device, way.family);
        trials.push(trial(name, move || several(way, [3, 3])));
        let name = format!("several/killed/{}/ipv{}", way.device, way.family);
        trials.push(trial(name, move || killed(way)));
    }
    trials.push(trial("several/three-and-two", || several(WAYS[0], [3, 2])));
    trials.push(trial("several/three-and-one", || several(WAYS[0], [3, 1])));
    trials.push(trial("several/one-is-lost", one_is_lost));
    trials.push(trial("several/cut/5-s", cut));
    trials
}

/// What every run has.
pub fn is_usual(name: &str) -> bool {
    const SELDOM: [&str; 3] = [
        "no-srq/window/ipv4",
        "several/killed/roce/ipv6",
        "several/killed/window/ipv4",
    ];
    !SELDOM.contains(&name)
}

/// Starts the daemon of a host, whose device has a shared receive queue or has none.
fn start(two: &mut Two, side: Side, is_shared: bool) -> Verdict {
    let former = two.log(side).len();
    let mut command = two.daemon_command(side);
    if !is_shared {
        command.env(NO_SRQ, "1");
    }
    two.start_by(side, command)?;
    let says = two.log(side)[former..].contains("no shared receive queue");
    ensure(says != is_shared, || two.describe())
}

/// Bytes go by rings, a daemon that is killed leaves exact prefixes, and its successor, on a device that has
/// such a queue, gets on with the other one.
fn without_shared_receives(way: Way) -> Verdict {
    let mut two = way.hosts()?;
    let device = way.device_of(&two)?;
    for side in SIDES {
        let text = two.head(side, KEY, &device)? + &two.peer(side.other());
        two.write_config(side, &text)?;
        start(&mut two, side, false)?;
    }
    two.await_links()?;
    complete_by_lanes(&two)?;
    let mut ends = flow(&two, "thread", [true; 2], 0)?;
    ends.await_flow(LIMIT)?;
    let Ends { client, server, .. } = ends;
    two.end(Side::Right, Signal::KILL)?;
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    start(&mut two, Side::Right, true)?;
    two.await_links()?;
    complete(&two, "thread", [true; 2])
}

/// Both daemons run with so many threads, and every queue pair that both can have has let something through.
fn with_threads(way: Way, threads: [u32; 2]) -> Verdict<Two> {
    let mut two = way.hosts()?;
    let device = way.device_of(&two)?;
    for (side, threads) in SIDES.into_iter().zip(threads) {
        let text = two.head(side, KEY, &device)?
            + &format!("threads = {threads}\n")
            + &two.peer(side.other());
        two.write_config(side, &text)?;
        two.start(side)?;
    }
    await_all(&two, threads[0].min(threads[1]))?;
    Ok(two)
}

/// What a daemon says of its queue pairs with the other one, as the peer's place in its status has them.
fn queue_pairs(two: &Two, side: Side) -> Vec<Value> {
    let peer = two.peer_status(side);
    peer["queue_pairs"].as_array().cloned().unwrap_or_default()
}

fn await_all(two: &Two, count: u32) -> Verdict {
    let is_up = |pairs: &[Value]| pairs.iter().all(|it| it["link"] == "up");
    for side in SIDES {
        let all_up = || {
            let pairs = queue_pairs(two, side);
            Ok(pairs.len() == count as usize && is_up(&pairs))
        };
        ensure(wait_until(LIMIT, all_up)?, || {
            format!("{:?}\n{}", queue_pairs(two, side), two.describe())
        })?;
    }
    Ok(())
}

/// A figure of every queue pair, which make up the peer's.
fn figures(two: &Two, side: Side, name: &str, whole: &str) -> Verdict<Vec<u64>> {
    let peer = two.peer_status(side);
    let pairs = peer["queue_pairs"].as_array().into_iter().flatten();
    let each: Vec<u64> = pairs.map(|it| it[name].as_u64().unwrap_or(0)).collect();
    ensure(peer[whole].as_u64() == Some(each.iter().sum()), || {
        peer.to_string()
    })?;
    Ok(each)
}

/// Transfers until bytes have gone by every queue pair: the four connections of one are spread over them.
fn complete_by_all(two: &Two) -> Verdict {
    let used_all = || {
        for side in SIDES {
            let sent = figures(two, side, "sent_bytes", "sent_bytes")?;
            ensure(sent.iter().all(|bytes| *bytes > 0), || {
                format!("{side:?} has sent {sent:?}\n{}", two.describe())
            })?;
        }
        Ok(())
    };
    repeat_until(LIMIT, || complete(two, "thread", [true; 2]), used_all)
}

/// Bytes go by as many queue pairs as both daemons have threads for.
fn several(way: Way, threads: [u32; 2]) -> Verdict {
    let two = with_threads(way, threads)?;
    complete_by_all(&two)
}

/// A daemon is killed in the middle: exact prefixes, and with its successor, which has fewer threads, all is
/// as with any.
fn killed(way: Way) -> Verdict {
    let mut two = with_threads(way, [3, 3])?;
    let mut ends = flow(&two, "thread", [true; 2], 0)?;
    ends.await_flow(LIMIT)?;
    let Ends { client, server, .. } = ends;
    std::thread::sleep(Duration::from_millis(700));
    two.end(Side::Right, Signal::KILL)?;
    std::thread::sleep(Duration::from_millis(300));
    let _ = client.signal(Signal::KILL);
    let _ = client.finish(LIMIT)?;
    stream::check_cut(&server.finish(LIMIT)?.success()?, CONNECTIONS)?;
    let text = fs::read_to_string(two.path(Side::Right, "toml"))?;
    two.write_config(Side::Right, &text.replace("threads = 3", "threads = 2"))?;
    two.start(Side::Right)?;
    await_all_but_former(&two)?;
    complete(&two, "thread", [true; 2])
}

/// The two that are left are up, at whoever knows of three.
fn await_all_but_former(two: &Two) -> Verdict {
    for side in SIDES {
        let are_up = || {
            let pairs = queue_pairs(two, side);
            Ok(pairs.len() >= 2 && pairs[..2].iter().all(|it| it["link"] == "up"))
        };
        ensure(wait_until(LIMIT, are_up)?, || {
            format!("{:?}\n{}", queue_pairs(two, side), two.describe())
        })?;
    }
    Ok(())
}

/// One of three queue pairs fails under way, as none of its frames comes through. Every stream arrives whole, others
/// do not fail with it, and it comes back.
fn one_is_lost() -> Verdict {
    let way = Way {
        faults: true,
        ..WAYS[0]
    };
    let two = with_threads(way, [3, 3])?;
    let Ends { client, server, .. } = flow(&two, "thread", [true; 2], 20 * RECORDS)?;
    std::thread::sleep(Duration::from_millis(300));
    let injector = two.hosts.injector()?;
    injector.set(
        Direction::LeftToRight,
        Faults {
            loss: 1.0,
            of_one_queue_pair: true,
            ..Faults::NONE
        },
    );
    for end in [client, server] {
        let outcome = end.finish(LIMIT)?.success()?;
        stream::check_complete(&outcome, CONNECTIONS, 20 * RECORDS)
            .map_err(|problem| problem.with(|| two.describe()))?;
    }
    // Whoever of the two notices first has both make it anew.
    let has_failed = || {
        let mut peers = SIDES.iter().map(|&side| two.peer_status(side));
        Ok(peers.any(|peer| peer["link_losses"].as_u64() > Some(0)))
    };
    ensure(wait_until(LIMIT, has_failed)?, || two.describe())?;
    let left = figures(&two, Side::Left, "losses", "link_losses")?;
    let right = figures(&two, Side::Right, "losses", "link_losses")?;
    let both = left.iter().zip(&right);
    let failed = both.filter(|(left, right)| **left + **right > 0).count();
    // A machine that has no time for a daemon for two seconds can cost another one.
    ensure((1..3).contains(&failed), || {
        format!("losses {left:?} {right:?}\n{}", two.describe())
    })?;
    await_all(&two, 3)?;
    complete_by_all(&two)
}

/// Nothing is lost while all of them are down.
fn cut() -> Verdict {
    let way = Way {
        faults: true,
        ..WAYS[0]
    };
    let two = with_threads(way, [3, 3])?;
    let Ends { client, server, .. } = flow(&two, "thread", [true; 2], RECORDS)?;
    std::thread::sleep(Duration::from_millis(300));
    two.hosts
        .injector()?
        .while_cut(|| std::thread::sleep(Duration::from_secs(5)));
    for end in [client, server] {
        let outcome = end.finish(LIMIT)?.success()?;
        stream::check_complete(&outcome, CONNECTIONS, RECORDS)
            .map_err(|problem| problem.with(|| two.describe()))?;
    }
    await_all(&two, 3)?;
    complete_by_all(&two)
}
