//! Lanes to other hosts whose sluiced is gone: what may be missing resets the connection, for all who have it. And what
//! splice(2) gets of such a lane.
#![allow(unsafe_code)]

mod common;

use common::{BLOCK, DONTWAIT, Pair, SMALL_RING, bytes_at, kernel_recv, kernel_send};
use sluice_lane::kernel::kernel_events;
use sluice_lane::reason::Reason;
use sluice_lane::receive::{Given, Taker, give};
use sluice_lane::reclaim::{self, Fetched};
use sluice_shmem::direction::Words;
use sluice_sys::errno::Errno;
use std::sync::mpsc;
use std::thread;

const RESET: Result<usize, Errno> = Err(Errno(libc::ECONNRESET));

fn pair() -> Pair {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_remote());
    assert!(pair.b.look().is_some(), "it enables its lane");
    pair
}

#[test]
fn a_connection_whose_ring_was_granted_is_reset_and_who_sleeps_in_the_kernel_wakes() {
    let pair = pair();
    assert!(pair.there().begin_write(None));
    assert!(pair.b.look().expect("a lane").granted);
    let (tell, told) = mpsc::channel();
    let fd = pair.b.fd;
    let sleeper = thread::spawn(move || {
        tell.send(()).expect("heard");
        // By a way that the library does not see.
        kernel_recv(fd, &mut [0; 1], 0)
    });
    told.recv().expect("it is about to sleep");
    pair.b.end.lose_carrier(pair.b.generation, fd);
    // What the kernel says depends on whether the thread slept already.
    assert!(sleeper.join().expect("no panic").is_err());
    let ready = pair.b.look().expect("a lane");
    assert!(ready.readable && ready.writable == Some(true), "{ready:?}");
    assert_ne!(kernel_events(fd, 0) & libc::POLLHUP, 0);
    assert_eq!(pair.b.recv(&mut [0; 1], DONTWAIT), RESET);
    assert_eq!(pair.b.recv(&mut [0; 1], BLOCK), RESET);
    assert_eq!(pair.b.send(&[1], true), RESET);
    assert_eq!(pair.b.snapshot().reason, Reason::Broken);
    assert_eq!(kernel_recv(pair.a.fd, &mut [0; 1], 0), RESET, "the peer");
}

#[test]
fn a_connection_whose_ring_was_not_granted_goes_on_by_tcp() {
    let pair = pair();
    let stream = bytes_at(0, 20);
    pair.b.end.lose_carrier(pair.b.generation, pair.b.fd);
    assert_eq!(kernel_send(pair.a.fd, &stream, 0), Ok(20));
    let mut got = [0; 20];
    assert_eq!(pair.b.recv(&mut got, BLOCK), Ok(20));
    assert_eq!(got, *stream);
    assert_eq!(pair.b.send(&stream, false), Ok(20));
    assert_eq!(kernel_recv(pair.a.fd, &mut got, 0), Ok(20));
    assert_eq!(pair.b.snapshot().reason, Reason::NoDaemon);
}

#[test]
fn a_number_that_is_another_connection_by_now_is_left_alone() {
    let (pair, other) = (pair(), pair());
    assert!(pair.there().begin_write(None));
    pair.b.end.lose_carrier(pair.b.generation, other.b.fd);
    assert_eq!(pair.b.snapshot().reason, Reason::Broken);
    assert_eq!(kernel_send(other.a.fd, &[7], 0), Ok(1));
    assert_eq!(other.b.recv(&mut [0; 1], BLOCK), Ok(1));
}

/// sluiced has ended a grant of which bytes are missing, as its peer is gone.
#[test]
fn a_connection_with_missing_bytes_is_reset_before_it_is_given_away() {
    for asks_first in [false, true] {
        let pair = pair();
        assert!(pair.there().begin_write(None));
        pair.there().break_reader();
        pair.there().end_write();
        let (end, generation, fd) = (pair.b.end, pair.b.generation, pair.b.fd);
        end.pin(generation, Reason::Shared);
        if asks_first {
            assert_eq!(end.unread_ring_bytes(generation, fd), 0);
        } else {
            let fetched = reclaim::fetch(end, generation, fd, u64::MAX, &mut || {});
            assert_eq!(fetched, Fetched::All, "nothing is left to be carried");
        }
        assert_eq!(pair.b.recv(&mut [0; 1], BLOCK), RESET);
        assert_eq!(kernel_recv(pair.a.fd, &mut [0; 1], 0), RESET, "the peer");
    }
}

#[test]
fn who_gives_a_connection_away_waits_for_the_end_of_a_grant() {
    let pair = pair();
    let there = pair.there();
    assert!(there.begin_write(None));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| reclaim::await_grant_end(pair.b.end, pair.b.fd, u64::MAX));
        assert!(pair.b.look().expect("a lane").granted);
        there.end_write();
        waiter.join().expect("it returns");
    });
    // No longer than the caller wants, nor for a connection that is over.
    assert!(there.begin_write(None));
    reclaim::await_grant_end(pair.b.end, pair.b.fd, 0);
    sluice_sys::tcp::reset(pair.a.fd);
    reclaim::await_grant_end(pair.b.end, pair.b.fd, u64::MAX);
    assert!(pair.b.end.is_granted());
}

/// Takes bytes by the kernel alone.
struct FromKernel(i32);

impl Taker for FromKernel {
    fn take(&mut self, _: &[u8]) -> Result<usize, Errno> {
        panic!("nothing is in the ring")
    }

    fn take_from_kernel(&mut self, limit: usize) -> Result<usize, Errno> {
        kernel_recv(self.0, &mut vec![0; limit], libc::MSG_DONTWAIT)
    }
}

/// Waits until the socket has one of `events`, or an error.
fn wait_for(fd: i32, events: i16) {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one pollfd.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, -1) }, 1);
}

fn splice(pair: &Pair) -> Result<Given, Errno> {
    let fd = pair.b.fd;
    give(
        pair.b.end,
        pair.b.generation,
        fd,
        1 << 20,
        &mut FromKernel(fd),
    )
}

#[test]
fn splice_gets_what_came_before_a_grant() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach_remote());
    assert_eq!(kernel_send(pair.a.fd, &[1; 5], 0), Ok(5));
    wait_for(pair.b.fd, libc::POLLIN);
    assert!(pair.b.look().is_some(), "it enables its lane");
    assert!(pair.there().begin_write(None));
    assert!(!pair.b.look().expect("a lane").kernel_waits);
    pair.b.end.pin(pair.b.generation, Reason::KernelCall);
    assert_eq!(splice(&pair), Ok(Given::Bytes(5)));
    assert_eq!(
        splice(&pair),
        Ok(Given::InFlight),
        "the ring's bytes would be next"
    );
}

#[test]
fn splice_of_a_granted_lane_ends_with_its_connection() {
    let pair = pair();
    assert!(pair.there().begin_write(None));
    pair.b.end.pin(pair.b.generation, Reason::KernelCall);
    assert_eq!(splice(&pair), Ok(Given::InFlight));
    sluice_sys::tcp::reset(pair.a.fd);
    wait_for(pair.b.fd, 0);
    assert_eq!(splice(&pair), Err(Errno(libc::ECONNRESET)));
}

/// The kernel has said that it was reset, and does not say it again.
#[test]
fn a_read_that_finds_a_granted_lane_broken_says_so_at_once_and_nobody_waits_for_the_grant() {
    let pair = pair();
    assert!(pair.there().begin_write(None));
    assert_eq!(pair.b.recv(&mut [0; 1], DONTWAIT), Err(Errno::AGAIN));
    assert!(pair.b.end.is_granted());
    sluice_sys::tcp::reset(pair.a.fd);
    wait_for(pair.b.fd, 0);
    assert_eq!(pair.b.recv(&mut [0; 1], DONTWAIT), RESET);
    assert!(!pair.b.end.is_granted());
    let ready = pair.b.look().expect("a lane");
    assert!(ready.readable && ready.readable_to > 0, "news: {ready:?}");
}
