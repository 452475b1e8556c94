//! A connection that has to stay on TCP after it was on a lane.

mod common;

use common::{BLOCK, Pair, SMALL_RING, bytes_at, check_bytes, kernel_recv};
use sluice_lane::reason::Reason;

#[test]
fn ring_read_empty_then_only_the_programs_own_calls() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 10, "by the ring");
    pair.b.end.pin(pair.b.generation, Reason::Confined);
    let mut got = [0; 30];
    assert_eq!(pair.b.recv(&mut got[..10], BLOCK), Ok(10));

    assert_eq!(pair.a.send(&bytes_at(10, 20), false), Ok(20));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 10, "never by the ring");
    assert_eq!(
        pair.b.look(),
        None,
        "the kernel alone says what can be read"
    );
    let mut calls = 0;
    let fd = pair.b.fd;
    let mut kernel = |piece: sluice_lane::Piece, rest: &mut [u8]| {
        calls += 1;
        assert!(!piece.dontwait && piece.skip == 0, "{piece:?}");
        kernel_recv(fd, rest, 0)
    };
    let read = pair.b.recv_with(&mut got[10..], BLOCK, &mut kernel);
    assert_eq!((read, calls), (Ok(20), 1));
    check_bytes(0, &got);
}
