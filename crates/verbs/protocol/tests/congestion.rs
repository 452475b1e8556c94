//! Shares of a bottleneck: DCQCN between hosts, turns between connections of one host.

mod sim;

use sim::network::Faults;
use sim::program;
use sim::world::{World, config};
use sluice_protocol::congestion::RateConfig;
use sluice_protocol::rc::Config;
use sluice_wire::Mtu;

/// 10 Gb/s, in bytes per second.
const LINE: u64 = 1_250_000_000;
const MILLISECOND: u64 = 1_000_000;

/// 1 if all are the same, 1/n if one has all (Jain, Chiu, Hawe 1984).
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

fn bottleneck() -> Faults {
    Faults {
        rate: LINE,
        queue_max: 1_000_000,
        // DCQCN's K_min.
        mark_above: 40_000,
        ..Faults::NONE
    }
}

/// What a link that is software asks for, with the patience that perftest has.
fn in_software() -> Config {
    Config {
        rate: Some(RateConfig::for_software(10 * LINE)),
        window: 256,
        timeout: 14,
        early: true,
        ..config(Mtu::Bytes1024)
    }
}

/// Bytes completed by each host's first connection between two moments.
fn shares(world: &World, from: u64, to: u64) -> Vec<f64> {
    let ends = world.hosts.iter().flat_map(|host| &host.ends);
    ends.filter(|end| !end.completions.is_empty())
        .map(|end| {
            let done = end.completed_at.iter().zip(&end.completions);
            done.filter(|(at, _)| (from..to).contains(*at))
                .map(|(_, completion)| f64::from(completion.length))
                .sum()
        })
        .collect()
}

/// Hosts that send to one, beginning one after another.
fn incast(senders: usize, rate: Option<RateConfig>, until: u64) -> World {
    let base = Config {
        rate,
        window: 512,
        timeout: 14,
        ..config(Mtu::Bytes1024)
    };
    let mut world = World::new(senders + 1, bottleneck(), 11);
    for host in 0..senders {
        world.hosts[host].nic_rate = LINE;
        let programs = [program::writes(100_000, 16384), Vec::new()];
        world.connect([host, senders], &base, programs);
        world.pass(2 * MILLISECOND * (host as u64 + 1));
    }
    world.pass(until);
    world
}

/// Several senders, each at line rate when it begins. Catches: notifications that are not made or
/// not listened to (then the queue overflows), rates that do not recover (then the link is
/// idle), cuts that do not fall harder on who is faster (then shares stay as they were).
#[test]
fn senders_share_a_bottleneck() {
    let until = 100 * MILLISECOND;
    let world = incast(4, Some(RateConfig::for_link(LINE)), until);
    let shares = shares(&world, until / 2, until);
    assert_eq!(shares.len(), 4);
    let index = jain(&shares);
    assert!(index > 0.9, "{index}: {shares:?}");
    let used = shares.iter().sum::<f64>() / (LINE as f64 * 0.05);
    assert!(used > 0.7, "{used}");
    let port = &world.ports[4];
    assert!(port.marked > 0);
    // While the senders find their rates some frames are lost; afterwards none should be.
    let without = incast(4, None, until);
    let lost = (port.lost, without.ports[4].lost);
    assert!(lost.0 * 20 < lost.1, "{lost:?}");
}

/// A connection alone fills its link and is not slowed down.
#[test]
fn one_sender_has_the_link() {
    let until = 20 * MILLISECOND;
    let world = incast(1, Some(RateConfig::for_link(LINE)), until);
    let shares = shares(&world, until / 2, until);
    let used = shares[0] / (LINE as f64 * 0.01);
    assert!(used > 0.85, "{used}");
    assert_eq!(world.hosts[0].ends[0].connection.rate_limit(), None);
}

/// Connections of one host with messages of all sizes get the same number of bytes from a link
/// that is too slow for them. Catches: a queue without turns (then the one with the largest
/// window has most).
#[test]
fn connections_of_a_host_take_turns() {
    let base = config(Mtu::Bytes1024);
    let mut world = World::new(2, Faults::NONE, 3);
    world.hosts[0].nic_rate = LINE;
    for place in 0..8u64 {
        let length = [400, 1024, 5000, 65536][place as usize % 4];
        let window = 64 + 64 * place as u32;
        let programs = [program::writes(20_000, length), Vec::new()];
        let each = Config {
            window,
            depth: 256,
            ..base
        };
        world.connect([0, 1], &each, programs);
    }
    world.pass(15 * MILLISECOND);
    let shares = shares(&world, 5 * MILLISECOND, 15 * MILLISECOND);
    let index = jain(&shares);
    assert!(index > 0.97, "{index}: {shares:?}");
    let used = shares.iter().sum::<f64>() / (LINE as f64 * 0.01);
    assert!(used > 0.7, "{used}");
}

/// A link that is much slower than those for which the constants of DCQCN were made, and programs
/// with the patience that perftest has. Catches: cuts that are undone before the next notification
/// can come; a rate so low that no acknowledgement is asked for
/// before the timeout, until retries are used up.
#[test]
fn a_slow_link_is_no_silence() {
    let faults = Faults {
        rate: 40_000_000,
        queue_max: 200_000,
        mark_above: 20_000,
        ..Faults::NONE
    };
    let base = in_software();
    let lost = [true, false].map(|heeds| {
        let mut world = World::new(2, faults, 17);
        let base = Config {
            rate: base.rate.filter(|_| heeds),
            ..base
        };
        for _ in 0..2 {
            world.connect([0, 1], &base, [program::writes(400, 65536), Vec::new()]);
        }
        assert!(world.run(20_000 * MILLISECOND));
        for end in &world.hosts[0].ends {
            assert!(end.all_succeeded(), "{:?}", end.connection.counters());
        }
        // 52 MB.
        assert!(world.now < 3_000 * MILLISECOND, "{}", world.now);
        // When both have half of the link they get to the middle together.
        let ends = &world.hosts[0].ends;
        let half: Vec<u64> = ends.iter().map(|end| end.completed_at[200]).collect();
        let (first, last) = (half[0].min(half[1]), half[0].max(half[1]));
        assert!(!heeds || last * 2 < first * 3, "{first} {last}");
        world.ports[1].lost
    });
    // While the senders find their rates some are lost.
    assert!(lost[0] * 20 < lost[1], "{lost:?}");
}

/// Hosts that begin one after another and send over a slow link that does not mark: what each has
/// brought over, of its even share, when all had time to settle; and how much of the link is used.
fn unmarked(queue_max: u64, slow_nanos: u64, senders: usize) -> (Vec<f64>, f64) {
    const SLOW: u64 = 40_000_000;
    let faults = Faults {
        rate: SLOW,
        queue_max,
        ..Faults::NONE
    };
    let base = in_software();
    let mut world = World::new(senders + 1, faults, 17);
    for host in 0..=senders {
        world.hosts[host].slow_nanos = slow_nanos;
    }
    for host in 0..senders {
        let programs = [program::writes(100_000, 65536), Vec::new()];
        world.connect([host, senders], &base, programs);
        world.pass(world.now + 100 * MILLISECOND);
    }
    let (from, to) = (world.now, world.now + 400 * MILLISECOND);
    world.pass(to);
    for end in world.hosts.iter().flat_map(|host| &host.ends) {
        assert!(end.all_succeeded(), "{:?}", end.connection.counters());
    }
    let link = SLOW as f64 * (to - from) as f64 / 1e9;
    let shares = shares(&world, from, to);
    let used = shares.iter().sum::<f64>() / link;
    let even = link / senders as f64;
    (shares.iter().map(|share| share / even).collect(), used)
}

/// Losses are all that such a link says, and between Sluice ends single ones do not slow a sender
/// down. Queues of a fifth of a window and of one, and hosts that look at once or late. Catches: a
/// window that is sent again for each packet that a queue has dropped.
#[test]
fn nobody_is_shut_out_of_a_link_that_does_not_mark() {
    for (queue_max, slow_nanos) in [(50_000, 30_000), (200_000, 1_000_000), (300_000, 30_000)] {
        let (shares, used) = unmarked(queue_max, slow_nanos, 4);
        let least = shares.iter().copied().fold(f64::MAX, f64::min);
        println!("{queue_max} bytes, {slow_nanos} ns: {used:.2} used, {shares:.2?}");
        assert_eq!(shares.len(), 4);
        assert!(least > 0.1 && used > 0.7, "{shares:?}");
    }
}
