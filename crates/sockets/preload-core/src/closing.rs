//! Ends a connection when its program closes it, while sluiced has the socket, too.
//!
//! With an announcement sluiced is given the socket, and has it open until it has looked at it: on a
//! busy machine for milliseconds, and stopped, for ever. The kernel ends a connection with the last
//! descriptor, so that the peer would wait for sluiced. On loopback programs see the end of a peer
//! when its close returns, and some ask for it then (`close(2)` behind `SO_LINGER`, socket(7)).
#![allow(unsafe_code)]

use crate::real::real;
use core::ffi::c_int;
use sluice_sys::{tcp, unix};

/// Does what closing the last descriptor of a connection would do. RFC 1122 §4.2.2.13: with unread bytes, or
/// if it is told to, it is reset.
pub fn end(fd: c_int) {
    let has_unread = tcp::unread_bytes(fd).is_ok_and(|bytes| bytes > 0);
    if has_unread || unix::linger(fd) == Ok(Some(0)) {
        tcp::reset(fd);
    } else {
        // SAFETY: the call takes numbers.
        unsafe { (real().shutdown)(fd, libc::SHUT_RDWR) };
    }
}

/// Whether the descriptor is the connection between these ports still: its number may have been closed and
/// given out behind the hooks.
pub fn is_between(fd: c_int, ports: [u16; 2]) -> bool {
    tcp::ports(fd) == Ok(ports)
}
