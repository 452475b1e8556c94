//! Memory of maps that user space sees.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall2, syscall6};

pub fn page_bytes() -> Result<usize, Errno> {
    // SAFETY: sysconf takes an integer.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| Errno::INVAL)
}

pub fn map_memory(
    fd: RawFd,
    bytes: usize,
    protection: i32,
    offset: usize,
) -> Result<*mut u8, Errno> {
    // SAFETY: a new shared mapping at an address of the kernel's choice touches no other memory.
    let ret = unsafe {
        syscall6(
            libc::SYS_mmap,
            0,
            bytes,
            int(protection),
            int(libc::MAP_SHARED),
            int(fd),
            offset,
        )
    };
    check(ret).map(|address| address as *mut u8)
}

pub fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: the mapping was made by `map_memory` with this length, and nothing of it is used
    // after this.
    let _ = check(unsafe { syscall2(libc::SYS_munmap, address as usize, bytes) });
}
