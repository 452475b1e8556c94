//! The counts against what was really moved, with megabytes queued.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (connected, accepted)
}

/// Writes until the kernel takes no more; how many bytes it took.
fn fill(stream: &mut TcpStream, role: Role, written: &mut u64) -> u64 {
    stream.set_nonblocking(true).unwrap();
    let before = *written;
    let bytes = [7; 50_000];
    loop {
        match stream.write(&bytes[..1 + (*written % 49_999) as usize]) {
            Ok(count) => *written += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert_written(stream, role, *written);
    }
    *written - before
}

/// The count may not settle at once while the other end's acknowledgements come in.
fn assert_written(stream: &TcpStream, role: Role, written: u64) {
    let counted = (0..1000).find_map(|_| match tcp_bytes_written(stream.as_raw_fd(), role) {
        Err(Errno::AGAIN) => None,
        other => Some(other),
    });
    assert_eq!(counted, Some(Ok(written)));
}

fn drain(stream: &mut TcpStream, bytes: u64, read: &mut u64) {
    stream.set_nonblocking(false).unwrap();
    let target = *read + bytes;
    let mut buffer = vec![0; 70_000];
    while *read < target {
        let len = buffer.len().min((target - *read) as usize);
        *read += stream.read(&mut buffer[..len]).unwrap() as u64;
        let counted = (0..1000).find_map(|_| match tcp_bytes_read(stream.as_raw_fd()) {
            Err(Errno::AGAIN) => None,
            other => Some(other),
        });
        assert_eq!(counted, Some(Ok(*read)));
    }
}

#[test]
fn megabytes_queued_both_ways() {
    let (mut connected, mut accepted) = connection();
    let (mut sent, mut answered, mut got, mut gotten) = (0, 0, 0, 0);
    let mut queued_max = 0;
    for _ in 0..6 {
        let there = fill(&mut connected, Role::Connected, &mut sent);
        let back = fill(&mut accepted, Role::Accepted, &mut answered);
        queued_max = queued_max.max(there);
        drain(&mut accepted, there - there / 3, &mut got);
        drain(&mut connected, back, &mut gotten);
        assert_written(&connected, Role::Connected, sent);
        assert_written(&accepted, Role::Accepted, answered);
    }
    assert!(queued_max > 1 << 20, "only {queued_max} bytes were queued");
}

#[test]
fn read_count_goes_on_behind_either_fin() {
    let (mut connected, mut accepted) = connection();
    connected.write_all(&[1; 1000]).unwrap();
    accepted.write_all(&[2; 500]).unwrap();
    connected.shutdown(Shutdown::Write).unwrap();
    let mut read = 0;
    drain(&mut accepted, 400, &mut read);
    while tcp::info(accepted.as_raw_fd()).unwrap().state != tcp::STATE_CLOSE_WAIT {
        std::thread::yield_now();
    }
    assert_eq!(tcp_bytes_read(accepted.as_raw_fd()), Ok(400));
    drain(&mut accepted, 600, &mut read);
    let mut rest = [0; 10];
    assert_eq!(accepted.read(&mut rest).unwrap(), 0);
    assert_eq!(tcp_bytes_read(accepted.as_raw_fd()), Ok(1000));
    let mut back = 0;
    drain(&mut connected, 500, &mut back);
    assert!(has_peer_ended(
        tcp::info(accepted.as_raw_fd()).unwrap().state
    ));
    assert!(!has_peer_ended(
        tcp::info(connected.as_raw_fd()).unwrap().state
    ));
}

#[test]
fn read_count_goes_on_when_both_ends_are_closed_and_not_behind_a_reset() {
    for is_first in [true, false] {
        let (mut connected, mut accepted) = connection();
        connected.write_all(&[1; 1000]).unwrap();
        let mut read = 0;
        drain(&mut accepted, 400, &mut read);
        // Its FIN is the first or the last.
        if is_first {
            accepted.shutdown(Shutdown::Write).unwrap();
        }
        connected.shutdown(Shutdown::Write).unwrap();
        if !is_first {
            accepted.shutdown(Shutdown::Write).unwrap();
        }
        await_close(&accepted);
        assert_eq!(tcp_bytes_read(accepted.as_raw_fd()), Ok(400));
        drain(&mut accepted, 600, &mut read);
        assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(tcp_bytes_read(accepted.as_raw_fd()), Ok(1000));
    }
    let (mut connected, accepted) = connection();
    connected.write_all(&[1; 1000]).unwrap();
    tcp::reset(connected.as_raw_fd());
    await_close(&accepted);
    assert_eq!(
        tcp_bytes_read(accepted.as_raw_fd()),
        Err(Errno::NOTCONN),
        "how many were on the way is not known"
    );
}

fn await_close(stream: &TcpStream) {
    while tcp::info(stream.as_raw_fd()).unwrap().state != STATE_CLOSE {
        std::thread::yield_now();
    }
}

#[test]
fn written_count_is_refused_once_an_end_closes_and_without_a_role() {
    let (connected, accepted) = connection();
    let fd = connected.as_raw_fd();
    assert_eq!(tcp_bytes_written(fd, Role::Unknown), Err(Errno::NOTSUP));
    assert_eq!(tcp_bytes_written(fd, Role::Connected), Ok(0));
    connected.shutdown(Shutdown::Write).unwrap();
    assert_eq!(tcp_bytes_written(fd, Role::Connected), Err(Errno::NOTCONN));
    let fd = accepted.as_raw_fd();
    while tcp::info(fd).unwrap().state == tcp::STATE_ESTABLISHED {
        std::thread::yield_now();
    }
    assert_eq!(tcp_bytes_written(fd, Role::Accepted), Err(Errno::NOTCONN));
}

#[test]
fn statistics_count_in_every_state() {
    let (mut connected, mut accepted) = connection();
    let counts = |stream: &TcpStream, role| tcp_bytes_ever(stream.as_raw_fd(), role).unwrap();
    let settled = |stream: &TcpStream, role, expected| {
        let seen = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            counts(stream, role) == expected
        });
        assert!(seen, "{:?}, not {expected:?}", counts(stream, role));
    };
    connected.write_all(&[1; 5000]).unwrap();
    accepted.write_all(&[2; 300]).unwrap();
    accepted.read_exact(&mut [0; 4000]).unwrap();
    settled(&connected, Role::Connected, (0, 5000));
    settled(&accepted, Role::Accepted, (4000, 300));
    connected.shutdown(Shutdown::Write).unwrap();
    accepted.read_exact(&mut [0; 1000]).unwrap();
    assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0);
    settled(&connected, Role::Connected, (0, 5000));
    settled(&accepted, Role::Accepted, (5000, 300));
    connected.read_exact(&mut [0; 300]).unwrap();
    accepted.shutdown(Shutdown::Write).unwrap();
    assert_eq!(connected.read(&mut [0; 1]).unwrap(), 0);
    settled(&accepted, Role::Accepted, (5000, 300));
}
