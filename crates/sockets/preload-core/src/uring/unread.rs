//! Bytes in a lane's ring that the sender did not take back, and that the kernel is to read for an
//! io_uring: it gets them from a socket that stands in for the connection, for this one operation.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::rings::{Reading, Submitted};
use crate::{io, log};
use core::ffi::c_int;
use sluice_sys::raw;
use sluice_sys::tcp;
use sluice_sys::unix::Fd;

/// What a socket that stands in takes at once; an operation may get less than it asked for.
const BYTES_MAX: usize = 32 << 10;

/// What the kernel is to do instead, and what has to stay open until it has begun to.
pub struct Instead {
    pub entry: Submitted,
    _sockets: [Fd; 2],
}

/// For an operation on a connection with such bytes. `None`: it goes to the connection itself, which
/// is reset if the operation would read past them.
pub fn instead(conn: &Conn, entry: &Submitted) -> Option<Instead> {
    let made = match entry.reading() {
        Reading::Nothing => return None,
        Reading::Bytes(len) => stand_in(conn, len, libc::MSG_DONTWAIT),
        Reading::Readiness => stand_in(conn, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK),
        Reading::Otherwise => None,
    };
    if let Some(sockets) = made {
        return Some(Instead {
            entry: entry.on(sockets[0].raw()),
            _sockets: sockets,
        });
    }
    log!(
        Warn,
        "fd {}: reset, as io_uring would miss bytes that only this process can read",
        conn.fd
    );
    tcp::reset(conn.fd);
    None
}

/// Moves bytes of the connection to a socket of its own.
fn stand_in(conn: &Conn, len: usize, flags: c_int) -> Option<[Fd; 2]> {
    let mut numbers = [-1; 2];
    // SAFETY: the call writes two numbers.
    raw::check(unsafe {
        raw::syscall4(
            libc::SYS_socketpair,
            libc::AF_UNIX as usize,
            (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize,
            0,
            (&raw mut numbers) as usize,
        )
    })
    .ok()?;
    let sockets = numbers.map(Fd::own);
    let mut bytes = vec![0_u8; len.min(BYTES_MAX)];
    // SAFETY: the buffer has that many bytes.
    let read = unsafe { io::recv(conn, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    let read = usize::try_from(read).ok()?;
    // SAFETY: the kernel reads `read` bytes of the buffer.
    let written = raw::check(unsafe {
        raw::syscall3(
            libc::SYS_write,
            raw::int(sockets[1].raw()),
            bytes.as_ptr() as usize,
            read,
        )
    });
    (written == Ok(read)).then_some(sockets)
}
