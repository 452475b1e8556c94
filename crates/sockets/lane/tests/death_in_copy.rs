//! Death at a chosen instruction: in the middle of a copy, with the lock held and the write
//! announced. The buffer ends in a page that must not be touched, and the copy is fatal there.
#![allow(unsafe_code)]

mod common;

use common::process::{Child, bounded};
use common::{BLOCK, Pair, Side, WAITALL, bytes_at, check_bytes};

/// Several of the pieces in which a large write is published.
const RING: u32 = 256 * 1024;
const PAGE_BYTES: usize = 4096;

/// `good` bytes (whole pages) that can be used and one page that cannot.
fn trapped(good: usize) -> &'static mut [u8] {
    assert_eq!(good % PAGE_BYTES, 0);
    let base = common::shared_memory(good + PAGE_BYTES).as_ptr();
    // SAFETY: the last page of a mapping that was just made; nothing refers to it.
    let ret = unsafe { libc::mprotect(base.add(good).cast(), PAGE_BYTES, libc::PROT_NONE) };
    assert_eq!(ret, 0, "mprotect: {}", common::last_errno());
    // SAFETY: mapped and never unmapped. That the last page faults is the point: no test looks
    // at it outside of a process that is to die there.
    unsafe { std::slice::from_raw_parts_mut(base, good + PAGE_BYTES) }
}

/// Dies in a write behind `good` bytes of the test stream.
fn die_writing(side: Side, good: usize) -> Child {
    let bytes = trapped(good);
    bytes[..good].copy_from_slice(&bytes_at(0, good));
    let child = Child::fork(|| {
        no_core_dump();
        let _ = side.send(bytes, false);
        1
    });
    child.wait_dead();
    child
}

fn no_core_dump() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: setrlimit reads one struct rlimit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// What a reader gets until the end of the stream.
fn read_to_end(side: Side) -> Vec<u8> {
    bounded("the reader", move || {
        let mut stream = Vec::new();
        let mut buffer = vec![0; 10_000];
        loop {
            match side.recv(&mut buffer, BLOCK).unwrap() {
                0 => return stream,
                count => stream.extend_from_slice(&buffer[..count]),
            }
        }
    })
}

#[test]
fn writer_dies_in_the_copy() {
    let pair = Pair::enabled(RING);
    let child = die_writing(pair.a, 80 * 1024);
    assert!(pair.there().is_write_in_flight());
    common::close(pair.a.fd);
    let stream = read_to_end(pair.b);
    // Two pieces were published, the third was not whole.
    assert_eq!(stream.len(), 64 * 1024);
    check_bytes(0, &stream);
    drop(child);
}

#[test]
fn survivor_writes_on_behind_the_published_pieces() {
    let pair = Pair::enabled(RING);
    let child = die_writing(pair.a, 80 * 1024);
    let stream = bounded("the survivor", move || {
        pair.a.send_all(&bytes_at(64 * 1024, 5000)).unwrap();
        assert_eq!(pair.a.snapshot().tcp_tx_bytes, 0, "the ring goes on");
        pair.a.shutdown_write().unwrap();
        read_to_end(pair.b)
    });
    assert_eq!(stream.len(), 64 * 1024 + 5000);
    check_bytes(0, &stream);
    drop(child);
}

#[test]
fn survivor_of_a_writer_that_died_before_anything_was_published() {
    let pair = Pair::enabled(RING);
    let child = die_writing(pair.a, 2 * PAGE_BYTES);
    bounded("the survivor", move || {
        pair.a.send_all(&bytes_at(0, 100)).unwrap();
        pair.b.send_all(&bytes_at(0, 100)).unwrap();
        for side in [pair.a, pair.b] {
            let mut buffer = [0; 100];
            assert_eq!(side.recv(&mut buffer, WAITALL), Ok(100));
            check_bytes(0, &buffer);
        }
    });
    drop(child);
}

#[test]
fn reader_dies_in_the_copy_and_its_survivor_gets_the_bytes() {
    let pair = Pair::enabled(RING);
    pair.a.send_all(&bytes_at(0, 20_000)).unwrap();
    let buffer = trapped(2 * PAGE_BYTES);
    let child = Child::fork(|| {
        no_core_dump();
        let _ = pair.b.recv(buffer, BLOCK);
        1
    });
    child.wait_dead();
    pair.a.shutdown_write().unwrap();
    let stream = read_to_end(pair.b);
    assert_eq!(stream.len(), 20_000);
    check_bytes(0, &stream);
    assert_eq!(pair.b.snapshot().ring_rx_bytes, 20_000);
    drop(child);
}
