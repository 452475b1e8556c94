//! Private memory straight from the kernel, so that hooks do not enter the program's allocator, and addresses
//! that are none.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// Addresses below are never mapped (`vm.mmap_min_addr`), so a call with one is the kernel's to
/// refuse.
pub const LOWEST_ADDRESS: usize = 4096;

/// `bytes` of zeroed memory for the rest of the process's life; pages that nobody touches cost
/// nothing.
pub fn zeroed(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        None
    } else {
        NonNull::new(address.cast())
    }
}
