//! Who has a record alone, so that it comes back when he is killed.

use super::{End, State};
use crate::totals::Totals;
use core::sync::atomic::{AtomicU64, Ordering};

/// The one process that has a connection, and the life it has it in, so that the next one's owner is not taken for this
/// one's. 0: there are others, or nobody knows.
#[repr(transparent)]
pub(super) struct Owner(AtomicU64);

impl Owner {
    fn word(generation: u32, pid: u32) -> u64 {
        u64::from(generation) << 32 | u64::from(pid)
    }

    fn set(&self, generation: u32, pid: u32) {
        self.0.store(Self::word(generation, pid), Ordering::Release);
    }

    fn is(&self, generation: u32, pid: u32) -> bool {
        self.0.load(Ordering::Acquire) == Self::word(generation, pid)
    }

    /// A record that nobody else knows yet.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn clear(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Release);
        }
    }

    /// The process that had it, whose part is taken by the caller, if `is_dead` says so; by nobody else then. The life is
    /// in the word, so that a slower one than another process that does the same does not end the next life, whoever has
    /// the number then.
    fn take_dead(&self, is_dead: impl FnOnce(u32) -> bool) -> bool {
        let owner = self.0.load(Ordering::Acquire);
        let pid = owner as u32;
        pid != 0
            && is_dead(pid)
            && self
                .0
                .compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// The process in the word of a record that another process wrote, if it is of this life; else 0.
    pub fn of_word(word: u64, generation: u32) -> u32 {
        if (word >> 32) as u32 == generation {
            word as u32
        } else {
            0
        }
    }
}

impl End {
    /// The process `pid`, and no other, holds the connection. That ends with the next
    /// [`End::add_ref`], and when a descriptor but the last is closed: who has the rest is not
    /// known then.
    ///
    /// All processes that use the table must know that process by this number.
    pub fn set_owner(&self, pid: u32) {
        self.owner.set(self.generation(), pid);
    }

    /// Whether [`End::set_owner`] said so of this process, and nothing has changed since.
    pub fn is_owner(&self, pid: u32) -> bool {
        self.owner.is(self.generation(), pid)
    }

    /// Others may hold the connection, too.
    pub fn clear_owner(&self) {
        self.owner.clear();
    }

    /// Frees the record if the one process that had it is dead. Nothing is told to the peer, whom
    /// the kernel has told, and the lane is not touched: its addresses were the dead process's.
    /// Whoever takes the record next gets its locks from the dead. What the connection has moved, if
    /// the record was freed.
    pub(crate) fn reap(&self, mut is_dead: impl FnMut(u32) -> bool) -> Option<Totals> {
        let is_reaped = self
            .owner
            .take_dead(|pid| self.refs() == 1 && self.state() != State::Free && is_dead(pid));
        if !is_reaped {
            return None;
        }
        let totals = self.totals();
        self.life.end();
        self.memory.clear();
        self.life.free();
        Some(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_owner_is_taken_from_once_and_in_his_life_only() {
        let owner = Owner(AtomicU64::new(0));
        assert!(!owner.take_dead(|_| true), "there is none");
        owner.set(3, 77);
        assert!(owner.is(3, 77) && !owner.is(4, 77) && !owner.is(3, 78));
        assert!(!owner.take_dead(|_| false), "he lives");
        assert!(owner.take_dead(|pid| pid == 77) && !owner.take_dead(|_| true));

        owner.set(3, 77);
        let taken = owner.take_dead(|_| {
            // Somebody else was faster, and the next life has an owner of the same number.
            owner.set(4, 77);
            true
        });
        assert!(!taken && owner.is(4, 77));
        owner.clear();
        assert!(!owner.is(4, 77));
        owner.set(5, 1);
        owner.reset();
        assert!(!owner.is(5, 1));
    }

    #[test]
    fn a_word_of_another_life_names_nobody() {
        let word = Owner::word(9, 1234);
        assert_eq!(
            (Owner::of_word(word, 9), Owner::of_word(word, 10)),
            (1234, 0)
        );
        assert_eq!((Owner::of_word(0, 0), Owner::of_word(u64::MAX, 9)), (0, 0));
    }
}
