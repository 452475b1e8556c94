//! Daemons with several queue pairs between them.

use std::time::Duration;

use sluice_rdma::{ENDPOINT_BYTES, Endpoint};

use super::*;

/// A queue pair of this daemon's life, carrier and attempt.
fn endpoint(life: u64, carrier: usize, attempt: u32) -> Endpoint {
    let mut bytes = [0; ENDPOINT_BYTES];
    bytes[..2].copy_from_slice(&[1, 3]);
    bytes[5..8].copy_from_slice(&[life as u8, carrier as u8, attempt as u8]);
    bytes[26..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    Endpoint::decode(&bytes).expect("an endpoint")
}

fn hosts(carriers: [usize; 2], version: u16) -> [Daemon; 2] {
    let mut both = [
        Daemon::with_carriers(1, ("b", B), carriers[0], version),
        Daemon::with_carriers(2, ("a", A), carriers[1], version),
    ];
    connect(&mut both);
    both
}

/// Makes the queue pairs that the two want, until they want no more.
fn connect(both: &mut [Daemon; 2]) {
    for _ in 0..10 {
        settle(both);
        let mut is_quiet = true;
        for (life, daemon) in (1..).zip(both.iter_mut()) {
            let carriers = std::mem::take(&mut daemon.carriers);
            let commands = std::mem::take(&mut daemon.commands);
            for (carrier, command) in carriers.into_iter().zip(commands) {
                let Command::MakeLink { link, attempt, .. } = command else {
                    daemon.carriers.push(carrier);
                    daemon.commands.push(command);
                    continue;
                };
                is_quiet = false;
                let endpoint = endpoint(life, carrier, attempt);
                let made = Report::LinkMade {
                    link,
                    attempt,
                    endpoint,
                };
                let now = daemon.now;
                daemon.introducer.carried(carrier, made, now);
                let proven = Report::LinkProven { link };
                daemon.introducer.carried(carrier, proven, now);
            }
        }
        if is_quiet {
            return;
        }
    }
    panic!("they never have their queue pairs");
}

/// Which queue pairs of the other one the carriers were connected with: who, with whose, at which attempt.
fn connected(daemon: &mut Daemon) -> Vec<(usize, [u8; 3])> {
    let carriers = std::mem::take(&mut daemon.carriers);
    let commands = std::mem::take(&mut daemon.commands);
    let all = carriers.into_iter().zip(commands);
    let connects = all.filter_map(|(carrier, command)| match command {
        Command::ConnectLink { endpoint, .. } => {
            let bytes = endpoint.encode();
            Some((carrier, [bytes[5], bytes[6], bytes[7]]))
        }
        _ => None,
    });
    let mut connects: Vec<_> = connects.collect();
    connects.sort_unstable();
    connects
}

/// Both ends of a connection, by its number.
fn meet(both: &mut [Daemon; 2], number: u32) {
    let (client, server) = (format!("10.0.0.1:{}", 4000 + number), "10.0.0.2:80");
    both[0].announce(number, &client, server);
    both[1].announce(number, server, &client);
    settle(both);
}

/// The carriers of the lanes that were given, in order.
fn given(daemon: &Daemon) -> Vec<usize> {
    let given = daemon.given.iter();
    given.map(|lane| lane.taken.carrier).collect()
}

/// The state of the link; how many of its queue pairs are up, and how many there are.
fn queue_pairs(daemon: &Daemon) -> (LinkState, (usize, usize)) {
    let peers = daemon.introducer.peers();
    let pairs = &peers[0].queue_pairs;
    let up = pairs.iter().filter(|it| it.link == LinkState::Up).count();
    (peers[0].link, (up, pairs.len()))
}

#[test]
fn each_has_as_many_as_both_can() {
    for (carriers, agreed) in [
        ([1, 1], 1),
        ([3, 2], 2),
        ([2, 3], 2),
        ([1, 4], 1),
        ([4, 4], 4),
    ] {
        let mut both = hosts(carriers, SEVERAL_VERSION);
        for (host, daemon) in both.iter_mut().enumerate() {
            let other = 2 - host as u8;
            let expected: Vec<_> = (0..agreed).map(|at| (at, [other, at as u8, 1])).collect();
            assert_eq!(connected(daemon), expected, "{carriers:?}");
            assert_eq!(queue_pairs(daemon), (LinkState::Up, (agreed, agreed)));
            assert!(daemon.dropped.is_empty());
        }
    }
}

#[test]
fn a_peer_of_the_version_before_hears_of_one() {
    let mut daemon = Daemon::with_carriers(9, ("b", B), 4, SEVERAL_VERSION - 1);
    assert_eq!(daemon.act(), [Word::Hello { life: Life(9) }]);
    let mut both = hosts([3, 3], SEVERAL_VERSION - 1);
    assert_eq!(connected(&mut both[0]), [(0, [2, 0, 1])]);
    for number in 0..3 {
        meet(&mut both, number);
    }
    for daemon in &both {
        assert_eq!(given(daemon), [0, 0, 0]);
    }
}

#[test]
fn lanes_go_where_there_are_fewest_and_both_ends_take_the_same() {
    let mut both = hosts([3, 3], SEVERAL_VERSION);
    for number in 0..6 {
        meet(&mut both, number);
    }
    for daemon in &both {
        assert_eq!(given(daemon), [0, 1, 2, 0, 1, 2]);
        let connects = |it: &&Command| matches!(it, Command::ConnectLane { .. });
        assert_eq!(daemon.commands.iter().filter(connects).count(), 6);
    }
    // A place is free again when its carrier says so, and the next one gets it.
    for daemon in &mut both {
        let key = EndKey { client: 7, end: 4 };
        daemon.introducer.released(key);
        daemon
            .introducer
            .carried(1, Report::LaneOver { token: Token(5) }, Instant::now());
    }
    settle(&mut both);
    meet(&mut both, 7);
    for daemon in &both {
        assert_eq!(given(daemon).last(), Some(&1));
        let ended = daemon.commands.iter().zip(&daemon.carriers);
        let ended = ended.filter(|(it, _)| matches!(it, Command::ProgramGone { .. }));
        let carriers: Vec<usize> = ended.map(|(_, carrier)| *carrier).collect();
        assert_eq!(carriers, [1]);
    }
}

#[test]
fn one_that_fails_comes_back_by_itself_and_gets_no_lanes_meanwhile() {
    for failing in 0..2 {
        let mut both = hosts([2, 2], SEVERAL_VERSION);
        let _ = both.each_mut().map(connected);
        let link = LinkId(0);
        let why = "it broke".to_owned();
        let failed = Report::LinkFailed { link, why };
        let now = Instant::now();
        both[failing].introducer.carried(0, failed, now);
        settle(&mut both);
        let (state, pairs) = queue_pairs(&both[failing]);
        assert_eq!((state, pairs), (LinkState::Up, (1, 2)));
        let losses = both[failing].introducer.peers()[0].queue_pairs.clone();
        assert_eq!(
            losses.iter().map(|it| it.losses).collect::<Vec<_>>(),
            [1, 0]
        );
        // Who leads has heard of it, whichever one it was, and takes the other queue pair for its lanes.
        assert_eq!(queue_pairs(&both[1]).1, (1, 2));
        meet(&mut both, 1);
        assert_eq!(given(&both[1]), [1]);
        assert_eq!(given(&both[0]), [1]);
        for daemon in &mut both {
            daemon.now = now + Duration::from_secs(1);
            daemon.introducer.pass_time(daemon.now);
        }
        let _ = both.each_mut().map(connected);
        connect(&mut both);
        assert_eq!(
            connected(&mut both[0]),
            [(0, [2, 0, 2])],
            "the other one stays"
        );
        assert_eq!(connected(&mut both[1]), [(0, [1, 0, 2])]);
        assert_eq!(queue_pairs(&both[0]), (LinkState::Up, (2, 2)));
        meet(&mut both, 2);
        assert_eq!(given(&both[1]), [1, 0]);
    }
}

/// Carriers that were told to give up the first link.
fn lost(daemon: &Daemon) -> Vec<usize> {
    let commands = daemon.commands.iter().zip(&daemon.carriers);
    let lost = commands.filter(|(it, _)| matches!(it, Command::LoseLink { link: LinkId(0) }));
    lost.map(|(_, carrier)| *carrier).collect()
}

#[test]
fn a_peer_that_is_another_one_or_breaks_the_rules_is_given_up_by_all_carriers() {
    let mut both = hosts([2, 2], SEVERAL_VERSION);
    both[0].hear_in_new_session(&Word::Hello { life: Life(77) });
    let _ = both[0].act();
    assert_eq!(lost(&both[0]), [0, 1]);
    let mut both = hosts([2, 2], SEVERAL_VERSION);
    let violation = Report::Violation {
        link: LinkId(0),
        what: "lies",
    };
    both[0].introducer.carried(1, violation, Instant::now());
    let _ = both[0].act();
    assert_eq!(lost(&both[0]), [0, 1]);
    assert_eq!(both[0].dropped, ["lies"]);
}

#[test]
fn a_queue_pair_that_there_is_not_is_nobodys() {
    let mut both = hosts([3, 2], SEVERAL_VERSION);
    both[0].hear(&Word::Link {
        at: 2,
        attempt: 1,
        endpoint: endpoint(2, 2, 1),
    });
    let _ = both[0].act();
    assert_eq!(both[0].dropped.len(), 1);
    // A lane on it, and the half of one on another than was asked for.
    both[1].announce(1, "10.0.0.2:80", "10.0.0.1:4000");
    both[1].hear(&Word::End {
        token: Token(8),
        tuple: Tuple {
            local: "10.0.0.1:4000".parse().expect("an address"),
            peer: "10.0.0.2:80".parse().expect("an address"),
        },
        numbers: None,
    });
    let _ = both[1].act();
    for at in [2, 1] {
        both[1].hear(&Word::Lane {
            yours: Token(1),
            mine: Token(8),
            at,
            far: half(3),
        });
    }
    let _ = both[1].act();
    assert_eq!(both[1].dropped.len(), 2);
    assert!(both[1].given.is_empty());
}
