//! Random programs over networks with every fault, on reliable connections.
//!
//! The simulator fails at once when an effect happens twice, out of order, with other bytes or
//! outside a region, when completions are out of order or come before the effect, and here when a
//! program does not end.

mod sim;

use std::ops::Range;

use sim::network::Faults;
use sim::program;
use sim::random::Random;
use sim::world::{World, config};
use sluice_protocol::congestion::RateConfig;
use sluice_protocol::rc::Config;
use sluice_wire::Mtu;
use sluice_wire::extended::RnrTimer;

const SECOND: u64 = 1_000_000_000;

/// So many seeds, and with `SLUICE_PROTOCOL_SEEDS=n` n times as many.
fn seeds(count: u64) -> Range<u64> {
    let times = std::env::var("SLUICE_PROTOCOL_SEEDS").ok();
    let times: u64 = times.and_then(|times| times.parse().ok()).unwrap_or(1);
    0..count * times
}

/// Limits of all sizes, from a window of one packet on.
fn limits(base: &Config, random: &mut Random) -> Config {
    let reads = 1 + random.below(8) as u8;
    Config {
        depth: [1, 3, 32, 32][random.below(4) as usize],
        window: [1, 2, 9, 64, 300][random.below(5) as usize],
        max_rd_atomic: reads,
        max_dest_rd_atomic: reads,
        min_rnr_timer: RnrTimer::from_code(1 + random.below(8) as u8),
        single_writes: random.below(2) == 0,
        ..*base
    }
}

/// Programs in both directions over some connections, each of which must succeed.
fn run(seed: u64, faults: Faults, base: &Config, connections: usize, ops: u64) -> World {
    let mut world = World::new(2, faults, seed);
    let mut random = Random::new(seed ^ 0xabcd);
    for host in &mut world.hosts {
        host.slow_nanos = [0, 2_000, 100_000][random.below(3) as usize];
    }
    for place in 0..connections {
        let config = limits(base, &mut random);
        let mut make = || {
            let count = 1 + random.below(ops);
            program::random(&mut random, base.mtu, count, 12)
        };
        world.connect([0, 1], &config, [make(), make()]);
        if place % 2 == 1 {
            for host in 0..2 {
                world.scarce_receives(host, place, ops, 100_000);
            }
        }
    }
    assert!(world.run(3600 * SECOND), "seed {seed}: not done in an hour");
    for end in world.hosts.iter().flat_map(|host| &host.ends) {
        assert!(end.all_succeeded(), "seed {seed}: {:?}", end.completions);
    }
    world
}

fn total(world: &World, count: impl Fn(&sluice_protocol::Counters) -> u64) -> u64 {
    let ends = world.hosts.iter().flat_map(|host| &host.ends);
    ends.map(|end| count(end.connection.counters())).sum()
}

/// Without faults nothing is sent twice, but for RNR.
#[test]
fn a_perfect_network() {
    for seed in seeds(60) {
        let mut world = World::new(2, Faults::NONE, seed);
        let base = config(Mtu::Bytes1024);
        let mut random = Random::new(seed);
        let programs = [0, 1].map(|_| program::random(&mut random, base.mtu, 60, 12));
        world.connect([0, 1], &base, programs);
        assert!(world.run(SECOND), "seed {seed}");
        assert!(world.hosts[0].ends[0].all_succeeded());
        assert!(world.hosts[1].ends[0].all_succeeded());
        assert_eq!(
            total(&world, |counters| counters.repeated_packets),
            0,
            "seed {seed}"
        );
    }
}

/// Catches: requests carried out twice (mutation: duplicates executed), nothing sent again
/// (`go_back` left out), READs and atomics taken for done by a later acknowledgement (`reach` does
/// not stop), retries that are not given back by progress.
#[test]
fn loss() {
    for seed in seeds(150) {
        let loss = [1_000, 10_000, 100_000][seed as usize % 3];
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        run(seed, faults, &config(Mtu::Bytes256), 3, 40);
    }
}

/// Catches, beyond [`loss`]: repetition that causes repetition (mutation: an implied NAK for each
/// early response), receives taken twice, immediate data without a receive.
#[test]
fn every_fault_at_once() {
    for seed in seeds(200) {
        let faults = Faults {
            loss: 20_000,
            duplicates: 50_000,
            corruption: 20_000,
            reordering: 100_000,
            ..Faults::NONE
        };
        let mtu = [Mtu::Bytes256, Mtu::Bytes1024, Mtu::Bytes4096][seed as usize % 3];
        run(1000 + seed, faults, &config(mtu), 3, 40);
    }
}

/// A slow link with a short queue: packets are marked and dropped by those who send them.
#[test]
fn a_congested_link() {
    let mut notifications = 0;
    for seed in seeds(40) {
        let faults = Faults {
            rate: 125_000_000,
            queue_max: 60_000,
            mark_above: 10_000,
            ..Faults::NONE
        };
        let base = Config {
            rate: Some(RateConfig::for_link(1_250_000_000)),
            ..config(Mtu::Bytes1024)
        };
        let world = run(4000 + seed, faults, &base, 6, 40);
        notifications += total(&world, |counters| counters.notifications);
    }
    assert!(notifications > 20, "{notifications}");
}

/// With both ends keeping what comes early. Catches: a request carried out before its turn or
/// twice, a hole that is never filled.
#[test]
fn early_requests_are_kept() {
    let mut kept = 0;
    for seed in seeds(100) {
        let faults = Faults {
            loss: [1_000, 20_000, 100_000][seed as usize % 3],
            duplicates: 20_000,
            reordering: 200_000,
            ..Faults::NONE
        };
        let base = Config {
            early: true,
            ..config(Mtu::Bytes256)
        };
        let world = run(2000 + seed, faults, &base, 3, 40);
        kept += total(&world, |counters| counters.early_packets);
    }
    assert!(kept > 1000, "{kept}");
}

/// One end keeps what comes early, the other has never heard of it. Catches: a packet that only
/// Sluice understands, a piece of a READ that others refuse, trust in what a stranger has kept.
#[test]
fn strangers_notice_nothing() {
    for seed in seeds(60) {
        let faults = Faults {
            loss: [1_000, 20_000, 100_000][seed as usize % 3],
            duplicates: 20_000,
            reordering: 50_000,
            ..Faults::NONE
        };
        let stranger = config(Mtu::Bytes256);
        let base = Config {
            early: true,
            ..stranger
        };
        let mut world = World::new(2, faults, 5000 + seed);
        let mut random = Random::new(seed);
        let programs = [0, 1].map(|_| program::random(&mut random, base.mtu, 60, 12));
        world.connect_unlike([0, 1], [&base, &stranger], programs);
        assert!(world.run(3600 * SECOND), "seed {seed}");
        for host in &world.hosts {
            assert!(host.ends[0].all_succeeded(), "seed {seed}");
            assert_eq!(host.ends[0].connection.counters().misdirected, 0);
            assert_eq!(host.ends[0].connection.counters().reports, 0);
        }
    }
}

/// 10 Gb/s and 60 µs there and back, as between hosts of a rack whose programs poll: nanoseconds
/// for a program, and its world.
fn duration(loss: u32, keeps: [bool; 2], program: Vec<program::Op>) -> (u64, World) {
    let faults = Faults {
        loss,
        latency_nanos: 30_000,
        ..Faults::NONE
    };
    let base = Config {
        window: 256,
        // As many as perftest asks for, and adapters have.
        depth: 128,
        max_rd_atomic: 128,
        max_dest_rd_atomic: 128,
        timeout: 14,
        ..config(Mtu::Bytes1024)
    };
    let ends = keeps.map(|early| Config { early, ..base });
    let mut world = World::new(2, faults, 21);
    for host in &mut world.hosts {
        host.nic_rate = 1_250_000_000;
    }
    world.connect_unlike([0, 1], [&ends[0], &ends[1]], [program, Vec::new()]);
    assert!(world.run(60 * SECOND));
    assert!(world.hosts[0].ends[0].all_succeeded());
    (world.now, world)
}

fn packets(world: &World) -> u64 {
    total(world, |counters| {
        counters.request_packets + counters.response_packets
    })
}

/// What is left of the bandwidth when one packet of a hundred is lost, for messages of 64 KiB.
/// Catches: repetition of what has come, waiting for timeouts.
#[test]
fn goodput_under_loss() {
    let programs = [
        program::writes(300, 65536),
        program::sends(300, 65536),
        program::reads(300, 65536),
    ];
    for (number, program) in programs.into_iter().enumerate() {
        let (clean, whole) = duration(0, [true; 2], program.clone());
        let (lossy, world) = duration(10_000, [true; 2], program.clone());
        let share = clean as f64 / lossy as f64;
        assert!(share > 0.8, "program {number}: {share}");
        let sent = (packets(&world), packets(&whole));
        assert!(sent.0 * 10 < sent.1 * 12, "program {number}: {sent:?}");
        for keeps in [[true, false], [false, true]] {
            let (lossy, _) = duration(10_000, keeps, program.clone());
            let share = clean as f64 / lossy as f64;
            assert!(share > 0.25, "program {number}, {keeps:?}: {share}");
        }
    }
}

/// A receiver with room for little: a READ's data comes faster than it is taken, and what does not
/// fit is lost. Catches: all that was lost asked for at once, so that it is lost again, until no
/// retry is left.
#[test]
fn reads_of_more_than_there_is_room_for() {
    for keeps in [[true, true], [true, false]] {
        let faults = Faults {
            rate: 250_000_000,
            queue_max: 100_000,
            ..Faults::NONE
        };
        let base = Config {
            window: 256,
            depth: 128,
            max_rd_atomic: 128,
            max_dest_rd_atomic: 128,
            timeout: 14,
            retry_cnt: 3,
            ..config(Mtu::Bytes1024)
        };
        let ends = keeps.map(|early| Config { early, ..base });
        let mut world = World::new(2, faults, 5);
        let programs = [program::reads(300, 65536), Vec::new()];
        world.connect_unlike([0, 1], [&ends[0], &ends[1]], programs);
        assert!(world.run(60 * SECOND));
        let end = &world.hosts[0].ends[0];
        let counters = end.connection.counters();
        assert!(end.all_succeeded(), "{counters:?}");
        // 19200 packets of data.
        let sent = total(&world, |counters| counters.response_packets);
        assert!(sent < 60_000, "{keeps:?} {sent} {counters:?}");
    }
}

/// Many READs under a lot of loss. Catches: everything asked for again for each loss, until
/// retries are used up.
#[test]
fn many_reads_outlive_losses() {
    for keeps in [[true, true], [true, false]] {
        for loss in [10_000, 50_000] {
            let (_, world) = duration(loss, keeps, program::reads(400, 65536));
            let counters = world.hosts[0].ends[0].connection.counters();
            // A stranger's rest of a READ may be lost with the repetition and all behind it.
            let few = if keeps == [true; 2] { 0 } else { 3 };
            assert!(counters.timeouts <= few, "{keeps:?} {counters:?}");
            assert!(counters.repeated_packets < 20 * 400, "{counters:?}");
        }
    }
}

/// Long WRITEs with losses: keeping early data must spare most of what is sent again.
#[test]
fn early_data_spares_repetition() {
    let repeated = [false, true].map(|early| {
        let faults = Faults {
            loss: 10_000,
            ..Faults::NONE
        };
        let base = Config {
            early,
            ..config(Mtu::Bytes256)
        };
        let mut world = World::new(2, faults, 7);
        let programs = [program::writes(100, 65536), Vec::new()];
        world.connect([0, 1], &base, programs);
        assert!(world.run(SECOND));
        assert!(world.hosts[0].ends[0].all_succeeded());
        total(&world, |counters| counters.repeated_packets)
    });
    assert!(repeated[1] * 3 < repeated[0], "{repeated:?}");
}

/// More comes early than is kept. Catches: a hole behind what was kept that nobody fills, memory
/// without bound.
#[test]
fn more_comes_early_than_is_kept() {
    for seed in seeds(5) {
        let faults = Faults {
            loss: 5_000,
            latency_nanos: 400_000,
            ..Faults::NONE
        };
        let base = Config {
            early: true,
            window: 4000,
            ..config(Mtu::Bytes256)
        };
        let mut world = World::new(2, faults, seed);
        world.connect([0, 1], &base, [program::writes(80, 131_072), Vec::new()]);
        assert!(world.run(SECOND));
        assert!(world.hosts[0].ends[0].all_succeeded());
        assert!(total(&world, |counters| counters.out_of_sequence) > 0);
    }
}

/// Without a timeout nobody gives up, and whatever gets through at all is enough.
#[test]
fn progress_under_almost_any_loss() {
    for (seed, loss) in [(1, 500_000), (2, 700_000), (3, 800_000), (4, 900_000)] {
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        let base = Config {
            timeout: 0,
            retry_cnt: 7,
            ..config(Mtu::Bytes1024)
        };
        let mut world = World::new(2, faults, seed);
        let mut random = Random::new(seed);
        let programs = [0, 1].map(|_| program::random(&mut random, base.mtu, 8, 4));
        world.connect([0, 1], &base, programs);
        let done = world.run(24 * 3600 * SECOND);
        let ends = world.hosts.iter().flat_map(|host| &host.ends);
        for end in ends {
            let naks = end.connection.counters();
            assert!(done, "{loss}: {naks:?}");
            assert!(
                end.all_succeeded(),
                "{loss}: {:?} {naks:?}",
                end.completions
            );
        }
    }
}

/// READs and atomics up to the limit, whose responses are lost or overtake each other. Catches: an
/// atomic that is carried out again (mutation: `repeat_atomic` finds nothing and the request is
/// executed), a READ whose gap is not noticed.
#[test]
fn reads_and_atomics_under_loss() {
    for seed in seeds(40) {
        let faults = Faults {
            loss: 50_000,
            duplicates: 50_000,
            reordering: 50_000,
            ..Faults::NONE
        };
        let depth = 1 + (seed % 4) as u8;
        let base = Config {
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            ..config(Mtu::Bytes512)
        };
        let mut world = World::new(2, faults, 3000 + seed);
        let mut random = Random::new(seed);
        let mut ops = program::random(&mut random, base.mtu, 200, 12);
        ops.retain(|op| op.request.operation.has_response_data());
        for (seq, op) in ops.iter_mut().enumerate() {
            op.request.seq = seq as u64;
        }
        world.connect([0, 1], &base, [ops, Vec::new()]);
        assert!(world.run(3600 * SECOND), "seed {seed}");
        let end = &world.hosts[0].ends[0];
        assert!(end.all_succeeded(), "seed {seed}: {:?}", end.completions);
    }
}

/// The same seed gives the same run, to the frame.
#[test]
fn runs_repeat() {
    let faults = Faults {
        loss: 50_000,
        reordering: 50_000,
        ..Faults::NONE
    };
    let runs = [0, 1].map(|_| {
        let world = run(77, faults, &config(Mtu::Bytes256), 4, 40);
        (world.now, world.frames)
    });
    assert_eq!(runs[0], runs[1]);
}
