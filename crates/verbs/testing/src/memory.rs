//! Memory that a test registers.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

/// Registered memory of a test.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub start: *mut u8,
    pub len: usize,
}

// SAFETY: an address belongs to no thread; the memory is never freed.
unsafe impl Send for Memory {}
// SAFETY: threads that share it touch the memory by volatile or atomic accesses, and it is never freed.
unsafe impl Sync for Memory {}

impl Memory {
    /// Ordinary memory, full of zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        let start = Box::leak(bytes).as_mut_ptr().cast();
        Self { start, len }
    }

    /// Memory that somebody else has made.
    ///
    /// # Safety
    /// `len` bytes from `start` on, aligned to 8, are readable and writable for ever.
    pub unsafe fn at(start: *mut u8, len: usize) -> Self {
        assert!(!start.is_null());
        Self { start, len }
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the memory; peers may write it at any time.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: 8 aligned bytes inside the memory; peers may write them at any time.
        unsafe { self.start.add(at).cast::<u64>().read_volatile() }
    }

    pub fn set_word(&self, at: usize, value: u64) {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: 8 aligned bytes inside the memory; peers may read and write them at any time.
        unsafe { self.start.add(at).cast::<u64>().write_volatile(value) };
    }

    /// An aligned word that peers add to.
    pub fn atomic(&self, at: usize) -> &'static AtomicU64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: 8 aligned bytes inside the memory, which is never freed.
        unsafe { AtomicU64::from_ptr(self.start.add(at).cast()) }
    }

    /// A copy of what is there now.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|at| self.byte(at)).collect()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the memory, by the assertion; peers may read and write it at any time.
            unsafe { self.start.add(at + index).write_volatile(*byte) };
        }
    }

    pub fn fill(&self, at: usize, len: usize, seed: u8) {
        assert!(at + len <= self.len);
        for index in 0..len {
            // SAFETY: inside the memory, by the assertion; peers may read and write it at any time.
            unsafe {
                let place = self.start.add(at + index);
                place.write_volatile(pattern(index, seed));
            }
        }
    }

    pub fn check(&self, at: usize, len: usize, seed: u8) {
        for index in 0..len {
            let wanted = pattern(index, seed);
            assert_eq!(self.byte(at + index), wanted, "byte {index} of {len}");
        }
    }
}

/// Bytes that tell a message's places apart, also those of one packet from the next one's.
pub fn pattern(index: usize, seed: u8) -> u8 {
    (index.wrapping_mul(7) + index / 251) as u8 ^ seed
}
