//! Two rsockets of one process over the real engine, used as programs use them.

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;

use libc::{iovec, msghdr, pollfd, sockaddr, sockaddr_in, socklen_t};

use super::api::*;
use super::options::{RDMA_RQSIZE, SOL_RDMA, rgetsockopt, rsetsockopt};
use super::poll::rpoll;
use sluice_rdmacm::loopback;
use sluice_verbs_calls::errno::errno;

mod arguments;
mod closing;

/// For a condition that only a hang does not reach.
const PATIENCE_MS: c_int = 60_000;

/// What a socket is given before it is connected.
#[derive(Clone, Copy, Default)]
pub(crate) struct Buffers {
    /// Bytes of the send and of the receive buffer.
    pub bytes: Option<c_int>,
    /// Messages that the other side may send ahead.
    pub receives: Option<c_int>,
}

pub(crate) struct Socket(pub c_int);

impl Drop for Socket {
    fn drop(&mut self) {
        rclose(self.0);
    }
}

fn set(socket: &Socket, level: c_int, name: c_int, value: c_int) {
    // SAFETY: the value lives through the call.
    let status = unsafe { rsetsockopt(socket.0, level, name, (&raw const value).cast(), 4) };
    assert_eq!(status, 0, "errno {}", errno());
}

pub(crate) fn new_socket(buffers: Buffers) -> Socket {
    let socket = Socket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    assert!(socket.0 >= 0, "errno {}", errno());
    if let Some(bytes) = buffers.bytes {
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
    if let Some(receives) = buffers.receives {
        set(&socket, SOL_RDMA, RDMA_RQSIZE, receives);
    }
    socket
}

const ADDRESS_LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

fn address_of(ip: Ipv4Addr, port: u16) -> sockaddr_in {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_addr.s_addr = u32::from(ip).to_be();
    address.sin_port = port.to_be();
    address
}

/// A socket that listens, and where.
pub(crate) fn listener(buffers: Buffers, ip: Ipv4Addr) -> (Socket, sockaddr_in) {
    let mut address = address_of(ip, 0);
    let listener = new_socket(buffers);
    let mut len = ADDRESS_LEN;
    let pointer: *mut sockaddr = (&raw mut address).cast();
    // SAFETY: the address lives through the calls.
    unsafe {
        assert_eq!(rbind(listener.0, pointer, len), 0, "errno {}", errno());
        assert_eq!(rlisten(listener.0, 0), 0, "errno {}", errno());
        assert_eq!(rgetsockname(listener.0, pointer, &raw mut len), 0);
    }
    assert_ne!(address.sin_port, 0);
    (listener, address)
}

pub(crate) fn connect(client: &Socket, address: &sockaddr_in) -> Result<(), c_int> {
    // SAFETY: the address lives through the call.
    match unsafe { rconnect(client.0, (&raw const *address).cast(), ADDRESS_LEN) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

pub(crate) fn accept(listener: c_int) -> Result<Socket, c_int> {
    // SAFETY: nobody wants the address.
    match unsafe { raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()) } {
        -1 => Err(errno()),
        accepted => Ok(Socket(accepted)),
    }
}

/// Two connected sockets.
pub(crate) fn pair(buffers: Buffers) -> (Socket, Socket) {
    let (listener, address) = listener(buffers, Ipv4Addr::LOCALHOST);
    let client = thread::spawn(move || {
        let client = new_socket(buffers);
        assert_eq!(connect(&client, &address), Ok(()));
        // SAFETY: all zeros is a valid address, and this one lives through the call.
        let peer = unsafe {
            let mut peer: sockaddr_in = std::mem::zeroed();
            let mut len = ADDRESS_LEN;
            let status = rgetpeername(client.0, (&raw mut peer).cast(), &raw mut len);
            assert_eq!(status, 0);
            peer
        };
        assert_eq!(peer.sin_port, address.sin_port);
        client
    });
    let server = accept(listener.0).expect("there is a request");
    (client.join().expect("it connects"), server)
}

pub(crate) fn pending_error(socket: &Socket) -> c_int {
    let (mut error, mut len): (c_int, socklen_t) = (0, 4);
    let value = (&raw mut error).cast();
    // SAFETY: the value and its length live through the call.
    let status = unsafe {
        rgetsockopt(
            socket.0,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            value,
            &raw mut len,
        )
    };
    assert_eq!(status, 0, "errno {}", errno());
    error
}

pub(crate) fn wait(socket: &Socket, events: i16) -> i16 {
    let mut item = pollfd {
        fd: socket.0,
        events,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    let ready = unsafe { rpoll(&raw mut item, 1, PATIENCE_MS) };
    assert_eq!(ready, 1, "not ready in time");
    item.revents
}

pub(crate) fn send(socket: &Socket, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes live through the call.
    let sent = unsafe { rsend(socket.0, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| errno())
}

/// Receives at most so many bytes, once there are some or the end.
pub(crate) fn receive(socket: &Socket, most: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
    if flags & libc::MSG_DONTWAIT == 0 {
        wait(socket, libc::POLLIN);
    }
    let mut bytes = vec![0; most];
    // SAFETY: the buffer has so much room.
    let got = unsafe { rrecv(socket.0, bytes.as_mut_ptr().cast(), most, flags) };
    bytes.truncate(usize::try_from(got).map_err(|_| errno())?);
    Ok(bytes)
}

pub(crate) fn receive_exactly(socket: &Socket, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let more = receive(socket, count - all.len(), 0).expect("the connection is there");
        assert!(!more.is_empty(), "the end after {} bytes", all.len());
        all.extend(more);
    }
    all
}

fn pattern(count: usize) -> Vec<u8> {
    // 251 is no divisor of any buffer's size.
    (0..count).map(|index| (index % 251) as u8).collect()
}

fn pieces_of(buffers: &mut [Vec<u8>]) -> Vec<iovec> {
    buffers
        .iter_mut()
        .map(|buffer| iovec {
            iov_base: buffer.as_mut_ptr().cast::<c_void>(),
            iov_len: buffer.len(),
        })
        .collect()
}

#[test]
fn a_stream_goes_around_its_buffers_many_times() {
    let buffers = Buffers {
        bytes: Some(1 << 13),
        receives: None,
    };
    let (client, server) = pair(buffers);
    let sent = pattern(1 << 20);
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        let mut at = 0;
        let mut size = 1;
        while at < copy.len() {
            let end = copy.len().min(at + size);
            at += send(&client, &copy[at..end], 0).expect("it is sent");
            // Inline and copied pieces, shorter and longer than half of the buffer.
            size = (size * 7 + 3) % 9_000 + 1;
        }
        client
    });
    let mut received = Vec::new();
    let mut size = 1;
    while received.len() < sent.len() {
        let more = receive(&server, size, 0).expect("the connection is there");
        assert!(!more.is_empty(), "the end after {} bytes", received.len());
        received.extend(more);
        size = (size * 5 + 1) % 6_000 + 1;
    }
    assert!(received == sent, "other bytes arrived than were sent");
    drop(writer.join().expect("it writes"));
}

#[test]
fn more_messages_than_credits_wait_for_the_reader() {
    let buffers = Buffers {
        bytes: None,
        receives: Some(16),
    };
    let (client, server) = pair(buffers);
    let mut sent = 0;
    while send(
        &client,
        &pattern(251)[sent % 251..][..1],
        libc::MSG_DONTWAIT,
    ) == Ok(1)
    {
        sent += 1;
        assert!(sent < 10_000, "a sender with few credits is never stopped");
    }
    assert_eq!(errno(), libc::EAGAIN);
    assert!(sent >= 16, "{sent}");
    assert_eq!(receive_exactly(&server, sent), pattern(sent));
    // The reader's credits arrive, and there is no end of it.
    for index in 0..1_000 {
        wait(&client, libc::POLLOUT);
        assert_eq!(send(&client, &[index as u8], 0), Ok(1));
        assert_eq!(receive_exactly(&server, 1), [index as u8]);
    }
}

#[test]
fn a_full_stream_takes_no_more_until_it_is_read() {
    let buffers = Buffers {
        bytes: Some(1 << 13),
        receives: None,
    };
    let (client, server) = pair(buffers);
    assert_eq!(receive(&server, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    let chunk = pattern(1_000);
    let mut sent = Vec::new();
    let mut refused = 0;
    while refused < 100 {
        match send(&client, &chunk, libc::MSG_DONTWAIT) {
            Ok(count) => {
                sent.extend_from_slice(&chunk[..count]);
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error, libc::EAGAIN);
                refused += 1;
            }
        }
        assert!(sent.len() <= 1 << 15, "more than both buffers hold");
    }
    assert!(sent.len() >= 1 << 12, "{}", sent.len());
    assert_eq!(receive_exactly(&server, sent.len()), sent);
    assert_eq!(wait(&client, libc::POLLOUT), libc::POLLOUT);
    assert!(send(&client, &chunk, libc::MSG_DONTWAIT).is_ok());
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    let (client, server) = pair(Buffers::default());
    assert_eq!(send(&client, b"end", 0), Ok(3));
    assert_eq!(rshutdown(client.0, libc::SHUT_WR), 0);
    assert_eq!(send(&client, b"more", 0), Err(libc::EPIPE));
    assert_eq!(receive_exactly(&server, 3), b"end");
    assert_eq!(receive(&server, 1, 0), Ok(Vec::new()));
    assert_eq!(receive(&server, 1, 0), Ok(Vec::new()), "the end stays");
    assert_eq!(send(&server, b"still here", 0), Ok(10));
    assert_eq!(receive_exactly(&client, 10), b"still here");
    assert_eq!(rshutdown(client.0, 7), -1);
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let (client, server) = pair(Buffers::default());
    let sent = pattern(50_000);
    assert_eq!(send(&client, &sent, 0), Ok(sent.len()));
    drop(client);
    assert_eq!(receive_exactly(&server, sent.len()), sent);
    assert_eq!(receive(&server, 1, 0), Ok(Vec::new()));
    // The first one may still find room; the connection's end then comes for sure.
    wait(&server, libc::POLLHUP);
    assert_eq!(send(&server, b"x", 0), Err(libc::EPIPE));
}

#[test]
fn who_waits_for_bytes_hears_of_the_end_when_they_are_read() {
    let (client, server) = pair(Buffers::default());
    let sent = pattern(1000);
    assert_eq!(send(&client, &sent, 0), Ok(sent.len()));
    drop(client);
    assert_eq!(wait(&server, 0), libc::POLLHUP);
    assert_eq!(wait(&server, libc::POLLIN), libc::POLLIN);
    assert_eq!(receive_exactly(&server, sent.len()), sent);
    let end = libc::POLLIN | libc::POLLHUP;
    assert_eq!(wait(&server, libc::POLLIN), end);
}

#[test]
fn looking_takes_nothing() {
    let (client, server) = pair(Buffers::default());
    assert_eq!(send(&client, b"0123456789", 0), Ok(10));
    assert_eq!(receive(&server, 4, libc::MSG_PEEK), Ok(b"0123".to_vec()));
    assert_eq!(
        receive(&server, 20, libc::MSG_PEEK),
        Ok(b"0123456789".to_vec())
    );
    assert_eq!(receive_exactly(&server, 3), b"012");
    assert_eq!(
        receive(&server, 20, libc::MSG_PEEK),
        Ok(b"3456789".to_vec())
    );

    // A look into several buffers goes on in the next one.
    let mut buffers = [vec![0; 2], vec![], vec![0; 3], vec![0; 9]];
    let mut pieces = pieces_of(&mut buffers);
    // SAFETY: all zeros is a valid message; the pieces live through the call.
    let got = unsafe {
        let mut message: msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len();
        rrecvmsg(server.0, &raw mut message, libc::MSG_PEEK)
    };
    assert_eq!(got, 7);
    assert_eq!(buffers.concat()[..7], *b"3456789");
    assert_eq!(receive_exactly(&server, 7), b"3456789");
}

#[test]
fn several_buffers_are_one_stream() {
    let (client, server) = pair(Buffers::default());
    let mut out = [b"ab".to_vec(), Vec::new(), b"cdef".to_vec()];
    let pieces = pieces_of(&mut out);
    // SAFETY: the pieces live through the calls.
    unsafe {
        assert_eq!(rwritev(client.0, pieces.as_ptr(), 3), 6);
        assert_eq!(rwritev(client.0, pieces.as_ptr(), -1), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(rwritev(client.0, pieces.as_ptr(), libc::UIO_MAXIOV + 1), -1);
        assert_eq!(errno(), libc::EINVAL);
    }
    let mut buffers = [vec![0; 5], vec![0; 5]];
    let pieces = pieces_of(&mut buffers);
    wait(&server, libc::POLLIN);
    // SAFETY: the pieces live through the call.
    let got = unsafe { rreadv(server.0, pieces.as_ptr(), 2) };
    let mut read = buffers.concat();
    read.truncate(usize::try_from(got).unwrap());
    // The rest may come later.
    read.extend(receive_exactly(&server, 6 - read.len()));
    assert_eq!(read, b"abcdef");

    // Control messages are not for streams, and nothing is sent with one.
    // SAFETY: all zeros is a valid message; what it points to lives through the call.
    unsafe {
        let mut control = [0_u8; 64];
        let mut message: msghdr = std::mem::zeroed();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
        assert_eq!(rsendmsg(client.0, &raw const message, 0), -1);
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    assert_eq!(receive(&server, 1, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
}

#[test]
fn writing_nothing_needs_a_connection_too() {
    let socket = new_socket(Buffers::default());
    // SAFETY: no piece is looked at.
    assert_eq!(unsafe { rwritev(socket.0, std::ptr::null(), 0) }, -1);
    assert_eq!(errno(), libc::ENOTCONN);
    assert_eq!(send(&socket, b"", 0), Err(libc::ENOTCONN));
}

/// A client that comes before its server, as `udpong`.
#[test]
fn datagrams_to_nobody_are_lost_and_no_error() {
    let socket = Socket(rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    assert!(socket.0 >= 0, "errno {}", errno());
    // A port that is nobody's, since the one who had it is gone.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    drop(nobody);
    let address = address_of(Ipv4Addr::LOCALHOST, port);
    assert_eq!(connect(&socket, &address), Ok(()));
    for _ in 0..3 {
        // Over the loopback the kernel's answer is there before the next call.
        assert_eq!(send(&socket, b"question", 0), Ok(8));
        assert_eq!(receive(&socket, 8, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        assert_eq!(send(&socket, b"question", 0), Ok(8));
    }
}

/// Everything here when the connection manager has no other way than queue pair 1.
#[test]
fn all_of_it_over_queue_pair_1() {
    if loopback::active() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["tests", "liars"])
        .env(loopback::VARIABLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("tests::") && said.contains("liars::"),
        "{said}"
    );
}
