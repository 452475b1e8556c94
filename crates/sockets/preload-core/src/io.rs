//! Reads and writes of tracked connections.
//!
//! Each hook hands over what the program asked for and the real function to do it with. Which
//! of the bytes the kernel moves is `sluice_lane`'s decision.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::memory::{LOWEST_ADDRESS, Scratch};
use crate::real::{cancellation_point, errno, real};
use crate::{epoll, messages, to_c};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use sluice_lane::end::State;
use sluice_lane::reason::Reason;
use sluice_lane::{Piece, parking, receive, send};
use sluice_sys::errno::Errno;

/// Pieces of a call that are put together on the thread's stack, where the kernel does not get the whole.
const PARTS_FEW: usize = 8;
/// The kernel refuses calls with more pieces (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// Bytes that are thrown away at one time, where there is memory for so many, and where not.
const DISCARD_MAX: usize = 64 * 1024;
const DISCARD_FEW: usize = 64;
/// Flags with which a read is the kernel's alone, and the connection stays on TCP.
const READ_KERNEL_FLAGS: c_int = libc::MSG_OOB;
/// Flags with which a write is the kernel's alone, and the connection stays on TCP.
const WRITE_KERNEL_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;
/// Flags that change nothing about which bytes move. With others a call never takes the short way.
const SHORT_WAY_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_WAITALL
    | libc::MSG_MORE
    | libc::MSG_CMSG_CLOEXEC;

fn part(address: *const c_void, len: usize) -> [iovec; 1] {
    [iovec {
        iov_base: address.cast_mut(),
        iov_len: len,
    }]
}

/// The result of a real function.
fn from_c(value: isize) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno(errno()))
}

/// The parts before the first with a bad address, if there is such a one. The kernel writes a
/// piece of the stream whole or, with `EFAULT`, not at all; it reads as far as the bytes it has go.
fn before_unmapped(parts: &[iovec]) -> Option<&[iovec]> {
    let bad = parts
        .iter()
        .position(|part| part.iov_len > 0 && (part.iov_base as usize) < LOWEST_ADDRESS)?;
    parts.get(..bad)
}

/// The real call for a few parts.
fn recv_parts(fd: c_int, parts: &[iovec], flags: c_int) -> isize {
    // SAFETY: the parts are the program's buffers, or ours.
    unsafe {
        let mut message: msghdr = core::mem::zeroed();
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len();
        (real().recvmsg)(fd, &raw mut message, flags)
    }
}

/// The same for a write.
fn send_parts(fd: c_int, parts: &mut [iovec], flags: c_int) -> isize {
    // SAFETY: the parts lie in the program's buffers.
    unsafe {
        let mut message: msghdr = core::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        (real().sendmsg)(fd, &raw const message, flags)
    }
}

/// A read to a bad address: waits as the call would, and fails if there is something to read.
fn read_nowhere(conn: &Conn, flags: c_int) -> Result<usize, Errno> {
    let mut byte = [0_u8; 1];
    let parts = part(byte.as_mut_ptr().cast(), 1);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_PEEK;
    match read_parts(conn, &parts, flags, &mut |flags| {
        recv_parts(conn.fd, &parts, flags)
    }) {
        Ok(1..) => Err(Errno(libc::EFAULT)),
        end => end,
    }
}

/// Whether a call with these flags does not block.
fn is_dontwait(conn: &Conn, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || conn.end.is_nonblocking()
}

fn dontwait(piece: Piece, flags: c_int) -> c_int {
    if piece.dontwait {
        flags | libc::MSG_DONTWAIT
    } else {
        flags
    }
}

/// Calls `call` with the parts of `piece`: all of them, or as many as there is memory for.
fn with_parts<R>(parts: &[iovec], piece: Piece, call: impl FnOnce(&mut [iovec]) -> R) -> R {
    let none = iovec {
        iov_base: null_mut(),
        iov_len: 0,
    };
    if parts.len() > PARTS_FEW
        && let Some(mut scratch) = Scratch::take(size_of_val(parts))
    {
        let room = scratch.fill(parts.len(), none);
        let count = cut(parts, piece, room);
        return call(&mut room[..count]);
    }
    let mut room = [none; PARTS_FEW];
    let count = cut(parts, piece, &mut room);
    call(&mut room[..count])
}

/// Writes the parts of `piece` to `out`, as far as there is room. How many those are.
fn cut(parts: &[iovec], piece: Piece, out: &mut [iovec]) -> usize {
    let (mut count, mut skip, mut left) = (0, piece.skip, piece.limit);
    for part in parts {
        if count == out.len() || left == 0 {
            break;
        }
        if skip >= part.iov_len {
            skip -= part.iov_len;
            continue;
        }
        let len = (part.iov_len - skip).min(left);
        out[count] = iovec {
            iov_base: part.iov_base.cast::<u8>().wrapping_add(skip).cast(),
            iov_len: len,
        };
        (count, left, skip) = (count + 1, left - len, 0);
    }
    count
}

/// A read of any form. `whole` is the program's own call, used when the kernel gets all of it.
fn read_parts(
    conn: &Conn,
    parts: &[iovec],
    flags: c_int,
    whole: &mut dyn FnMut(c_int) -> isize,
) -> Result<usize, Errno> {
    messages::check();
    if flags & !SHORT_WAY_FLAGS == 0 {
        let wanted = sluice_lane::parts_bytes(parts);
        let call = || from_c(received(whole(flags)));
        if let Some(result) = conn.end.read_patiently(conn.generation, wanted, call) {
            conn.note_operation(false, result.unwrap_or(0));
            return result;
        }
    }
    cancellation_point();
    if flags & libc::MSG_ERRQUEUE != 0 {
        return from_c(whole(flags));
    }
    // The kernel writes to no buffer then (tcp(7)).
    let discards = flags & libc::MSG_TRUNC != 0;
    if !discards && let Some(good) = before_unmapped(parts) {
        if sluice_lane::parts_bytes(good) == 0 {
            return read_nowhere(conn, flags);
        }
        return read_parts(conn, good, flags, &mut |flags| {
            recv_parts(conn.fd, good, flags)
        });
    }
    if flags & READ_KERNEL_FLAGS != 0 {
        conn.pin(Reason::Urgent);
        return from_c(whole(flags));
    }
    if discards {
        return discard(conn, parts, flags);
    }
    let total = sluice_lane::parts_bytes(parts);
    let request = receive::Request {
        parts,
        peek: flags & libc::MSG_PEEK != 0,
        waitall: flags & libc::MSG_WAITALL != 0,
        dontwait: is_dontwait(conn, flags),
    };
    let fd = conn.fd;
    let result = receive::receive(conn.end, conn.generation, fd, &request, &mut |piece| {
        let flags = dontwait(piece, flags);
        if piece.limit == 0 && total > 0 {
            let mut byte = [0_u8; 1];
            let parts = part(byte.as_mut_ptr().cast(), 1);
            return from_c(recv_parts(fd, &parts, flags | libc::MSG_PEEK)).map(|_| 0);
        }
        from_c(received(if piece.skip == 0 && piece.limit == total {
            whole(flags)
        } else {
            with_parts(parts, piece, |parts| recv_parts(fd, parts, flags))
        }))
    });
    if conn.end.state() == State::Tracked && !conn.end.is_wait_seen() {
        let is_empty = result == Err(Errno::AGAIN);
        conn.end
            .note_empty_read(is_empty, sluice_lane::clock::now_ns);
    }
    conn.note_operation(false, result.unwrap_or(0));
    result
}

/// `MSG_TRUNC` on TCP: the bytes are thrown away and only counted (tcp(7)).
fn discard(conn: &Conn, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let wanted = sluice_lane::parts_bytes(parts);
    let mut few = [0_u8; DISCARD_FEW];
    let mut scratch = Scratch::take(wanted.min(DISCARD_MAX));
    let room = match &mut scratch {
        Some(scratch) => scratch.bytes(),
        None => &mut few[..],
    };
    let mut flags = flags & !libc::MSG_TRUNC;
    let mut done = 0;
    loop {
        let len = room.len().min(wanted - done);
        let parts = part(room.as_mut_ptr().cast(), len);
        let result = read_parts(conn, &parts, flags, &mut |flags| {
            recv_parts(conn.fd, &parts, flags)
        });
        match result {
            Ok(bytes) => done += bytes,
            Err(errno) if done == 0 => return Err(errno),
            Err(errno) => {
                conn.end.keep_error(errno);
                return Ok(done);
            }
        }
        // What is only peeked at is there still.
        if result != Ok(len) || done == wanted || flags & libc::MSG_PEEK != 0 {
            return Ok(done);
        }
        if flags & libc::MSG_WAITALL == 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
}

fn write_parts(
    conn: &Conn,
    parts: &[iovec],
    flags: c_int,
    whole: &mut dyn FnMut(c_int) -> isize,
) -> Result<usize, Errno> {
    messages::check();
    if flags & !SHORT_WAY_FLAGS == 0 {
        let call = || from_c(whole(flags));
        if let Some(result) = conn.end.write_patiently(conn.generation, call) {
            note_written(conn, parts, flags, result);
            return result;
        }
    }
    cancellation_point();
    if let Some(good) = before_unmapped(parts) {
        if sluice_lane::parts_bytes(good) == 0 {
            // The kernel knows which error comes first, and can take no byte.
            return from_c(whole(flags));
        }
        return Err(Errno(libc::EFAULT));
    }
    if flags & WRITE_KERNEL_FLAGS != 0 {
        conn.pin(if flags & libc::MSG_OOB != 0 {
            Reason::Urgent
        } else {
            Reason::SocketOption
        });
    }
    let total = sluice_lane::parts_bytes(parts);
    let request = send::Request {
        parts,
        dontwait: is_dontwait(conn, flags),
    };
    let fd = conn.fd;
    let result = send::send(conn.end, conn.generation, fd, &request, &mut |piece| {
        if piece.skip == 0 && piece.limit == total {
            return from_c(whole(flags));
        }
        let mut done = 0;
        // More than one round only for more pieces than fit one call.
        loop {
            let rest = Piece {
                skip: piece.skip + done,
                limit: piece.limit - done,
                ..piece
            };
            let mut wanted = 0;
            let sent = from_c(with_parts(parts, rest, |parts| {
                wanted = sluice_lane::parts_bytes(parts);
                send_parts(fd, parts, flags)
            }));
            match sent {
                Ok(bytes) => {
                    done += bytes;
                    if bytes < wanted || done >= piece.limit {
                        return Ok(done);
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    });
    note_written(conn, parts, flags, result);
    result
}

/// What a call returned that wrote through the kernel, to a descriptor that is none of ours.
pub fn written<T>(result: T) -> T {
    parking::count_kernel_transfer();
    result
}

/// What a call returned that read through the kernel.
pub fn received<T: Default + PartialOrd>(result: T) -> T {
    if result > T::default() {
        parking::count_kernel_transfer();
    }
    result
}

fn note_written(conn: &Conn, parts: &[iovec], flags: c_int, result: Result<usize, Errno>) {
    // A part is as good as a refusal: the program waits for room without asking again.
    let is_blocked = match result {
        Ok(bytes) => bytes < sluice_lane::parts_bytes(parts) && is_dontwait(conn, flags),
        Err(errno) => errno == Errno::AGAIN,
    };
    if is_blocked {
        epoll::write_blocked(conn);
    }
    conn.note_operation(true, result.unwrap_or(0));
}

/// `read`. It stays a `read` where the kernel does it: seccomp filters and tracers tell `read`
/// from `recv`.
///
/// # Safety
/// As read(2).
pub unsafe fn read(conn: &Conn, buffer: *mut c_void, len: usize) -> isize {
    let fd = conn.fd;
    if len == 0 {
        // There is nothing to read and nothing to wait for, unlike with a recv of nothing.
        // SAFETY: the program's own arguments.
        return unsafe { (real().read)(fd, buffer, len) };
    }
    to_c(read_parts(conn, &part(buffer, len), 0, &mut |flags| {
        // SAFETY: the program's own arguments.
        unsafe {
            if flags == 0 {
                (real().read)(fd, buffer, len)
            } else {
                (real().recv)(fd, buffer, len, flags)
            }
        }
    }))
}

/// `recv`.
///
/// # Safety
/// As recv(2).
pub unsafe fn recv(conn: &Conn, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    let fd = conn.fd;
    to_c(read_parts(conn, &part(buffer, len), flags, &mut |flags| {
        // SAFETY: the program's own arguments.
        unsafe { (real().recv)(fd, buffer, len, flags) }
    }))
}

/// `recvfrom`.
///
/// # Safety
/// As recvfrom(2).
pub unsafe fn recvfrom(
    conn: &Conn,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> isize {
    let fd = conn.fd;
    let mut by_kernel = false;
    let result = read_parts(conn, &part(buffer, len), flags, &mut |flags| {
        by_kernel = true;
        // SAFETY: the program's own arguments.
        unsafe { (real().recvfrom)(fd, buffer, len, flags, address, address_len) }
    });
    if result.is_ok() && !by_kernel && !address.is_null() && !address_len.is_null() {
        // A connected stream has no source address to report.
        // SAFETY: the program's own argument.
        unsafe { *address_len = 0 };
    }
    to_c(result)
}

/// `readv`.
///
/// # Safety
/// As readv(2).
pub unsafe fn readv(conn: &Conn, parts: *const iovec, count: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { readv_with(conn, parts, count, 0) }
}

/// # Safety
/// As readv(2).
unsafe fn readv_with(conn: &Conn, parts: *const iovec, count: c_int, flags: c_int) -> isize {
    let fd = conn.fd;
    // SAFETY: the program's own arguments.
    let whole = &mut |flags: c_int| unsafe {
        if flags == 0 {
            return (real().readv)(fd, parts, count);
        }
        let mut message: msghdr = core::mem::zeroed();
        message.msg_iov = parts.cast_mut();
        message.msg_iovlen = count as usize;
        (real().recvmsg)(fd, &raw mut message, flags)
    };
    // SAFETY: the program's own array of `count` parts.
    match unsafe { parts_of(parts, count as isize) } {
        // As with `read`.
        Some(parts) if sluice_lane::parts_bytes(parts) > 0 => {
            to_c(read_parts(conn, parts, flags, whole))
        }
        _ => whole(0),
    }
}

/// `writev`.
///
/// # Safety
/// As writev(2).
pub unsafe fn writev(conn: &Conn, parts: *const iovec, count: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { writev_with(conn, parts, count, 0) }
}

/// # Safety
/// As writev(2).
unsafe fn writev_with(conn: &Conn, parts: *const iovec, count: c_int, flags: c_int) -> isize {
    let fd = conn.fd;
    // SAFETY: the program's own arguments.
    let whole = &mut |flags: c_int| unsafe {
        if flags == 0 {
            return (real().writev)(fd, parts, count);
        }
        let mut message: msghdr = core::mem::zeroed();
        message.msg_iov = parts.cast_mut();
        message.msg_iovlen = count as usize;
        (real().sendmsg)(fd, &raw const message, flags)
    };
    // SAFETY: the program's own array of `count` parts.
    match unsafe { parts_of(parts, count as isize) } {
        Some(parts) => to_c(write_parts(conn, parts, flags, whole)),
        None => whole(0),
    }
}

/// The flags of a `preadv2` or `pwritev2` on the stream itself as those of a message. `None`: the
/// kernel refuses the call (a socket has no offsets, and no other flags).
fn message_flags(offset: i64, flags: c_int) -> Option<c_int> {
    /// Hints and durability, which mean nothing to a socket.
    const WITHOUT_MEANING: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC;
    if offset != -1 || flags & !(libc::RWF_NOWAIT | WITHOUT_MEANING) != 0 {
        None
    } else if flags & libc::RWF_NOWAIT != 0 {
        Some(libc::MSG_DONTWAIT)
    } else {
        Some(0)
    }
}

/// `preadv2`, which with an offset of -1 is a `readv`.
///
/// # Safety
/// As preadv2(2).
pub unsafe fn preadv2(
    conn: &Conn,
    parts: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments.
    unsafe {
        match message_flags(offset, flags) {
            Some(flags) => readv_with(conn, parts, count, flags),
            None => (real().preadv2)(conn.fd, parts, count, offset, flags),
        }
    }
}

/// `pwritev2`, which with an offset of -1 is a `writev`.
///
/// # Safety
/// As pwritev2(2).
pub unsafe fn pwritev2(
    conn: &Conn,
    parts: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    // SAFETY: the program's own arguments.
    unsafe {
        match message_flags(offset, flags) {
            Some(flags) => writev_with(conn, parts, count, flags),
            None => (real().pwritev2)(conn.fd, parts, count, offset, flags),
        }
    }
}

/// The program's array, unless the kernel refuses it anyway.
///
/// # Safety
/// `parts` has `count` elements, or is a pointer that the kernel refuses.
unsafe fn parts_of<'a>(parts: *const iovec, count: isize) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|c| *c <= IOV_MAX)?;
    if count == 0 {
        return Some(&[]);
    }
    if (parts as usize) < LOWEST_ADDRESS {
        return None;
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { core::slice::from_raw_parts(parts, count) };
    parts
        .iter()
        .try_fold(0_isize, |sum, part| {
            sum.checked_add(isize::try_from(part.iov_len).ok()?)
        })
        .map(|_| parts)
}

/// `write`, and a `write` where the kernel does it, as with [`read`].
///
/// # Safety
/// As write(2).
pub unsafe fn write(conn: &Conn, buffer: *const c_void, len: usize) -> isize {
    let fd = conn.fd;
    to_c(write_parts(conn, &part(buffer, len), 0, &mut |_| {
        // SAFETY: the program's own arguments.
        unsafe { (real().write)(fd, buffer, len) }
    }))
}

/// `send`.
///
/// # Safety
/// As send(2).
pub unsafe fn send(conn: &Conn, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    let fd = conn.fd;
    to_c(write_parts(conn, &part(buffer, len), flags, &mut |flags| {
        // SAFETY: the program's own arguments.
        unsafe { (real().send)(fd, buffer, len, flags) }
    }))
}

/// `sendto`.
///
/// # Safety
/// As sendto(2).
pub unsafe fn sendto(
    conn: &Conn,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> isize {
    let fd = conn.fd;
    to_c(write_parts(conn, &part(buffer, len), flags, &mut |flags| {
        // SAFETY: the program's own arguments.
        unsafe { (real().sendto)(fd, buffer, len, flags, address, address_len) }
    }))
}

/// `recvmsg`.
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn recvmsg(conn: &Conn, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the program's own arguments.
    let whole = &mut |flags| unsafe { (real().recvmsg)(conn.fd, message, flags) };
    if (message as usize) < LOWEST_ADDRESS {
        return whole(flags);
    }
    // SAFETY: the program's own message, and the parts that it names.
    let Some(parts) = (unsafe { parts_of((*message).msg_iov, (*message).msg_iovlen as isize) })
    else {
        return whole(flags);
    };
    let mut by_kernel = false;
    let result = read_parts(conn, parts, flags, &mut |flags| {
        by_kernel = true;
        whole(flags)
    });
    if result.is_ok() && !by_kernel {
        // SAFETY: the program's own message, which recvmsg(2) writes. Ring bytes come without
        // address and control messages.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
    }
    to_c(result)
}

/// `sendmsg`.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn sendmsg(conn: &Conn, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the program's own arguments.
    let whole = &mut |flags| unsafe { (real().sendmsg)(conn.fd, message, flags) };
    if (message as usize) < LOWEST_ADDRESS {
        return whole(flags);
    }
    // SAFETY: the program's own message, and the parts that it names.
    let (parts, has_control) = unsafe {
        (
            parts_of((*message).msg_iov, (*message).msg_iovlen as isize),
            (*message).msg_controllen > 0,
        )
    };
    let Some(parts) = parts else {
        return whole(flags);
    };
    if has_control {
        // Time stamps, record types of kernel TLS: per-message orders to the kernel.
        conn.pin(Reason::SocketOption);
    }
    to_c(write_parts(conn, parts, flags, whole))
}

/// `sendmmsg`: message by message, as the kernel does it.
///
/// # Safety
/// As sendmmsg(2).
pub unsafe fn sendmmsg(conn: &Conn, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    let mut done = 0;
    while done < count.min(IOV_MAX as u32) {
        // SAFETY: the program's own array.
        let sent = unsafe {
            let message = messages.add(done as usize);
            let sent = sendmsg(conn, &raw const (*message).msg_hdr, flags);
            if sent >= 0 {
                (*message).msg_len = sent as u32;
            }
            sent
        };
        if sent < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        done += 1;
    }
    done as c_int
}

/// A timeout that the kernel takes; longer ones than a `u64` holds are for ever.
fn nanoseconds(time: &timespec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec)
        .ok()
        .filter(|ns| *ns < 1_000_000_000)?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// `recvmmsg`: message by message; the timeout is looked at after each, as the kernel does.
///
/// # Safety
/// As recvmmsg(2).
pub unsafe fn recvmmsg(
    conn: &Conn,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let start = sluice_lane::clock::now_ns();
    let limit_ns = if timeout.is_null() {
        Some(u64::MAX)
    } else if (timeout as usize) < LOWEST_ADDRESS {
        None
    } else {
        // SAFETY: the program's own argument.
        nanoseconds(unsafe { &*timeout })
    };
    let Some(limit_ns) = limit_ns else {
        // SAFETY: the program's own arguments, which the kernel refuses.
        return unsafe { (real().recvmmsg)(conn.fd, messages, count, flags, timeout) };
    };
    let mut flags = flags;
    let mut done = 0;
    while done < count.min(IOV_MAX as u32) {
        // SAFETY: the program's own array.
        let got = unsafe {
            let message = messages.add(done as usize);
            let hdr = &raw mut (*message).msg_hdr;
            let got = recvmsg(conn, hdr, flags & !libc::MSG_WAITFORONE);
            if got >= 0 {
                (*message).msg_len = got as u32;
            }
            got
        };
        if got < 0 {
            if done == 0 {
                return -1;
            }
            conn.end.keep_error(Errno(errno()));
            return done as c_int;
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if sluice_lane::clock::now_ns() - start >= limit_ns {
            break;
        }
    }
    done as c_int
}
