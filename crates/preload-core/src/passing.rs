//! Descriptors in control messages of Unix sockets.
#![allow(unsafe_code)]

use crate::descriptors::{adopted, export};
use crate::{conn, log};
use core::ffi::c_int;
use libc::{mmsghdr, msghdr};
use sluice_lane::reason::Reason;
use sluice_sys::errno::Errno;

/// Calls `each` with the descriptors in a message.
///
/// # Safety
/// `message` is a message as sendmsg(2) takes or recvmsg(2) has filled.
unsafe fn for_each_fd(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the caller's promise; the macros stay within `msg_controllen`.
    unsafe {
        if (message as usize) < 4096 || (*message).msg_controllen == 0 {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header)
                    .cmsg_len
                    .saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    each(fds.add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Before a message is sent: connections in it are given to a process that may be anybody.
/// `EBUSY` if one has bytes that only this process can read: its owner would miss them.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn before_send(message: *const msghdr) -> Result<(), Errno> {
    let mut result = Ok(());
    // SAFETY: the caller's promise.
    unsafe {
        for_each_fd(message, |fd| {
            if let Some(conn) = conn::get(fd)
                && !export(&conn, Reason::Shared)
            {
                log!(
                    Warn,
                    "fd {fd}: not passed on before its unread bytes are read"
                );
                result = Err(Errno(libc::EBUSY));
            }
        });
    }
    result
}

/// The same for sendmmsg(2): how many messages, from the first on, can be sent.
///
/// # Safety
/// As sendmmsg(2).
pub unsafe fn before_send_many(messages: *const mmsghdr, count: usize) -> Result<usize, Errno> {
    for at in 0..count {
        // SAFETY: the caller's promise.
        match unsafe { before_send(&raw const (*messages.add(at)).msg_hdr) } {
            Ok(()) => {}
            Err(errno) if at == 0 => return Err(errno),
            Err(_) => return Ok(at),
        }
    }
    Ok(count)
}

/// After a message was received: sockets in it may be connections.
///
/// # Safety
/// As recvmsg(2), after success.
pub unsafe fn received(message: *const msghdr) {
    // SAFETY: the caller's promise.
    unsafe { for_each_fd(message, adopted) };
}
