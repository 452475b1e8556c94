//! A process and its fork that use one end in turn: it stays one stream.
#![allow(unsafe_code)]

mod common;

use common::process::{Child, Random, bounded, shared_word, wait_for};
use common::{BLOCK, Pair, SMALL_RING, Side, bytes_at, check_bytes};
use std::sync::atomic::{AtomicU32, Ordering};

const TURNS: u32 = 400;

/// Runs `each` with the turns of `who`, and lets the other go on after each.
fn take_turns(who: u32, turn: &AtomicU32, mut each: impl FnMut(u32)) {
    for mine in (who..TURNS).step_by(2) {
        wait_for("the other's turn", || turn.load(Ordering::SeqCst) == mine);
        each(mine);
        turn.store(mine + 1, Ordering::SeqCst);
    }
}

/// Bytes that go by the ring for certain, as nobody sleeps yet; later ones may meet a reader that sleeps each time.
const FIRST: usize = 100;

fn send_first(side: Side) {
    assert_eq!(side.send(&bytes_at(0, FIRST), false), Ok(FIRST));
    assert_eq!(side.snapshot().ring_tx_bytes, FIRST as u64);
}

/// Bytes of a turn's piece: more than the ring holds now and then.
fn piece(turn: u32) -> usize {
    1 + Random::new(u64::from(turn)).below(3 * u64::from(SMALL_RING) / 2) as usize
}

#[test]
fn both_write_in_turn() {
    let pair = Pair::enabled(SMALL_RING);
    let (turn, position) = (shared_word(), shared_word());
    send_first(pair.a);
    position.store(FIRST as u32, Ordering::SeqCst);
    let write = move |number: u32| {
        let from = position.load(Ordering::SeqCst);
        let bytes = bytes_at(u64::from(from), piece(number));
        pair.a.send_all(&bytes).unwrap();
        position.store(from + bytes.len() as u32, Ordering::SeqCst);
    };
    let child = Child::fork(|| {
        take_turns(1, turn, write);
        0
    });
    let writer = std::thread::spawn(move || take_turns(0, turn, write));
    let total = FIRST + (0..TURNS).map(piece).sum::<usize>();
    bounded("the reader", move || {
        let mut buffer = vec![0; 30_000];
        let mut done = 0;
        while done < total {
            let count = pair.b.recv(&mut buffer, BLOCK).unwrap();
            check_bytes(done as u64, &buffer[..count]);
            done += count;
        }
    });
    writer.join().unwrap();
    assert_eq!(child.join(), 0);
    let snapshot = pair.a.snapshot();
    assert!(snapshot.ring_tx_bytes >= FIRST as u64);
    assert_eq!(snapshot.ring_tx_bytes + snapshot.tcp_tx_bytes, total as u64);
}

#[test]
fn both_read_in_turn() {
    let pair = Pair::enabled(SMALL_RING);
    let (turn, position) = (shared_word(), shared_word());
    send_first(pair.a);
    let read = move |number: u32| {
        let from = position.load(Ordering::SeqCst);
        let mut buffer = vec![0; piece(number)];
        let count = pair.b.recv(&mut buffer, BLOCK).unwrap();
        check_bytes(u64::from(from), &buffer[..count]);
        position.store(from + count as u32, Ordering::SeqCst);
    };
    let child = Child::fork(|| {
        take_turns(1, turn, read);
        0
    });
    let reader = std::thread::spawn(move || take_turns(0, turn, read));
    let writer = std::thread::spawn(move || {
        // As much as they may want, until they are gone.
        let mut sent = FIRST as u64;
        for number in 0.. {
            let bytes = bytes_at(sent, piece(number));
            match pair.a.send(&bytes, false) {
                Ok(count) => sent += count as u64,
                Err(_) => return sent,
            }
        }
        sent
    });
    bounded("the readers", move || {
        reader.join().unwrap();
        assert_eq!(child.join(), 0);
    });
    pair.b.close();
    let sent = bounded("the writer", move || writer.join().unwrap());
    assert!(sent >= u64::from(position.load(Ordering::SeqCst)));
    assert!(pair.a.snapshot().ring_tx_bytes >= FIRST as u64);
}

/// The child leaves without closing, as exit does; the parent has the connection alone again.
#[test]
fn child_answers_and_exits() {
    for round in 0..50_u32 {
        let pair = Pair::enabled(SMALL_RING);
        pair.b.end.add_ref();
        let child = Child::fork(|| {
            common::close(pair.a.fd);
            pair.b.send_all(&bytes_at(0, 1000)).unwrap();
            assert!(!pair.b.end.drop_ref());
            0
        });
        // Reaped before the parent goes on, or after.
        let running = if round.is_multiple_of(2) {
            assert_eq!(child.join(), 0);
            None
        } else {
            Some(child)
        };
        bounded("the two ends", move || {
            let mut buffer = [0; 2000];
            assert_eq!(pair.a.recv(&mut buffer[..1000], common::WAITALL), Ok(1000));
            check_bytes(0, &buffer[..1000]);
            pair.b.send_all(&bytes_at(1000, 1000)).unwrap();
            assert_eq!(pair.a.recv(&mut buffer[1000..], common::WAITALL), Ok(1000));
            check_bytes(0, &buffer);
        });
        wait_for("the child's part", || pair.b.end.refs() == 1);
        assert!(running.is_none_or(|child| child.join() == 0));
        pair.b.close();
        let mut byte = [0];
        assert_eq!(
            bounded("the end", move || pair.a.recv(&mut byte, BLOCK)),
            Ok(0)
        );
        pair.a.close();
    }
}
