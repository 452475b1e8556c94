//! Who has a record alone, so that it comes back when he is killed.

use super::{End, State};
use crate::totals::Totals;
use core::sync::atomic::Ordering;

impl End {
    /// The process `pid`, and no other, holds the connection. That ends with the next
    /// [`End::add_ref`], and when a descriptor but the last is closed: who has the rest is not
    /// known then.
    ///
    /// All processes that use the table must know that process by this number.
    pub fn set_owner(&self, pid: u32) {
        self.owner.store(self.owner_word(pid), Ordering::Release);
    }

    /// Whether [`End::set_owner`] said so of this process, and nothing has changed since.
    pub fn is_owner(&self, pid: u32) -> bool {
        self.owner.load(Ordering::Acquire) == self.owner_word(pid)
    }

    /// With the life, so that the next one's owner is not taken for this one's.
    fn owner_word(&self, pid: u32) -> u64 {
        u64::from(self.generation()) << 32 | u64::from(pid)
    }

    /// Others may hold the connection, too.
    pub fn clear_owner(&self) {
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Release);
        }
    }

    /// Frees the record if the one process that had it is dead. Nothing is told to the peer, whom
    /// the kernel has told, and the lane is not touched: its addresses were the dead process's.
    /// Whoever takes the record next gets its locks from the dead. What the connection has moved, if
    /// the record was freed.
    pub(crate) fn reclaim(&self, mut is_dead: impl FnMut(u32) -> bool) -> Option<Totals> {
        let owner = self.owner.load(Ordering::Acquire);
        let pid = owner as u32;
        if pid == 0 || self.refs() != 1 || self.state() == State::Free || !is_dead(pid) {
            return None;
        }
        // The life is in the word, so that a slower one than another process that does the same
        // does not end the next life, whoever has the number then.
        if self
            .owner
            .compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return None;
        }
        let totals = self.totals();
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.chunk.store(0, Ordering::Relaxed);
        self.state.store(State::Free as u32, Ordering::Release);
        Some(totals)
    }
}
