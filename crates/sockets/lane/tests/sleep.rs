//! Who may sleep in the kernel's poll.

mod common;

use common::{BLOCK, Pair, SMALL_RING, bytes_at, check_bytes};
use sluice_lane::spin::set_ceiling_us;
use sluice_lane::wait;
use sluice_sys::errno::Errno;

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

/// Bytes of a reader that sleeps come by the kernel. Who asked it before, without waiting, paid a second system call
/// for each read.
#[test]
fn who_is_about_to_sleep_asks_the_kernel_once() {
    // Nobody polls.
    set_ceiling_us(0);
    let pair = Pair::enabled(SMALL_RING);
    let mut calls = Vec::new();
    let mut read = |buffer: &mut [u8], how| {
        calls.clear();
        let result = pair.b.recv_with(buffer, how, &mut |piece, rest| {
            calls.push(piece.dontwait);
            if piece.dontwait {
                return Err(Errno::AGAIN);
            }
            rest[..3].copy_from_slice(b"abc");
            Ok(3)
        });
        (result, calls.clone())
    };
    let mut buffer = [0; 10];
    assert_eq!(read(&mut buffer, BLOCK), (Ok(3), vec![false]));
    assert_eq!(&buffer[..3], b"abc");
    // What is in the ring comes before what the kernel may have.
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    assert_eq!(read(&mut buffer, BLOCK), (Ok(10), vec![]));
    check_bytes(0, &buffer);
}
