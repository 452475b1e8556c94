//! Whatever the link does, every byte arrives once and in order, and both ends end.

mod sim;

use proptest::prelude::*;
use sim::{Link, World};
use sluice_tcp::{Algorithm, Config, State};

#[test]
fn a_quiet_link_takes_the_fast_path() {
    let link = Link {
        delay_ms: 1,
        byte_ns: 1,
        queue: 1 << 20,
        ..Link::default()
    };
    let mut world = World::new([Config::default(); 2], [4_000_000, 0], link, 1);
    world.hosts[1].waits = true;
    world.run_to_the_end();
    let counters = world.hosts[1].tcp.counters();
    assert!(counters.fast > 2_500 && counters.slow < 10, "{counters:?}");
    let sender = world.hosts[0].tcp.counters();
    assert!(
        sender.retransmitted == 0 && sender.timeouts == 0,
        "{sender:?}"
    );
    assert_eq!(world.hosts[0].tcp.negotiated(), (true, true, true, 5, 5));
}

#[test]
fn losses_of_one_percent_are_mended_without_timeouts() {
    let link = Link {
        loss_percent: 1,
        delay_ms: 5,
        byte_ns: 8,
        queue: 200_000,
        ..Link::default()
    };
    let mut world = World::new([Config::default(); 2], [6_000_000, 0], link, 3);
    world.run_to_the_end();
    let counters = world.hosts[0].tcp.counters();
    assert!(counters.retransmitted > 10, "{counters:?}");
    assert!(counters.timeouts <= 5, "{counters:?}");
}

#[test]
fn dctcp_is_marked_and_loses_nothing() {
    let config = Config {
        algorithm: Algorithm::Dctcp,
        ..Config::default()
    };
    let link = Link {
        delay_ms: 1,
        byte_ns: 80,
        queue: 300_000,
        marks: true,
        ..Link::default()
    };
    let mut world = World::new([config; 2], [8_000_000, 0], link, 4);
    world.run_to_the_end();
    assert!(world.marked > 50, "{} marks", world.marked);
    assert_eq!(world.lost, 0);
    assert_eq!(world.hosts[0].tcp.counters().retransmitted, 0);
}

#[test]
fn a_link_that_is_dead_for_a_while_and_then_better() {
    let link = Link {
        delay_ms: 2,
        ..Link::default()
    };
    let mut world = World::new([Config::default(); 2], [3_000_000, 1_000_000], link, 5);
    while world.hosts[1].read < 100_000 {
        assert!(world.step());
    }
    world.link.loss_percent = 100;
    for _ in 0..8 {
        world.step();
    }
    world.link.loss_percent = 0;
    world.run_to_the_end();
}

#[test]
fn a_peer_that_is_gone_is_given_up() {
    let link = Link {
        loss_percent: 100,
        ..Link::default()
    };
    let mut world = World::new([Config::default(); 2], [10, 10], link, 6);
    world.run();
    assert!(
        world
            .hosts
            .iter()
            .all(|h| h.tcp.end() == Some(sluice_tcp::End::TimedOut))
    );
}

fn configs() -> impl Strategy<Value = Config> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (1_u32..400_000, 100_u16..9000, switches).prop_map(
        |(buffer, mss, (ecn, sack, stamps, dctcp))| Config {
            receive_buffer: buffer.max(600),
            mss,
            ecn,
            sack,
            timestamps: stamps,
            // So bad a link may be silent for long.
            user_timeout: u64::MAX,
            algorithm: if dctcp {
                Algorithm::Dctcp
            } else {
                Algorithm::Cubic
            },
            ..Config::default()
        },
    )
}

fn links() -> impl Strategy<Value = Link> {
    (
        0_u64..25,
        0_u64..20,
        0_u64..40,
        0_u64..30,
        0_u64..200,
        20_000_u64..400_000,
        any::<bool>(),
    )
        .prop_map(
            |(loss, copy, reorder, delay_ms, byte_ns, queue, marks)| Link {
                loss_percent: loss,
                copy_percent: copy,
                reorder_percent: reorder,
                delay_ms,
                byte_ns,
                queue,
                marks,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_byte_once_and_in_order(
        a in configs(), b in configs(), link in links(), seed in any::<u64>(),
        bytes in (0_u64..200_000, 0_u64..200_000), lazy in any::<(bool, bool)>(),
    ) {
        let mut world = World::new([a, b], [bytes.0, bytes.1], link, seed);
        (world.hosts[0].lazy, world.hosts[1].lazy) = lazy;
        // When it has tried for long enough, the link gets better.
        for _ in 0..20_000 {
            if world.hosts.iter().all(|host| host.tcp.state() == State::Closed) {
                break;
            }
            world.step();
        }
        world.link = Link { delay_ms: 1, ..Link::default() };
        world.run();
        for end in 0..2 {
            prop_assert_eq!(world.hosts[1 - end].read, world.hosts[end].to_write);
        }
    }
}
