//! Two writers and two readers on one end: what each writes arrives once and in its order.
#![allow(unsafe_code)]

mod common;

use common::process::bounded;
use common::{BLOCK, Pair, SMALL_RING, Side, byte_at};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const RECORD_BYTES: usize = 64;
const RECORDS: u64 = 20_000;
/// Bytes of one writer's stream.
const STREAM_BYTES: u64 = RECORDS * RECORD_BYTES as u64;

/// A writer's byte tells by its highest bit whose it is. The kernel may cut a record where its
/// buffer is full, and put another writer's between, so nothing is said of whole records.
fn written(writer: u64, position: u64) -> u8 {
    byte_at(position) & 0x7f | (writer as u8) << 7
}

fn record(writer: u64, number: u64) -> [u8; RECORD_BYTES] {
    let from = number * RECORD_BYTES as u64;
    std::array::from_fn(|at| written(writer, from + at as u64))
}

/// How much of each writer's stream was taken.
#[derive(Default)]
struct Taken {
    positions: [u64; 2],
}

impl Taken {
    fn file(&mut self, got: &[u8]) {
        for byte in got {
            let writer = usize::from(byte >> 7);
            let position = &mut self.positions[writer];
            assert_eq!(*byte, written(writer as u64, *position), "byte {position}");
            *position += 1;
        }
    }
}

/// `is_alone`: each reader takes and files without the other between; otherwise both read at
/// once and only the number of bytes is checked.
fn run(pair: Pair, is_alone: bool, disturb: impl Fn(Side) + Send + 'static) {
    let (taken, bytes) = (
        Arc::new(Mutex::new(Taken::default())),
        Arc::new(AtomicU64::new(0)),
    );
    let is_over = Arc::new(AtomicBool::new(false));
    // One record goes by the ring for certain; later ones may meet sleepers all the time.
    let is_enabled = pair.b.look().is_some();
    if is_enabled {
        pair.a.send_all(&record(0, 0)).unwrap();
    }
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            std::thread::spawn(move || {
                let first = u64::from(is_enabled && writer == 0);
                for number in first..RECORDS {
                    pair.a.send_all(&record(writer, number)).unwrap();
                }
            })
        })
        .collect();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (taken, bytes) = (taken.clone(), bytes.clone());
            std::thread::spawn(move || {
                let mut buffer = [0; 3000];
                loop {
                    let held = is_alone.then(|| taken.lock().unwrap());
                    let count = pair.b.recv(&mut buffer, BLOCK).unwrap();
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                    if let Some(mut taken) = held {
                        taken.file(&buffer[..count]);
                    }
                    if count == 0 {
                        return;
                    }
                }
            })
        })
        .collect();
    let disturber = {
        let is_over = is_over.clone();
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                disturb(pair.b);
                std::thread::yield_now();
            }
        })
    };
    bounded("a writer or a reader", move || {
        for writer in writers {
            writer.join().unwrap();
        }
        pair.a.shutdown_write().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
    });
    is_over.store(true, Ordering::Relaxed);
    disturber.join().unwrap();
    let total = 2 * STREAM_BYTES;
    assert_eq!(bytes.load(Ordering::Relaxed), total);
    if is_alone {
        assert_eq!(taken.lock().unwrap().positions, [STREAM_BYTES; 2]);
    }
    let (a, b) = (pair.a.snapshot(), pair.b.snapshot());
    assert_eq!(a.ring_tx_bytes + a.tcp_tx_bytes, total);
    assert_eq!(a.ring_tx_bytes, b.ring_rx_bytes);
    assert_eq!(a.tcp_tx_bytes, b.tcp_rx_bytes);
    assert!(!is_enabled || a.ring_tx_bytes > 0);
    pair.a.close();
    pair.b.close();
}

#[test]
fn two_writers_and_two_readers_in_turn() {
    run(Pair::enabled(SMALL_RING), true, |_| {});
}

#[test]
fn two_writers_and_two_readers_at_once() {
    run(Pair::enabled(SMALL_RING), false, |_| {});
}

#[test]
fn two_writers_and_two_readers_and_a_poller_that_falls_asleep_now_and_then() {
    run(Pair::enabled(SMALL_RING), true, |side| {
        if let Ok(asleep) = sluice_lane::wait::announce(side.end, side.generation) {
            std::thread::yield_now();
            sluice_lane::wait::withdraw(side.end, asleep);
        }
    });
}

#[test]
fn lane_attached_while_two_write_and_two_read() {
    let pair = Pair::announced(SMALL_RING);
    let other = pair.a;
    let once = AtomicBool::new(false);
    run(pair, true, move |side| {
        let snapshot = side.snapshot();
        if snapshot.tcp_rx_bytes > 100_000 && !once.swap(true, Ordering::Relaxed) {
            assert!(side.attach() && other.attach());
        }
    });
}
