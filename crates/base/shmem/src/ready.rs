//! Ready lines: which lanes of a chunk may have something for one epoll instance.
//!
//! One cache line of 512 bits. The sender sets its lane's bit before it looks at the reader's
//! sleep counters; the reader takes whole words. A bit is a hint: taking one that means
//! nothing costs a look at a ring, and one that means something is set before the sender
//! decides that the reader is awake.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use crate::geometry::LANES_MAX;
use crate::geometry::READY_LINE_BYTES;
use crate::sync::{AtomicU64, Ordering};
use core::ptr::NonNull;

/// A model has few lanes, and each further word multiplies the interleavings.
#[cfg(loom)]
const LANES_MAX: u32 = 64;
const WORDS: usize = LANES_MAX as usize / 64;

/// The bits of 512 lanes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ReadyLine {
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<ReadyLine>() == READY_LINE_BYTES as usize || cfg!(loom));

/// A ready line in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    line: NonNull<ReadyLine>,
}

// SAFETY: a ready line is reached only through atomics.
unsafe impl Send for Ready {}
// SAFETY: a shared `Ready` gives out only the line's atomics.
unsafe impl Sync for Ready {}

impl Ready {
    /// The line at `base`.
    ///
    /// # Safety
    /// 64 bytes from `base`, 64-byte aligned, stay mapped for writing for the rest of the
    /// process's life.
    pub unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self { line: base.cast() }
    }

    fn line(&self) -> &ReadyLine {
        // SAFETY: `from_raw` promised a mapped line; it consists of atomics.
        unsafe { self.line.as_ref() }
    }

    /// Sets the bit of `lane`. Whoever takes the bit sees all that the caller stored before.
    pub fn set(&self, lane: u32) {
        let lane = lane % LANES_MAX;
        self.line().words[(lane / 64) as usize].fetch_or(1 << (lane % 64), Ordering::SeqCst);
    }

    /// Whether any bit is set.
    pub fn any(&self) -> bool {
        self.line()
            .words
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Clears all bits and calls `found` with each lane whose bit was set, at most 512 times.
    pub fn take(&self, mut found: impl FnMut(u32)) {
        for (index, word) in self.line().words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                found(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn takes_each_bit_once() {
        let line = ReadyLine::default();
        // SAFETY: the line lives to the end of the test.
        let ready = unsafe { Ready::from_raw(NonNull::from(&line).cast()) };
        let lanes = [0, 1, 63, 64, 130, 511];
        assert!(!ready.any());
        for lane in lanes {
            ready.set(lane);
            ready.set(lane);
        }
        assert!(ready.any());
        let mut found = Vec::new();
        ready.take(|lane| found.push(lane));
        assert_eq!(found, lanes);
        assert!(!ready.any());
        ready.take(|lane| panic!("bit {lane} was taken before"));
    }
}
