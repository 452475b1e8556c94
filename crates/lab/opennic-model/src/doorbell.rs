//! A function's doorbells (PG302, "Queue Direct Memory-Mapped Register Space"): four words for each
//! of its queues. The guest has them mapped, so a write is not seen when it happens but when the
//! words are looked at next; two writes in between look like one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use crate::bits::{Field, bit, field};
use crate::mapping::Mapping;

/// Queues of the whole card, which is as many as one function can have.
pub const QUEUES_MAX: usize = 2048;
/// Bytes of the doorbells.
pub const LEN: usize = QUEUES_MAX * STRIDE;
const STRIDE: usize = 16;

/// Which word of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// Host to card, descriptors made.
    H2cPidx = 4,
    /// Card to host, descriptors made.
    C2hPidx = 8,
    /// Completions taken, and whether to interrupt for more.
    CompletionCidx = 12,
}

impl Bell {
    /// The bit that asks for one interrupt: of descriptors (bit 16) or of completions (bit 28).
    const fn arm(self) -> Field {
        match self {
            Bell::H2cPidx | Bell::C2hPidx => DESCRIPTOR_ARM,
            Bell::CompletionCidx => ARM,
        }
    }
}

/// "QDMA_DMAP_SEL_H2C_DSC_PIDX".
pub const PIDX: Field = field(15, 0);
pub const DESCRIPTOR_ARM: Field = bit(16);
/// "QDMA_DMAP_SEL_CMPT_CIDX".
pub const CIDX: Field = field(15, 0);
pub const COUNTER: Field = field(19, 16);
pub const TIMER: Field = field(23, 20);
pub const TRIGGER: Field = field(26, 24);
pub const STATUS: Field = bit(27);
pub const ARM: Field = bit(28);

/// The doorbells of one function.
pub struct Doorbells {
    words: Mapping,
    seen: Vec<u32>,
}

impl Doorbells {
    /// New ones and the file in which they are where the BAR has them, for the guest to map: the BAR
    /// has `bar_len` bytes, and they begin at `start` in it.
    pub fn new(bar_len: u64, start: u64) -> io::Result<(Self, OwnedFd)> {
        let (words, fd) = Mapping::new_shared(bar_len, start, LEN)?;
        let seen = vec![0; LEN / 4];
        Ok((Self { words, seen }, fd))
    }

    /// A trapped read; zero outside.
    pub fn load(&self, offset: usize) -> u32 {
        self.words
            .word(offset)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// A trapped write, as if the guest had written itself.
    pub fn store(&self, offset: usize, value: u32) {
        if let Some(word) = self.words.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// What was written since this was asked last. Taking a request to arm removes it, because
    /// asking once more with the same index is a new event.
    pub fn take(&mut self, queue: usize, bell: Bell) -> Option<u32> {
        let offset = queue.checked_mul(STRIDE)? + bell as usize;
        let word = self.words.word(offset)?;
        let seen = self.seen.get_mut(offset / 4)?;
        let now = word.load(Ordering::Acquire);
        if now == *seen {
            return None;
        }
        let arm = bell.arm();
        let now = if arm.is_set(now) {
            word.fetch_and(!arm.mask(), Ordering::AcqRel)
        } else {
            now
        };
        *seen = now & !arm.mask();
        Some(now)
    }

    /// Forgets what was written for a queue: its context is new. The guest waits for the command
    /// that does this, so it does not write meanwhile.
    pub fn forget(&mut self, queue: usize, bell: Bell) {
        let offset = queue.saturating_mul(STRIDE).saturating_add(bell as usize);
        if let (Some(word), Some(seen)) = (self.words.word(offset), self.seen.get_mut(offset / 4)) {
            word.store(0, Ordering::Release);
            *seen = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arming_twice_with_one_index_is_two_events() {
        let (mut bells, _fd) = Doorbells::new(LEN as u64, 0).expect("memfd");
        let value = ARM.put(1) | STATUS.put(1) | 5;
        bells.store(16 * 3 + 12, value);
        assert_eq!(bells.take(3, Bell::CompletionCidx), Some(value));
        assert_eq!(bells.take(3, Bell::CompletionCidx), None);
        bells.store(16 * 3 + 12, value);
        assert_eq!(bells.take(3, Bell::CompletionCidx), Some(value));
    }

    #[test]
    fn a_new_queue_does_not_inherit_the_old_ones_index() {
        let (mut bells, _fd) = Doorbells::new(LEN as u64, 0).expect("memfd");
        bells.store(4, 9);
        assert_eq!(bells.take(0, Bell::H2cPidx), Some(9));
        bells.forget(0, Bell::H2cPidx);
        assert_eq!(bells.take(0, Bell::H2cPidx), None);
        bells.store(4, 9);
        assert_eq!(bells.take(0, Bell::H2cPidx), Some(9));
    }

    #[test]
    fn queues_that_do_not_exist_say_nothing() {
        let (mut bells, _fd) = Doorbells::new(LEN as u64, 0).expect("memfd");
        assert_eq!(bells.take(QUEUES_MAX, Bell::H2cPidx), None);
        assert_eq!(bells.take(usize::MAX, Bell::H2cPidx), None);
        bells.forget(usize::MAX, Bell::C2hPidx);
        assert_eq!(bells.load(LEN), 0);
    }
}
