//! Single situations of the handover, each made on purpose.
#![allow(unsafe_code)]

mod common;

use common::process::{bounded, shared_word, wait_for};
use common::{BLOCK, DONTWAIT, PEEK, Pair, SMALL_RING, WAITALL, bytes_at, check_bytes};
use sluice_lane::wait::{self, Asked};
use sluice_shmem::direction::{Mode, Words};
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
    assert_eq!(
        pair.b.recv(&mut got[..50], BLOCK),
        Ok(50),
        "it enables its lane in mid-stream"
    );
    assert_eq!(pair.a.send(&stream[200..300], false), Ok(100));
    pair.a.end.shut_tx(pair.a.generation);
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
fn ring_bytes_count_only_when_all_that_comes_before_them_is_there() {
    let pair = Pair::announced(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    assert!(pair.a.attach() && pair.b.attach());
    let mut got = [0; 500];
    assert_eq!(pair.b.recv(&mut got[..50], BLOCK), Ok(50));
    assert_eq!(pair.a.send(&bytes_at(100, 200), false), Ok(200));
    let count = |queued| {
        pair.b
            .end
            .ring_bytes_behind(pair.b.generation, pair.b.fd, queued)
    };
    // 50 bytes come by TCP first.
    assert_eq!(
        [count(0), count(49), count(50), count(51)],
        [0, 0, 200, 200]
    );
    assert_eq!(pair.b.recv(&mut got[..50], BLOCK), Ok(50));
    assert_eq!(count(0), 200);
}

#[test]
fn sender_killed_between_busy_flag_and_publication() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    // What a process leaves that dies in the middle of a write.
    pair.there().begin_write(None);
    common::close(pair.a.fd);
    let got = bounded("a read behind a dead sender", move || {
        let mut got = [0; 100];
        let first = pair.b.recv(&mut got, BLOCK);
        (first, pair.b.recv(&mut got, BLOCK))
    });
    assert_eq!(got, (Ok(10), Ok(0)));
}

#[test]
fn sender_killed_between_busy_flag_and_publication_and_a_reader_that_never_blocks() {
    let pair = Pair::enabled(SMALL_RING);
    pair.there().begin_write(None);
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
    common::close(pair.a.fd);
    wait_for("the end of the stream", || {
        pair.b.recv(&mut got, DONTWAIT) == Ok(0)
    });
}

#[test]
fn reader_whose_sender_stopped_in_a_write_sleeps() {
    let pair = Pair::enabled(SMALL_RING);
    // Stopped in a write after a downgrade: the ring is empty, the mode is TCP.
    pair.there().begin_write(None);
    let thread = shared_word();
    let reader = std::thread::spawn(move || {
        // SAFETY: gettid takes nothing and cannot fail.
        thread.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
        pair.b.recv(&mut [0; 100], BLOCK)
    });
    wait_for("the reader", || thread.load(Ordering::SeqCst) != 0);
    let before = sleeps_of(thread.load(Ordering::SeqCst));
    wait_for("sleep in slices", || {
        sleeps_of(thread.load(Ordering::SeqCst)) > before + 5
    });
    pair.there().end_write();
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 7), 0), Ok(7));
    assert_eq!(reader.join().unwrap(), Ok(7));
}

/// How often a thread gave the processor away because it had to wait; yields do not count.
fn sleeps_of(thread: u32) -> u64 {
    let path = format!("/proc/self/task/{thread}/status");
    let status = std::fs::read_to_string(path).expect("a living thread");
    status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .expect("the kernel's count")
}

#[test]
fn connection_closed_by_another_thread_between_two_pieces_of_a_read() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    pair.a.end.shut_tx(pair.a.generation);
    let mut got = [0; 100];
    let mut calls = 0;
    let result = pair.b.recv_with(&mut got, WAITALL, &mut |_, _| {
        calls += 1;
        pair.b.end.finish(pair.b.generation);
        Err(Errno::AGAIN)
    });
    assert_eq!(
        result,
        Ok(10),
        "the ring's bytes are in the program's buffer"
    );
    assert_eq!(calls, 1, "the descriptor may name something else by now");
    check_bytes(0, &got[..10]);
}

#[test]
fn read_goes_on_where_the_way_changes() {
    // A program that gets less than it asked for takes it that nothing is left.
    let pair = Pair::enabled(SMALL_RING);
    let stream = bytes_at(0, 300);
    assert_eq!(pair.a.send(&stream[..100], false), Ok(100));
    pair.a.end.shut_tx(pair.a.generation);
    assert_eq!(pair.a.send(&stream[100..150], false), Ok(50));
    wait_for("the bytes by TCP", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(50)
    });
    let mut got = [0; 1000];
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(150), "ring, then TCP");
    check_bytes(0, &got[..150]);

    let pair = Pair::announced(SMALL_RING);
    assert_eq!(pair.a.send(&stream[..100], false), Ok(100));
    assert!(pair.a.attach() && pair.b.attach());
    // Enabled in mid-stream: the rest of the 100 bytes is owed before the ring's.
    assert_eq!(pair.b.recv(&mut got[..10], BLOCK), Ok(10));
    assert_eq!(pair.a.send(&stream[100..150], false), Ok(50));
    assert_eq!(pair.there().mode(), Mode::Ring);
    assert_eq!(
        pair.b.recv(&mut got[10..], BLOCK),
        Ok(140),
        "TCP, then ring"
    );
    check_bytes(0, &got[..150]);
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
}

#[test]
fn peek_sees_across_the_border_of_tcp_and_ring() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach());
    assert_eq!(
        pair.a.send(&bytes_at(0, 3), false),
        Ok(3),
        "by TCP: not enabled yet"
    );
    assert!(pair.b.look().is_some());
    assert_eq!(pair.a.send(&bytes_at(3, 2), false), Ok(2));
    pair.a.end.shut_tx(pair.a.generation);
    assert_eq!(pair.a.send(&bytes_at(5, 4), false), Ok(4));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 2);
    let mut got = [0; 16];
    // A program that waits for a header looks until it has all of it.
    wait_for("five bytes of a header", || {
        pair.b.recv(&mut got[..5], PEEK) == Ok(5)
    });
    check_bytes(0, &got[..5]);
    assert_eq!(pair.b.recv(&mut got[..3], BLOCK), Ok(3));
    wait_for("ring and TCP bytes behind it", || {
        pair.b.recv(&mut got, PEEK) == Ok(6)
    });
    check_bytes(3, &got[..6]);
    assert_eq!(pair.b.recv(&mut got[..6], WAITALL), Ok(6));
    check_bytes(3, &got[..6]);
}

#[test]
fn peek_with_waitall_waits_for_all() {
    let pair = Pair::enabled(SMALL_RING);
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
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 10), false), Ok(10));
    pair.a.reset();
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, WAITALL), Ok(10));
    assert!(
        pair.b.look().unwrap().error,
        "POLLERR until somebody is told"
    );
    assert_eq!(pair.b.recv(&mut got, BLOCK), Err(Errno(libc::ECONNRESET)));
    assert!(!pair.b.look().unwrap().error);
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(0));
}

#[test]
fn end_of_stream_is_read_as_soon_as_poll_tells() {
    for _ in 0..200 {
        let pair = Pair::enabled(SMALL_RING);
        assert_eq!(pair.a.send(b"x", false), Ok(1));
        let mut got = [0; 100];
        assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(1));
        assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
        // Killed: nothing but the kernel tells.
        common::close(pair.a.fd);
        wait_for("the end", || {
            sluice_lane::kernel::kernel_events(pair.b.fd, libc::POLLIN) != 0
        });
        // An edge-triggered program is told once: poll looks at the lane, then the program reads.
        assert!(pair.b.look().is_some());
        assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(0));
        pair.b.close();
    }
}

#[test]
fn switch_offset_that_changes_between_two_looks() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 5), 0), Ok(5));
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(5));
    pair.there().publish_mode(Mode::Ring, 0);
    let is_done = shared_word();
    let peer = std::thread::spawn(move || {
        let there = pair.there();
        while is_done.load(Ordering::Relaxed) == 0 {
            for switch_offset in [0, 1 << 40] {
                there.publish_mode(Mode::Ring, switch_offset);
                // Long enough for the reader to see each of them.
                (0..20).for_each(|_| std::hint::spin_loop());
            }
        }
    });
    for _ in 0..400_000 {
        let result = pair.b.recv(&mut got, DONTWAIT);
        assert!(result.is_err(), "{result:?} though nothing was sent");
    }
    is_done.store(1, Ordering::Relaxed);
    peer.join().unwrap();
}

#[test]
fn broken_lane_stays_broken() {
    let pair = Pair::enabled(SMALL_RING);
    let tail = pair.a.words().tail(0);
    tail.store(u64::MAX, Ordering::SeqCst);
    let mut got = [0; 100];
    let reset = Err(Errno(libc::ECONNRESET));
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), reset);
    tail.store(0, Ordering::SeqCst);
    assert_eq!(
        pair.b.recv(&mut got, DONTWAIT),
        reset,
        "bytes may be missing"
    );
    assert!(pair.b.send(b"x", true).is_err());
}

#[test]
fn head_that_jumps_breaks_the_senders_connection() {
    let pair = Pair::enabled(SMALL_RING);
    pair.a.words().head(0).store(1 << 40, Ordering::SeqCst);
    let more_than_fits = vec![0; 2 * SMALL_RING as usize];
    let reset = Err(Errno(libc::ECONNRESET));
    assert_eq!(pair.a.send(&more_than_fits, false), reset);
    pair.a.words().head(0).store(0, Ordering::SeqCst);
    assert_eq!(pair.a.send(&more_than_fits, false), reset);
}

#[test]
fn small_blocking_write_is_not_cut_by_a_full_ring() {
    let pair = Pair::enabled(SMALL_RING);
    let almost = SMALL_RING as usize - 8;
    assert_eq!(pair.a.send(&bytes_at(0, almost), true), Ok(almost));
    assert_eq!(pair.a.send(&bytes_at(almost as u64, 64), false), Ok(64));
    let snapshot = pair.a.snapshot();
    assert_eq!(snapshot.ring_tx_bytes, almost as u64);
    assert_eq!(snapshot.tcp_tx_bytes, 64);
    let mut got = vec![0; almost + 64];
    assert_eq!(pair.b.recv(&mut got, WAITALL), Ok(almost + 64));
    check_bytes(0, &got);
}

#[test]
fn lane_assigned_twice_is_the_same_lane() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.b.send(&bytes_at(0, 10), false), Ok(10));
    assert!(pair.a.attach());
    // A thread in poll, which keeps an end from enabling.
    let asleep = sluice_lane::wait::announce(pair.a.end, pair.a.generation);
    assert_eq!(
        asleep.err(),
        Some(wait::Refused::Awake),
        "the ring has bytes"
    );
    let mut got = [0; 10];
    assert_eq!(pair.a.recv(&mut got, DONTWAIT), Ok(10));
}

#[test]
fn tcp_bytes_are_read_while_the_sender_is_stopped_in_a_write() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 7), 0), Ok(7));
    wait_for("the bytes", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(7)
    });
    pair.there().begin_write(None);
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got, PEEK), Ok(7));
    assert_eq!(pair.b.recv(&mut got[..3], BLOCK), Ok(3));
    assert_eq!(pair.b.recv(&mut got[3..], DONTWAIT), Ok(4));
    check_bytes(0, &got[..7]);
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
    // It goes on: what it was about to write comes behind them.
    pair.there().end_write();
    assert_eq!(pair.a.send(&bytes_at(7, 10), false), Ok(10));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 10);
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(10));
    check_bytes(7, &got[..10]);
}

/// Its FIN waits behind bytes for which the reader has no room.
#[test]
fn sender_killed_in_a_write_with_megabytes_queued() {
    let pair = Pair::enabled(SMALL_RING);
    let stream = bytes_at(0, 100_000);
    let mut queued = 0;
    while let Ok(bytes) = common::kernel_send(pair.a.fd, &stream, libc::MSG_DONTWAIT) {
        queued += bytes;
    }
    assert!(queued > 1 << 20);
    pair.there().begin_write(None);
    common::close(pair.a.fd);
    let read = bounded("a read behind a dead sender", move || {
        let mut got = vec![0; 50_000];
        let mut read = 0;
        loop {
            match pair.b.recv(&mut got, BLOCK).unwrap() {
                0 => return read,
                bytes => read += bytes,
            }
        }
    });
    assert_eq!(read, queued);
}

#[test]
fn lane_is_not_enabled_while_a_reader_is_inside_the_kernel() {
    let pair = Pair::announced(SMALL_RING);
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(0, 7), 0), Ok(7));
    let mut got = [0; 100];
    let result = pair.b.recv_with(&mut got, BLOCK, &mut |_, rest| {
        // Other threads, while this one reads what nobody has counted yet.
        assert!(pair.a.attach() && pair.b.attach());
        assert!(pair.b.look().is_none());
        common::kernel_recv(pair.b.fd, rest, 0)
    });
    assert_eq!(result, Ok(7));
    assert!(pair.b.look().is_some());
    assert_eq!(pair.a.send(&bytes_at(7, 10), false), Ok(10));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 10);
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(10));
    check_bytes(7, &got[..10]);
}

#[test]
fn bytes_that_were_reported_are_read_although_sluiced_grants_the_ring_in_between() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_remote());
    assert!(pair.b.look().is_some(), "it enables its lane");
    let stream = bytes_at(0, 30);
    assert_eq!(common::kernel_send(pair.a.fd, &stream[..20], 0), Ok(20));
    wait_for("the bytes", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(20)
    });
    assert!(wait::assure(pair.b.end, pair.b.generation));
    assert!(wait::assure(pair.b.end, pair.b.generation), "once more");
    assert!(!pair.there().begin_write(None), "grants behind a promise");
    assert_eq!(common::kernel_send(pair.a.fd, &stream[20..], 0), Ok(10));
    wait_for("more bytes", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(30)
    });
    let ready = pair.b.look().expect("a lane");
    assert!(!ready.in_flight && !ready.kernel_waits, "{ready:?}");
    let mut got = [0; 100];
    assert_eq!(pair.b.recv(&mut got[..20], PEEK), Ok(20));
    assert!(!pair.there().begin_write(None), "a look keeps the promise");
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(30));
    assert_eq!(got[..30], stream);
    // What comes behind a grant waits for what may come by the ring.
    assert!(pair.there().begin_write(None));
    assert_eq!(common::kernel_send(pair.a.fd, &bytes_at(30, 10), 0), Ok(10));
    wait_for("bytes behind the grant", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(10)
    });
    assert!(pair.b.look().expect("a lane").kernel_waits);
    assert!(!wait::assure(pair.b.end, pair.b.generation));
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Err(Errno::AGAIN));
    pair.there().end_write();
    assert_eq!(pair.b.recv(&mut got, DONTWAIT), Ok(10));
}

#[test]
fn a_read_that_gets_all_there_is_or_nothing_says_that_the_kernel_has_no_more() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach());
    assert!(pair.b.look().is_some(), "it enables its lane");
    let end = pair.b.end;
    let read = |len: usize| {
        let asked = Asked::now(end);
        let mut buffer = vec![0; len];
        (pair.b.recv(&mut buffer, DONTWAIT), asked.is_drained(end))
    };
    assert_eq!(read(10), (Err(Errno::AGAIN), true));
    assert_eq!(common::kernel_send(pair.a.fd, &[1; 15], 0), Ok(15));
    wait_for("the bytes", || {
        sluice_sys::tcp::unread_bytes(pair.b.fd) == Ok(15)
    });
    assert_eq!(read(10), (Ok(10), false), "there may be more");
    assert_eq!(read(10), (Ok(5), true));
    assert!(!Asked::now(end).is_drained(end), "nobody has read since");
}

#[test]
fn a_lane_that_is_to_wait_is_left_alone_both_ways_until_then() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_patiently());
    let mut got = [0; 100];
    for _ in 0..3 {
        assert!(pair.b.look().is_none(), "does not enable it");
        assert_eq!(pair.a.send(&[1; 10], false), Ok(10));
        assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(10));
        assert!(pair.a.look().is_some(), "it enables its lane");
        assert_eq!(pair.b.send(&[2; 10], false), Ok(10));
        assert_eq!(pair.a.recv(&mut got, BLOCK), Ok(10));
    }
    for side in [pair.a, pair.b] {
        assert_eq!(side.snapshot().ring_tx_bytes, 0);
    }
    pair.b.end.end_patience(0);
    assert!(pair.b.look().is_some(), "it enables its lane");
    assert_eq!(pair.a.send(&[3; 10], false), Ok(10));
    assert_eq!(pair.b.send(&[4; 10], false), Ok(10));
    for side in [pair.a, pair.b] {
        assert_eq!(side.snapshot().ring_tx_bytes, 10);
    }
}

#[test]
fn calls_that_take_the_short_way_are_counted_when_the_patience_ends_under_them() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_patiently());
    assert!(pair.a.look().is_some(), "it enables its lane");
    let (end, generation, fd) = (pair.b.end, pair.b.generation, pair.b.fd);
    let mut got = [0; 10];

    assert_eq!(pair.a.send(&[1; 10], false), Ok(10));
    let read = end.read_patiently(generation, 10, || {
        end.end_patience(0);
        assert!(pair.b.look().is_none(), "nobody knows what this call takes");
        assert_eq!(pair.a.send(&[2; 10], false), Ok(10));
        common::kernel_recv(fd, &mut got, 0)
    });
    assert_eq!(read, Some(Ok(10)));
    assert!(pair.b.look().is_some(), "it enables its lane");
    assert_eq!(pair.a.send(&[3; 10], false), Ok(10));
    for expected in [2, 3] {
        assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(10));
        assert_eq!(got, [expected; 10]);
    }
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 10);
    assert!(
        end.read_patiently(generation, 1, || unreachable!())
            .is_none()
    );
    assert!(end.write_patiently(generation, || unreachable!()).is_none());
}

#[test]
fn a_write_by_the_short_way_keeps_others_from_the_ring_when_the_patience_ends_under_it() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_patiently());
    assert!(pair.a.look().is_some(), "it enables its lane");
    let (end, generation, fd) = (pair.b.end, pair.b.generation, pair.b.fd);

    let began_ns = || sluice_lane::wait::tcp_began_ns(pair.a.end);
    assert_eq!(began_ns(), 0);
    let written = end.write_patiently(generation, || {
        assert_ne!(began_ns(), 0, "by which readers put it in order");
        end.end_patience(0);
        assert_eq!(pair.b.send(&[1; 10], false), Ok(10));
        assert_eq!(pair.b.snapshot().ring_tx_bytes, 0, "to TCP");
        common::kernel_send(fd, &[2; 10], 0)
    });
    assert_eq!(written, Some(Ok(10)));
    assert_eq!(pair.b.send(&[3; 10], false), Ok(10));
    assert_eq!(pair.b.snapshot().ring_tx_bytes, 10);
    assert_eq!(pair.b.snapshot().tcp_tx_bytes, 20);
    let mut got = [0; 10];
    for expected in [1, 2, 3] {
        assert_eq!(pair.a.recv(&mut got, BLOCK), Ok(10));
        assert_eq!(got, [expected; 10]);
    }
}

#[test]
fn what_is_more_than_the_kernels_call_does_not_take_the_short_way() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.b.attach_patiently());
    let (end, generation) = (pair.b.end, pair.b.generation);
    assert!(
        end.read_patiently(generation + 1, 1, || unreachable!())
            .is_none()
    );
    assert_eq!(
        end.write_patiently(generation, || Err(Errno::PIPE)),
        Some(Err(Errno::PIPE))
    );
    end.pin(generation, sluice_lane::reason::Reason::Urgent);
    assert!(
        end.read_patiently(generation, 1, || unreachable!())
            .is_none()
    );
    assert!(end.write_patiently(generation, || unreachable!()).is_none());
}

#[test]
fn a_lane_that_is_in_use_is_not_made_to_wait_by_being_told_of_it_again() {
    let pair = Pair::enabled(SMALL_RING);
    assert!(pair.b.attach_patiently(), "told twice");
    assert!(pair.b.end.has_usable_lane());
    assert_eq!(pair.a.send(&[1; 10], false), Ok(10));
    assert!(pair.b.look().expect("in use").readable);
}
