//! Direct lanes, and peers that lie about them.

use super::*;
use crate::fabric::window::Loan;

/// A window as the introducer sees it: lanes have numbers.
#[derive(Default)]
pub(super) struct Shared {
    is_there: bool,
    is_full: bool,
    next: u32,
    pub ended: Vec<(DirectLane, Ended)>,
}

/// The lane of a loan that a peer makes, unless it lies.
const LIE: u32 = 4000;

impl Windowed for ParkingTables {
    fn may_share(&self, _: ClientId, _: &PeerName) -> bool {
        self.2.is_there
    }

    fn lend(&mut self, client: ClientId, _: &PeerName, theirs: u32) -> Option<(DirectLane, Loan)> {
        assert_eq!((client, theirs), (7, 7));
        if self.2.is_full {
            return None;
        }
        self.2.next += 1;
        let lane = lane(self.2.next, true);
        Some((lane, loan(self.2.next)))
    }

    fn borrow(
        &mut self,
        _: ClientId,
        _: &PeerName,
        loan: &Loan,
    ) -> Result<DirectLane, Option<&'static str>> {
        match loan.lane {
            LIE => Err(Some("lies")),
            number => Ok(lane(number, false)),
        }
    }
}

fn lane(lane: u32, is_lender: bool) -> DirectLane {
    DirectLane {
        number: 1,
        lane,
        is_lender,
    }
}

fn loan(lane: u32) -> Loan {
    Loan {
        window: [1, 2],
        piece: 1,
        at: 4096,
        lanes: 5000,
        ring_bytes: 4096,
        lane,
    }
}

/// What is said of a loan that is not taken.
fn refusal(yours: Token, lane: u32) -> [Word; 2] {
    let returned = Word::Returned { piece: 1, lane };
    [returned, Word::Refused { yours }]
}

fn sharing() -> [Daemon; 2] {
    let mut both = two();
    for daemon in &mut both {
        daemon.parking_tables.2.is_there = true;
    }
    both
}

const ENDS: [(&str, &str); 2] = [
    ("10.0.0.1:4000", "10.0.0.2:80"),
    ("10.0.0.2:80", "10.0.0.1:4000"),
];

fn connect(both: &mut [Daemon; 2], first: usize) {
    for host in [first, 1 - first] {
        both[host].announce(9, ENDS[host].0, ENDS[host].1);
        settle(both);
    }
}

/// The one with the greater address has asked, and what it asked of whom it will hear is left out.
fn asking() -> ([Daemon; 2], Word) {
    let mut both = sharing();
    both[0].announce(9, ENDS[0].0, ENDS[0].1);
    settle(&mut both);
    both[1].announce(9, ENDS[1].0, ENDS[1].1);
    let words = both[1].act();
    let want = words.into_iter().find(|it| matches!(it, Word::Want { .. }));
    (both, want.expect("it asks"))
}

#[test]
fn two_ends_get_one_direct_lane_whoever_is_first_and_close_it() {
    for first in 0..2 {
        let mut both = sharing();
        connect(&mut both, first);
        for (daemon, is_lender) in both.iter_mut().zip([true, false]) {
            assert!(daemon.given.is_empty() && daemon.dropped.is_empty());
            assert_eq!(daemon.direct.len(), 1);
            assert_eq!(daemon.direct[0].lane, lane(1, is_lender));
            let key = daemon.direct[0].announced.key;
            assert!(daemon.introducer.peer_of_end(key).is_some());
            assert!(daemon.introducer.direct_lane(key).is_some());
            daemon.introducer.released(key);
            assert!(daemon.introducer.direct_lane(key).is_none());
            assert_eq!(daemon.act(), []);
            assert_eq!(
                daemon.parking_tables.2.ended,
                [(lane(1, is_lender), Ended::Ours)]
            );
        }
    }
}

#[test]
fn without_room_in_the_window_the_fabric_has_a_lane() {
    let mut both = sharing();
    both[0].parking_tables.2.is_full = true;
    connect(&mut both, 0);
    for daemon in &both {
        assert_eq!((daemon.given.len(), daemon.direct.len()), (1, 0));
    }
}

#[test]
fn a_socket_that_is_gone_at_either_look_has_no_lane() {
    // At the lender's look.
    let (mut both, want) = asking();
    both[0].parking_tables.1.insert(9);
    both[0].hear(&want);
    settle(&mut both);
    assert!(both.iter().all(|it| it.direct.is_empty()));
    assert!(both[0].parking_tables.2.ended.is_empty());
    // At the second look of the one who asked.
    let (mut both, want) = asking();
    both[0].hear(&want);
    both[1].parking_tables.1.insert(9);
    settle(&mut both);
    assert!(both.iter().all(|it| it.direct.is_empty()));
    assert_eq!(
        both[0].parking_tables.2.ended,
        [(lane(1, true), Ended::Both)]
    );
}

#[test]
fn an_end_that_is_closed_while_it_asks_takes_nothing() {
    let (mut both, want) = asking();
    let key = EndKey { client: 7, end: 9 };
    both[1].introducer.released(key);
    both[0].hear(&want);
    settle(&mut both);
    assert!(both.iter().all(|it| it.direct.is_empty()));
    assert_eq!(
        both[0].parking_tables.2.ended,
        [(lane(1, true), Ended::Both)]
    );
}

/// Both ends are closed between the loan and its answer: the lender hears which lane it was.
#[test]
fn a_loan_of_which_both_ends_are_closed_comes_back() {
    let (mut both, want) = asking();
    let key = EndKey { client: 7, end: 9 };
    both[0].hear(&want);
    let loans = both[0].act();
    both[0].introducer.released(key);
    let _ = both[0].act();
    both[1].introducer.released(key);
    let _ = both[1].act();
    for word in loans {
        both[1].hear(&word);
    }
    let said = both[1].act();
    assert!(
        said.contains(&Word::Returned { piece: 1, lane: 1 }),
        "{said:?}"
    );
    assert_eq!(
        both[0].parking_tables.2.ended,
        [(lane(1, true), Ended::Ours)]
    );
}

#[test]
fn a_session_that_ends_in_between_leaves_the_lane_to_the_peer() {
    let (mut both, want) = asking();
    both[0].hear(&want);
    let _ = both[0].act();
    let now = Instant::now();
    for daemon in &mut both {
        let peer = daemon.peer.clone();
        daemon.introducer.peer_down(&peer, now);
        assert_eq!(daemon.act(), []);
    }
    // Its program may have it: only this host's end is over.
    assert_eq!(
        both[0].parking_tables.2.ended,
        [(lane(1, true), Ended::Ours)]
    );
    // What comes too late is for nobody.
    let token = both[0].introducer.by_key[&EndKey { client: 7, end: 9 }];
    both[0].hear(&Word::Taken { yours: token });
    let _ = both[0].act();
    assert!(both[0].direct.is_empty());
}

#[test]
fn what_nobody_asked_for_is_refused() {
    let mut both = sharing();
    both[1].announce(9, ENDS[1].0, ENDS[1].1);
    settle(&mut both);
    let token = both[1].introducer.by_key[&EndKey { client: 7, end: 9 }];
    let theirs = Token(77);
    both[1].hear(&Word::Direct {
        yours: token,
        mine: theirs,
        loan: loan(1),
    });
    assert_eq!(both[1].act(), refusal(theirs, 1));
    for word in [
        Word::Taken { yours: token },
        Word::Refused { yours: token },
        Word::NoDirect { yours: token },
    ] {
        both[1].hear(&word);
        assert_eq!(both[1].act(), []);
    }
    assert!(both[1].direct.is_empty() && both[1].parking_tables.2.ended.is_empty());
}

#[test]
fn a_peer_gets_no_lane_for_an_end_whose_other_one_is_elsewhere() {
    let mut both = sharing();
    both[0].announce(9, "10.0.0.1:4000", "9.0.0.3:80");
    settle(&mut both);
    let token = both[0].introducer.by_key[&EndKey { client: 7, end: 9 }];
    both[0].hear(&Word::Want {
        yours: token,
        mine: Token(5),
        client: 7,
    });
    assert_eq!(both[0].act(), [Word::NoLane { yours: Token(5) }]);
    assert_eq!(both[0].parking_tables.2.next, 0, "nothing was lent");
}

#[test]
fn a_loan_that_is_a_lie_ends_the_session_and_gives_nobody_a_lane() {
    let (mut both, want) = asking();
    let Word::Want { yours, mine, .. } = want else {
        panic!("{want:?}");
    };
    both[1].hear(&Word::Direct {
        yours: mine,
        mine: yours,
        loan: loan(LIE),
    });
    assert_eq!(both[1].act(), refusal(yours, LIE));
    assert_eq!(both[1].dropped, ["lies"]);
    assert!(both[1].direct.is_empty());
}

#[test]
fn an_end_that_has_a_direct_lane_gets_no_second_one() {
    let mut both = sharing();
    connect(&mut both, 0);
    let token = both[0].introducer.by_key[&EndKey { client: 7, end: 9 }];
    both[0].hear(&Word::Want {
        yours: token,
        mine: Token(5),
        client: 7,
    });
    assert_eq!(both[0].act(), [Word::NoLane { yours: Token(5) }]);
    both[0].hear(&Word::Lane {
        yours: token,
        mine: Token(5),
        at: 0,
        far: half(3),
    });
    let _ = both[0].act();
    assert_eq!(both[0].dropped.len(), 1);
    assert_eq!(both[0].direct.len(), 1);
}
