//! liburing, where a program links it dynamically: its own system calls are inline.

use core::ffi::{CStr, c_int, c_uint, c_void};
use sluice_preload_core::gateway;
use sluice_preload_core::real::next;
use sluice_preload_core::uring::{self, Params};

/// `struct io_uring` of liburing 2, as far as it is looked at. Programs have it in their own memory,
/// so it does not change while the library's name is liburing.so.2.
#[repr(C)]
pub struct UserRing {
    /// Pointers into the ring.
    queue: [usize; 8],
    /// Up to here entries were given to the kernel.
    head: c_uint,
    /// Up to here they are prepared.
    tail: c_uint,
    rest: [usize; 15],
    flags: c_uint,
    fd: c_int,
}

const _: () = assert!(core::mem::offset_of!(UserRing, fd) == 196);

/// The function of this name behind the hook, of the hook's own type.
macro_rules! next {
    ($name:ident, $kind:ty) => {
        Some(next(CStr::from_bytes_with_nul_unchecked(
            concat!(stringify!($name), "\0").as_bytes(),
        )))
        .filter(|found| *found != 0)
        .map(|found| core::mem::transmute::<usize, $kind>(found))
    };
}

hooks! {
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut UserRing, params: *mut Params) -> c_int {
        if !gateway::allows_io_uring() {
            return -libc::ENOSYS;
        }
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            let Some(next) = next!(
                io_uring_queue_init_params,
                unsafe extern "C" fn(c_uint, *mut UserRing, *mut Params) -> c_int
            ) else {
                return -libc::ENOSYS;
            };
            let result = next(entries, ring, params);
            if result >= 0 {
                uring::made((*ring).fd, &*params);
            }
            result
        }
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut UserRing, flags: c_uint) -> c_int {
        let mut params = Params::default();
        params.flags = flags;
        // SAFETY: the program's own ring, and parameters that live on this stack.
        let result = unsafe { io_uring_queue_init_params(entries, ring, &raw mut params) };
        result.min(0)
    }

    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut UserRing,
        params: *mut Params,
        memory: *mut c_void,
        bytes: usize
    ) -> c_int {
        if !gateway::allows_io_uring() {
            return -libc::ENOSYS;
        }
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            let Some(next) = next!(
                io_uring_queue_init_mem,
                unsafe extern "C" fn(c_uint, *mut UserRing, *mut Params, *mut c_void, usize) -> c_int
            ) else {
                return -libc::ENOSYS;
            };
            let result = next(entries, ring, params, memory, bytes);
            if result >= 0 {
                uring::made((*ring).fd, &*params);
            }
            result
        }
    }

    fn io_uring_queue_exit(ring: *mut UserRing) -> () {
        // SAFETY: the program's own ring, to the library's own function.
        unsafe {
            uring::about_to_close((*ring).fd);
            if let Some(next) = next!(io_uring_queue_exit, unsafe extern "C" fn(*mut UserRing)) {
                next(ring);
            }
        }
    }
}

/// Functions that register descriptors: an array of them, how many, and more.
macro_rules! registering {
    ($(fn $name:ident($($before:ident: $kind:ty),*; $fds:ident, $count:ident $(; $after:ident: $after_kind:ty)?);)*) => {
        hooks! { $(
            fn $name(
                ring: *mut UserRing,
                $($before: $kind,)*
                $fds: *const c_int,
                $($after: $after_kind,)?
                $count: c_uint
            ) -> c_int {
                // SAFETY: the program's own arguments, to the library's own function.
                unsafe {
                    let Some(next) = next!(
                        $name,
                        unsafe extern "C" fn(
                            *mut UserRing, $($kind,)* *const c_int, $($after_kind,)? c_uint
                        ) -> c_int
                    ) else {
                        return -libc::ENOSYS;
                    };
                    uring::register_all($fds as u64, $count);
                    next(ring, $($before,)* $fds, $($after,)? $count)
                }
            }
        )* }
    };
}

registering! {
    fn io_uring_register_files(; fds, count);
    fn io_uring_register_files_tags(; fds, count; tags: *const u64);
    fn io_uring_register_files_update(offset: c_uint; fds, count);
    fn io_uring_register_files_update_tag(offset: c_uint; fds, count; tags: *const u64);
}

/// Functions that submit what is prepared.
macro_rules! submitting {
    ($(fn $name:ident($($arg:ident: $kind:ty),*);)*) => {
        hooks! { $(
            fn $name(ring: *mut UserRing $(, $arg: $kind)*) -> c_int {
                // SAFETY: the program's own arguments, to the library's own function.
                unsafe {
                    let Some(next) = next!(
                        $name,
                        unsafe extern "C" fn(*mut UserRing $(, $kind)*) -> c_int
                    ) else {
                        return -libc::ENOSYS;
                    };
                    let (fd, head, tail) = ((*ring).fd, (*ring).head, (*ring).tail);
                    uring::enter_prepared(fd, head, tail.wrapping_sub(head), || next(ring $(, $arg)*))
                }
            }
        )* }
    };
}

submitting! {
    fn io_uring_submit();
    fn io_uring_submit_and_wait(count: c_uint);
    fn io_uring_submit_and_wait_timeout(
        completion: *mut c_void,
        count: c_uint,
        time: *mut c_void,
        mask: *mut c_void
    );
    fn io_uring_submit_and_wait_min_timeout(
        completion: *mut c_void,
        count: c_uint,
        time: *mut c_void,
        shortest: c_uint,
        mask: *mut c_void
    );
    fn io_uring_submit_and_wait_reg(
        completion: *mut c_void,
        count: c_uint,
        number: c_int
    );
    fn io_uring_submit_and_get_events();
    fn io_uring_wait_cqes(
        completion: *mut c_void,
        count: c_uint,
        time: *mut c_void,
        mask: *mut c_void
    );
    fn io_uring_wait_cqes_min_timeout(
        completion: *mut c_void,
        count: c_uint,
        time: *mut c_void,
        shortest: c_uint,
        mask: *mut c_void
    );
    fn io_uring_wait_cqe_timeout(completion: *mut c_void, time: *mut c_void);
}

/// io_uring_enter(2), made by a function that returns -1 with `errno`, or the error itself.
fn enter<R>(fd: c_uint, to_submit: c_uint, flags: c_uint, kernel: impl FnOnce() -> R) -> R {
    // SAFETY: the ring's entries are the program's, and the kernel reads them next.
    unsafe { uring::enter(fd as c_int, to_submit, flags, kernel) }
}

hooks! {
    fn io_uring_enter(
        fd: c_uint,
        to_submit: c_uint,
        count: c_uint,
        flags: c_uint,
        mask: *mut c_void
    ) -> c_int {
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            match next!(
                io_uring_enter,
                unsafe extern "C" fn(c_uint, c_uint, c_uint, c_uint, *mut c_void) -> c_int
            ) {
                Some(next) => enter(fd, to_submit, flags, || next(fd, to_submit, count, flags, mask)),
                None => -libc::ENOSYS,
            }
        }
    }

    fn io_uring_enter2(
        fd: c_uint,
        to_submit: c_uint,
        count: c_uint,
        flags: c_uint,
        argument: *mut c_void,
        bytes: usize
    ) -> c_int {
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            match next!(
                io_uring_enter2,
                unsafe extern "C" fn(c_uint, c_uint, c_uint, c_uint, *mut c_void, usize) -> c_int
            ) {
                Some(next) => enter(fd, to_submit, flags, || {
                    next(fd, to_submit, count, flags, argument, bytes)
                }),
                None => -libc::ENOSYS,
            }
        }
    }

    fn io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
        if !gateway::allows_io_uring() {
            return -libc::ENOSYS;
        }
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            let Some(next) = next!(io_uring_setup, unsafe extern "C" fn(c_uint, *mut Params) -> c_int)
            else {
                return -libc::ENOSYS;
            };
            let fd = next(entries, params);
            if fd >= 0 {
                uring::made(fd, &*params);
            }
            fd
        }
    }

    fn io_uring_register(
        fd: c_uint,
        operation: c_uint,
        argument: *const c_void,
        count: c_uint
    ) -> c_int {
        // SAFETY: the program's own arguments, to the library's own function.
        unsafe {
            let Some(next) = next!(
                io_uring_register,
                unsafe extern "C" fn(c_uint, c_uint, *const c_void, c_uint) -> c_int
            ) else {
                return -libc::ENOSYS;
            };
            uring::before_register(operation, argument as usize, count);
            next(fd, operation, argument, count)
        }
    }
}
