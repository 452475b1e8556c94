//! A queue of receives, of a QP or an SRQ.

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::types::{QpState, Sge};

#[derive(Clone, Copy, Default)]
struct Slot {
    wr_id: u64,
    pieces: u32,
}

/// Receives are counted from 0; those from `head` to `tail` wait for a message.
pub(crate) struct RecvQueue {
    /// Of the QP; an SRQ has no state and does not look at it.
    pub state: QpState,
    /// A message found no receive.
    pub starved: bool,
    /// ERR, and all that there was is flushed.
    pub flushed: bool,
    head: u64,
    tail: u64,
    max_wr: u32,
    max_sge: u32,
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    pub posted: u64,
}

impl RecvQueue {
    pub fn new(max_wr: u32, max_sge: u32) -> RecvQueue {
        let places = match max_wr {
            0 => 0,
            wanted => wanted.next_power_of_two() as usize,
        };
        RecvQueue {
            state: QpState::Reset,
            starved: false,
            flushed: false,
            head: 0,
            tail: 0,
            max_wr,
            max_sge,
            slots: vec![Slot::default(); places].into(),
            sges: vec![Sge::default(); places * max_sge as usize].into(),
            posted: 0,
        }
    }

    fn index(&self, count: u64) -> usize {
        count as usize & (self.slots.len() - 1)
    }

    /// Receives that wait for a message.
    pub fn waiting(&self) -> u64 {
        self.tail - self.head
    }

    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// `polled`: receives whose completion was polled; the others take up room.
    pub fn post(&mut self, polled: u64, wr_id: u64, pieces: &[Sge]) -> Result<()> {
        if pieces.len() > self.max_sge as usize {
            return Err(Error::TooManySges);
        }
        if self.tail.wrapping_sub(polled) >= u64::from(self.max_wr) {
            return Err(Error::QueueFull);
        }
        let at = self.index(self.tail);
        self.slots[at] = Slot {
            wr_id,
            pieces: pieces.len() as u32,
        };
        let first = at * self.max_sge as usize;
        self.sges[first..first + pieces.len()].copy_from_slice(pieces);
        self.tail += 1;
        self.posted += 1;
        Ok(())
    }

    /// The oldest receive.
    pub fn take(&mut self) -> Option<(u64, &[Sge])> {
        if self.head == self.tail {
            return None;
        }
        let at = self.index(self.head);
        self.head += 1;
        let slot = self.slots[at];
        let first = at * self.max_sge as usize;
        Some((slot.wr_id, &self.sges[first..first + slot.pieces as usize]))
    }

    /// RESET.
    pub fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.starved = false;
        self.flushed = false;
    }

    /// A queue of another length with the same receives. `polled` counts on.
    pub fn resized(&mut self, max_wr: u32, polled: u64) -> Result<RecvQueue> {
        if u64::from(max_wr) < self.tail.wrapping_sub(polled) {
            return Err(Error::BadValue);
        }
        let mut new = RecvQueue::new(max_wr, self.max_sge);
        new.state = self.state;
        new.starved = self.starved;
        new.posted = self.posted;
        new.head = self.head;
        new.tail = self.tail;
        for count in self.head..self.tail {
            let (from, to) = (self.index(count), new.index(count));
            new.slots[to] = self.slots[from];
            let pieces = self.max_sge as usize;
            new.sges[to * pieces..(to + 1) * pieces]
                .copy_from_slice(&self.sges[from * pieces..(from + 1) * pieces]);
        }
        Ok(new)
    }
}
