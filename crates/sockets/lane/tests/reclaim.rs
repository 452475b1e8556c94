//! A connection whose socket is given away while bytes for it are in the ring.
#![allow(unsafe_code)]

mod common;

use common::process::bounded;
use common::{BLOCK, DONTWAIT, PEEK, Pair, SMALL_RING, Side};
use common::{bytes_at, check_bytes, kernel_recv};
use sluice_lane::clock::now_ns;
use sluice_lane::confined;
use sluice_lane::end::{Assignment, Carried, Role};
use sluice_lane::reason::Reason;
use sluice_lane::reclaim::{self, Fetched};
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::{Reclaim, Words};
use sluice_shmem::geometry::Geometry;
use sluice_sys::errno::Errno;
use sluice_sys::socket_note;
use std::sync::Barrier;
use std::time::Duration;

/// Longer than any machine takes to run a thread; nothing waits for it in a test that passes.
const LONG_NS: u64 = 120_000_000_000;

fn give_away(pair: &Pair, deadline_ns: u64, help: &mut dyn FnMut()) -> Fetched {
    pair.b.end.pin(pair.b.generation, Reason::Shared);
    reclaim::fetch(pair.b.end, pair.b.generation, pair.b.fd, deadline_ns, help)
}

/// What a program without Sluice reads from the socket, all of `len` bytes.
fn stranger_reads(fd: i32, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    assert_eq!(kernel_recv(fd, &mut got, libc::MSG_WAITALL), Ok(len));
    got
}

#[test]
fn unread_bytes_go_back_and_come_by_tcp_before_later_ones() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    let mut got = [0; 30];
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(30));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 100, "by the ring");

    let sender = pair.a;
    let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
    let fetched = give_away(&pair, now_ns() + LONG_NS, &mut help);
    assert_eq!(fetched, Fetched::All);
    assert_eq!(pair.a.send(&bytes_at(100, 50), false), Ok(50));
    check_bytes(30, &stranger_reads(pair.b.fd, 120));
    let mut more = [0; 1];
    assert!(kernel_recv(pair.b.fd, &mut more, libc::MSG_DONTWAIT).is_err());
}

/// splice, another program that has the socket, the C library by itself: what they have written is behind the ring's bytes.
#[test]
fn bytes_are_not_taken_back_behind_those_of_others() {
    type Write = fn(&Side, &[u8]);
    let unseen: Write = |side, bytes| {
        side.end.pin(side.generation, Reason::Shared);
        assert_eq!(common::kernel_send(side.fd, bytes, 0), Ok(bytes.len()));
    };
    let seen: Write = |side, bytes| {
        let call = &mut || common::kernel_send(side.fd, bytes, 0);
        let sent = sluice_lane::send::through_kernel(side.end, side.generation, side.fd, call);
        assert_eq!(sent, Ok(bytes.len()));
    };
    let announced: Write = |side, bytes| {
        sluice_lane::send::leave_to_others(side.end, side.generation, side.fd);
        assert_eq!(common::kernel_send(side.fd, bytes, 0), Ok(bytes.len()));
    };
    for write in [unseen, seen, announced] {
        let pair = Pair::enabled(SMALL_RING);
        assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
        write(&pair.a, &bytes_at(100, 50));
        let sender = pair.a;
        let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
        let fetched = give_away(&pair, now_ns() + LONG_NS, &mut help);
        assert_eq!(fetched, Fetched::Left(100));
        let mut got = [0; 150];
        let mut done = 0;
        while done < got.len() {
            done += pair.b.recv(&mut got[done..], BLOCK).unwrap();
        }
        check_bytes(0, &got);
    }
}

#[test]
fn bytes_that_go_round_the_rings_end_come_back_in_order() {
    let pair = Pair::enabled(SMALL_RING);
    let (mut sent, mut read) = (0, 0);
    let step = SMALL_RING as usize / 2 + 1000;
    while sent < 3 * u64::from(SMALL_RING) {
        // The ring is never empty, so that the sender does not return to the ring's start.
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
    let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
    assert_eq!(
        give_away(&pair, now_ns() + LONG_NS, &mut help),
        Fetched::All
    );
    check_bytes(read, &stranger_reads(pair.b.fd, (sent - read) as usize));
}

#[test]
fn a_sender_that_waits_for_bytes_answers() {
    let pair = Pair::enabled(SMALL_RING);
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
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    let fetched = give_away(&pair, now_ns(), &mut || {});
    assert_eq!(fetched, Fetched::Left(100));
    // Too late: the wish was taken back.
    reclaim::look(pair.a.end, pair.a.generation, pair.a.fd);
    assert_eq!(pair.a.send(&bytes_at(100, 10), false), Ok(10));
    let mut got = [0; 110];
    let mut read = 0;
    while read < got.len() {
        read += pair.b.recv(&mut got[read..], BLOCK).expect("bytes");
    }
    check_bytes(0, &got);
}

#[test]
fn a_write_of_nothing_keeps_no_bytes_from_going_back() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    assert_eq!(pair.a.send(&[], false), Ok(0));
    assert_eq!(pair.a.send(&bytes_at(100, 100), false), Ok(100));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 200, "by the ring");
    let sender = pair.a;
    let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
    let fetched = give_away(&pair, now_ns() + LONG_NS, &mut help);
    assert_eq!(fetched, Fetched::All);
    check_bytes(0, &stranger_reads(pair.b.fd, 200));
}

#[test]
fn bytes_before_later_tcp_bytes_cannot_go_back() {
    let pair = Pair::enabled(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
    // The sender is told to stay on TCP: what it writes now is behind the ring's bytes.
    pair.a.end.pin(pair.a.generation, Reason::KernelCall);
    assert_eq!(pair.a.send(&bytes_at(100, 10), false), Ok(10));
    let sender = pair.a;
    let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
    assert_eq!(
        give_away(&pair, now_ns() + LONG_NS, &mut help),
        Fetched::Left(100)
    );
    let mut got = [0; 110];
    assert_eq!(pair.b.recv(&mut got[..100], BLOCK), Ok(100));
    assert_eq!(pair.b.recv(&mut got[100..], BLOCK), Ok(10));
    check_bytes(0, &got);
}

#[test]
fn a_sender_stopped_in_the_middle_of_a_write_is_told_from_one_that_has_finished() {
    let pair = Pair::enabled(SMALL_RING);
    assert!(pair.there().begin_write(None), "the reader is awake");
    let fetched = give_away(&pair, now_ns(), &mut || {});
    assert_eq!(fetched, Fetched::Unfinished);
    // Behind its FIN nobody is left to finish.
    assert_eq!(common::kernel_send(pair.a.fd, b"x", 0), Ok(1));
    common::close(pair.a.fd);
    // The FIN may take a moment.
    common::process::wait_for("the end of the stream", || {
        give_away(&pair, now_ns(), &mut || {}) == Fetched::All
    });
}

/// Each end asks the other while a thread closes each: four threads that once waited in a circle.
#[test]
fn both_ends_ask_while_both_are_closed() {
    bounded("all four threads", || {
        let pair = Pair::enabled(SMALL_RING);
        let (a, b) = (pair.a, pair.b);
        assert_eq!(a.send(&bytes_at(0, 100), false), Ok(100));
        assert_eq!(b.send(&bytes_at(0, 100), false), Ok(100));
        for side in [a, b] {
            side.end.pin(side.generation, Reason::Shared);
        }
        let asking = Barrier::new(4);
        let answered = Barrier::new(2);
        std::thread::scope(|scope| {
            for (asker, asked) in [(a, b), (b, a)] {
                let (asking, answered) = (&asking, &answered);
                scope.spawn(move || {
                    let mut help = || {
                        asking.wait();
                        // For the closing threads to get to the locks. Too short, this shows
                        // nothing; it cannot fail.
                        std::thread::sleep(Duration::from_millis(50));
                        reclaim::look(asked.end, asked.generation, asked.fd);
                        // An end that is closed first would not answer.
                        answered.wait();
                    };
                    let deadline_ns = now_ns() + LONG_NS;
                    let (end, generation) = (asker.end, asker.generation);
                    let fetched = reclaim::fetch(end, generation, asker.fd, deadline_ns, &mut help);
                    assert_eq!(fetched, Fetched::All);
                });
                scope.spawn(move || {
                    asking.wait();
                    asker.end.finish(asker.generation);
                });
            }
        });
    });
}

/// A lane for unread bytes, in memory of its own.
fn lane_of_its_own(side: Side) -> Assignment {
    let geometry = Geometry::new(1, SMALL_RING).expect("a legal geometry");
    let memory = common::shared_memory(geometry.chunk_bytes() as usize);
    Assignment {
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        chunk: unsafe { Chunk::from_raw(memory, geometry) },
        lane: 0,
        side: 1,
        peer_parking: None,
        own_parking: side.parking,
        watchers: 0,
        remote: false,
        direct: false,
        patient: false,
    }
}

/// The connection as the next program of the process sees it: the same socket, a new record.
fn heir(side: Side) -> Side {
    let table = Box::leak(Box::new(common::new_table()));
    let (index, generation) = table.take(false).expect("a free record");
    let mut heir = side;
    (heir.end, heir.generation) = (table.end(index), generation);
    heir.end.start(Role::Unknown);
    heir
}

fn take_out(side: Side) -> Option<(Carried, Vec<u8>)> {
    let mut bytes = Vec::new();
    let carried = side.end.take_out(side.generation, &mut |piece| {
        bytes.extend_from_slice(piece);
        true
    })?;
    assert_eq!(carried.bytes, bytes.len());
    Some((carried, bytes))
}

fn copy_out(side: Side) -> Option<(Carried, Vec<u8>)> {
    let mut bytes = Vec::new();
    let carried = side.end.copy_out(side.generation, side.fd, &mut |piece| {
        bytes.extend_from_slice(piece);
        true
    })?;
    assert_eq!(carried.bytes, bytes.len());
    Some((carried, bytes))
}

fn resume(heir: Side, carried: Carried, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let (end, generation) = (heir.end, heir.generation);
    let a = lane_of_its_own(heir);
    end.resume(generation, heir.fd, &a, carried, &mut |piece| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        true
    })
}

/// 40 bytes by TCP, 9000 by the ring, 10 by TCP; the receiver is pinned and was refused.
fn three_segments() -> Pair {
    let pair = Pair::announced(SMALL_RING);
    assert_eq!(pair.a.send(&bytes_at(0, 40), false), Ok(40));
    for side in [pair.a, pair.b] {
        assert!(side.attach());
        assert!(side.look().is_some());
    }
    assert_eq!(pair.a.send(&bytes_at(40, 9000), false), Ok(9000));
    assert_eq!(pair.a.snapshot().ring_tx_bytes, 9000, "by the ring");
    pair.a.end.pin(pair.a.generation, Reason::KernelCall);
    assert_eq!(pair.a.send(&bytes_at(9040, 10), false), Ok(10));
    let sender = pair.a;
    let mut help = || reclaim::look(sender.end, sender.generation, sender.fd);
    let fetched = give_away(&pair, now_ns() + LONG_NS, &mut help);
    assert_eq!(fetched, Fetched::Left(9000));
    pair
}

fn read_on(side: Side, from: u64, len: usize) {
    let mut got = vec![0; len];
    let mut read = 0;
    while read < len {
        match side.recv(&mut got[read..], BLOCK) {
            Ok(bytes @ 1..) => read += bytes,
            end => panic!("{end:?} behind {read} bytes"),
        }
    }
    check_bytes(from, &got);
}

#[test]
fn bytes_that_stay_in_the_ring_are_read_in_their_place_by_the_next_program() {
    let pair = three_segments();
    let (carried, bytes) = take_out(pair.b).expect("unread bytes");
    assert_eq!((carried.switch_offset, bytes.len()), (40, 9000));
    let heir = heir(pair.b);
    assert!(resume(heir, carried, &bytes));
    assert_eq!(heir.end.unread_ring_bytes(heir.generation, heir.fd), 9000);
    let mut peeked = [0; 200];
    assert_eq!(heir.recv(&mut peeked, PEEK), Ok(200));
    check_bytes(0, &peeked);
    read_on(heir, 0, 100);
    assert!(heir.look().is_some_and(|ready| ready.readable));
    read_on(heir, 100, 8950);
    assert!(heir.look().is_none(), "it is the kernel's again");
    assert_eq!(pair.a.send(&bytes_at(9050, 10), false), Ok(10));
    read_on(heir, 9050, 10);
    assert_eq!(heir.send(b"back", false), Ok(4));
    let mut got = [0; 4];
    assert_eq!(pair.a.recv(&mut got, BLOCK), Ok(4));
}

#[test]
fn the_next_program_hands_on_what_it_did_not_read() {
    let pair = three_segments();
    let (carried, bytes) = take_out(pair.b).expect("unread bytes");
    let first = heir(pair.b);
    assert!(resume(first, carried, &bytes));
    read_on(first, 0, 1000);
    // Nobody is left to be asked, so nobody is waited for.
    first.end.pin(first.generation, Reason::Shared);
    let (end, generation) = (first.end, first.generation);
    let fetched = reclaim::fetch(end, generation, first.fd, u64::MAX, &mut || {});
    assert_eq!(fetched, Fetched::Left(8040));
    let (carried, bytes) = take_out(first).expect("unread bytes");
    let second = heir(first);
    assert!(resume(second, carried, &bytes));
    read_on(second, 1000, 8050);
}

#[test]
fn whoever_reads_first_gets_the_bytes_of_which_others_have_copies() {
    let pair = three_segments();
    let (carried, bytes) = copy_out(pair.b).expect("unread bytes");
    assert_eq!((carried.switch_offset, bytes.len()), (40, 9000));
    let heir = heir(pair.b);
    assert!(resume(heir, carried, &bytes));
    // Those before the ring's, too, which each reads from the kernel.
    read_on(pair.b, 0, 30);
    read_on(heir, 30, 1000);
    let unread = |side: Side| side.end.unread_ring_bytes(side.generation, side.fd);
    assert_eq!((unread(pair.b), unread(heir)), (8010, 8010));
    let mut peeked = [0; 200];
    for side in [heir, pair.b] {
        assert_eq!(side.recv(&mut peeked, PEEK), Ok(200));
        check_bytes(1030, &peeked);
    }
    read_on(pair.b, 1030, 70);
    // Copied again by who was given a copy.
    let (carried, bytes) = copy_out(heir).expect("unread bytes");
    assert_eq!((carried.switch_offset, bytes.len()), (40, 7940));
    let third = self::heir(heir);
    assert!(resume(third, carried, &bytes));
    let mut from = 1100;
    for side in [third, heir, pair.b, pair.b, heir, third] {
        assert!(side.look().is_some_and(|ready| ready.readable));
        read_on(side, from, 1000);
        from += 1000;
    }
    // The sender would send them once more.
    let fetched = reclaim::fetch(heir.end, heir.generation, heir.fd, u64::MAX, &mut || {});
    assert_eq!(fetched, Fetched::Left(1940));
    read_on(heir, 7100, 1950);
    for side in [pair.b, third, heir] {
        assert_eq!(unread(side), 0);
        let mut byte = [0];
        assert_eq!(side.recv(&mut byte, DONTWAIT), Err(Errno::AGAIN));
        assert!(side.look().is_none(), "it is the kernel's again");
        assert!(!side.end.has_copies());
    }
    assert_eq!(pair.a.send(&bytes_at(9050, 20), false), Ok(20));
    read_on(third, 9050, 10);
    read_on(pair.b, 9060, 10);
    // One that comes late finds that all were read.
    let late = self::heir(heir);
    assert!(!resume(late, carried, &bytes), "and more than these");
}

#[test]
fn a_reader_beside_others_fails_when_nothing_says_what_they_have_read() {
    for lie in [None, Some(9001), Some(socket_note::NUMBER_MAX)] {
        let pair = three_segments();
        let (carried, bytes) = copy_out(pair.b).expect("unread bytes");
        let heir = heir(pair.b);
        assert!(resume(heir, carried, &bytes));
        match lie {
            None => socket_note::remove(heir.fd).expect("there was one"),
            Some(number) => socket_note::write(heir.fd, number).expect("a note"),
        }
        let mut got = [0; 10];
        let reset = Err(Errno(libc::ECONNRESET));
        assert_eq!(heir.recv(&mut got, BLOCK), reset, "{lie:?}");
        assert_eq!(pair.b.recv(&mut got, BLOCK), reset, "{lie:?}");
    }
}

#[test]
fn nothing_is_copied_where_nothing_can_be_noted() {
    let pair = three_segments();
    socket_note::write(pair.b.fd, 5).expect("somebody else's bytes");
    assert!(copy_out(pair.b).is_none());
    socket_note::remove(pair.b.fd).expect("there was one");
    read_on(pair.b, 0, 9050);
}

#[test]
fn bytes_taken_out_are_put_back_when_the_next_program_does_not_start() {
    let pair = three_segments();
    read_on(pair.b, 0, 50);
    assert!(
        pair.b
            .end
            .take_out(pair.b.generation, &mut |_| false)
            .is_none(),
        "nobody took them"
    );
    assert!(take_out(pair.b).is_some());
    assert!(take_out(pair.b).is_none(), "they are taken once");
    assert_eq!(
        pair.b.end.unread_ring_bytes(pair.b.generation, pair.b.fd),
        0
    );
    pair.b.end.put_back(pair.b.generation);
    read_on(pair.b, 50, 9000);
}

#[test]
fn unread_bytes_that_have_lost_their_place_are_refused() {
    let pair = three_segments();
    let (carried, bytes) = take_out(pair.b).expect("unread bytes");
    // Somebody has read 41 bytes of what TCP delivers, 40 of which come before the ring's.
    stranger_reads(pair.b.fd, 41);
    let heir = heir(pair.b);
    assert!(!resume(heir, carried, &bytes));
    let lane = lane_of_its_own(heir);
    heir.end.refuse_reading(heir.generation, &lane);
    assert!(
        heir.look().is_some_and(|ready| ready.readable),
        "who waits is told"
    );
    let mut got = [0; 10];
    for how in [BLOCK, DONTWAIT, PEEK] {
        assert_eq!(heir.recv(&mut got, how), Err(Errno(libc::ECONNRESET)));
    }
    assert_eq!(heir.send(b"back", false), Ok(4), "writing is not concerned");
}

#[test]
fn a_sender_confined_to_read_and_write_refuses() {
    let child = common::process::Child::fork(|| {
        confined::refuse();
        let pair = Pair::enabled(SMALL_RING);
        assert_eq!(pair.a.send(&bytes_at(0, 100), false), Ok(100));
        pair.there().ask_reclaim();
        // SAFETY: numbers only. Any other call than read, write and exit kills from here on.
        unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0);
        }
        reclaim::look(pair.a.end, pair.a.generation, pair.a.fd);
        let code = i32::from(pair.there().reclaim() != Reclaim::Refused);
        // SAFETY: ends this thread, the only one; the C library's exit is another call.
        unsafe { libc::syscall(libc::SYS_exit, code) };
        code
    });
    assert_eq!(child.join(), 0);
}
