//! A descriptor of ours among the program's.
#![allow(unsafe_code)]

use crate::{fds, own_status};
use sluice_sys::errno::Errno;
use sluice_sys::raw;

/// The kernel's table of descriptors has room for so many at least.
const TABLE_SIZE_MIN: u32 = 64;
/// Numbers at the end of the table of which one is taken.
const HIDING_PLACES: i32 = 8;

/// Moves a descriptor out of the way of programs that expect the lowest numbers, to the last ones that the kernel's
/// table has room for. A higher one would make the table grow: each fork copies it, and a `select` of more descriptors
/// than there are reads as many bits of its sets as the table has places.
pub fn hide(fd: i32) -> Result<i32, Errno> {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: getrlimit writes one struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = limit.rlim_cur.clamp(16, fds::FDS_MAX as u64) as i32;
    let size = own_status::field(b"FDSize:").unwrap_or(TABLE_SIZE_MIN);
    let mut low = (size.min(fds::FDS_MAX as u32) as i32).min(limit) - HIDING_PLACES;
    loop {
        // SAFETY: fcntl with F_DUPFD_CLOEXEC takes and returns numbers.
        let moved = raw::check(unsafe {
            raw::syscall3(
                libc::SYS_fcntl,
                fd as usize,
                libc::F_DUPFD_CLOEXEC as usize,
                low as usize,
            )
        });
        match moved {
            Ok(moved) => return Ok(moved as i32),
            Err(_) if low > HIDING_PLACES => low /= 2,
            Err(errno) => return Err(errno),
        }
    }
}
