//! sendfile and splice.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::real::{errno, real, set_errno};
use crate::{descriptors, epoll, io, to_c};
use core::ffi::{c_int, c_uint};
use sluice_lane::reason::Reason;
use sluice_lane::send::{is_ring_next, through_kernel};
use sluice_lane::wait::kernel_events;
use sluice_sys::errno::Errno;
use sluice_sys::raw;

/// Bytes that pass through the stack at a time.
const PIECE_BYTES: usize = 32 * 1024;
/// The most that Linux transfers in one call (`MAX_RW_COUNT`).
const COUNT_MAX: usize = 0x7fff_f000;

/// `sendfile` to a tracked connection.
///
/// # Safety
/// As sendfile(2).
pub unsafe fn sendfile(conn: &Conn, input: c_int, offset: *mut i64, count: usize) -> isize {
    crate::link::check_mail();
    // SAFETY: the program's own arguments, here and below.
    let whole = || unsafe { (real().sendfile)(conn.fd, input, offset, count) };
    let start = if offset.is_null() {
        seek(input, 0, libc::SEEK_CUR)
    } else if (offset as usize) < 4096 {
        None
    } else {
        // SAFETY: as above.
        Some(unsafe { *offset })
    };
    let by_ring = is_ring_next(conn.end, conn.generation);
    let (Some(start), true) = (start.filter(|start| *start >= 0), by_ring) else {
        let result = through_kernel(conn.end, conn.generation, conn.fd, &mut || match whole() {
            value @ 0.. => Ok(value as usize),
            _ => Err(Errno(errno())),
        });
        if is_blocked(conn, count, result) {
            epoll::write_blocked(conn);
        }
        conn.note_operation(true, result.unwrap_or(0));
        return to_c(result);
    };
    let mut done = 0;
    let mut last = 0;
    let mut buffer = [0_u8; PIECE_BYTES];
    let count = count.min(COUNT_MAX);
    while done < count {
        let wanted = (count - done).min(PIECE_BYTES);
        let got = read_at(input, &mut buffer[..wanted], start + done as i64);
        let got = match got {
            Ok(0) => break,
            Ok(got) => got,
            // Not a file: the kernel knows what to say.
            Err(_) if done == 0 => {
                descriptors::export(conn, Reason::KernelCall);
                return whole();
            }
            Err(_) => break,
        };
        // SAFETY: the buffer lives on this stack.
        last = unsafe { io::send(conn, buffer.as_ptr().cast(), got, 0) };
        done += usize::try_from(last).unwrap_or(0);
        if last < got as isize {
            break;
        }
    }
    if done == 0 && last < 0 {
        return -1;
    }
    if offset.is_null() {
        seek(input, start + done as i64, libc::SEEK_SET);
    } else {
        // SAFETY: as above.
        unsafe { *offset = start + done as i64 };
    }
    done as isize
}

/// Whether the kernel found no room for `count` bytes. It moves fewer at the end of a file, too.
fn is_blocked(conn: &Conn, count: usize, result: Result<usize, Errno>) -> bool {
    match result {
        Ok(bytes) => {
            bytes < count
                && conn.end.is_nonblocking()
                && kernel_events(conn.fd, libc::POLLOUT) & libc::POLLOUT == 0
        }
        Err(errno) => errno == Errno::AGAIN,
    }
}

fn seek(fd: c_int, offset: i64, whence: c_int) -> Option<i64> {
    // SAFETY: lseek takes and returns numbers.
    let at = unsafe {
        raw::syscall3(
            libc::SYS_lseek,
            fd as usize,
            offset as usize,
            whence as usize,
        )
    };
    (at >= 0).then_some(at as i64)
}

fn read_at(fd: c_int, buffer: &mut [u8], offset: i64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most the buffer's length.
    raw::check(unsafe {
        raw::syscall4(
            libc::SYS_pread64,
            fd as usize,
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            offset as usize,
        )
    })
}

/// `splice` from a tracked connection into a pipe: bytes that are in the ring are written to
/// the pipe; from then on the connection stays on TCP and the kernel splices.
pub fn splice_from(
    conn: &Conn,
    pipe: c_int,
    len: usize,
    flags: c_uint,
    whole: impl Fn() -> isize,
) -> isize {
    descriptors::export(conn, Reason::KernelCall);
    let mut buffer = [0_u8; 4096];
    let unread = conn.end.unread_ring_bytes(conn.generation);
    if unread == 0 || len == 0 {
        return whole();
    }
    // A page always fits a pipe that can be written at all; without room this blocks or fails as
    // splice would.
    let mut room = libc::pollfd {
        fd: pipe,
        events: libc::POLLOUT,
        revents: 0,
    };
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 {
        0
    } else {
        -1
    };
    // SAFETY: one pollfd.
    match unsafe { (real().poll)(&raw mut room, 1, wait) } {
        1 => {}
        0 => {
            set_errno(libc::EAGAIN);
            return -1;
        }
        _ => return -1,
    }
    let wanted = len.min(unread).min(buffer.len());
    // SAFETY: the buffer lives on this stack.
    unsafe {
        let got = io::recv(conn, buffer.as_mut_ptr().cast(), wanted, 0);
        if got <= 0 {
            return got;
        }
        (real().write)(pipe, buffer.as_ptr().cast(), got as usize)
    }
}

/// `splice` from a pipe into a tracked connection.
pub fn splice_to(conn: &Conn, whole: impl Fn() -> isize) -> isize {
    descriptors::export(conn, Reason::KernelCall);
    whole()
}
