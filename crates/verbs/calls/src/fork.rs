//! fork(2). Hardware that writes to pages behind the kernel's back needs care; here the processor
//! does all copying, and a child's copies of pages are its own.

use std::ffi::{c_int, c_void};

use crate::ffi::IBV_FORK_UNNEEDED;

pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub extern "C" fn ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
