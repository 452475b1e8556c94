//! A connection whose socket is given away while bytes for it are in the ring.

mod common;

use common::{BLOCK, DONTWAIT, Pair, SMALL_RING, bytes_at, check_bytes, kernel_recv};
use sluice_lane::clock::now_ns;
use sluice_lane::reason::Reason;
use sluice_lane::recall::{self, Fetched};

/// Longer than any machine takes to run a thread; nothing waits for it in a test that passes.
const LONG_NS: u64 = 20_000_000_000;

fn give_away(pair: &Pair, deadline_ns: u64, help: &mut dyn FnMut()) -> Fetched {
    pair.b.end.pin(pair.b.generation, Reason::Shared);
    recall::fetch(pair.b.end, pair.b.generation, deadline_ns, help)
}

/// What a program without Sluice reads from the socket, all of `len` bytes.
fn stranger_reads(fd: i32, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    assert_eq!(kernel_recv(fd, &mut got, libc::MSG_WAITALL), Ok(len));
    got
}

#[test]
fn unread_bytes_go_back_and_come_by_tcp_before_later_ones() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    let mut got = [0; 30];
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(30));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 100, "by the ring");

    let sender = pair.a;
    let mut help = || recall::look(sender.end, sender.generation, sender.fd);
    let fetched = give_away(&pair, now_ns() + LONG_NS, &mut help);
    assert_eq!(fetched, Fetched::All);
    assert_eq!(pair.a.send(&bytes_at(100, 50), false), Ok(50));
    check_bytes(30, &stranger_reads(pair.b.fd, 120));
    let mut more = [0; 1];
    assert!(kernel_recv(pair.b.fd, &mut more, libc::MSG_DONTWAIT).is_err());
}

#[test]
fn bytes_that_go_round_the_rings_end_come_back_in_order() {
    let pair = Pair::adopted(SMALL_RING);
    let (mut sent, mut read) = (0, 0);
    let step = SMALL_RING as usize / 2 + 1000;
    while sent < 3 * u64::from(SMALL_RING) {
        // Never empty, so that the sender does not return to the ring's start.
        let mut got = vec![0; step];
        assert_eq!(pair.a.send(&bytes_at(sent, 10), false), Ok(10));
        if sent > read {
            let len = (sent - read) as usize;
            assert_eq!(pair.b.recv(&mut got[..len], DONTWAIT), Ok(len));
            check_bytes(read, &got[..len]);
            read = sent;
        }
        sent += 10;
        let more = step - 10;
        assert_eq!(pair.a.send(&bytes_at(sent, more), true), Ok(more));
        sent += more as u64;
    }
    let sender = pair.a;
    let mut help = || recall::look(sender.end, sender.generation, sender.fd);
    assert_eq!(
        give_away(&pair, now_ns() + LONG_NS, &mut help),
        Fetched::All
    );
    check_bytes(read, &stranger_reads(pair.b.fd, (sent - read) as usize));
}

#[test]
fn a_sender_that_waits_for_bytes_answers() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    let sender = pair.a;
    std::thread::scope(|scope| {
        // Nonblocking, as a blocking one goes to sleep, where nobody asks it.
        let waiter = scope.spawn(move || {
            let mut got = [0; 8];
            loop {
                match sender.recv(&mut got, DONTWAIT) {
                    Ok(len) => return len,
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        let fetched = give_away(&pair, now_ns() + LONG_NS, &mut || {});
        assert_eq!(fetched, Fetched::All);
        check_bytes(0, &stranger_reads(pair.b.fd, 100));
        assert_eq!(common::kernel_send(pair.b.fd, b"answered", 0), Ok(8));
        assert_eq!(waiter.join().ok(), Some(8));
    });
}

#[test]
fn a_sender_that_does_not_look_leaves_the_bytes_to_this_process() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    let fetched = give_away(&pair, now_ns(), &mut || {});
    assert_eq!(fetched, Fetched::Left(100));
    // Too late: the wish was taken back.
    recall::look(pair.a.end, pair.a.generation, pair.a.fd);
    assert_eq!(pair.a.send(&bytes_at(100, 10), false), Ok(10));
    let mut got = [0; 110];
    let mut read = 0;
    while read < got.len() {
        read += pair.b.recv(&mut got[read..], BLOCK).expect("bytes");
    }
    check_bytes(0, &got);
}

#[test]
fn bytes_before_later_tcp_bytes_cannot_go_back() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    // Told to stay on TCP: what it writes now is behind the ring's bytes.
    pair.a.end.pin(pair.a.generation, Reason::KernelCall);
    assert_eq!(pair.a.send(&bytes_at(100, 10), false), Ok(10));
    let sender = pair.a;
    let mut help = || recall::look(sender.end, sender.generation, sender.fd);
    assert_eq!(
        give_away(&pair, now_ns() + LONG_NS, &mut help),
        Fetched::Left(100)
    );
    let mut got = [0; 110];
    assert_eq!(pair.b.recv(&mut got[..100], BLOCK), Ok(100));
    assert_eq!(pair.b.recv(&mut got[100..], BLOCK), Ok(10));
    check_bytes(0, &got);
}
