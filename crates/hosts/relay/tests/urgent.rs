//! Urgent data is data.
#![allow(unsafe_code)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::PATIENCE;
use sluice_relay::{EventLoop, Options, socket};

fn send_urgent(stream: &TcpStream, byte: u8) {
    let at: *const u8 = &byte;
    let flags = libc::MSG_OOB;
    // SAFETY: one readable byte.
    let sent = unsafe { libc::send(stream.as_raw_fd(), at.cast(), 1, flags) };
    assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
}

/// A far end, and the near one as a listener of this crate's has it.
fn accepted() -> (TcpStream, OwnedFd) {
    let listener = socket::listen(&"127.0.0.1:0".parse().unwrap(), 8).unwrap();
    let at = socket::local_address(listener.as_fd()).unwrap();
    let far = TcpStream::connect(at).unwrap();
    let near = loop {
        if let Some((near, _)) = socket::accept(listener.as_fd()).unwrap() {
            break near;
        }
    };
    (far, near)
}

/// A far end, and the near one as this crate connects it.
fn connected() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let near = socket::tcp(&at).unwrap();
    socket::connect(near.as_fd(), &at).unwrap();
    (listener.accept().unwrap().0, near)
}

#[test]
fn all_of_a_stream_arrives_though_a_part_is_urgent() {
    let (left, near_left) = accepted();
    let (right, near_right) = connected();
    // All of it is there before the event loop looks for the first time.
    for far in [&left, &right] {
        let mut from = far;
        from.write_all(b"ab").unwrap();
        send_urgent(far, b'!');
        from.write_all(b"def").unwrap();
    }
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    event_loop.pair(near_left, near_right).unwrap();
    for mut to in [left, right] {
        to.set_nonblocking(true).unwrap();
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < 6 {
            assert!(start.elapsed() < PATIENCE, "only {all:?} arrived");
            let nap = Some(Duration::from_millis(5));
            event_loop.turn(nap, &mut Vec::new()).unwrap();
            let mut part = [0; 16];
            match to.read(&mut part) {
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        assert_eq!(all, b"ab!def");
    }
}
