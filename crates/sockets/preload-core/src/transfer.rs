//! sendfile and splice.
#![allow(unsafe_code)]

use crate::conn::Conn;
use crate::memory::Scratch;
use crate::real::{errno, real, set_errno};
use crate::{epoll, export, io, messages, to_c};
use core::ffi::{c_int, c_uint};
use sluice_lane::kernel::kernel_events;
use sluice_lane::reason::Reason;
use sluice_lane::receive::{Given, Taker, give};
use sluice_lane::send::{is_ring_next, through_kernel};
use sluice_lane::spin::yield_processor;
use sluice_sys::errno::Errno;
use sluice_sys::raw;

/// Bytes that pass through this process at a time, where there is memory for so many.
const PIECE_BYTES: usize = 32 * 1024;
/// The same on the program's stack.
const SMALL_PIECE_BYTES: usize = 128;
/// The most that Linux transfers in one call (`MAX_RW_COUNT`).
const COUNT_MAX: usize = 0x7fff_f000;

/// `sendfile` to a tracked connection.
///
/// # Safety
/// As sendfile(2).
pub unsafe fn sendfile(conn: &Conn, input: c_int, offset: *mut i64, count: usize) -> isize {
    messages::check();
    // SAFETY: the program's own arguments.
    let whole = || unsafe { (real().sendfile)(conn.fd, input, offset, count) };
    let start = if offset.is_null() {
        seek(input, 0, libc::SEEK_CUR)
    } else if (offset as usize) < 4096 {
        None
    } else {
        // SAFETY: the program's own offset, which sendfile(2) reads.
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
    let mut scratch = Scratch::take(PIECE_BYTES);
    let mut small = [0_u8; SMALL_PIECE_BYTES];
    let buffer = match &mut scratch {
        Some(scratch) => &mut scratch.bytes()[..PIECE_BYTES],
        None => &mut small[..],
    };
    let count = count.min(COUNT_MAX);
    while done < count {
        let wanted = (count - done).min(buffer.len());
        let got = read_at(input, &mut buffer[..wanted], start + done as i64);
        let got = match got {
            Ok(0) => break,
            Ok(got) => got,
            // It is no file, and the kernel knows what to say.
            Err(_) if done == 0 => {
                export::export(conn, Reason::KernelCall);
                return whole();
            }
            Err(_) => break,
        };
        // SAFETY: the buffer lives until this function ends.
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
        // SAFETY: the program's own offset, which sendfile(2) writes.
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

/// Flags that splice(2) knows; it refuses others.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// A sender that stopped in the middle of a write is waited for in pieces of a millisecond.
const NAP_MS: c_int = 1;
/// Looks that follow one another at once before such a wait.
const LOOKS: u32 = 64;

/// `splice` from a tracked connection into a pipe. From here on the connection stays on TCP and
/// the kernel splices, but for the bytes that are in the ring: they are in this process's memory, and
/// written to the pipe from there, whatever the sender does meanwhile.
///
/// `has_offsets`: the call has one, which sockets and pipes refuse. `part` is the call with another
/// length.
pub fn splice_from(
    conn: &Conn,
    pipe: c_int,
    len: usize,
    flags: c_uint,
    has_offsets: bool,
    part: impl Fn(usize) -> isize,
) -> isize {
    // SAFETY: fcntl takes and returns numbers.
    let pipe_flags = unsafe {
        match raw::syscall2(libc::SYS_fcntl, pipe as usize, libc::F_GETPIPE_SZ as usize) {
            0.. => raw::syscall2(libc::SYS_fcntl, pipe as usize, libc::F_GETFL as usize),
            refused => refused,
        }
    };
    let is_output = pipe_flags & libc::O_ACCMODE as isize != libc::O_RDONLY as isize;
    if pipe_flags < 0 || !is_output || has_offsets || len == 0 || flags & !SPLICE_FLAGS != 0 {
        // Nothing is moved.
        return part(len);
    }
    messages::check();
    conn.pin(Reason::KernelCall);
    let dontwait =
        flags & libc::SPLICE_F_NONBLOCK != 0 || pipe_flags & libc::O_NONBLOCK as isize != 0;
    let mut looks = 0;
    loop {
        // The kernel looks for room first, and for bytes then.
        if conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0 {
            match wait_for(pipe, libc::POLLOUT, if dontwait { 0 } else { -1 }) {
                1.. => {}
                0 => {
                    set_errno(libc::EAGAIN);
                    return -1;
                }
                _ => return -1,
            }
        }
        let mut taker = IntoPipe { pipe, part: &part };
        let (events, timeout_ms) = match give(conn.end, conn.generation, conn.fd, len, &mut taker) {
            // A page fitted a moment ago; somebody else has filled the pipe.
            Ok(Given::Bytes(0)) => continue,
            Ok(Given::Kernel) => {
                let moved = part(len);
                // A thread that slept in the kernel while the lane broke is told EPIPE there.
                let is_reset = moved <= 0 && conn.end.is_broken_by_peer();
                return if is_reset {
                    to_c(Err(Errno(libc::ECONNRESET)))
                } else {
                    moved
                };
            }
            Ok(Given::Bytes(bytes)) => return to_c(Ok(bytes)),
            Err(errno) => return to_c(Err(errno)),
            Ok(Given::Owed) => (libc::POLLIN, -1),
            Ok(Given::InFlight) => (0, NAP_MS),
        };
        if conn.end.is_nonblocking() {
            set_errno(libc::EAGAIN);
            return -1;
        }
        looks += 1;
        if events == 0 && looks <= LOOKS {
            yield_processor();
        } else if wait_for(conn.fd, events, timeout_ms) < 0 {
            return -1;
        }
    }
}

/// Waits until a descriptor has one of `events`, for `timeout_ms` at most, and answers as poll(2).
fn wait_for(fd: c_int, events: i16, timeout_ms: c_int) -> c_int {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { (real().poll)(&raw mut entry, 1, timeout_ms) }
}

struct IntoPipe<'a, P> {
    pipe: c_int,
    part: &'a P,
}

impl<P: Fn(usize) -> isize> Taker for IntoPipe<'_, P> {
    /// A page at a time always fits a pipe that can be written at all, so that the write does not
    /// wait. The call that owes them waited for room.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        // A pipe that nobody reads is writable, too, and the write says EPIPE.
        if kernel_events(self.pipe, libc::POLLOUT) & (libc::POLLOUT | libc::POLLERR) == 0 {
            return Ok(0);
        }
        // SAFETY: the bytes are a slice.
        let wrote = unsafe { (real().write)(self.pipe, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(wrote).map_err(|_| Errno(errno()))
    }

    fn take_from_kernel(&mut self, limit: usize) -> Result<usize, Errno> {
        if kernel_events(self.pipe, libc::POLLOUT) & (libc::POLLOUT | libc::POLLERR) == 0 {
            return Ok(0);
        }
        usize::try_from((self.part)(limit)).map_err(|_| Errno(errno()))
    }
}

/// `splice` from a pipe into a tracked connection.
pub fn splice_to(conn: &Conn, whole: impl Fn() -> isize) -> isize {
    export::export(conn, Reason::KernelCall);
    // The kernel's bytes come behind those in the ring, which nobody may ask back from here on.
    to_c(through_kernel(
        conn.end,
        conn.generation,
        conn.fd,
        &mut || usize::try_from(whole()).map_err(|_| Errno(errno())),
    ))
}
