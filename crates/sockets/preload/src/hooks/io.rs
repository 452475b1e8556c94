//! Reads and writes.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sluice_preload_core::io::{received, written};
use sluice_preload_core::real::real;
use sluice_preload_core::to_c;
use sluice_preload_core::{conn, io, passing};

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::read(&conn, buffer, len),
                None => received((real().read)(fd, buffer, len)),
            }
        }
    }

    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::recv(&conn, buffer, len, flags),
                None => received((real().recv)(fd, buffer, len, flags)),
            }
        }
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::recvfrom(&conn, buffer, len, flags, address, address_len),
                None => received((real().recvfrom)(fd, buffer, len, flags, address, address_len)),
            }
        }
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::readv(&conn, parts, count),
                None => received((real().readv)(fd, parts, count)),
            }
        }
    }

    fn preadv2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::preadv2(&conn, parts, count, offset, flags),
                None => received((real().preadv2)(fd, parts, count, offset, flags)),
            }
        }
    }

    fn pwritev2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::pwritev2(&conn, parts, count, offset, flags),
                None => written((real().pwritev2)(fd, parts, count, offset, flags)),
            }
        }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::recvmsg(&conn, message, flags),
                None => {
                    let result = received((real().recvmsg)(fd, message, flags));
                    if result >= 0 {
                        passing::received(message, flags);
                    }
                    result
                }
            }
        }
    }

    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::recvmmsg(&conn, messages, count, flags, timeout),
                None => {
                    let got = received((real().recvmmsg)(fd, messages, count, flags, timeout));
                    for at in 0..usize::try_from(got).unwrap_or(0) {
                        passing::received(&raw mut (*messages.add(at)).msg_hdr, flags);
                    }
                    got
                }
            }
        }
    }

    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::write(&conn, buffer, len),
                None => written((real().write)(fd, buffer, len)),
            }
        }
    }

    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::send(&conn, buffer, len, flags),
                None => written((real().send)(fd, buffer, len, flags)),
            }
        }
    }

    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::sendto(&conn, buffer, len, flags, address, address_len),
                None => {
                    let result =
                        written((real().sendto)(fd, buffer, len, flags, address, address_len));
                    if flags & libc::MSG_FASTOPEN != 0 {
                        sluice_preload_core::descriptors::opened_fast(fd);
                    }
                    result
                }
            }
        }
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::writev(&conn, parts, count),
                None => written((real().writev)(fd, parts, count)),
            }
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::sendmsg(&conn, message, flags),
                None => {
                    passing::send(fd, message, |message| {
                        written((real().sendmsg)(fd, message, flags))
                    })
                }
            }
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => io::sendmmsg(&conn, messages, count, flags),
                None => {
                    match passing::before_send_many(messages, count as usize) {
                        Ok(count) => {
                            written((real().sendmmsg)(fd, messages, count as c_uint, flags))
                        }
                        Err(errno) => to_c(Err(errno)) as c_int,
                    }
                }
            }
        }
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        check(len, room);
        // SAFETY: the program's own arguments; there is room for `len` bytes, by the check.
        unsafe { read(fd, buffer, len) }
    }

    fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int
    ) -> ssize_t {
        check(len, room);
        // SAFETY: the program's own arguments; there is room for `len` bytes, by the check.
        unsafe { recv(fd, buffer, len, flags) }
    }

    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t {
        check(len, room);
        // SAFETY: the program's own arguments; there is room for `len` bytes, by the check.
        unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
    }
}

unsafe extern "C" {
    /// The C library's end of a program that overflows a buffer.
    fn __chk_fail() -> !;
}

/// The check of the fortified functions (`_FORTIFY_SOURCE`).
fn check(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: ends the process with the message that the program asked for.
        unsafe { __chk_fail() }
    }
}

aliases! {
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t = read;
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t = write;
    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t = send;
    fn preadv64v2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t = preadv2;
    fn pwritev64v2(
        fd: c_int,
        parts: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t = pwritev2;
}
