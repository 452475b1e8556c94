//! A ring of bytes from one host to another.
//!
//! Bytes and the position behind the last one, `tail`, lie in the reader's slot; the position
//! that the reader has come to, `head`, lies in the writer's. Positions count bytes and never
//! wrap. Each half keeps what it decided and what it last believed in private memory.
#![allow(unsafe_code)]

use sluice_sys::delay::Delay;

use crate::Broken;
use crate::view::{In, LINE_BYTES, Out, View};

/// Where a ring lies, as its writer sees it.
#[derive(Clone, Copy, Debug)]
pub struct OutRing {
    pub data: Out,
    pub tail: Out,
    pub head: In,
    /// A power of two, at least [`LINE_BYTES`].
    pub capacity: u64,
}

/// Where a ring lies, as its reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct InRing {
    pub data: In,
    pub tail: In,
    pub head: Out,
    /// A power of two, at least [`LINE_BYTES`].
    pub capacity: u64,
}

/// The writing half.
#[derive(Debug)]
pub struct Producer {
    ring: OutRing,
    /// Behind the last byte copied; at least `told`.
    tail: u64,
    /// Behind the last byte that the reader was told of.
    told: u64,
    /// The reader's position as last seen.
    head: u64,
}

impl Producer {
    /// An empty ring at position 0. What lies at its addresses must say so before the reader
    /// looks at them: [`Producer::reset`].
    pub fn new(ring: OutRing) -> Producer {
        assert!(ring.capacity.is_power_of_two() && ring.capacity >= LINE_BYTES);
        Producer {
            ring,
            tail: 0,
            told: 0,
            head: 0,
        }
    }

    /// Writes position 0 to where the reader looks. The caller publishes that the ring exists
    /// afterwards.
    pub fn reset(&self, view: &impl View) {
        view.say(self.ring.tail, 0);
    }

    /// Bytes that can be put now. Looks at the reader's position only when fewer than `wanted`
    /// fit by what is known.
    pub fn room(&mut self, view: &impl View, wanted: u64) -> Result<u64, Broken> {
        let free = self.ring.capacity - (self.tail - self.head);
        if free >= wanted {
            return Ok(free);
        }
        let head = view.look(self.ring.head);
        if head < self.head || head > self.told {
            return Err(Broken("has read what was not written"));
        }
        self.head = head;
        Ok(self.ring.capacity - (self.tail - self.head))
    }

    /// Copies bytes behind those that were put before; the reader is told by
    /// [`Producer::publish`].
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, and [`Producer::room`] has said that they fit.
    pub unsafe fn put(&mut self, view: &impl View, from: *const u8, len: usize) {
        debug_assert!(self.tail - self.head + len as u64 <= self.ring.capacity);
        let place = self.tail & (self.ring.capacity - 1);
        let first = (len as u64).min(self.ring.capacity - place);
        // SAFETY: both pieces together are the `len` bytes of the caller.
        unsafe {
            view.copy_in(self.ring.data.add(place), from, first as usize);
            if first < len as u64 {
                view.copy_in(
                    self.ring.data,
                    from.add(first as usize),
                    len - first as usize,
                );
            }
        }
        self.tail += len as u64;
    }

    /// Tells the reader of all that was put. The bytes are visible before that.
    pub fn publish(&mut self, view: &impl View) {
        if self.told == self.tail {
            return;
        }
        let mask = self.ring.capacity - 1;
        let (start, len) = (self.told & mask, self.tail - self.told);
        let first = len.min(self.ring.capacity - start);
        view.publish(self.ring.data.add(start), first);
        if first < len {
            view.publish(self.ring.data, len - first);
        }
        view.say(self.ring.tail, self.tail);
        self.told = self.tail;
    }

    /// The position behind the last byte that the reader was told of.
    pub fn told(&self) -> u64 {
        self.told
    }
}

/// For measurements: every reader of this process waits for so long before it believes a new position of a
/// writer. Nothing else is later: not room for the writer, not mailboxes, not doorbells.
pub static NEWS_DELAY: Delay = Delay::none();

/// The reading half.
#[derive(Debug)]
pub struct Consumer {
    ring: InRing,
    /// What was taken.
    head: u64,
    /// What the writer was told of.
    given: u64,
    /// The writer's position as last seen; what lies before it is fresh.
    tail: u64,
}

impl Consumer {
    /// As [`Producer::new`].
    pub fn new(ring: InRing) -> Consumer {
        assert!(ring.capacity.is_power_of_two() && ring.capacity >= LINE_BYTES);
        Consumer {
            ring,
            head: 0,
            given: 0,
            tail: 0,
        }
    }

    /// As [`Producer::reset`], for the writer's word.
    pub fn reset(&self, view: &impl View) {
        view.say(self.ring.head, 0);
    }

    /// Bytes that can be taken now. Looks at the writer's position only when fewer than `wanted`
    /// are known.
    pub fn available(&mut self, view: &impl View, wanted: u64) -> Result<u64, Broken> {
        if self.tail - self.head < wanted {
            let tail = view.look(self.ring.tail);
            // Not more than the room that it was told of.
            if tail < self.tail || tail - self.given > self.ring.capacity {
                return Err(Broken("has written over what was not read"));
            }
            if tail > self.tail {
                NEWS_DELAY.wait();
                let mask = self.ring.capacity - 1;
                let (start, len) = (self.tail & mask, tail - self.tail);
                let first = len.min(self.ring.capacity - start);
                view.refresh(self.ring.data.add(start), first);
                if first < len {
                    view.refresh(self.ring.data, len - first);
                }
                self.tail = tail;
            }
        }
        Ok(self.tail - self.head)
    }

    /// Copies bytes out, `offset` bytes behind the first that was not taken, without taking
    /// them. They can change as long as the writer breaks the rules: copy once, then look.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and [`Consumer::available`] has said that
    /// `offset + len` are there.
    pub unsafe fn copy(&self, view: &impl View, offset: u64, to: *mut u8, len: usize) {
        debug_assert!(self.head + offset + len as u64 <= self.tail);
        let place = (self.head + offset) & (self.ring.capacity - 1);
        let first = (len as u64).min(self.ring.capacity - place);
        // SAFETY: both pieces together are the `len` bytes of the caller.
        unsafe {
            view.copy_out(self.ring.data.add(place), to, first as usize);
            if first < len as u64 {
                view.copy_out(self.ring.data, to.add(first as usize), len - first as usize);
            }
        }
    }

    /// Takes bytes that were copied. The writer is told by [`Consumer::give_back`].
    pub fn take(&mut self, len: u64) {
        debug_assert!(self.head + len <= self.tail);
        self.head += len;
    }

    /// Bytes that were taken and that the writer was not told of.
    pub fn owed(&self) -> u64 {
        self.head - self.given
    }

    /// Tells the writer what was taken. What was copied was copied before.
    pub fn give_back(&mut self, view: &impl View) {
        if self.given != self.head {
            view.say(self.ring.head, self.head);
            self.given = self.head;
        }
    }

    pub fn capacity(&self) -> u64 {
        self.ring.capacity
    }
}

#[cfg(test)]
mod tests;
