//! Descriptors: closing, copying, controlling.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use sluice_preload_core::real::{real, set_errno};
use sluice_preload_core::{Reason, conn, descriptors, export, fds, options};

hooks! {
    fn close(fd: c_int) -> c_int {
        descriptors::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        descriptors::close_range(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        descriptors::closefrom(first);
    }

    fn dup(fd: c_int) -> c_int {
        // SAFETY: the program's own argument.
        let copy = unsafe { (real().dup)(fd) };
        if copy >= 0 {
            descriptors::duplicated(fd, copy);
        }
        copy
    }

    fn dup2(fd: c_int, target: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        descriptors::replace(fd, target, || unsafe { (real().dup2)(fd, target) })
    }

    fn dup3(fd: c_int, target: c_int, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        descriptors::replace(fd, target, || unsafe { (real().dup3)(fd, target, flags) })
    }

    fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
        if let Some(conn) = conn::get(fd) {
            return options::fcntl(&conn, command, arg);
        }
        // SAFETY: the program's own arguments.
        let result = unsafe { (real().fcntl)(fd, command, arg) };
        let copies = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
        if copies && result >= 0 && (fds::is_known(fd) || fds::is_known(result)) {
            descriptors::duplicated(fd, result);
        }
        result
    }

    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(fd) {
                Some(conn) => options::ioctl(&conn, request, arg),
                None => (real().ioctl)(fd, request, arg),
            }
        }
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        // Streams read and write inside the C library, where no hook is.
        if let Some(conn) = conn::get(fd)
            && !export::export_to_unseen(&conn, Reason::KernelCall)
            && !mode.is_null()
            // SAFETY: a string of the program's.
            && unsafe { CStr::from_ptr(mode) }.to_bytes().iter().any(|it| b"r+".contains(it))
        {
            set_errno(libc::EBUSY);
            return core::ptr::null_mut();
        }
        // SAFETY: the program's own arguments.
        unsafe { (real().fdopen)(fd, mode) }
    }
}

aliases! {
    fn __close(fd: c_int) -> c_int = close;
    fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int = fcntl;
    fn __fcntl(fd: c_int, command: c_int, arg: usize) -> c_int = fcntl;
    fn __dup2(fd: c_int, target: c_int) -> c_int = dup2;
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void = fdopen;
}
