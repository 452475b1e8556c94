//! Sockets: creation, connection, options.

use core::ffi::{c_int, c_void};
use libc::{sockaddr, socklen_t};
use sluice_preload_core::real::real;
use sluice_preload_core::{conn, descriptors, fds, gateway, options, outward, this_process};

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        let fd = unsafe { (real().socket)(domain, kind, protocol) };
        if fd >= 0 && !this_process::is_vfork_child() {
            descriptors::socket_created(fd, domain, kind, protocol);
        }
        fd
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the program's own arguments.
        let result = unsafe {
            let by_gateway = if gateway::is_on() && !this_process::is_vfork_child() {
                outward::connect(fd, address, len)
            } else {
                None
            };
            by_gateway.unwrap_or_else(|| (real().connect)(fd, address, len))
        };
        if fds::is_known(fd) {
            // SAFETY: the kernel has read the address if the call succeeded.
            unsafe { descriptors::connected(fd, result, address) };
        }
        result
    }

    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { (real().bind)(fd, address, len) }
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        let result = unsafe { (real().listen)(fd, backlog) };
        if result == 0 && fds::is_known(fd) {
            descriptors::listening();
            if gateway::is_on() {
                return descriptors::listening_at_gateway(fd);
            }
        }
        result
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments.
        let got = unsafe {
            if gateway::is_on() {
                gateway::accept(fd, address, len, 0)
            } else {
                (real().accept)(fd, address, len)
            }
        };
        if got >= 0 && !this_process::is_vfork_child() {
            descriptors::accepted(fd, got);
        }
        got
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        let got = unsafe {
            if gateway::is_on() {
                gateway::accept(fd, address, len, flags)
            } else {
                (real().accept4)(fd, address, len, flags)
            }
        };
        if got >= 0 && !this_process::is_vfork_child() {
            descriptors::accepted(fd, got);
        }
        got
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            if gateway::is_on() {
                return gateway::getpeername(fd, address, len);
            }
            (real().getpeername)(fd, address, len)
        }
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            if gateway::is_on() {
                return gateway::getsockname(fd, address, len);
            }
            (real().getsockname)(fd, address, len)
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some(conn) = conn::get(fd) {
            options::before_shutdown(&conn, how);
        }
        // SAFETY: the program's own arguments.
        unsafe { (real().shutdown)(fd, how) }
    }

    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            let Some(conn) = conn::get(fd) else {
                return (real().setsockopt)(fd, level, name, value, len);
            };
            options::before_set(&conn, level, name, value, len);
            let result = (real().setsockopt)(fd, level, name, value, len);
            if result == 0 {
                options::after_set(&conn, level, name, value);
            }
            result
        }
    }

    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            let result = (real().getsockopt)(fd, level, name, value, len);
            if result == 0 && let Some(conn) = conn::get(fd) {
                options::after_get(&conn, level, name, value, len);
            }
            result
        }
    }
}

aliases! {
    fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = connect;
}
