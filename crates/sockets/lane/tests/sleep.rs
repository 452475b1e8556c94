//! Who may sleep in the kernel's poll.

mod common;

use common::{BLOCK, Pair, SMALL_RING, bytes_at, check_bytes};
use sluice_lane::wait;

#[test]
fn ring_left_again_with_tcp_bytes_owed_before_it() {
    let pair = Pair::announced(SMALL_RING);
    let stream = bytes_at(0, 300);
    assert_eq!(pair.a.send(&stream[..100], false), Ok(100), "by TCP");
    assert!(pair.a.attach() && pair.b.attach());
    assert!(
        pair.b.look().is_some(),
        "it enables its lane with unread TCP bytes"
    );
    assert_eq!(
        pair.a.send(&stream[100..200], false),
        Ok(100),
        "by the ring"
    );
    pair.a.end.shut_tx(pair.a.generation);
    assert_eq!(pair.a.send(&stream[200..], false), Ok(100), "by TCP again");

    // The ring has bytes, but it is the kernel's turn: a poll that refused to ask it would
    // never end.
    let ready = pair.b.look().expect("it has a lane");
    assert!(ready.kernel_next && !ready.readable, "{ready:?}");
    let announced = wait::announce(pair.b.end, pair.b.generation);
    wait::withdraw(pair.b.end, announced.expect("the kernel may be asked"));

    let mut got = [0; 300];
    let mut done = 0;
    while done < got.len() {
        done += pair.b.recv(&mut got[done..], BLOCK).expect("all is there");
    }
    check_bytes(0, &got);
}

#[test]
fn ring_with_the_next_bytes() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    assert!(pair.b.look().is_some_and(|ready| ready.readable));
    let announced = wait::announce(pair.b.end, pair.b.generation);
    assert_eq!(
        announced.err(),
        Some(wait::Refused::Awake),
        "nobody would wake the sleeper"
    );
}
