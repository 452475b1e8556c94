//! Single situations of the handover, each made on purpose.
#![allow(unsafe_code)]

mod common;

use common::process::{bounded, shared_word, wait_for};
use common::{BLOCK, DONTWAIT, PEEK, Pair, SMALL_RING, WAITALL, bytes_at, check_bytes};
use sluice_sys::errno::Errno;
use std::sync::atomic::Ordering;

#[test]
fn bytes_go_by_tcp_then_ring_then_tcp() {
    let pair = Pair::announced(SMALL_RING);
    let stream = bytes_at(0, 900);
    assert_eq!(pair.a.send(&stream[..100], false), Ok(100));
    assert!(pair.a.attach() && pair.b.attach());
    assert_eq!(pair.a.send(&stream[100..200], false), Ok(100));
    let mut got = [0; 1000];
    assert_eq!(pair.b.recv(&mut got[..50], BLOCK), Ok(50), "adopts in mid-stream");
    assert_eq!(pair.a.send(&stream[200..300], false), Ok(100));
    pair.a.end.pin_tx(pair.a.generation);
    assert_eq!(pair.a.send(&stream[300..400], false), Ok(100));
    let mut done = 50;
    while done < 400 {
        done += pair.b.recv(&mut got[done..], BLOCK).unwrap();
    }
    assert_eq!(got[..400], stream[..400]);
    let (a, b) = (pair.a.snapshot(), pair.b.snapshot());
    assert_eq!((a.tcp_tx_bytes, a.ring_tx_bytes), (300, 100));
    assert_eq!((b.tcp_rx_bytes, b.ring_rx_bytes), (300, 100));
    assert_eq!(a.switches, 2);
}

#[test]
fn sender_killed_between_intent_and_publication() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    // What a process leaves that dies in the middle of a write.
    pair.words().intent.store(1, Ordering::SeqCst);
    common::close(pair.a.fd);
    let got = bounded("a read behind a dead sender", move || {
        let mut got = [0; 100];
        let first = pair.b.recv(&mut got, BLOCK);
        (first, pair.b.recv(&mut got, BLOCK))
    });
    assert_eq!(got, (Ok(10), Ok(0)));
}

#[test]
fn sender_killed_between_intent_and_publication_and_a_reader_that_never_blocks() {
    let pair = Pair::adopted(SMALL_RING);
    pair.words().intent.store(1, Ordering::SeqCst);
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
    common::close(pair.a.fd);
    wait_for("the end of the stream", || pair.b.recv(&mut got, DONTWAIT) == Ok(0));
}

#[test]
fn reader_whose_sender_stopped_in_a_write_does_not_burn_the_processor() {
    let pair = Pair::adopted(SMALL_RING);
    let words = pair.words();
    // Stopped in a write after a downgrade: the ring is empty, the mode is TCP.
    words.intent.store(1, Ordering::SeqCst);
    let cpu_ns = shared_word();
    let reader = std::thread::spawn(move || {
        let mut got = [0; 100];
        let result = pair.b.recv(&mut got, BLOCK);
        cpu_ns.store((thread_cpu_ns() / 1000) as u32, Ordering::SeqCst);
        result
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    words.intent.store(0, Ordering::SeqCst);
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 7), 0), Ok(7));
    assert_eq!(reader.join().unwrap(), Ok(7));
    // Polling takes all of the 300 ms; naps of a millisecond take a few per cent of it.
    let cpu_us = cpu_ns.load(Ordering::SeqCst);
    assert!(cpu_us < 150_000, "{cpu_us} us of processor time");
}

/// Processor time of this thread.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[test]
fn connection_closed_by_another_thread_between_two_pieces_of_a_read() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    pair.a.end.pin_tx(pair.a.generation);
    let mut got = [0; 100];
    let mut calls = 0;
    let result = pair.b.recv_with(&mut got, WAITALL, &mut |_, _| {
        calls += 1;
        pair.b.end.finish(pair.b.generation);
        Err(Errno::AGAIN)
    });
    assert_eq!(result, Ok(10), "the ring's bytes are in the program's buffer");
    assert_eq!(calls, 1, "the descriptor may name something else by now");
    check_bytes(0, &got[..10]);
}

#[test]
fn peek_sees_across_the_border_of_tcp_and_ring() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach());
    assert_eq!(pair.a.send(&bytes_at(0, 3), false), Ok(3), "by TCP: not adopted yet");
    assert!(pair.b.look().is_some());
    assert_eq!(pair.a.send(&bytes_at(3, 2), false), Ok(2));
    pair.a.end.pin_tx(pair.a.generation);
    assert_eq!(pair.a.send(&bytes_at(5, 4), false), Ok(4));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 2);
    let mut got = [0; 16];
    // A program that waits for a header looks until it has all of it.
    wait_for("five bytes of a header", || pair.b.recv(&mut got[..5], PEEK) == Ok(5));
    check_bytes(0, &got[..5]);
    assert_eq!(pair.b.recv(&mut got[..3], BLOCK), Ok(3));
    wait_for("ring and TCP bytes behind it", || pair.b.recv(&mut got, PEEK) == Ok(6));
    check_bytes(3, &got[..6]);
    assert_eq!(pair.b.recv(&mut got[..6], WAITALL), Ok(6));
    check_bytes(3, &got[..6]);
}

#[test]
fn peek_with_waitall_waits_for_all() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 3), false), Ok(3));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 3);
    let how = common::How {
        peek: true,
        waitall: true,
        dontwait: false,
    };
    let reader = std::thread::spawn(move || {
        let mut got = [0; 5];
        let result = pair.b.recv(&mut got, how);
        (result, got)
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(pair.a.send(&bytes_at(3, 2), false), Ok(2));
    let (result, got) = reader.join().unwrap();
    assert_eq!(result, Ok(5));
    check_bytes(0, &got);
}

#[test]
fn reset_behind_a_partial_read_is_reported_by_the_next_call() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    pair.a.reset();
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, WAITALL), Ok(10));
    assert_eq!(pair.b.recv(&mut got, BLOCK), Err(Errno(libc::ECONNRESET)));
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(0));
}

#[test]
fn end_of_stream_is_read_as_soon_as_poll_tells() {
    for _ in 0..200 {
        let pair = Pair::adopted(SMALL_RING);
        assert_eq!(pair.a.send(b"x", false), Ok(1));
        let mut got = [0; 100];
        assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(1));
        assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
        assert_eq!(pair.a.shutdown_write(), Ok(()));
        // An edge-triggered program is told once: poll looks at the lane, then the program reads.
        let events = sluice_lane::wait::kernel_events(pair.b.fd, libc::POLLIN);
        assert!(pair.b.look().is_some());
        if events != 0 {
            assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(0));
        }
        pair.a.close();
        pair.b.close();
    }
}

#[test]
fn mark_behind_what_was_read_is_no_panic() {
    let pair = Pair::adopted(SMALL_RING);
    let words = pair.words();
    let writer = std::thread::spawn(move || {
        for round in 0..400_000_u64 {
            words.mark.store(if round % 2 == 0 { 0 } else { 1 << 40 }, Ordering::Relaxed);
        }
    });
    // 5 bytes were read from TCP, and the peer's mark jumps between 0 and far.
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 5), 0), Ok(5));
    let mut got = [0; 100];
    let _ = pair.b.recv(&mut got, BLOCK);
    pair.words().mode.store(1, Ordering::Relaxed);
    while !writer.is_finished() {
        let result = pair.b.recv(&mut got, DONTWAIT);
        assert!(result.is_err(), "{result:?} though nothing was sent");
    }
    writer.join().unwrap();
}

#[test]
fn broken_lane_stays_broken() {
    let pair = Pair::adopted(SMALL_RING);
    let words = pair.words();
    words.tail.store(u64::MAX, Ordering::SeqCst);
    let mut got = [0; 100];
    let reset = Err(Errno(libc::ECONNRESET));
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), reset);
    words.tail.store(0, Ordering::SeqCst);
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), reset, "bytes may be missing");
    assert!(pair.b.send(b"x", true).is_err());
}

#[test]
fn head_that_jumps_breaks_the_senders_connection() {
    let pair = Pair::adopted(SMALL_RING);
    assert_eq!(pair.a.send(b"x", false), Ok(1));
    pair.words().head.store(1 << 40, Ordering::SeqCst);
    pair.a.end.pin_tx(pair.a.generation);
    let full = vec![0; 2 * SMALL_RING as usize];
    let pair2 = Pair::adopted(SMALL_RING);
    pair2.words().head.store(1 << 40, Ordering::SeqCst);
    let result = pair2.a.send(&full, false);
    assert_eq!(result, Err(Errno(libc::ECONNRESET)));
}
