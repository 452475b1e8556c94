//! Socket options, fcntl, ioctl and shutdown.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::real::{errno, real, set_errno};
use crate::{descriptors, export, log, nagle};
use core::ffi::{c_int, c_ulong, c_void};
use libc::socklen_t;
use sluice_lane::end::State;
use sluice_lane::reason::Reason;
use sluice_lane::wait;

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const TCP_REPAIR: c_int = 19;
const TCP_ULP: c_int = 31;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;
const SO_ZEROCOPY: c_int = 60;
const SIOCOUTQNSD: c_ulong = 0x894b;
const SIOCATMARK: c_ulong = 0x8905;

/// Before `setsockopt`: options with which bytes must pass through the kernel.
///
/// # Safety
/// `value` is null or readable for `len` bytes.
pub unsafe fn before_set(
    conn: &Conn,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) {
    let number = || {
        if len as usize >= size_of::<c_int>() && value as usize >= 4096 {
            // SAFETY: the caller's promise.
            unsafe { value.cast::<c_int>().read_unaligned() }
        } else {
            0
        }
    };
    let kernel_only = match (level, name) {
        (libc::IPPROTO_TCP, TCP_ULP | TCP_REPAIR | libc::TCP_MD5SIG | TCP_ZEROCOPY_RECEIVE) => true,
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => number() > 1,
        (
            libc::SOL_SOCKET,
            libc::SO_OOBINLINE
            | SO_ZEROCOPY
            | libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_PEEK_OFF
            | libc::SO_MAX_PACING_RATE,
        ) => number() != 0 || name == libc::SO_ATTACH_FILTER,
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS) => {
            number() != 0
        }
        _ => false,
    };
    if kernel_only {
        export::export(conn, Reason::SocketOption);
    }
}

/// After `setsockopt` succeeded: what the program wants of Nagle is remembered, see
/// [`nagle::turn_off`].
///
/// # Safety
/// `value` is what the kernel has just read.
pub unsafe fn after_set(conn: &Conn, level: c_int, name: c_int, value: *const c_void) {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && conn.end.state() == State::Attached
    {
        // SAFETY: the caller's promise; the kernel takes no shorter value than an int.
        let wants_nagle = unsafe { value.cast::<c_int>().read_unaligned() } == 0;
        conn.end
            .set_our_nodelay(wants_nagle && nagle::set_nodelay(conn.fd));
    }
}

/// After `getsockopt` succeeded: the program sees the values that it set.
///
/// # Safety
/// `value` has the bytes that the kernel has just written, `len` of them.
pub unsafe fn after_get(
    conn: &Conn,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *const socklen_t,
) {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) && conn.end.has_our_nodelay() {
        // SAFETY: the caller's promise.
        unsafe { value.cast::<u8>().write_bytes(0, *len as usize) };
    }
    // SAFETY: the caller's promise: an int, unless the program gave less room.
    let is_int = unsafe { *len as usize == size_of::<c_int>() };
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && is_int
        && let Some(errno) = wait::postponed_error(conn.end, conn.generation, true)
    {
        // SAFETY: by the caller's promise the kernel has just written these bytes of an int.
        unsafe { value.cast::<c_int>().write_unaligned(errno.0) };
    }
}

/// `shutdown`: what is in the rings stays in order, since the end of the stream comes behind it.
pub fn before_shutdown(conn: &Conn, how: c_int) {
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        if conn.end.state() == State::Attached {
            log!(
                Debug,
                "fd {}: sends by TCP: {}",
                conn.fd,
                Reason::HalfClosed.text()
            );
        }
        conn.end.shut_tx(conn.generation);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        conn.end.shut_rx();
    }
}

/// `fcntl` on a tracked connection.
pub fn fcntl(conn: &Conn, command: c_int, arg: usize) -> c_int {
    if matches!(command, F_SETSIG | libc::F_SETOWN | F_SETOWN_EX) {
        // Signals on readiness: only TCP raises them.
        export::export(conn, Reason::SocketOption);
    }
    if command == libc::F_SETFL && arg as c_int & libc::O_ASYNC != 0 {
        export::export(conn, Reason::SocketOption);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { (real().fcntl)(conn.fd, command, arg) };
    match command {
        libc::F_SETFL if result == 0 => {
            conn.end
                .set_nonblocking(arg as c_int & libc::O_NONBLOCK != 0);
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if result >= 0 => {
            descriptors::duplicated(conn.fd, result);
        }
        _ => {}
    }
    result
}

/// `ioctl` on a tracked connection.
///
/// # Safety
/// As ioctl(2).
pub unsafe fn ioctl(conn: &Conn, request: c_ulong, arg: usize) -> c_int {
    if request == libc::FIOASYNC as c_ulong {
        export::export(conn, Reason::SocketOption);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { (real().ioctl)(conn.fd, request, arg) };
    if result != 0 {
        return result;
    }
    let before = errno();
    let value = arg as *mut c_int;
    // SAFETY: the kernel has just read or written an int there.
    unsafe {
        match request {
            r if r == libc::FIONBIO as c_ulong => conn.end.set_nonblocking(*value != 0),
            r if r == libc::FIONREAD as c_ulong => {
                let queued = u64::try_from(*value).unwrap_or(0);
                let unread = conn.end.ring_bytes_behind(conn.generation, conn.fd, queued);
                *value = (*value).saturating_add(c_int::try_from(unread).unwrap_or(c_int::MAX));
            }
            r if r == libc::TIOCOUTQ as c_ulong || r == SIOCOUTQNSD => {
                let unacked = conn.end.unacked_ring_bytes(conn.generation);
                *value = (*value).saturating_add(c_int::try_from(unacked).unwrap_or(c_int::MAX));
            }
            SIOCATMARK if conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0 => *value = 0,
            _ => {}
        }
    }
    set_errno(before);
    result
}
