//! Descriptors in control messages of Unix sockets.
//!
//! A connection in a message is given to a process that may be anybody: its unread ring bytes are
//! fetched first. Those that the peer does not take back can go to programs under Sluice only, and
//! go with the connection, [`wrapper`].
#![allow(unsafe_code)]

mod wrapper;

use crate::descriptors::arrived;
use crate::export::{export, export_at_once};
use crate::memory::Scratch;
use crate::real::{errno, set_errno};
use crate::{conn, log, own_stack, to_c};
use core::ffi::c_int;
use core::slice;
use libc::{mmsghdr, msghdr};
use sluice_lane::reason::Reason;
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

/// The kernel takes no more descriptors in a message (`SCM_MAX_FD`).
const FDS_MAX: usize = 253;
/// It takes no more control data, as it is set up anywhere (`net.core.optmem_max`).
const CONTROL_MAX: usize = 1 << 20;

/// Calls `each` with where the descriptors in a message are.
///
/// # Safety
/// `message` is a message as sendmsg(2) takes or recvmsg(2) has filled.
unsafe fn for_each_place(message: *const msghdr, mut each: impl FnMut(*mut c_int)) {
    // SAFETY: the caller's promise; headers are within `msg_controllen` by the macros, descriptors by `end`.
    unsafe {
        if (message as usize) < 4096 || (*message).msg_controllen == 0 {
            return;
        }
        let end = (*message).msg_control as usize + (*message).msg_controllen;
        let mut header = libc::CMSG_FIRSTHDR(message);
        // One that says more than there is gets the kernel's EINVAL.
        while !header.is_null() && (*header).cmsg_len <= end.saturating_sub(header as usize) {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header)
                    .cmsg_len
                    .saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    each(fds.add(at));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn refuse(fd: c_int, why: &str) -> Errno {
    log!(
        Warn,
        "fd {fd}: not passed on before its unread bytes are read: {why}"
    );
    Errno(libc::EBUSY)
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
        for_each_place(message, |place| {
            if let Some(conn) = conn::get(place.read_unaligned())
                && !export(&conn, Reason::Shared)
            {
                let why = "nobody is known to take them along";
                result = Err(refuse(conn.fd, why));
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

/// Sends a message by `call`, the program's own, on `fd`. Connections with unread ring bytes go
/// with these where a program under Sluice receives them; `EBUSY` where that is not known.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn send(
    fd: c_int,
    message: *const msghdr,
    call: impl FnOnce(*const msghdr) -> isize,
) -> isize {
    let mut is_left = false;
    // SAFETY: the caller's promise.
    unsafe {
        for_each_place(message, |place| {
            if let Some(conn) = conn::get(place.read_unaligned()) {
                is_left |= !own_stack::run(|| export_at_once(&conn, Reason::Shared));
            }
        });
    }
    if !is_left {
        return call(message);
    }
    let before = errno();
    let is_known = own_stack::run(|| wrapper::is_received_by_sluice(fd));
    set_errno(before);
    if !is_known {
        // SAFETY: the caller's promise.
        return match unsafe { before_send(message) } {
            Ok(()) => call(message),
            Err(errno) => to_c(Err(errno)),
        };
    }
    // SAFETY: there are descriptors in it, so it is a message.
    unsafe { send_wrapped(message, call) }
}

/// # Safety
/// A message with descriptors.
#[cold]
unsafe fn send_wrapped(message: *const msghdr, call: impl FnOnce(*const msghdr) -> isize) -> isize {
    // SAFETY: the caller's promise.
    let mut copy = unsafe { message.read() };
    if copy.msg_controllen > CONTROL_MAX {
        return to_c(Err(Errno(libc::ENOBUFS)));
    }
    let memory = (
        Scratch::take(copy.msg_controllen),
        Scratch::take(FDS_MAX * size_of::<c_int>()),
    );
    let (Some(mut control), Some(mut wrappers)) = memory else {
        return to_c(Err(Errno(libc::ENOBUFS)));
    };
    // SAFETY: the kernel would read as many bytes there.
    let given = unsafe { slice::from_raw_parts(copy.msg_control.cast(), copy.msg_controllen) };
    control.bytes()[..given.len()].copy_from_slice(given);
    copy.msg_control = control.bytes().as_mut_ptr().cast();
    let wrappers = wrappers.fill(FDS_MAX, -1);
    let mut used = 0;
    let refused = own_stack::run(|| {
        let mut refused = None;
        // SAFETY: the copy is a message as well, with control data of its own.
        unsafe {
            for_each_place(&raw const copy, |place| {
                let conn = conn::get(place.read_unaligned());
                let Some(conn) = conn.filter(|conn| !conn.is_empty() || conn.end.has_gap()) else {
                    return;
                };
                match (wrapper::wrap(&conn), wrappers.get_mut(used)) {
                    (Ok(wrapper), Some(slot)) => {
                        log!(Info, "fd {}: passed on with its unread bytes", conn.fd);
                        place.write_unaligned(wrapper.raw());
                        *slot = wrapper.into_raw();
                        used += 1;
                    }
                    (wrapped, _) => {
                        let why = wrapped.err().unwrap_or("too many descriptors in a message");
                        refused = Some(refuse(conn.fd, why));
                    }
                }
            });
        }
        refused
    });
    let result = match refused {
        None => call(&raw const copy),
        Some(errno) => to_c(Err(errno)),
    };
    let before = errno();
    for wrapper in &wrappers[..used] {
        drop(Fd::own(*wrapper));
    }
    set_errno(before);
    result
}

/// After a message was received: sockets in it may be connections.
///
/// # Safety
/// As recvmsg(2), after success, with these flags.
pub unsafe fn received(message: *const msghdr, flags: c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        for_each_place(message, |place| {
            let fd = place.read_unaligned();
            own_stack::run(|| {
                if !wrapper::unwrap(fd, flags & libc::MSG_PEEK != 0) {
                    arrived(fd);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many descriptors are seen in control data of 32 bytes whose header says so many.
    fn seen(header_bytes: usize) -> usize {
        let mut control = [0_u64; 4];
        // SAFETY: zero is a value of all fields, and the header fits into `control`.
        let message = unsafe {
            let mut message: msghdr = core::mem::zeroed();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = header_bytes;
            message
        };
        let range = control.as_ptr_range();
        let mut count = 0;
        // SAFETY: the header and its control data are alive, and what the header says is what is tried.
        unsafe {
            for_each_place(&raw const message, |place| {
                let place = place.cast_const().cast::<u64>();
                assert!(range.contains(&place), "{place:p} in {range:?}");
                count += 1;
            });
        }
        count
    }

    #[test]
    fn descriptors_that_a_header_only_says_are_not_looked_at() {
        assert_eq!(seen(16 + 4), 1);
        assert_eq!(seen(16 + 16), 4);
        for wrong in [0, 1, 16, 16 + 17, 16 + 20, 4096, usize::MAX] {
            assert_eq!(seen(wrong), 0, "{wrong}");
        }
    }
}
