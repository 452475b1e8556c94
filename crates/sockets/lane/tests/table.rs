//! The end table: records are handed out once, come back, and a full table says so.
#![allow(unsafe_code)]

mod common;

use common::process::{Child, wait_for};
use sluice_lane::end::{END_BYTES, EndSnapshot, Role, State, Traffic};
use sluice_lane::reason::Reason;
use sluice_lane::table::ENDS;
use sluice_lane::totals::Totals;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

#[test]
fn full_table_refuses_and_finds_what_was_freed() {
    let table = common::new_table();
    let mut taken = HashSet::new();
    for _ in 0..ENDS {
        let (index, _) = table.take(false).expect("not full yet");
        assert!(taken.insert(index), "record {index} was handed out twice");
    }
    assert_eq!(table.take(false), None);
    let free = table.end(40_000);
    free.finish(free.generation());
    // One search is bounded; they go round.
    let found = (0..=ENDS / 64).find_map(|_| table.take(false));
    assert_eq!(found, Some((40_000, 1)));
    assert_eq!(table.take(false), None);
}

#[test]
fn records_of_a_killed_process_come_back_and_those_of_others_do_not() {
    const RECORDS: u32 = 1500;
    let table = common::new_table();
    let progress = common::process::shared_word();
    let child = Child::fork(|| {
        for number in 0..RECORDS {
            let Some((index, _)) = table.take(false) else {
                return 1;
            };
            let end = table.end(index);
            end.start(Role::Accepted);
            end.set_owner(std::process::id());
            match number % 3 {
                0 => {}
                // Shared, and shared once: another process may have it.
                1 => end.add_ref(),
                _ => {
                    end.add_ref();
                    end.drop_ref();
                }
            }
        }
        progress.store(1, Ordering::SeqCst);
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    });
    wait_for("the child's records", || {
        progress.load(Ordering::SeqCst) == 1
    });
    // This process's own, up to the next time to look.
    let mut own = HashSet::new();
    for _ in RECORDS..2048 {
        let (index, _) = table.take(true).unwrap();
        assert!(index >= RECORDS, "the child lives");
        table.end(index).start(Role::Connected);
        table.end(index).set_owner(std::process::id());
        own.insert(index);
    }
    child.kill();
    child.wait_dead();

    let mut back = HashSet::new();
    let (first, generation) = table.take(true).unwrap();
    assert_eq!((first, generation), (0, 1), "it waits for nobody to reap");
    back.insert(first);
    while let Some((index, 1)) = table.take(true) {
        assert!(back.insert(index), "record {index} was handed out twice");
        assert!(!own.contains(&index), "record {index} has a living owner");
        assert_eq!(index % 3, 0, "record {index} may be another process's");
        if back.len() == RECORDS as usize / 3 {
            break;
        }
    }
    assert_eq!(back.len(), RECORDS as usize / 3);
}

#[test]
fn full_table_gives_back_what_a_killed_process_had() {
    let table = common::new_table();
    let child = Child::fork(|| {
        while let Some((index, _)) = table.take(false) {
            table.end(index).start(Role::Accepted);
            table.end(index).set_owner(std::process::id());
        }
        0
    });
    assert_eq!(child.join(), 0);
    assert_eq!(table.take(false), None);
    assert!(table.take(true).is_some());
}

/// The kernel calls a process whose first thread has ended a zombie, while others run.
#[test]
fn records_of_a_process_whose_first_thread_has_ended_stay() {
    let table = common::new_table();
    let (word, seen) = (
        common::process::shared_word(),
        common::process::shared_word(),
    );
    let mut child = Child::fork(|| {
        for _ in 0..ENDS {
            let Some((index, _)) = table.take(false) else {
                return 1;
            };
            table.end(index).start(Role::Accepted);
            table.end(index).set_owner(std::process::id());
        }
        std::thread::spawn(|| {
            let path = format!("/proc/self/task/{}/stat", std::process::id());
            while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
                std::thread::yield_now();
            }
            word.store(1, Ordering::SeqCst);
            while seen.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            std::process::exit(0);
        });
        // SAFETY: ends this thread; nothing on its stack is used by the other one.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!("the thread has ended");
    });
    wait_for("the end of the first thread", || {
        word.load(Ordering::SeqCst) == 1
    });
    assert_eq!(table.take(true), None, "its owner lives");
    seen.store(1, Ordering::SeqCst);
    child.wait_dead();
    assert!(table.take(true).is_some(), "and is dead now");
    // SAFETY: our own child.
    unsafe { libc::waitpid(child.pid, std::ptr::null_mut(), 0) };
    child.pid = 0;
}

#[test]
fn record_used_again_names_a_new_life() {
    let table = common::new_table();
    let (index, generation) = table.take(false).unwrap();
    let end = table.end(index);
    let local: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let peer: SocketAddr = "[2001:db8::1]:8080".parse().unwrap();
    end.start(Role::Accepted);
    end.set_nonblocking(true);
    end.set_addresses(&local, &peer);
    assert!(end.mark_announced() && !end.mark_announced());
    // SAFETY: a record has END_BYTES, and no thread uses it now.
    let bytes: &[u8; END_BYTES] = unsafe { &*std::ptr::from_ref(end).cast() };
    let seen = EndSnapshot::from_bytes(bytes).unwrap();
    assert_eq!((seen.local, seen.peer), (local, peer));
    assert_eq!(
        (seen.state, seen.reason),
        (State::Announced, Reason::NoPeer)
    );
    end.finish(generation);
    assert_eq!(EndSnapshot::from_bytes(bytes), None);
    let (again, next) = table.take(false).unwrap();
    assert_eq!((again, next), (index, generation + 1));
    end.start(Role::Connected);
    assert!(!end.is_nonblocking());
    let seen = EndSnapshot::from_bytes(bytes).unwrap();
    assert!(seen.local.ip().is_unspecified() && seen.peer.ip().is_unspecified());
    end.finish(generation);
    assert_eq!(
        end.state(),
        State::Tracked,
        "the old life's name ends nothing"
    );
}

#[test]
fn what_ended_connections_moved_stays_in_the_table() {
    let table = common::new_table();
    table.describe(1);
    assert_eq!(table.closed(), Totals::default());
    for _ in 0..3 {
        let (index, generation) = table.take(false).unwrap();
        let end = table.end(index);
        end.start(Role::Connected);
        let mut sent = 0;
        let mut write = |piece: sluice_lane::Piece| {
            sent += piece.limit;
            Ok(piece.limit)
        };
        let byte = [7_u8; 5];
        let parts = [libc::iovec {
            iov_base: byte.as_ptr().cast_mut().cast(),
            iov_len: byte.len(),
        }];
        let request = sluice_lane::send::Request {
            parts: &parts,
            dontwait: true,
        };
        assert_eq!(
            sluice_lane::send::send(end, generation, -1, &request, &mut write),
            Ok(5)
        );
        table.retire(index, generation);
        // Its life is over, and counts once.
        table.retire(index, generation);
    }
    // Nobody ends the record of a process that was killed; the next search for a free one does.
    let (index, _) = table.take(true).unwrap();
    table.end(index).start(Role::Accepted);
    let expected = Totals {
        ends: 3,
        tcp_bytes: [0, 15],
        ..Totals::default()
    };
    assert_eq!(table.closed(), expected);
}

#[test]
fn garbage_is_no_record() {
    let mut bytes = [0xff; END_BYTES];
    assert_eq!(EndSnapshot::from_bytes(&bytes), None);
    let mut random = common::process::Random::new(7);
    for _ in 0..10_000 {
        bytes.fill_with(|| random.next() as u8);
        // State and reason are legal now and then.
        bytes[4] %= 5;
        bytes[5..8].fill(0);
        if let Some(seen) = EndSnapshot::from_bytes(&bytes) {
            assert_ne!(seen.state, State::Free);
        }
    }
}

#[test]
fn turnarounds_are_told_from_repeats() {
    let table = common::new_table();
    let (index, generation) = table.take(false).unwrap();
    let end = table.end(index);
    end.start(Role::Connected);
    let traffic = |turnarounds, repeats, is_turnaround| Traffic {
        turnarounds,
        repeats,
        is_turnaround,
    };
    // A request in two pieces, an answer in three, another request.
    let seen: Vec<_> = [true, true, false, false, false, true]
        .map(|is_write| end.count_operation(is_write))
        .into();
    let expected = [
        traffic(1, 0, true),
        traffic(1, 1, false),
        traffic(2, 1, true),
        traffic(2, 2, false),
        traffic(2, 3, false),
        traffic(3, 3, true),
    ];
    assert_eq!(seen, expected);
    // A reader that begins.
    end.restart_traffic();
    assert_eq!(end.count_operation(false), traffic(1, 0, true));
    assert_eq!(end.count_operation(false), traffic(1, 1, false));
    end.finish(generation);
}

#[test]
fn program_that_polls_by_reading_is_told_from_one_that_sleeps_in_between() {
    let table = common::new_table();
    let (index, _) = table.take(false).unwrap();
    let end = table.end(index);
    let clock = std::cell::Cell::new(0_u64);
    let reads = |count: u32, step_ns: u64, is_empty: bool| {
        for _ in 0..count {
            clock.set(clock.get() + step_ns);
            end.note_empty_read(is_empty, || clock.get());
        }
    };
    end.start(Role::Accepted);
    assert!(!end.is_wait_seen());
    reads(1000, 50_000, true);
    assert!(!end.is_wait_seen(), "it sleeps between its reads");
    for _ in 0..100 {
        reads(10, 300, true);
        reads(1, 300, false);
    }
    assert!(!end.is_wait_seen(), "most of its reads find something soon");
    reads(200, 300, true);
    assert!(end.is_wait_seen());
    // The next connection of this record starts anew.
    end.start(Role::Accepted);
    assert!(!end.is_wait_seen());
    end.note_wait();
    assert!(end.is_wait_seen());
    end.finish(end.generation());
}
