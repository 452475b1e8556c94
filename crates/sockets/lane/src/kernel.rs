//! What the kernel says of a socket, whatever lane its connection has.
#![allow(unsafe_code)]

use sluice_sys::errno::Errno;
use sluice_sys::raw;

/// Whether a connection is over with this error: it was reset or ended (`SOCK_DESTROY` of sock_diag(7)
/// too), or the kernel has given up, for which it names what a router said last, if one did
/// (`icmp_err_convert` in the kernel's net/ipv4/icmp.c).
pub(crate) fn is_final(errno: Errno) -> bool {
    matches!(
        errno.0,
        libc::ECONNRESET
            | libc::EPIPE
            | libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::ECONNABORTED
            | libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENONET
            | libc::ENOPROTOOPT
    )
}

/// What poll(2) reports at once for a socket; errors count as nothing.
pub fn kernel_events(fd: i32, events: i16) -> i16 {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    match poll(&mut entry, 0) {
        Ok(_) => entry.revents,
        Err(_) => 0,
    }
}

/// Sleeps until a socket has an error or both ways are over, at most so long. Whether it has.
pub(crate) fn sleep_until_over(fd: i32, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    poll(&mut entry, timeout_ms).is_ok() && entry.revents & libc::POLLERR != 0
}

/// Sleeps until a socket is writable, or a signal comes.
pub(crate) fn sleep_until_writable(fd: i32) {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    let _ = poll(&mut entry, -1);
}

fn poll(entry: &mut libc::pollfd, timeout_ms: i32) -> Result<usize, Errno> {
    // SAFETY: one pollfd, alive through the call.
    raw::check(unsafe {
        raw::syscall3(
            libc::SYS_poll,
            &raw mut *entry as usize,
            1,
            timeout_ms as usize,
        )
    })
}
