//! Two threads that write without a pause must not keep each other in the kernel for ever.
#![allow(unsafe_code)]

mod common;

use common::process::{bounded, wait_for};
use common::{DONTWAIT, Pair, SMALL_RING, Side};
use sluice_lane::{Piece, send};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a write stays in the kernel for the other thread's to overlap with it. Less than the
/// patience of that one, which is twice the polling ceiling.
const OVERLAP: Duration = Duration::from_millis(5);

/// A write whose kernel part lasts until the other thread enters the kernel behind it, or will
/// not. `entries`: how often one has.
fn write(side: Side, entries: &AtomicU32) {
    let byte = [b'x'];
    let parts = [libc::iovec {
        iov_base: byte.as_ptr().cast_mut().cast(),
        iov_len: 1,
    }];
    let request = send::Request {
        parts: &parts,
        dontwait: false,
    };
    let mut kernel = |_: Piece| {
        let mine = entries.fetch_add(1, Ordering::SeqCst) + 1;
        let start = Instant::now();
        while entries.load(Ordering::SeqCst) == mine && start.elapsed() < OVERLAP {
            std::thread::yield_now();
        }
        common::kernel_send(side.fd, &byte, 0)
    };
    let result = send::send(side.end, side.generation, side.fd, &request, &mut kernel);
    assert_eq!(result, Ok(1));
}

#[test]
fn writers_that_always_overlap_return_to_the_ring() {
    sluice_lane::spin::set_ceiling_us(10_000);
    let pair = Pair::enabled(SMALL_RING);
    let is_over = Arc::new(AtomicBool::new(false));
    let entries = Arc::new(AtomicU32::new(0));
    let reader = {
        let is_over = is_over.clone();
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                // It is awake, and no look of its own is in anybody's way.
                while pair.b.recv(&mut [0; 4096], DONTWAIT).is_ok() {}
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    };
    // A sleeping reader sends both to the kernel.
    let asleep = sluice_lane::wait::announce(pair.b.end, pair.b.generation).expect("it may sleep");
    let writers = [(); 2].map(|()| {
        let (is_over, entries) = (is_over.clone(), entries.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                write(pair.a, &entries);
            }
        })
    });
    wait_for("overlapping writes", || entries.load(Ordering::SeqCst) > 10);
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 0);
    sluice_lane::wait::withdraw(pair.b.end, asleep);
    wait_for("ring bytes", || pair.a.snapshot().ring_tx_bytes > 0);
    is_over.store(true, Ordering::Relaxed);
    bounded("a writer", move || {
        for writer in writers {
            writer.join().unwrap();
        }
    });
    reader.join().unwrap();
}
