//! Arguments that cannot be.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

use super::*;
use crate::options::{rfcntl, rgetsockopt};
use crate::poll::rselect;

/// Every call that takes one descriptor: its name, what it said, and the error number.
fn calls(fd: c_int) -> Vec<(&'static str, i64, c_int)> {
    let mut said = Vec::new();
    let mut note = |name, answer: i64| said.push((name, answer, errno()));
    let mut address = address_of(Ipv4Addr::LOCALHOST, 9);
    let to: *mut sockaddr = (&raw mut address).cast();
    let mut len = ADDRESS_LEN;
    let mut bytes = [0_u8; 64];
    let at: *mut c_void = bytes.as_mut_ptr().cast();
    let mut number: c_int = 1;
    let value: *mut c_void = (&raw mut number).cast();
    let mut piece = iovec {
        iov_base: at,
        iov_len: 8,
    };
    let pieces = &raw mut piece;
    note("rlisten", rlisten(fd, 1).into());
    note("rshutdown", rshutdown(fd, libc::SHUT_RDWR).into());
    note("rfcntl", rfcntl(fd, libc::F_GETFL, 0).into());
    // SAFETY: all that the calls are pointed to lives through them, with the lengths that are given; all zeros is
    // a valid message.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (pieces, 1);
        let (name, level) = (libc::SO_REUSEADDR, libc::SOL_SOCKET);
        note("rbind", rbind(fd, to, len).into());
        note("raccept", raccept(fd, null_mut(), null_mut()).into());
        note("rconnect", rconnect(fd, to, len).into());
        note("rgetpeername", rgetpeername(fd, to, &raw mut len).into());
        note("rgetsockname", rgetsockname(fd, to, &raw mut len).into());
        note("rsetsockopt", rsetsockopt(fd, level, name, value, 4).into());
        let mut room = 4;
        let got = rgetsockopt(fd, level, name, value, &raw mut room);
        note("rgetsockopt", got.into());
        note("rread", rread(fd, at, 8) as i64);
        note("rreadv", rreadv(fd, pieces, 1) as i64);
        note("rrecv", rrecv(fd, at, 8, 0) as i64);
        let got = rrecvfrom(fd, at, 8, 0, null_mut(), null_mut());
        note("rrecvfrom", got as i64);
        note("rrecvmsg", rrecvmsg(fd, &raw mut message, 0) as i64);
        note("rwrite", rwrite(fd, at, 8) as i64);
        note("rwritev", rwritev(fd, pieces, 1) as i64);
        note("rsend", rsend(fd, at, 8, 0) as i64);
        note("rsendto", rsendto(fd, at, 8, 0, to, len) as i64);
        note("rsendmsg", rsendmsg(fd, &raw const message, 0) as i64);
        note("riomap", riomap(fd, at, 64, libc::PROT_WRITE, 0, -1));
        note("riounmap", riounmap(fd, at, 64).into());
        note("riowrite", riowrite(fd, at, 8, 0, 0) as i64);
    }
    note("rclose", rclose(fd).into());
    said
}

/// A number that no descriptor has: the others are given the lowest ones.
fn no_descriptor() -> c_int {
    let highest = libc::FD_SETSIZE as c_int - 1;
    // SAFETY: fcntl takes an integer.
    assert_eq!(unsafe { libc::fcntl(highest, libc::F_GETFD) }, -1);
    highest
}

#[test]
fn numbers_that_are_no_rsocket_are_refused_by_each_call() {
    // The kernel's own sockets stay as they are.
    let (kernels, peer) = UnixStream::pair().unwrap();
    for fd in [
        -1,
        c_int::MIN,
        c_int::MAX,
        no_descriptor(),
        kernels.as_raw_fd(),
    ] {
        for (call, answer, error) in calls(fd) {
            assert_eq!((answer, error), (-1, libc::EBADF), "{call}({fd})");
        }
    }
    std::io::Write::write_all(&mut &kernels, b"still open").unwrap();
    let mut bytes = [0; 10];
    std::io::Read::read_exact(&mut &peer, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still open");
}

#[test]
fn polling_looks_at_all_descriptors_as_the_kernel_does() {
    let (client, _server) = pair(Buffers::default());
    let (kernels, _peer) = UnixStream::pair().unwrap();
    let fds = [-1, no_descriptor(), kernels.as_raw_fd(), client.0];
    let mut items = fds.map(|fd| pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0x55,
    });
    // SAFETY: the array lives through the call.
    assert_eq!(unsafe { rpoll(items.as_mut_ptr(), 4, PATIENCE_MS) }, 3);
    let said = items.map(|item| item.revents);
    assert_eq!(said, [0, libc::POLLNVAL, libc::POLLOUT, libc::POLLOUT]);

    for (beside, expected) in [(None, 1), (Some(no_descriptor()), -1)] {
        // SAFETY: all zeros is an empty set; the numbers are below FD_SETSIZE; the set lives through the call.
        let answer = unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            for fd in [Some(client.0), beside].into_iter().flatten() {
                libc::FD_SET(fd, &raw mut set);
            }
            let limit = libc::FD_SETSIZE as c_int;
            rselect(limit, null_mut(), &raw mut set, null_mut(), null_mut())
        };
        assert_eq!(answer, expected, "{beside:?}");
        if expected < 0 {
            assert_eq!(errno(), libc::EBADF);
        }
    }
}

#[test]
fn pieces_that_are_too_long_together_are_refused_whole() {
    const MOST: usize = isize::MAX as usize;
    let (client, server) = pair(Buffers::default());
    assert_eq!(send(&server, b"waiting", 0), Ok(7));
    wait(&client, libc::POLLIN);
    let mut bytes = *b"eight...";
    for lengths in [[8, MOST - 7], [8, MOST + 1], [8, usize::MAX], [MOST, MOST]] {
        let pieces = lengths.map(|iov_len| iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len,
        });
        // SAFETY: all zeros is a valid message; the pieces live through the calls, which look at no byte of them.
        let said = unsafe {
            let mut message: msghdr = std::mem::zeroed();
            message.msg_iov = pieces.as_ptr().cast_mut();
            message.msg_iovlen = pieces.len();
            [
                ("rwritev", rwritev(client.0, pieces.as_ptr(), 2), errno()),
                (
                    "rsendmsg",
                    rsendmsg(client.0, &raw const message, 0),
                    errno(),
                ),
                ("rreadv", rreadv(client.0, pieces.as_ptr(), 2), errno()),
                ("rrecvmsg", rrecvmsg(client.0, &raw mut message, 0), errno()),
            ]
        };
        for (call, answer, error) in said {
            assert_eq!((answer, error), (-1, libc::EINVAL), "{call}{lengths:?}");
        }
    }
    // Nothing has gone either way.
    assert_eq!(&bytes, b"eight...");
    assert_eq!(receive_exactly(&client, 7), b"waiting");
    assert_eq!(send(&client, b"only this", 0), Ok(9));
    assert_eq!(receive_exactly(&server, 9), b"only this");
}
