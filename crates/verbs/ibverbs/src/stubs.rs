//! What stands behind a symbol that must be there and does nothing: answers that say so.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use sluice_verbs_calls::errno::set_errno;

/// For calls that return an error number.
pub extern "C" fn not_supported() -> c_int {
    libc::EOPNOTSUPP
}

/// For calls that return -1 and set `errno`, whatever the width of what they return.
pub extern "C" fn minus_one() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// For calls that return a pointer.
pub extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// For calls that return a number in which zero means nothing.
pub extern "C" fn zero() -> usize {
    0
}

/// For calls that cannot fail and have nothing to do: what they would release cannot exist.
pub extern "C" fn nothing() {}

/// For calls that name a number of which this library knows none.
pub extern "C" fn unknown_name() -> *const c_char {
    c"unknown".as_ptr()
}
