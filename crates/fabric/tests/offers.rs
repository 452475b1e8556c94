//! How long a ring stays offered to a program that waits for several connections at once.
#![allow(unsafe_code, dead_code)]

#[path = "../../lane/tests/common/mod.rs"]
mod common;

use common::{DONTWAIT, Pair, SMALL_RING};
use sluice_fabric::down::Down;
use sluice_fabric::message::Note;

const MS: u64 = 1_000_000;

/// A lane whose reader is a program and whose writer is the daemon, with bytes that came by the ring
/// at 1 ms and were read.
fn offered_and_used() -> (Pair, Down) {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_remote());
    assert!(pair.b.look().is_some(), "adopts");
    let mut down = Down::new(pair.there(), None, true);
    let said = look(&mut down, MS, 0);
    assert!(matches!(said[..], [Note::Offer]), "{said:?}");
    down.hear(Note::Segment(0), MS).expect("offered");
    down.arrive(10, MS).expect("offered, and room");
    assert_eq!(pair.b.recv(&mut [0; 100], DONTWAIT), Ok(10));
    (pair, down)
}

fn look(down: &mut Down, now_ns: u64, waiter_busy_ns: u64) -> Vec<Note> {
    let mut said = Vec::new();
    down.look(now_ns, waiter_busy_ns, &mut |note| said.push(note));
    said.retain(|note| !matches!(note, Note::Consumed(_)));
    said
}

#[test]
fn an_idle_connection_keeps_its_offer_while_its_reader_gets_bytes_by_others() {
    let (_pair, mut down) = offered_and_used();
    for now in [2 * MS, 10 * MS, 80 * MS] {
        assert!(look(&mut down, now, now - MS / 10).is_empty(), "at {now}");
    }
    let said = look(&mut down, 80 * MS, 79 * MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}

#[test]
fn an_offer_ends_at_some_time_all_the_same() {
    let (_pair, mut down) = offered_and_used();
    assert!(look(&mut down, 100 * MS, 100 * MS).is_empty());
    let said = look(&mut down, 102 * MS, 102 * MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}

#[test]
fn a_reader_that_wants_to_sleep_polls_on_while_bytes_come_by_other_connections() {
    let (pair, mut down) = offered_and_used();
    pair.there().announce_sleep();
    let now = MS + MS / 2;
    assert!(look(&mut down, now, now - MS / 10).is_empty());
    let said = look(&mut down, now, MS);
    assert!(matches!(said[..], [Note::Revoke]), "{said:?}");
}
