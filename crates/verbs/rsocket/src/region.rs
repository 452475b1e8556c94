//! Memory that the peer may write, or that this side sends from: mapped, registered, and
//! touched by copies only.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ffi::*;
use sluice_rdmacm::verbs::check_pointer;
use sluice_rdmacm::{Errno, calls, errno_of};

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 2;

pub struct Region {
    start: *mut u8,
    len: usize,
    mr: *mut ibv_mr,
}

impl Region {
    /// Shared anonymous memory, so that a transport can let peers write it directly.
    pub fn new(pd: *mut ibv_pd, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at no particular address.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(errno_of(&std::io::Error::last_os_error()));
        }
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE;
        // SAFETY: the mapping has `len` bytes and outlives its registration.
        let mr = check_pointer(unsafe { (calls().reg_mr)(pd, start, len, access) });
        match mr {
            Ok(mr) => Ok(Self {
                start: start.cast(),
                len,
                mr,
            }),
            Err(errno) => {
                // SAFETY: mapped above, and nobody knows it.
                unsafe { libc::munmap(start, len) };
                Err(errno)
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.start as u64 + offset as u64
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the registration lives as long as the region.
        unsafe { (*self.mr).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the registration lives as long as the region.
        unsafe { (*self.mr).rkey }
    }

    /// Copies out. The peer may write at the same time: what comes is bytes, and checked
    /// as such by whoever uses them.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping, by the check; `to` by the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), to, len) };
    }

    pub fn read_array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: the array has N bytes.
        unsafe { self.read(offset, bytes.as_mut_ptr(), N) };
        bytes
    }

    /// A word that the peer writes last, so that what stands before it is whole once the
    /// word is there.
    pub fn load_last(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: within the mapping and aligned, by the check.
        let word = unsafe { AtomicU32::from_ptr(self.start.add(offset).cast()) };
        word.load(Ordering::Acquire)
    }

    /// # Safety
    /// `from` has `len` bytes.
    pub unsafe fn write(&self, offset: usize, from: *const u8, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping, by the check; `from` by the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, self.start.add(offset), len) };
    }

    pub fn write_slice(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: a slice has its length.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nobody posts work with it any more, and a peer's work is
        // refused once it is deregistered.
        unsafe {
            (calls().dereg_mr)(self.mr);
            libc::munmap(self.start.cast(), self.len);
        }
    }
}
