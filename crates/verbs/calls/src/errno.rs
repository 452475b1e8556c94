//! The calling thread's `errno`.

use std::ffi::c_int;
use std::ptr;

pub fn set_errno(number: c_int) {
    // SAFETY: the C library's location of errno is valid for the calling thread.
    unsafe { *libc::__errno_location() = number };
}

pub fn errno() -> c_int {
    // SAFETY: the C library's location of errno is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// The answer of a call that returns a pointer: NULL and `errno`.
pub fn null<T>(number: c_int) -> *mut T {
    set_errno(number);
    ptr::null_mut()
}

/// The answer of a call that returns -1 and sets `errno`.
pub fn minus_one(number: c_int) -> c_int {
    set_errno(number);
    -1
}
