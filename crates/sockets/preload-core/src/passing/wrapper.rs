//! A connection on its way to another program under Sluice, with its unread ring bytes.
//!
//! What is passed in its place is a Unix socket, in which one message lies: the connection, and a
//! file with the bytes ([`crate::carry`]). The library of the receiving program takes both out
//! before the program sees its message, and puts the connection under the number of the socket. So
//! the message has as many descriptors as the program has sent. A program without Sluice would get a
//! socket that it can do nothing with, rather than a stream in which bytes are missing; it is not
//! sent one, as far as the kernel tells who receives.
#![allow(unsafe_code)]

use crate::carry::{self, Carry};
use crate::conn::Conn;
use crate::real::{errno, set_errno};
use crate::{descriptors, fds, log, this_process};
use core::ffi::c_int;
use sluice_lane::end::close_beside_copies;
use sluice_sys::errno::Errno;
use sluice_sys::holders::{for_each_holder, has_mapped, mapped_at};
use sluice_sys::sock_diag::Diag;
use sluice_sys::unix::{
    Fd, get_option, peek_with_fds, receive_with_fds, send_with_fds, seqpacket_pair,
};
use sluice_sys::{raw, tcp};

/// The message's bytes, of this version.
const MESSAGE: &[u8; 16] = b"sluice: passed 1";

/// Whether all that have the other end of a Unix socket open run this very library, as far as this
/// process may look.
pub fn is_received_by_sluice(fd: c_int) -> bool {
    if this_process::is_confined() {
        return false;
    }
    let Some(library) = mapped_at(is_received_by_sluice as *const () as usize) else {
        return false;
    };
    let Ok(Some(peer)) = Diag::open_unproven().and_then(|diag| diag.unix_peer(fd)) else {
        return false;
    };
    let (mut any, mut all) = (false, true);
    let looked = for_each_holder(peer, |holder| {
        any = true;
        all = holder == this_process::pid() || has_mapped(holder, library);
        all
    });
    looked.is_ok() && any && all
}

/// What is passed instead of a connection.
///
/// Errors: why its bytes cannot be put in order.
pub fn wrap(conn: &Conn) -> Result<Fd, &'static str> {
    let mut carry = Carry::new();
    if conn.end.has_gap() {
        return Err("some were lost with another program");
    }
    if !conn.has_stable_bytes() {
        return Err("its peer is in the middle of a write");
    }
    if !carry.add_copy(conn) {
        return Err("they cannot be copied");
    }
    let file = carry.into_file().or(Err("no file for them can be made"))?;
    let (inner, outer) = seqpacket_pair().or(Err("no socket to pass them in can be made"))?;
    send_with_fds(inner.raw(), MESSAGE, &[conn.fd, file.raw()])
        .or(Err("the kernel passes no more descriptors"))?;
    Ok(outer)
}

/// If a descriptor that was received is a wrapper: puts the connection in its place. `peeked`: the
/// message in which it came is received again later.
pub fn unwrap(fd: c_int, peeked: bool) -> bool {
    let before = errno();
    let wrapped = is_seqpacket(fd).then(|| take(fd, peeked)).flatten();
    let is_wrapped = wrapped.is_some();
    if let Some((connection, file)) = wrapped
        && put_in_place(fd, connection).is_ok()
    {
        if fds::is_known(fd) {
            descriptors::forget(fd);
        }
        if tcp::is_tcp(fd) == Ok(true) {
            carry::take_up_passed(fd, file.raw());
        } else {
            log!(
                Warn,
                "fd {fd}: came with the bytes of a connection, which it is not"
            );
        }
    }
    set_errno(before);
    is_wrapped
}

/// The connection gets the number of its wrapper, and has no other. The process may have had it before.
fn put_in_place(fd: c_int, connection: Fd) -> Result<(), Errno> {
    close_beside_copies(|| {
        let placed = replace(fd, connection.raw());
        drop(connection);
        placed
    })
}

fn is_seqpacket(fd: c_int) -> bool {
    let option = |name| {
        let mut value = [0; 4];
        get_option(fd, libc::SOL_SOCKET, name, &mut value).map(|_| i32::from_ne_bytes(value))
    };
    option(libc::SO_TYPE) == Ok(libc::SOCK_SEQPACKET)
        && option(libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// The connection and the file.
fn take(fd: c_int, peeked: bool) -> Option<(Fd, Fd)> {
    // Somebody's own socket keeps its messages, and what they name stays closed.
    let mut start = [0_u8; MESSAGE.len() + 1];
    // SAFETY: the kernel writes at most that many bytes.
    let seen = raw::check(unsafe {
        raw::syscall6(
            libc::SYS_recvfrom,
            raw::int(fd),
            start.as_mut_ptr() as usize,
            start.len(),
            raw::int(libc::MSG_PEEK | libc::MSG_DONTWAIT),
            0,
            0,
        )
    });
    if seen != Ok(MESSAGE.len()) || start.get(..MESSAGE.len()) != Some(MESSAGE) {
        return None;
    }
    let mut received = if peeked {
        peek_with_fds(fd, &mut start)
    } else {
        receive_with_fds(fd, &mut start)
    }
    .ok()?;
    Some((received.take_fd(0)?, received.take_fd(1)?))
}

/// dup3(2), keeping close-on-exec as the receiver has asked for it.
fn replace(fd: c_int, connection: c_int) -> Result<(), Errno> {
    // SAFETY: fcntl with F_GETFD and dup3 take numbers; what is replaced is the wrapper.
    unsafe {
        let flags = raw::check(raw::syscall3(
            libc::SYS_fcntl,
            raw::int(fd),
            raw::int(libc::F_GETFD),
            0,
        ))?;
        let cloexec = if flags & libc::FD_CLOEXEC as usize != 0 {
            libc::O_CLOEXEC
        } else {
            0
        };
        raw::check(raw::syscall3(
            libc::SYS_dup3,
            raw::int(connection),
            raw::int(fd),
            raw::int(cloexec),
        ))
        .map(drop)
    }
}
