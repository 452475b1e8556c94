//! Nagle's algorithm on connections with a lane.

use crate::conn::Conn;
use core::ffi::c_int;
use sluice_sys::unix;

/// Turns Nagle's algorithm off for a connection that has got a lane.
///
/// It holds a small segment back until the last one is acknowledged, and counts on answers to
/// carry the acknowledgement. Answers by the ring carry none, so each message that goes by TCP
/// after another would wait for the peer's delayed acknowledgement, 40 ms.
pub fn turn_off(conn: &Conn) {
    let mut on = [0; size_of::<c_int>()];
    let known = unix::get_option(conn.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut on);
    if known.is_ok() && c_int::from_ne_bytes(on) == 0 && set_nodelay(conn.fd) {
        conn.end.set_our_nodelay(true);
    }
}

/// Whether the kernel sends small segments of the connection at once from now on.
pub(crate) fn set_nodelay(fd: c_int) -> bool {
    let on: c_int = 1;
    unix::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on).is_ok()
}
