//! Random numbers from the kernel, for keys that nobody can guess.
#![allow(unsafe_code)]

use sluice_sys::raw;

/// 32 random bits. Not on any data path.
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    loop {
        // SAFETY: the kernel writes at most four bytes to an array of four.
        let ret = unsafe {
            raw::syscall6(
                libc::SYS_getrandom,
                bytes.as_mut_ptr() as usize,
                bytes.len(),
                0,
                0,
                0,
                0,
            )
        };
        // A request of up to 256 bytes is answered whole or interrupted before the kernel's
        // generator is seeded (getrandom(2)).
        if raw::check(ret) == Ok(bytes.len()) {
            return u32::from_ne_bytes(bytes);
        }
    }
}
