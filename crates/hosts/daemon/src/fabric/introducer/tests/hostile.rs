//! What one peer can make this daemon keep and do, and what it can take from others.

use std::time::Duration;

use super::*;
use crate::fabric::words::NUMBERS_VERSION;
use sluice_rdma::{ENDPOINT_BYTES, Endpoint};

/// The other peer, of another address.
const C: (&str, &str) = ("c", "10.0.0.3");

/// One daemon with the peers "b" and "c", of which the first has said hello.
fn with_two_peers(life: u64) -> Daemon {
    let mut daemon = Daemon::with_carriers(life, ("b", B), 1, NUMBERS_VERSION);
    let addresses = vec![Network::single(C.1.parse().expect("an address"))];
    daemon
        .introducer
        .peer_up(&C.0.into(), addresses, NUMBERS_VERSION);
    daemon.hear(&Word::Hello { life: Life(5) });
    let _ = daemon.act();
    daemon
}

fn end(token: u64, local: &str, peer: &str) -> Word {
    Word::End {
        token: Token(token),
        tuple: Tuple {
            local: local.parse().expect("an address"),
            peer: peer.parse().expect("an address"),
        },
        numbers: None,
    }
}

fn endpoint() -> Endpoint {
    let mut bytes = [0; ENDPOINT_BYTES];
    bytes[..2].copy_from_slice(&[1, 3]);
    bytes[5] = 1;
    bytes[..2].copy_from_slice(&[1, 3]);
    bytes[7] = 1;
    bytes[26..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    Endpoint::decode(&bytes).expect("an endpoint")
}

/// As a carrier answers what it was told since the last time. Queue pairs that it made.
fn carry(daemon: &mut Daemon) -> usize {
    let _ = daemon.act();
    daemon.carriers.clear();
    let mut made = 0;
    for command in std::mem::take(&mut daemon.commands) {
        let report = match command {
            Command::MakeLink { link, attempt, .. } => {
                made += 1;
                let endpoint = endpoint();
                Report::LinkMade {
                    link,
                    attempt,
                    endpoint,
                }
            }
            Command::LoseLink { link } => Report::LinkForgotten { link },
            _ => continue,
        };
        daemon.introducer.carried(0, report, daemon.now);
    }
    made
}

#[test]
fn hello_counts_once_in_a_session() {
    // Whoever of the two makes links.
    for life in [1, 9] {
        let mut daemon = with_two_peers(life);
        let before = carry(&mut daemon);
        for number in 0..10_000 {
            daemon.hear(&Word::Hello {
                life: Life(5 + number % 2),
            });
        }
        let _ = daemon.act();
        assert_eq!(before, usize::from(life == 9));
        assert!(daemon.commands.is_empty() && daemon.dropped.is_empty());
    }
}

#[test]
fn a_peer_of_many_lives_has_few_links_and_no_new_numbers() {
    let mut daemon = with_two_peers(9);
    let mut made = carry(&mut daemon);
    for number in 0..1000 {
        daemon.hear_in_new_session(&Word::Hello {
            life: Life(number % 2),
        });
        made += carry(&mut daemon);
    }
    // All of it at one moment: one queue pair, and the numbers of two peers and of one link on its way out.
    assert_eq!(made, 1);
    assert!(daemon.introducer.links.take().0 <= 3);
    // It is made when it is time.
    daemon.now += Duration::from_secs(1);
    daemon.introducer.pass_time(daemon.now);
    assert_eq!(carry(&mut daemon), 1);
}

#[test]
fn queue_pairs_are_made_one_at_a_time_and_not_as_often_as_a_peer_likes() {
    let mut daemon = with_two_peers(1);
    let link = |attempt| Word::Link {
        at: 0,
        attempt,
        endpoint: endpoint(),
    };
    for attempt in 1..1000 {
        daemon.hear(&link(attempt));
    }
    let _ = daemon.act();
    assert_eq!(daemon.commands.len(), 1, "the carrier has not answered");
    assert_eq!(carry(&mut daemon), 1);
    for attempt in 1000..2000 {
        daemon.hear(&link(attempt));
    }
    assert_eq!(carry(&mut daemon), 0);
    // The last one that it asked for is made.
    daemon.now += Duration::from_secs(1);
    daemon.introducer.pass_time(daemon.now);
    assert_eq!(carry(&mut daemon), 1);
    let said = daemon.act();
    assert!(
        matches!(said[..], [Word::Link { attempt: 1999, .. }]),
        "{said:?}"
    );
    let connects = |it: &&Command| matches!(it, Command::ConnectLink { .. });
    assert_eq!(daemon.commands.iter().filter(connects).count(), 1);
}

#[test]
fn one_queue_pair_is_connected_once() {
    let mut daemon = with_two_peers(9);
    assert_eq!(carry(&mut daemon), 1);
    for _ in 0..1000 {
        daemon.hear(&Word::Link {
            at: 0,
            attempt: 1,
            endpoint: endpoint(),
        });
        daemon.hear(&Word::Broken { at: 0, attempt: 1 });
    }
    let _ = daemon.act();
    assert_eq!(daemon.commands.len(), 1, "{:?}", daemon.commands);
}

#[test]
fn ends_without_number_push_no_end_of_another_peer_out() {
    let mut daemon = with_two_peers(1);
    let own = end(1, "10.0.0.3:80", "10.0.0.9:4000");
    let (name, now) = (C.0.into(), daemon.now);
    let bytes = own.encode();
    daemon
        .introducer
        .heard(&name, &bytes, &mut daemon.parking_tables, now);
    for token in 0..2 * foreign::ENDS_OF_PEER_MAX as u64 {
        let local = format!("10.0.0.2:{}", 1 + token % 60_000);
        let peer = format!("10.0.0.9:{}", 1 + token / 60_000);
        daemon.hear(&end(token, &local, &peer));
    }
    daemon.announce(1, "10.0.0.9:4000", "10.0.0.3:80");
    // Ours has the greater address, so this daemon begins.
    let _ = daemon.act();
    assert_eq!(daemon.introducer.lanes().0, 1);
}

#[test]
fn an_end_that_another_peer_of_the_address_says_too_hides_none() {
    let numbers = |sent, received| Some(Numbers { sent, received });
    for first in 0..2 {
        let mut daemon = with_two_peers(1);
        let address = Network::single(B.parse().expect("an address"));
        let (b, c): (PeerName, PeerName) = (daemon.peer.clone(), C.0.into());
        let tables = &mut daemon.parking_tables;
        daemon.introducer.peer_is_at(&c, address, tables);
        let says = [(b, numbers(5, 11)), (c, numbers(900, 6))];
        for at in [first, 1 - first] {
            let (name, numbers) = &says[at];
            let word = Word::End {
                token: Token(1),
                tuple: Tuple {
                    local: "10.0.0.2:80".parse().expect("an address"),
                    peer: "10.0.0.9:4000".parse().expect("an address"),
                },
                numbers: *numbers,
            };
            let bytes = word.encode();
            daemon
                .introducer
                .heard(name, &bytes, &mut daemon.parking_tables, daemon.now);
        }
        let ends = ("10.0.0.9:4000", "10.0.0.2:80");
        daemon.announce_numbered(1, ends, numbers(11, 6));
        let _ = daemon.act();
        assert_eq!(daemon.introducer.lanes().0, 1, "{first}");
    }
}

#[test]
fn questions_of_one_peer_leave_room_for_those_of_another() {
    let mut daemon = with_two_peers(1);
    let ask = |local: &str| Word::Ask {
        token: Token(9),
        tuple: Tuple {
            local: local.parse().expect("an address"),
            peer: "10.0.0.1:1".parse().expect("an address"),
        },
        numbers: None,
    };
    for _ in 0..2 * questions::QUESTIONS_MAX {
        daemon.hear(&ask("10.0.0.2:1"));
    }
    let (name, bytes, now) = (C.0.into(), ask("10.0.0.3:1").encode(), daemon.now);
    daemon
        .introducer
        .heard(&name, &bytes, &mut daemon.parking_tables, now);
    assert_eq!(daemon.introducer.questions(), questions::QUESTIONS_MAX + 1);
    daemon.answer();
    // It may ask again.
    daemon.hear(&ask("10.0.0.2:1"));
    assert_eq!(daemon.introducer.questions(), 1);
}

#[test]
fn names_without_number_are_not_remembered() {
    let mut daemon = with_two_peers(1);
    for number in 0..2 * peers::PEERS_MAX {
        let name: PeerName = format!("m{number}").into();
        daemon
            .introducer
            .peer_up(&name, Vec::new(), NUMBERS_VERSION);
        daemon.introducer.peer_down(&name, daemon.now);
        let _ = carry(&mut daemon);
    }
    assert_eq!(daemon.introducer.peers.len(), peers::PEERS_MAX);
    for name in ["b", "c"] {
        assert!(daemon.introducer.peers.contains_key(name), "it is there");
    }
    assert!(daemon.introducer.links.take().0 as usize <= peers::PEERS_MAX + 1);
}

/// A word that is said again tells neither carrier nor program anything.
#[test]
fn what_is_said_again_of_a_lane_or_an_end_is_heard_once() {
    let mut both = two();
    both[0].announce(1, "10.0.0.1:4000", "10.0.0.2:80");
    settle(&mut both);
    let key = EndKey { client: 7, end: 1 };
    for is_asked in [false, true] {
        if is_asked {
            assert!(both[0].introducer.may_come(key));
        }
        for _ in 0..100 {
            both[0].hear(&Word::Nobody { yours: Token(1) });
        }
        let alone = both[0].introducer.take_alone();
        assert_eq!(alone.len(), usize::from(is_asked));
        // It may come yet.
        both[0].hear(&end(9, "10.0.0.2:80", "10.0.0.1:4000"));
        both[0].hear(&Word::Gone { token: Token(9) });
    }
    for _ in 0..100 {
        both[0].hear(&Word::Nobody { yours: Token(1) });
    }
    assert!(both[0].introducer.take_alone().is_empty());
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    settle(&mut both);
    assert_eq!(both[0].given.len(), 1);
    both[0].commands.clear();
    let declined = |daemon: &mut Daemon| {
        for _ in 0..100 {
            daemon.hear(&Word::NoLane { yours: Token(1) });
        }
        let _ = daemon.act();
        let declines = |it: &&Command| matches!(it, Command::DeclineLane { .. });
        daemon.commands.iter().filter(declines).count()
    };
    assert_eq!(declined(&mut both[0]), 1);
    // Nor when the program is done with it.
    both[0].introducer.program_gone(7);
    assert_eq!(declined(&mut both[0]), 2);
}

#[test]
fn a_carrier_that_does_not_answer_is_looked_at_less_and_less_often() {
    let mut daemon = with_two_peers(9);
    daemon.hear_in_new_session(&Word::Hello { life: Life(5) });
    let end = daemon.now + Duration::from_secs(3600);
    let mut looks = 0;
    while daemon.now < end {
        daemon.now = daemon.introducer.next_deadline().expect("it waits");
        daemon.introducer.pass_time(daemon.now);
        looks += 1;
    }
    assert!(looks < 800, "{looks}");
    let _ = daemon.act();
    assert_eq!(daemon.commands.len(), 1, "{:?}", daemon.commands);
}
