use sluice_shmem::mapping::Mapping;
use sluice_window::Kind;
use sluice_window::region::Region;

use super::*;

const RING: u32 = 4096;
const CLIENT: ClientId = 3;
const THEIRS: u32 = 9;

fn region() -> Region {
    let memory = Mapping::anonymous(8 << 20).expect("memory");
    Region::format(memory, 3, Kind::Coherent, true).expect("a window")
}

fn place(region: &Region) -> Place {
    Place {
        window: 0,
        own: 0,
        slot: 1,
        id: region.header().id,
    }
}

/// A lender and what it lends out of.
struct Lender {
    region: Region,
    ledger: Ledger,
    pieces: Pieces,
    peer: PeerName,
}

impl Lender {
    fn new() -> Lender {
        let region = region();
        let ledger = Ledger::open(&region.view(0), region.header(), 0);
        Lender {
            region,
            ledger,
            pieces: Pieces::default(),
            peer: "b".into(),
        }
    }

    fn lend_to(&mut self, theirs: u32) -> Option<DirectLane> {
        let (view, place) = (self.region.view(0), place(&self.region));
        let pair = (CLIENT, &self.peer, theirs);
        self.pieces.lend(&view, &mut self.ledger, place, pair, RING)
    }

    fn lend(&mut self) -> DirectLane {
        self.lend_to(THEIRS).expect("a lane")
    }

    /// What is free goes back, as sluiced does it.
    fn lent_bytes(&mut self) -> u64 {
        for free in self.pieces.take_free() {
            assert!(free.is_lender);
            let view = self.region.view(0);
            let at = In(free.at);
            assert!(
                self.ledger
                    .take_back(&view, free.place.slot, at, free.bytes)
            );
        }
        self.ledger.bytes().0
    }
}

#[test]
fn a_lane_is_lent_again_when_both_ends_are_over_and_not_before() {
    let mut lender = Lender::new();
    let first = lender.lend();
    let loan = lender.pieces.loan(&first).expect("a loan");
    lender.pieces.over(&first, Ended::Ours);
    let second = lender.lend();
    assert_ne!(second, first, "the peer's program may still write there");
    let other = "c".into();
    lender.pieces.returned(&other, first.number, first.lane);
    assert_ne!(lender.lend(), first, "another peer's word");
    let peer = lender.peer.clone();
    lender.pieces.returned(&peer, first.number, first.lane);
    assert_eq!(lender.lend(), first);
    assert_eq!((loan.piece, loan.lane), (first.number, first.lane));
}

#[test]
fn lanes_that_are_not_there_are_returned_in_vain() {
    let mut lender = Lender::new();
    let lane = lender.lend();
    let peer = lender.peer.clone();
    for (number, at) in [(lane.number, 4000), (lane.number, u32::MAX), (0, 0)] {
        lender.pieces.returned(&peer, number, at);
    }
    lender.pieces.withdrawn(&peer, lane.number);
    assert_eq!(lender.pieces.lanes_in(0, lender.region.header().id), 1);
}

#[test]
fn two_programs_have_pieces_of_their_own_that_go_back_with_them() {
    let mut lender = Lender::new();
    let (first, other) = (lender.lend(), lender.lend_to(THEIRS + 1).expect("a lane"));
    assert_ne!(first.number, other.number);
    let peer = lender.peer.clone();
    lender.pieces.foreign_gone(&peer, THEIRS);
    let both = lender.lent_bytes();
    lender.pieces.over(&first, Ended::Both);
    assert!(lender.lent_bytes() < both);
    lender.pieces.set_given(&other);
    lender.pieces.over(&other, Ended::Ours);
    lender.pieces.program_gone(CLIENT);
    assert!(lender.lent_bytes() > 0, "the peer's program is there still");
    lender.pieces.returned(&peer, other.number, other.lane);
    assert_eq!(lender.lent_bytes(), 0);
    let notices = lender.pieces.take_notices();
    assert_eq!(
        notices,
        [
            Notice::Withdrawn(peer.clone(), first.number),
            Notice::Program(CLIENT, other.number),
            Notice::Withdrawn(peer, other.number),
        ]
    );
}

#[test]
fn what_a_lost_peer_has_is_never_lent_again() {
    let mut lender = Lender::new();
    let lane = lender.lend();
    let peer = lender.peer.clone();
    lender.pieces.peer_lost(&peer);
    let lent = lender.lent_bytes();
    assert_ne!(lender.lend().number, lane.number);
    lender.pieces.returned(&peer, lane.number, lane.lane);
    lender.pieces.over(&lane, Ended::Ours);
    assert!(lender.lent_bytes() >= lent);
}

#[test]
fn a_full_slot_lends_nothing() {
    let mut lender = Lender::new();
    let mut lanes = Vec::new();
    while let Some(lane) = lender.lend_to(THEIRS) {
        assert!(!lanes.contains(&lane), "{lane:?} twice");
        lanes.push(lane);
    }
    // 8 MiB for three hosts.
    assert!(lanes.len() > 200);
    lender.pieces.over(&lanes[7], Ended::Both);
    assert_eq!(lender.lend(), lanes[7]);
}

#[test]
fn a_lane_s_header_is_zero_whatever_was_there() {
    let mut lender = Lender::new();
    let lane = lender.lend();
    let at = lender.pieces.find(&lane).expect("it is lent").1;
    let header = Geometry::new(4, RING)
        .expect("a shape")
        .lane_header_offset(lane.lane);
    let view = lender.region.view(0);
    let place = Out {
        slot: 0,
        at: at + header,
    };
    view.write(place, &[0xff; LANE_HEADER_BYTES]);
    lender.pieces.over(&lane, Ended::Both);
    assert_eq!(lender.lend(), lane);
    let mut bytes = [1; LANE_HEADER_BYTES];
    lender.region.view(0).read(In(at + header), &mut bytes);
    assert_eq!(bytes, [0; LANE_HEADER_BYTES]);
}

/// A peer that lies about what it lends.
#[test]
fn loans_that_cannot_be_are_refused() {
    let region = region();
    let slots = region.header().geometry;
    let (heap, heap_bytes) = slots.heap();
    let peer: PeerName = "b".into();
    let good = Loan {
        window: region.header().id,
        piece: 5,
        at: heap + PAGE_BYTES,
        lanes: 4,
        ring_bytes: RING,
        lane: 1,
    };
    let mut pieces = Pieces::default();
    let mut borrow = |loan: Loan| pieces.borrow(&slots, place(&region), (CLIENT, &peer), &loan);
    let bad = [
        Loan { lanes: 0, ..good },
        Loan {
            lanes: u32::MAX,
            ..good
        },
        Loan {
            ring_bytes: 5000,
            ..good
        },
        Loan { lane: 4, ..good },
        Loan { at: 0, ..good },
        Loan {
            at: heap - PAGE_BYTES,
            ..good
        },
        Loan {
            at: heap + 8,
            ..good
        },
        Loan {
            at: heap + heap_bytes,
            ..good
        },
        Loan {
            at: heap + heap_bytes - PAGE_BYTES,
            ..good
        },
        Loan {
            at: !(PAGE_BYTES - 1),
            ..good
        },
    ];
    for loan in bad {
        assert!(borrow(loan).is_err(), "{loan:?}");
    }
    let lane = borrow(good).expect("a lane");
    let again = [
        good,
        Loan {
            lane: 2,
            at: good.at + PAGE_BYTES,
            ..good
        },
        Loan {
            lane: 2,
            lanes: 8,
            ..good
        },
        Loan { piece: 6, ..good },
        Loan {
            piece: 6,
            at: good.at + PAGE_BYTES,
            ..good
        },
    ];
    for loan in again {
        assert!(borrow(loan).is_err(), "{loan:?}");
    }
    let second = borrow(Loan { lane: 2, ..good }).expect("another lane of the piece");
    assert_eq!(second.number, lane.number);
    // For another program of this host it is none.
    let loan = Loan { lane: 3, ..good };
    let other = pieces.borrow(&slots, place(&region), (CLIENT + 1, &peer), &loan);
    assert!(other.is_err());
    pieces.over(&lane, Ended::Ours);
    let notices = pieces.take_notices();
    assert_eq!(notices, [Notice::Returned(peer.clone(), 5, 1)]);
    // What it takes back while a connection lies there stays until that is over.
    pieces.set_given(&second);
    pieces.withdrawn(&peer, 5);
    assert!(pieces.find(&second).is_some());
    pieces.over(&second, Ended::Ours);
    assert!(pieces.find(&second).is_none());
    let returned = Notice::Returned(peer, 5, 2);
    assert_eq!(
        pieces.take_notices(),
        [returned, Notice::Program(CLIENT, lane.number)]
    );
}

#[test]
fn who_borrowed_a_piece_is_asked_whether_it_is_mapped_still_and_no_other_peer_is_believed() {
    let mut lender = Lender::new();
    let lane = lender.lend();
    let peer = lender.peer.clone();
    assert!(!lender.pieces.released(&"c".into(), lane.number));
    assert!(!lender.pieces.released(&peer, lane.number + 1));
    lender.pieces.over(&lane, Ended::Both);
    lender.pieces.program_gone(CLIENT);
    let free = lender.pieces.take_free();
    assert!(
        matches!(&free[..], [it] if it.is_lender && !it.is_released && it.piece == lane.number)
    );
    // It may be said before the lanes are over.
    let lane = lender.lend_to(THEIRS + 1).expect("a lane");
    assert!(lender.pieces.released(&peer, lane.number));
    lender.pieces.over(&lane, Ended::Both);
    lender.pieces.foreign_gone(&peer, THEIRS + 1);
    assert!(matches!(&lender.pieces.take_free()[..], [it] if it.is_released));
}

#[test]
fn what_was_borrowed_is_looked_after_until_nobody_here_has_it_mapped() {
    let region = region();
    let slots = region.header().geometry;
    let peer: PeerName = "b".into();
    let mut pieces = Pieces::default();
    let loan = Loan {
        window: region.header().id,
        piece: 5,
        at: slots.heap().0,
        lanes: 4,
        ring_bytes: RING,
        lane: 1,
    };
    let lane = pieces
        .borrow(&slots, place(&region), (CLIENT, &peer), &loan)
        .expect("a lane");
    assert!(
        !pieces.released(&peer, 5),
        "its lender says when it is free"
    );
    pieces.over(&lane, Ended::Ours);
    assert!(pieces.take_free().is_empty(), "it gets other lanes of it");
    pieces.program_gone(CLIENT);
    let free = pieces.take_free();
    assert!(matches!(&free[..], [it] if !it.is_lender && it.piece == 5 && it.slot() == 1));
}

/// Who had the slot before has lent what its holder cannot lend now, and no two peers hold one slot.
#[test]
fn memory_that_one_peer_has_lent_is_lent_by_no_other_one() {
    let region = region();
    let mut pieces = Pieces::default();
    let slots = region.header().geometry;
    let (heap, _) = slots.heap();
    let loan = |piece, at| Loan {
        window: region.header().id,
        piece,
        at: heap + at,
        lanes: 1,
        ring_bytes: RING,
        lane: 0,
    };
    let (b, m) = ("b".into(), "m".into());
    let place = place(&region);
    let first = pieces.borrow(&slots, place, (CLIENT, &b), &loan(1, PAGE_BYTES));
    assert!(first.is_ok());
    for is_lost in [false, true] {
        if is_lost {
            pieces.peer_lost(&b);
        }
        for at in [0, PAGE_BYTES] {
            let lie = pieces.borrow(&slots, place, (CLIENT, &m), &loan(9, at));
            assert_eq!(lie, Err("lends memory that lies in another piece"));
        }
    }
    let far = 64 * PAGE_BYTES;
    let other = pieces.borrow(&slots, place, (CLIENT, &m), &loan(9, far));
    assert!(other.is_ok());
}
