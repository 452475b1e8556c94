//! Hazard words: which directory slots an initiator is using right now.
//!
//! The owner of a key invalidates its slot, and then waits until no initiator announces it
//! (Michael, "Hazard Pointers", 2004). The initiator announces first and looks at the slot
//! afterwards, with a full fence in between on both sides: either it sees the invalid slot, or
//! the owner sees the announcement.
#![allow(unsafe_code)]

use crate::sync::{self, AtomicU64, Ordering};
use core::ptr::NonNull;

/// Words of one initiator in one link: that many operations can be under way at once.
pub const WORDS: usize = 64;
/// A word has a cache line of its own, since threads write them side by side.
const STRIDE_BYTES: usize = 64;
/// Size of the area, bytes.
pub const HAZARD_BYTES: usize = WORDS * STRIDE_BYTES;

/// The words of one link, in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Hazards {
    base: NonNull<u8>,
}

// SAFETY: the words are reached only as atomics.
unsafe impl Send for Hazards {}
// SAFETY: shared `Hazards` give out only the words' atomics.
unsafe impl Sync for Hazards {}

impl Hazards {
    /// # Safety
    /// [`HAZARD_BYTES`] from `base`, 64-byte aligned, stay mapped as long as the value is used;
    /// for writing on the initiator's side.
    pub unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self { base }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let offset = (index % WORDS) * STRIDE_BYTES;
        // SAFETY: `offset + 8` lies within the area that `from_raw` was promised, aligned.
        unsafe { sync::word64(self.base, offset) }
    }

    /// Announces the use of `slot`; `use_number` tells one use from the next. Whatever the caller
    /// loads afterwards is loaded after the announcement.
    pub fn announce(&self, index: usize, slot: u32, use_number: u32) {
        let value = u64::from(use_number) << 32 | (u64::from(slot) + 1);
        self.word(index).swap(value, Ordering::SeqCst);
        sync::fence_after_rmw();
    }

    /// Withdraws the announcement; all accesses before it are done.
    pub fn withdraw(&self, index: usize) {
        self.word(index).store(0, Ordering::Release);
    }

    /// The announcements of `slot` right now, as opaque values that differ from use to use.
    /// The caller has made the slot invalid ([`super::directory::Directory::clear_key`]) before.
    pub fn users(&self, slot: u32) -> impl Iterator<Item = (usize, u64)> + '_ {
        (0..WORDS).filter_map(move |index| Some((index, self.announced(index, slot)?)))
    }

    /// What the word at `index` says, if it announces `slot`.
    pub(crate) fn announced(&self, index: usize, slot: u32) -> Option<u64> {
        let value = self.word(index).load(Ordering::SeqCst);
        (value as u32 == slot.wrapping_add(1)).then_some(value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(C, align(64))]
    struct Area([u8; HAZARD_BYTES]);

    #[test]
    fn an_announcement_is_seen_until_it_is_withdrawn() {
        let mut area = Box::new(Area([0; HAZARD_BYTES]));
        // SAFETY: the box outlives `hazards`.
        let hazards = unsafe { Hazards::from_raw(NonNull::new(area.0.as_mut_ptr()).unwrap()) };
        hazards.announce(3, 0, 1);
        hazards.announce(63, 7, 1);
        let first: Vec<_> = hazards.users(7).collect();
        assert_eq!(first.len(), 1);
        assert_eq!(hazards.users(0).count(), 1);
        assert_eq!(hazards.users(1).count(), 0);
        hazards.announce(63, 7, 2);
        assert_ne!(first, hazards.users(7).collect::<Vec<_>>());
        hazards.withdraw(63);
        assert_eq!(hazards.users(7).count(), 0);
    }
}
