//! Random programs over networks with every fault, on reliable connections.
//!
//! The simulator fails at once when an effect happens twice, out of order, with other bytes or
//! outside a region, when completions are out of order or come before the effect, and here when a
//! program does not end.

mod sim;

use sim::network::Faults;
use sim::program;
use sim::random::Random;
use sim::world::{World, config};
use sluice_protocol::rc::Config;
use sluice_wire::Mtu;

const SECOND: u64 = 1_000_000_000;

/// Programs in both directions over some connections, each of which must succeed.
fn run(seed: u64, faults: Faults, base: &Config, connections: usize, ops: u64) -> World {
    let mut world = World::new(2, faults, seed);
    let mut random = Random::new(seed ^ 0xabcd);
    for place in 0..connections {
        let mut make = || {
            let count = 1 + random.below(ops);
            program::random(&mut random, base.mtu, count, 12)
        };
        world.connect([0, 1], base, [make(), make()]);
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
    for seed in 0..30 {
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

#[test]
fn loss() {
    for seed in 0..60 {
        let loss = [1_000, 10_000, 100_000][seed as usize % 3];
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        run(seed, faults, &config(Mtu::Bytes256), 3, 40);
    }
}

#[test]
fn every_fault_at_once() {
    for seed in 0..80 {
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
