//! The conformance suite: over a cable in memory, with one shard and with several, over a cable that
//! loses packets, and over UDP between two network namespaces.

mod common;

use std::net::Ipv6Addr;

use common::cable::Steer;
use common::{world, world_of_shards};
use sluice_lab::link::Settings;
use sluice_lab::pair::{End, Pair, SIDES};
use sluice_lab::verdict::made;
use sluice_transport_roce::{Engines, RoceTransport};
use sluice_verbs::{Device, Transport};
use sluice_verbs_testing::{Need, Row, Side, Site, Thread, rows};

/// A thread with its end of a cable.
struct Plugged {
    thread: Thread,
    _side: common::Side,
}

impl Site for Plugged {
    fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
        self.thread.swap(words)
    }
}

fn over_a_cable(row: &Row, (left, right): (common::Side, common::Side)) {
    let program = |side: common::Side| {
        move |thread| {
            let device = side.device.clone();
            let _side = side;
            Side::new(device, Plugged { thread, _side })
        }
    };
    row.in_threads(program(left), program(right));
}

mod cable {
    sluice_verbs_testing::conformance!(|_, row| super::over_a_cable(row, super::world("")));
}

mod shards {
    sluice_verbs_testing::conformance!(|_, row| {
        let sides = super::world_of_shards("", [2, 3], super::Steer::Right);
        super::over_a_cable(row, sides);
    });
}

/// What unreliable services lose there is lost.
mod bad_cable {
    const FAULTS: &str = "loss=4%,dup=4%,reorder=4%,corrupt=1%,seed=7";

    sluice_verbs_testing::conformance!(|_, row| {
        if row.needs.iter().any(|need| super::loses(*need)) {
            println!("left out: the cable loses what nobody repeats");
        } else {
            super::over_a_cable(row, super::world(FAULTS));
        }
    });
}

fn loses(need: Need) -> bool {
    matches!(need, Need::Uc | Need::Ud)
}

/// Two hosts that are network namespaces, with a link between them.
fn hosts(test: &str) -> Option<Pair> {
    let ends = [1, 2].map(|number: u8| End {
        device: "eth0",
        v4: [192, 0, 2, number].into(),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()),
        mac: Some([2, 0, 0, 0, 0, number]),
        link_local: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number.into())),
    });
    made(test, Pair::with(ends, Settings::default()))
}

fn over_udp(test: &str, row: &Row) {
    let Some(pair) = hosts(test) else { return };
    let program = |host: usize, name: &'static str| {
        let pair = &pair;
        move |thread| {
            // What is opened there stays there.
            let open = || {
                let engines = Engines::from_environment().expect("a number");
                let transport = RoceTransport::over_udp(engines).expect("sockets");
                Ok(Side::new(Device::new(name, transport), thread))
            };
            pair.host(SIDES[host]).inside(open).expect("may enter")
        }
    };
    row.in_threads(program(0, "left"), program(1, "right"));
}

mod udp {
    sluice_verbs_testing::conformance!(super::over_udp);
}

#[test]
fn no_row_is_left_out() {
    let caps = world("").0.transport.caps();
    assert_eq!(rows::left_out(&caps), [""; 0]);
}
