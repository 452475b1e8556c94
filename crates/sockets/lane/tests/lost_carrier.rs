//! Lanes to other hosts whose sluiced is gone: what may be missing resets the connection, for all who have it.

mod common;

use common::{BLOCK, DONTWAIT, Pair, SMALL_RING, bytes_at, kernel_recv, kernel_send};
use sluice_lane::kernel::kernel_events;
use sluice_lane::reason::Reason;
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
