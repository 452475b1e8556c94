//! Descriptors and options: copies, closing, shutting down, and what is asked of a socket.
#![allow(unsafe_code)]

use super::machine::{Machine, Which};
use super::pair::{Pair, on, on_both, within};
use crate::conn::{self, Conn};
use crate::real::errno;
use crate::{descriptors, fds, io, options};
use core::ffi::{c_int, c_ulong, c_void};
use sluice_lane::end::{Role, State};

fn conn(fd: i32) -> Conn {
    conn::get(fd).unwrap()
}

fn result(value: isize) -> Result<usize, i32> {
    usize::try_from(value).map_err(|_| errno())
}

fn write(fd: i32, text: &[u8]) -> Result<usize, i32> {
    // SAFETY: the bytes are a slice.
    result(unsafe {
        io::send(
            &conn(fd),
            text.as_ptr().cast(),
            text.len(),
            libc::MSG_NOSIGNAL,
        )
    })
}

fn read(fd: i32) -> Result<Vec<u8>, i32> {
    let mut buffer = [0_u8; 4096];
    // SAFETY: the buffer lies on this stack.
    let got = result(unsafe { io::read(&conn(fd), buffer.as_mut_ptr().cast(), 4096) });
    got.map(|got| buffer[..got].to_vec())
}

fn duplicate(fd: i32) -> i32 {
    // SAFETY: takes and returns numbers.
    let copy = unsafe { libc::dup(fd) };
    assert!(copy >= 0);
    descriptors::duplicated(fd, copy);
    copy
}

/// `dup2` as the hook does it.
fn duplicate_to(fd: i32, target: i32) -> Result<usize, i32> {
    // SAFETY: takes and returns numbers.
    let copy = descriptors::replace(fd, target, || unsafe { libc::dup2(fd, target) });
    result(copy as isize)
}

fn shut_down(fd: i32, how: c_int) {
    options::before_shutdown(&conn(fd), how);
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::shutdown(fd, how) }, 0);
}

/// Every case with a lane and without, on both kernels.
fn each(body: impl Fn(&str, &mut Machine, &Pair)) {
    for has_lane in [false, true] {
        on_both(|which, machine, pair| {
            let prepared = within(machine, || {
                pair.track();
                if has_lane {
                    pair.attach();
                    pair.look();
                }
            });
            if prepared.is_some() {
                body(&format!("{which:?}, lane: {has_lane}"), machine, pair);
            }
        });
    }
}

#[test]
fn a_copy_is_the_connection_until_the_last_one_is_closed() {
    each(|what, machine, pair| {
        within(machine, || {
            let copy = duplicate(pair.a);
            assert_eq!(conn(copy).end.refs(), 2, "{what}");
            assert_eq!(write(copy, b"by the copy"), Ok(11), "{what}");
            assert_eq!(read(pair.b), Ok(b"by the copy".to_vec()), "{what}");
            assert_eq!(descriptors::close(pair.a), 0);
            assert!(!fds::is_known(pair.a), "{what}");
            assert_eq!(write(pair.b, b"back"), Ok(4), "{what}");
            assert_eq!(read(copy), Ok(b"back".to_vec()), "{what}");
            assert_eq!(descriptors::close(copy), 0);
            assert_eq!(read(pair.b), Ok(vec![]), "{what}");
        });
    });
}

#[test]
fn a_number_that_is_taken_over_closes_what_it_was() {
    each(|what, machine, pair| {
        let other = Pair::new(machine);
        within(machine, || {
            other.track();
            assert_eq!(
                duplicate_to(pair.a, other.a),
                Ok(other.a as usize),
                "{what}"
            );
            assert_eq!(read(other.b), Ok(vec![]), "its peer sees the end: {what}");
            assert_eq!(write(other.a, b"new"), Ok(3), "{what}");
            assert_eq!(read(pair.b), Ok(b"new".to_vec()), "{what}");
            assert_eq!(duplicate_to(pair.b, pair.b), Ok(pair.b as usize), "{what}");
            assert_eq!(conn(pair.b).end.refs(), 1, "onto itself: {what}");
            other.close();
        });
    });
}

#[test]
fn a_copy_of_nothing_leaves_its_target_alone() {
    each(|what, machine, pair| {
        within(machine, || {
            assert_eq!(duplicate_to(1 << 19, pair.a), Err(libc::EBADF), "{what}");
            assert_eq!(write(pair.a, b"still"), Ok(5), "{what}");
            assert_eq!(read(pair.b), Ok(b"still".to_vec()), "{what}");
            assert_eq!(descriptors::close(1 << 19), -1, "{what}");
            assert_eq!(errno(), libc::EBADF, "{what}");
        });
    });
}

#[test]
fn unread_bytes_at_the_close_are_a_reset_for_the_peer() {
    each(|what, machine, pair| {
        within(machine, || {
            assert_eq!(write(pair.a, b"nobody reads this"), Ok(17));
            assert_eq!(descriptors::close(pair.b), 0);
            assert_eq!(read(pair.a), Err(libc::ECONNRESET), "{what}");
            assert_eq!(read(pair.a), Ok(vec![]), "told once: {what}");
            assert_eq!(write(pair.a, b"more"), Err(libc::EPIPE), "{what}");
        });
    });
}

#[test]
fn a_range_is_closed_and_only_marked_when_that_is_asked() {
    on(Which::Fake, |machine, pair| {
        within(machine, || {
            pair.track();
            pair.attach();
            let (first, last) = (pair.a.min(pair.b) as u32, pair.a.max(pair.b) as u32);
            // Numbers of other tests may lie between.
            if last - first > 1 {
                return;
            }
            let marks = libc::CLOSE_RANGE_CLOEXEC as c_int;
            assert_eq!(descriptors::close_range(first, last, marks), 0);
            assert!(fds::is_known(pair.a) && fds::is_known(pair.b));
            assert_eq!(descriptors::close_range(first, last, 0), 0);
            assert!(!fds::is_known(pair.a) && !fds::is_known(pair.b));
        });
    });
}

#[test]
fn a_half_that_is_shut_down_ends_behind_its_bytes() {
    each(|what, machine, pair| {
        within(machine, || {
            assert_eq!(write(pair.a, b"last words"), Ok(10));
            shut_down(pair.a, libc::SHUT_WR);
            assert_eq!(write(pair.a, b"more"), Err(libc::EPIPE), "{what}");
            assert_eq!(read(pair.b), Ok(b"last words".to_vec()), "{what}");
            assert_eq!(read(pair.b), Ok(vec![]), "{what}");
            assert_eq!(write(pair.b, b"answer"), Ok(6), "{what}");
            assert_eq!(read(pair.a), Ok(b"answer".to_vec()), "{what}");
            shut_down(pair.b, libc::SHUT_RDWR);
            assert_eq!(read(pair.a), Ok(vec![]), "{what}");
        });
    });
}

#[test]
fn what_a_program_asks_of_its_socket_counts_rings_too() {
    each(|what, machine, pair| {
        within(machine, || {
            let mut count: c_int = -1;
            let at = &raw mut count as usize;
            let mut ask = |fd, request: libc::Ioctl, value: c_int| {
                count = value;
                // SAFETY: each request reads or writes one int.
                let done = unsafe { options::ioctl(&conn(fd), request as c_ulong, at) };
                assert_eq!(done, 0);
                count
            };
            assert_eq!(write(pair.b, b"12345"), Ok(5));
            assert_eq!(ask(pair.a, libc::FIONREAD, -1), 5, "{what}");
            assert_eq!(read(pair.a), Ok(b"12345".to_vec()), "{what}");
            assert_eq!(ask(pair.a, libc::FIONREAD, -1), 0, "{what}");
            ask(pair.a, libc::FIONBIO, 1);
            assert_eq!(read(pair.a), Err(libc::EAGAIN), "{what}");
            ask(pair.a, libc::FIONBIO, 0);
            let set = libc::O_NONBLOCK as usize;
            assert_eq!(
                options::fcntl(&conn(pair.b), libc::F_SETFL, set),
                0,
                "{what}"
            );
            assert_eq!(read(pair.b), Err(libc::EAGAIN), "{what}");
            let copy = options::fcntl(&conn(pair.b), libc::F_DUPFD_CLOEXEC, 0);
            assert_eq!(read(copy), Err(libc::EAGAIN), "{what}");
            assert_eq!(descriptors::close(copy), 0, "{what}");
        });
    });
}

/// `getsockopt` of an int as the hook does it.
fn option(fd: i32, level: c_int, name: c_int) -> c_int {
    let mut value: c_int = -1;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let at: *mut c_void = (&raw mut value).cast();
    // SAFETY: an int and its length, both on this stack.
    unsafe {
        assert_eq!(libc::getsockopt(fd, level, name, at, &raw mut len), 0);
        options::after_get(&conn(fd), level, name, at, &raw const len);
    }
    value
}

#[test]
fn options_that_only_tcp_can_serve_take_the_bytes_back_from_the_ring() {
    each(|what, machine, pair| {
        within(machine, || {
            assert_eq!(write(pair.b, b"in the ring"), Ok(11));
            let (low, level, name) = (4, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
            let len = size_of::<c_int>() as libc::socklen_t;
            let value: *const c_void = (&raw const low).cast::<c_void>();
            // SAFETY: an int.
            unsafe {
                options::before_set(&conn(pair.a), level, name, value, len);
                assert_eq!(libc::setsockopt(pair.a, level, name, value, len), 0);
            }
            assert!(conn(pair.a).end.is_pinned(), "{what}");
            let left = conn(pair.a)
                .end
                .unread_ring_bytes(conn(pair.a).generation, pair.a);
            assert_eq!(left, 0, "{what}");
            assert_eq!(write(pair.b, b", and behind"), Ok(12));
            assert_eq!(
                read(pair.a),
                Ok(b"in the ring, and behind".to_vec()),
                "{what}"
            );
            assert_eq!(
                option(pair.a, libc::SOL_SOCKET, libc::SO_ERROR),
                0,
                "{what}"
            );
        });
    });
}

#[test]
fn an_error_behind_bytes_is_what_the_socket_says_next() {
    on_both(|which, machine, pair| {
        within(machine, || {
            pair.track();
            pair.attach();
            pair.look();
            let (_, b) = pair.ends();
            assert_eq!(write(pair.b, b"bytes"), Ok(5));
            assert_eq!(write(pair.a, b"nobody reads this"), Ok(17));
            b.end.shut_tx(b.generation);
            assert_eq!(write(pair.b, b" and more"), Ok(9));
            assert_eq!(descriptors::close(pair.b), 0);
            let mut all = Vec::new();
            // The peer's reset may be met behind the bytes, or by the next call.
            loop {
                match read(pair.a) {
                    Ok(more) if !more.is_empty() => all.extend(more),
                    Ok(_) => panic!("{which:?}: the reset was lost behind {all:?}"),
                    Err(number) => break assert_eq!(number, libc::ECONNRESET, "{which:?}"),
                }
            }
            assert_eq!(
                option(pair.a, libc::SOL_SOCKET, libc::SO_ERROR),
                0,
                "told once"
            );
        });
    });
}

#[test]
fn a_connection_that_is_undone_has_no_lane() {
    on_both(|which, machine, pair| {
        within(machine, || {
            pair.track();
            pair.attach();
            // SAFETY: zeroes are an address of no family.
            let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
            let len = size_of::<libc::sockaddr>() as libc::socklen_t;
            // SAFETY: connect reads one address.
            unsafe {
                let done = libc::connect(pair.a, &raw const nobody, len);
                assert_eq!(done, 0, "{which:?}");
                descriptors::connected(pair.a, done, &raw const nobody);
            }
            assert!(conn(pair.a).end.is_pinned(), "{which:?}");
            assert_eq!(read(pair.b), Err(libc::ECONNRESET), "{which:?}");
        });
    });
}

#[test]
fn who_is_accepted_is_tracked_and_who_arrives_is_looked_at() {
    on_both(|which, machine, pair| {
        within(machine, || {
            let listener = 1 << 19;
            fds::set(listener, fds::Entry::Socket);
            descriptors::accepted(listener, pair.b);
            fds::take(listener);
            assert_eq!(conn(pair.b).end.role(), Role::Accepted, "{which:?}");
            assert_eq!(conn(pair.b).end.state(), State::Tracked, "{which:?}");
            descriptors::arrived(pair.a);
            assert_eq!(conn(pair.a).end.state(), State::Tracked, "{which:?}");
            assert_ne!(conn(pair.a).end.role(), Role::Connected, "{which:?}");
        });
    });
}
