//! rsockets that one thread closes while others use them, or while their peers do.

use std::mem::ManuallyDrop;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Weak};

use super::*;
use crate::options::rfcntl;
use crate::stream::liars::SMALL;
use crate::{Kind, find, insert, socket};

/// As often as each of these is done: threads meet differently each time.
const ROUNDS: usize = 40;

fn stream_of(fd: c_int) -> Arc<socket::Socket> {
    match find(fd) {
        Some(Kind::Stream(socket)) => socket,
        _ => panic!("a stream"),
    }
}

/// Waits until so many other threads are in a call with the socket.
fn await_calls(socket: &Socket, calls: usize) -> Weak<socket::Socket> {
    let held = stream_of(socket.0);
    // The table has one of them, too.
    while Arc::strong_count(&held) < 2 + calls {
        thread::yield_now();
    }
    Arc::downgrade(&held)
}

/// Closes the socket then; it is freed when they have left.
fn close_in_use(socket: Socket, calls: usize) -> Weak<socket::Socket> {
    await_calls(&socket, calls)
}

/// The socket of another thread, which closes it.
fn borrowed(fd: c_int) -> ManuallyDrop<Socket> {
    ManuallyDrop::new(Socket(fd))
}

fn receive_now(fd: c_int) -> Result<usize, c_int> {
    let mut byte = 0_u8;
    // SAFETY: one byte that lives through the call.
    let got = unsafe { rrecv(fd, (&raw mut byte).cast(), 1, 0) };
    usize::try_from(got).map_err(|_| errno())
}

#[test]
fn a_close_ends_the_calls_of_other_threads() {
    const BYTES: usize = 1 << 16;
    for _ in 0..ROUNDS {
        let (ours, peer) = pair(SMALL);
        let fd = ours.0;
        let poller = thread::spawn(move || wait(&borrowed(fd), libc::POLLIN));
        let readers = [0; 2].map(|_| thread::spawn(move || receive_now(fd)));
        // More than all buffers hold, and the peer reads nothing.
        let writer = thread::spawn(move || send(&borrowed(fd), &[0; BYTES], 0));
        let freed = close_in_use(ours, 4);
        assert_eq!(poller.join().unwrap(), libc::POLLNVAL);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Err(libc::EBADF));
        }
        match writer.join().unwrap() {
            Ok(sent) => assert!(sent < BYTES),
            Err(error) => assert_eq!(error, libc::EBADF),
        }
        assert!(freed.upgrade().is_none());
        wait(&peer, libc::POLLHUP);
    }
}

#[test]
fn a_shutdown_ends_the_calls_of_other_threads() {
    const BYTES: usize = 1 << 16;
    for _ in 0..ROUNDS {
        let (ours, _peer) = pair(SMALL);
        let fd = ours.0;
        let poller = thread::spawn(move || wait(&borrowed(fd), libc::POLLIN));
        let readers = [0; 2].map(|_| thread::spawn(move || receive_now(fd)));
        let writer = thread::spawn(move || send(&borrowed(fd), &[0; BYTES], 0));
        await_calls(&ours, 4);
        // Nothing is said to the peer, and so nothing comes of it.
        assert_eq!(rshutdown(fd, libc::SHUT_RD), 0);
        assert_eq!(poller.join().unwrap(), libc::POLLIN);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Ok(0));
        }
        assert_eq!(rshutdown(fd, libc::SHUT_WR), 0);
        match writer.join().unwrap() {
            Ok(sent) => assert!(sent < BYTES),
            Err(error) => assert_eq!(error, libc::EPIPE),
        }
    }
}

#[test]
fn a_close_ends_a_connect_that_nobody_answers() {
    for _ in 0..ROUNDS {
        let (_listener, address) = listener(SMALL, Ipv4Addr::LOCALHOST);
        let ours = new_socket(SMALL);
        let fd = ours.0;
        let connecting = thread::spawn(move || connect(&borrowed(fd), &address));
        let freed = close_in_use(ours, 1);
        assert_eq!(connecting.join().unwrap(), Err(libc::EBADF));
        assert!(freed.upgrade().is_none());
    }
}

#[test]
fn a_listener_that_closes_ends_the_calls_of_other_threads() {
    for _ in 0..ROUNDS {
        let (listener, _) = listener(SMALL, Ipv4Addr::LOCALHOST);
        let fd = listener.0;
        let poller = thread::spawn(move || wait(&borrowed(fd), libc::POLLIN));
        let acceptors = [0; 2].map(|_| thread::spawn(move || accept(fd).map(|_| ())));
        let freed = close_in_use(listener, 3);
        assert_eq!(poller.join().unwrap(), libc::POLLNVAL);
        for acceptor in acceptors {
            assert_eq!(acceptor.join().unwrap(), Err(libc::EBADF));
        }
        assert!(freed.upgrade().is_none());
    }
}

#[test]
fn a_listener_that_closes_turns_down_who_waits() {
    for _ in 0..ROUNDS {
        let (listener, address) = listener(SMALL, Ipv4Addr::new(127, 0, 0, 2));
        let clients = [0; 4].map(|_| new_socket(SMALL));
        for client in &clients {
            assert_eq!(rfcntl(client.0, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
            assert_eq!(connect(client, &address), Err(libc::EINPROGRESS));
        }
        // One at least is there, and others may come just now.
        wait(&listener, libc::POLLIN);
        drop(listener);
        for client in &clients {
            let ready = wait(client, libc::POLLOUT);
            assert_eq!(ready, libc::POLLOUT | libc::POLLHUP | libc::POLLERR);
            assert_eq!(pending_error(client), libc::ECONNREFUSED);
        }
        // Nothing is left of it: its port is free.
        let again = new_socket(SMALL);
        // SAFETY: the address lives through the call.
        let status = unsafe { rbind(again.0, (&raw const address).cast(), ADDRESS_LEN) };
        assert_eq!(status, 0, "errno {}", errno());
    }
}

#[test]
fn a_listener_closes_while_requests_come_and_are_accepted() {
    for taken in 0..8 {
        let (listener, address) = listener(SMALL, Ipv4Addr::new(127, 0, 0, 3));
        let is_closed = Arc::new(AtomicBool::new(false));
        let clients = [0; 2].map(|_| {
            let is_closed = Arc::clone(&is_closed);
            thread::spawn(move || {
                loop {
                    let is_last = is_closed.load(Acquire);
                    let client = new_socket(SMALL);
                    match connect(&client, &address) {
                        // It was closed before it knew that it is accepted.
                        Ok(()) | Err(libc::ECONNRESET | libc::ECONNREFUSED) if !is_last => {}
                        last => return last,
                    }
                }
            })
        });
        let held = stream_of(listener.0);
        let acceptor = thread::spawn(move || {
            loop {
                match held.accept() {
                    Ok(accepted) => {
                        let fd = accepted.fd();
                        insert(fd, Kind::Stream(accepted));
                        rclose(fd);
                    }
                    Err(error) => return error.0,
                }
            }
        });
        for _ in 0..taken {
            drop(accept(listener.0).expect("there is a request"));
        }
        drop(listener);
        assert_eq!(acceptor.join().unwrap(), libc::EBADF);
        is_closed.store(true, Release);
        for client in clients {
            assert_eq!(client.join().unwrap(), Err(libc::ECONNREFUSED));
        }
    }
}

#[test]
fn a_socket_closes_while_messages_arrive() {
    for round in 0..ROUNDS {
        let (ours, peer) = pair(SMALL);
        let sender = thread::spawn(move || {
            loop {
                // Short pieces go inline, and others from the buffer.
                for size in [10, 1000] {
                    if let Err(error) = send(&peer, &vec![7; size], 0) {
                        return error;
                    }
                }
            }
        });
        receive_exactly(&ours, 1 + round * 500);
        drop(ours);
        assert_eq!(sender.join().unwrap(), libc::EPIPE);
    }
}

#[test]
fn one_thread_polls_and_another_one_writes() {
    const BYTES: usize = 1 << 22;
    let (ours, peer) = pair(SMALL);
    let fd = ours.0;
    let echo = thread::spawn(move || {
        let mut left = BYTES;
        while left > 0 {
            let bytes = receive(&peer, 3000.min(left), 0).unwrap();
            left -= bytes.len();
            let mut at = 0;
            while at < bytes.len() {
                at += send(&peer, &bytes[at..], 0).unwrap();
            }
        }
        peer
    });
    let writer = thread::spawn(move || {
        let mut left = BYTES;
        while left > 0 {
            left -= send(&borrowed(fd), &vec![7; 2000.min(left)], 0).unwrap();
        }
    });
    receive_exactly(&ours, BYTES);
    writer.join().unwrap();
    drop(echo.join().unwrap());
}
