//! Memory between two stretches of pages that fault on any access.

use sluice_sys::memfd;
use std::ptr::NonNull;

/// Larger than any length or offset that a masked index can reach.
const GUARD_BYTES: usize = 1 << 20;

/// Mapped memory with guards on both sides. Unmapped when dropped.
pub struct Guarded {
    reserved: *mut u8,
    bytes: usize,
}

// SAFETY: an address range; the tests reach it through atomics and the crate under test.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// Zeroed memory of this process; `bytes` is a multiple of the page size.
    pub fn private(bytes: usize) -> Self {
        Self::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Zeroed memory of a memory file, shared with forks.
    pub fn shared(bytes: usize) -> Self {
        let fd = memfd::create(c"sluice-test-hostile").expect("memfd_create");
        memfd::set_len(fd.raw(), bytes as u64).expect("ftruncate");
        Self::new(bytes, libc::MAP_SHARED, fd.raw())
    }

    fn new(bytes: usize, flags: i32, fd: i32) -> Self {
        assert_eq!(bytes % 4096, 0);
        // SAFETY: reserves new addresses, then replaces the middle of what it reserved.
        unsafe {
            let reserved = libc::mmap(
                std::ptr::null_mut(),
                bytes + 2 * GUARD_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(reserved, libc::MAP_FAILED);
            let reserved = reserved.cast::<u8>();
            let middle = libc::mmap(
                reserved.add(GUARD_BYTES).cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_FIXED,
                fd,
                0,
            );
            assert_ne!(middle, libc::MAP_FAILED);
            Self { reserved, bytes }
        }
    }

    /// The first usable byte.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: within the reserved range.
        NonNull::new(unsafe { self.reserved.add(GUARD_BYTES) }).unwrap()
    }

    /// Usable bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the range that `new` reserved.
        unsafe { libc::munmap(self.reserved.cast(), self.bytes + 2 * GUARD_BYTES) };
    }
}
