//! Ends with mirrored addresses, and whose streams begin elsewhere or nobody knows where.

use super::*;
use crate::fabric::words::NUMBERS_VERSION;

const ENDS: [(&str, &str); 2] = [
    ("10.0.0.1:4000", "10.0.0.2:80"),
    ("10.0.0.2:80", "10.0.0.1:4000"),
];
/// Of the end that accepted, and of the one that connected.
const NUMBERS: [Numbers; 2] = [
    Numbers {
        sent: 11,
        received: 6,
    },
    Numbers {
        sent: 5,
        received: 11,
    },
];
/// Of another connection's.
const OTHER: Numbers = Numbers {
    sent: 900,
    received: 6,
};
const KEY: EndKey = EndKey { client: 7, end: 1 };

fn two_of(version: u16) -> [Daemon; 2] {
    let mut both = [(1, "b", B), (2, "a", A)]
        .map(|(life, peer, address)| Daemon::with_carriers(life, (peer, address), 1, version));
    settle(&mut both);
    both
}

fn lanes(both: &[Daemon; 2]) -> [usize; 2] {
    [both[0].given.len(), both[1].given.len()]
}

#[test]
fn ends_whose_numbers_agree_get_a_lane_whoever_is_first() {
    for first in 0..2 {
        let mut both = two_of(NUMBERS_VERSION);
        for host in [first, 1 - first] {
            both[host].announce_numbered(1, ENDS[host], Some(NUMBERS[host]));
            settle(&mut both);
        }
        assert_eq!(lanes(&both), [1, 1]);
    }
}

#[test]
fn an_end_of_another_connection_gets_no_lane_and_the_other_end_does_when_it_comes() {
    for (first, impostor) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut both = two_of(NUMBERS_VERSION);
        for host in [first, 1 - first] {
            let numbers = if host == impostor {
                OTHER
            } else {
                NUMBERS[host]
            };
            both[host].announce_numbered(1, ENDS[host], Some(numbers));
            settle(&mut both);
        }
        assert_eq!(lanes(&both), [0, 0]);
        // Nor does either wait for the other for ever.
        for host in 0..2 {
            assert!(both[host].introducer.may_come(KEY));
            settle(&mut both);
            both[1 - host].answer();
            settle(&mut both);
            assert_eq!(both[host].introducer.take_alone().len(), 1);
        }
        both[impostor].announce_numbered(2, ENDS[impostor], Some(NUMBERS[impostor]));
        settle(&mut both);
        assert_eq!(lanes(&both), [1, 1], "{first} {impostor}");
        assert_eq!(both[impostor].given[0].announced.key.end, 2);
    }
}

#[test]
fn an_end_with_numbers_is_not_matched_with_one_without() {
    for believing in 0..2 {
        for first in 0..2 {
            let mut both = two_of(NUMBERS_VERSION);
            for host in [first, 1 - first] {
                let numbers = (host != believing).then_some(NUMBERS[host]);
                both[host].announce_numbered(1, ENDS[host], numbers);
                settle(&mut both);
            }
            assert_eq!(lanes(&both), [0, 0]);
        }
    }
}

#[test]
fn a_peer_that_does_not_compare_hears_of_no_end_with_numbers_and_can_give_it_no_lane() {
    let mut both = two_of(SEVERAL_VERSION);
    both[0].announce_numbered(1, ENDS[0], Some(NUMBERS[0]));
    assert_eq!(both[0].act(), []);
    // Whoever asks is told at once that nobody comes.
    assert!(!both[0].introducer.may_come(KEY));
    let (yours, mine) = (Token(1), Token(5));
    let words = [
        Word::Lane {
            yours,
            mine,
            at: 0,
            far: half(3),
        },
        Word::Want {
            yours,
            mine,
            client: 3,
        },
    ];
    for word in words {
        both[0].hear(&word);
        assert_eq!(both[0].act(), [Word::NoLane { yours: mine }]);
    }
    assert_eq!(lanes(&both), [0, 0]);
}
