//! Memory between two stretches of pages that fault on any access, for the life of the process.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// Larger than any length or offset that a masked index can reach.
const GUARD_BYTES: usize = 1 << 24;

/// Mapped memory with guards on both sides. Never unmapped.
#[derive(Clone, Copy)]
pub struct Guarded {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range; accesses are argued where they are made.
unsafe impl Send for Guarded {}
// SAFETY: what is shared is an address range; accesses are argued where they are made.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// Zeroed memory of this process; `bytes` is a multiple of the page size.
    pub fn new(bytes: usize) -> Self {
        assert_eq!(bytes % 4096, 0);
        // SAFETY: reserves new addresses, then replaces the middle of what it reserved.
        unsafe {
            let reserved = libc::mmap(
                core::ptr::null_mut(),
                bytes + 2 * GUARD_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(reserved, libc::MAP_FAILED);
            let base = reserved.cast::<u8>().add(GUARD_BYTES);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(base.cast(), bytes, protection), 0);
            Self {
                base: NonNull::new(base).expect("not at zero"),
                bytes,
            }
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of the last `len` bytes, which end where the faulting pages begin.
    pub fn end(&self, len: usize) -> *mut u8 {
        assert!(len <= self.bytes);
        self.base.as_ptr().wrapping_add(self.bytes - len)
    }

    pub fn clear(&self) {
        // SAFETY: all of it is ours and writable.
        unsafe { self.base.as_ptr().write_bytes(0, self.bytes) };
    }

    /// Stores a word at `at`, rounded down to a multiple of 8 within the memory.
    pub fn store(&self, at: usize, value: u64) {
        let at = (at % self.bytes) & !7;
        // SAFETY: within the memory, aligned; others reach it as atomics or by volatile copies.
        let word =
            unsafe { core::sync::atomic::AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) };
        word.store(value, core::sync::atomic::Ordering::SeqCst);
    }

    /// Whether `len` bytes from `address` lie within.
    pub fn contains(&self, address: *const u8, len: usize) -> bool {
        let start = self.base.as_ptr() as usize;
        (address as usize)
            .checked_sub(start)
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= self.bytes)
    }
}
