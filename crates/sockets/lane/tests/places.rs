//! More threads than there are places for, which leaves none to others: in a process of its own.
#![allow(unsafe_code)]

mod common;

use sluice_lane::lock::{OwnerLock, threads};
use std::time::Duration;

#[test]
fn more_threads_than_places_have_their_locks() {
    threads::share();
    // SAFETY: zeroed memory that is never unmapped is an open lock of 0.
    let lock: &OwnerLock<u64> = unsafe { &*common::shared_memory(4096).as_ptr().cast() };
    let threads: Vec<_> = (0..1500)
        .map(|_| {
            std::thread::Builder::new()
                .stack_size(64 * 1024)
                .spawn(move || {
                    let mut held = lock.lock().unwrap();
                    *held += 1;
                    drop(held);
                    std::thread::sleep(Duration::from_millis(300));
                })
                .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*lock.lock().unwrap(), 1500);
}
