//! Peers that go without a word.
#![allow(unsafe_code)]

mod common;

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};

use common::Relay;
use sluice_relay::{End, EventLoop, Options};

fn set(stream: &TcpStream, option: i32, value: i32) {
    let value: *const i32 = &value;
    let length = size_of::<i32>() as libc::socklen_t;
    let level = libc::IPPROTO_TCP;
    // SAFETY: an int and its length.
    let done = unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, value.cast(), length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn get(stream: &TcpStream, level: i32, option: i32) -> i32 {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    let at: *mut i32 = &raw mut value;
    // SAFETY: an int and its length, both writable.
    let done =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, at.cast(), &mut length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    value
}

#[test]
fn both_peers_of_a_pair_are_asked_whether_they_are_there() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let (_far_left, near_left) = common::connection();
    let (_far_right, near_right) = common::connection();
    let nears = [&near_left, &near_right].map(|near| {
        near.set_nonblocking(true).unwrap();
        near.try_clone().unwrap()
    });
    let [left, right] = [near_left, near_right].map(OwnedFd::from);
    event_loop.pair(left, right).unwrap();
    for near in &nears {
        assert_eq!(get(near, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(near, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 300);
        assert_eq!(get(near, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 30);
        assert_eq!(get(near, libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 3);
        // A reader may sleep for as long as it likes.
        assert_eq!(get(near, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), 0);
    }
}

/// A server ends an idle client by closing its socket. Its kernel forgets the connection after a
/// time; the client, who does not close, must not keep the pair for ever.
#[test]
fn who_lingers_is_reset_once_the_other_end_is_forgotten() {
    for left_closes in [true, false] {
        let relay = Relay::new(Options {
            // What the interval between questions follows: a second.
            idle_s: 10,
            half_closed_s: 1,
            ..Options::default()
        });
        let (left, right) = relay.pair();
        let (closes, mut lingers) = if left_closes {
            (left, right)
        } else {
            (right, left)
        };
        // Its kernel forgets it in a second, not in a minute.
        set(&closes, libc::TCP_LINGER2, 1);
        drop(closes);
        assert_eq!(lingers.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(relay.next_end(), (End::Reset, [0, 0]));
        // The end of the stream was read; what is written now fails.
        let error = lingers.take_error().unwrap().unwrap();
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

/// Whoever only sends no more is there, and answers.
#[test]
fn an_end_that_sends_no_more_and_reads_on_is_not_taken_for_gone() {
    let relay = Relay::new(Options {
        idle_s: 10,
        half_closed_s: 1,
        ..Options::default()
    });
    let (mut left, mut right) = relay.pair();
    left.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(right.read(&mut [0; 1]).unwrap(), 0);
    // Longer than all questions that are asked of one who does not answer.
    std::thread::sleep(std::time::Duration::from_secs(6));
    std::io::Write::write_all(&mut right, b"late").unwrap();
    drop(right);
    let mut late = String::new();
    left.read_to_string(&mut late).unwrap();
    assert_eq!(late, "late");
    drop(left);
    assert_eq!(relay.next_end(), (End::Finished, [0, 4]));
}
