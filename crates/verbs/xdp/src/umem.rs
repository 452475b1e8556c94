//! Packet memory that a socket shares with the kernel (UMEM).
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall2, syscall3, syscall6};

/// A mapping that children of fork do not get. Of packet memory: the kernel writes to its pages
/// by their physical address, and a copy on write would part them from what we see. Of a socket's
/// rings: it would be another reference to the socket, which would then outlive its process.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    pid: u32,
}

// SAFETY: the memory belongs to the value, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Readable and writable, with all its pages present.
    pub fn new(len: usize, flags: i32, fd: RawFd, offset: u64) -> Result<Self, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = check(unsafe {
            syscall6(
                libc::SYS_mmap,
                0,
                len,
                int(protection),
                int(flags),
                int(fd),
                offset as usize,
            )
        })?;
        let mapping = Self {
            base: base as *mut u8,
            len,
            pid: std::process::id(),
        };
        // SAFETY: the mapping is ours, and only its inheritance changes.
        check(unsafe { syscall3(libc::SYS_madvise, base, len, int(libc::MADV_DONTFORK)) })?;
        Ok(mapping)
    }

    pub const fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child of fork it is not there, and something else may have got its place.
        if self.pid == std::process::id() {
            // SAFETY: the mapping is ours, and nothing refers to it any more.
            let _ = unsafe { syscall2(libc::SYS_munmap, self.base as usize, self.len) };
        }
    }
}

/// Anonymous memory, in which packets come and go.
#[derive(Debug)]
pub struct Umem(Mapping);

impl Umem {
    /// `ENOMEM`: no memory.
    pub fn new(len: usize) -> Result<Self, Errno> {
        Mapping::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).map(Self)
    }

    pub fn address(&self) -> u64 {
        self.0.base as u64
    }

    pub const fn len(&self) -> usize {
        self.0.len
    }

    /// Has the processor fetch what is there, about a short packet with its headers. Whoever it belongs to at
    /// present: nothing is read by this.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        const LINE_BYTES: usize = 64;
        const BYTES: usize = 2 * LINE_BYTES;
        if at.checked_add(BYTES).is_some_and(|end| end <= self.0.len) {
            for line in [0, LINE_BYTES] {
                let place = self.0.base.wrapping_add(at + line);
                // SAFETY: a hint, which reads nothing and never faults; SSE is part of x86-64.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>());
                }
                #[cfg(not(target_arch = "x86_64"))]
                let _ = place;
            }
        }
    }

    /// None: not all of it is inside.
    ///
    /// # Safety
    ///
    /// The kernel has given these bytes back (receive or completion ring) and has not got them
    /// again, and no mutable slice of them lives.
    pub unsafe fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        if at.checked_add(len)? > self.0.len {
            return None;
        }
        // SAFETY: inside the mapping, which lives as long as `self` in the process that made it, and
        // initialised (anonymous pages are zero); the caller vouches that nobody writes to it.
        Some(unsafe { core::slice::from_raw_parts(self.0.base.add(at), len) })
    }

    /// None: not all of it is inside.
    ///
    /// # Safety
    ///
    /// As for [`Umem::bytes`].
    pub unsafe fn bytes_mut(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        if at.checked_add(len)? > self.0.len {
            return None;
        }
        // SAFETY: inside the mapping, which lives as long as `self` in the process that made it, and
        // initialised (anonymous pages are zero); the caller vouches that the kernel does not use these
        // bytes, and `&mut self` that nobody else does.
        Some(unsafe { core::slice::from_raw_parts_mut(self.0.base.add(at), len) })
    }
}
