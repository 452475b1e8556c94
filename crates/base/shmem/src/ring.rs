//! The two ends of a byte ring.
//!
//! Positions count bytes and never wrap (2^64 bytes at 100 GB/s are 5 years); a byte's place is
//! its position modulo the capacity. Both structs are the private half: what the peer last
//! said, checked, and what this end decided. They live in memory that only forks of this
//! process share, and one of those may go on with what another left when it died: whatever
//! instruction was the last, the next operation finds a state that it can use.
#![allow(unsafe_code)]

use crate::Broken;
use crate::direction::Direction;
use crate::sync::Ordering;
use core::ptr::NonNull;
use core::sync::atomic::compiler_fence;

use sluice_sys::delay::Delay;

/// A sender whose ring is empty goes back to its start once it is this far in, so that small
/// messages keep to few pages and cache lines.
#[cfg(not(loom))]
pub const WINDOW_BYTES: u64 = 8 * 1024;
/// Models have rings of a few bytes.
#[cfg(loom)]
pub const WINDOW_BYTES: u64 = 2;

/// The sending end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Producer {
    /// Behind the last byte published. Below `base` after a skip, until the next publication.
    tail: u64,
    /// Positions below this one that the receiver has not reached yet were skipped.
    base: u64,
    /// The receiver's position as last seen.
    head: u64,
}

impl Producer {
    /// The position behind the last byte published.
    pub fn tail(&self) -> u64 {
        self.tail.max(self.base)
    }

    fn refresh(&mut self, direction: &Direction) -> Result<(), Broken> {
        let head = direction.receiver().head.load(Ordering::Acquire);
        if head < self.head || head > self.tail() {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    fn used(&self) -> u64 {
        self.tail() - self.head.max(self.base)
    }

    /// Bytes that can be pushed now. Looks at the receiver's position only if fewer than
    /// `wanted` fit by what is known already, or to return to the ring's start.
    pub fn room(&mut self, direction: &Direction, wanted: usize) -> Result<usize, Broken> {
        let capacity = u64::from(direction.capacity());
        let place = self.tail() & (capacity - 1);
        if capacity - self.used() < wanted as u64 || place >= WINDOW_BYTES {
            self.refresh(direction)?;
            if self.used() == 0 && place >= WINDOW_BYTES {
                self.base = self.tail().next_multiple_of(capacity);
            }
        }
        Ok((capacity - self.used()) as usize)
    }

    /// Whether the receiver has consumed everything published.
    pub fn is_drained(&mut self, direction: &Direction) -> Result<bool, Broken> {
        if self.used() != 0 {
            self.refresh(direction)?;
        }
        Ok(self.used() == 0)
    }

    /// Bytes published and not known to be consumed, by a fresh look.
    pub fn in_flight(&mut self, direction: &Direction) -> Result<u64, Broken> {
        self.refresh(direction)?;
        Ok(self.used())
    }

    /// Where the published and unconsumed bytes lie, in order, as of the last look at the
    /// receiver's position ([`Producer::in_flight`]): addresses in the ring and lengths.
    pub fn unread(&self, direction: &Direction) -> [(*const u8, usize); 2] {
        let capacity = direction.capacity() as usize;
        let len = self.used() as usize;
        let place = self.head.max(self.base) as usize & (capacity - 1);
        let first = len.min(capacity - place);
        let data = direction.data().as_ptr().cast_const();
        [(data.wrapping_add(place), first), (data, len - first)]
    }

    /// Copies `len` bytes from `source` behind the tail without publishing them; `offset` bytes
    /// were stored so before.
    ///
    /// # Safety
    /// `source` is readable for `len` bytes, and `offset + len` is at most what
    /// [`Producer::room`] returned last.
    pub unsafe fn store(
        &self,
        direction: &Direction,
        offset: usize,
        source: *const u8,
        len: usize,
    ) {
        let capacity = direction.capacity() as usize;
        let place = (self.tail() as usize + offset) & (capacity - 1);
        let first = len.min(capacity - place);
        // SAFETY: `place < capacity` and both pieces end within the ring; the bytes are free,
        // because `room` checked the receiver's position. A peer that breaks the protocol and
        // touches them at the same time gets bytes of its own stream wrong, nothing else.
        unsafe {
            let data = direction.data().as_ptr();
            core::ptr::copy_nonoverlapping(source, data.add(place), first);
            core::ptr::copy_nonoverlapping(source.add(first), data, len - first);
        }
    }

    /// Publishes `len` stored bytes.
    pub fn publish(&mut self, direction: &Direction, len: usize) {
        self.tail = self.tail() + len as u64;
        self.republish(direction);
    }

    /// Writes the private positions to the shared line again, for an end whose owner died
    /// between the two.
    pub fn republish(&self, direction: &Direction) {
        let line = direction.sender();
        line.base.store(self.base, Ordering::Relaxed);
        line.tail.store(self.tail(), Ordering::Release);
    }
}

/// For measurements: every reader of this process waits for so long before it believes a new position of a
/// sender. Nothing else is later: not room for the sender, not who sleeps, not what goes by TCP.
pub static NEWS_DELAY: Delay = Delay::none();

/// The receiving end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Consumer {
    head: u64,
    /// The sender's position as last seen.
    tail: u64,
}

impl Consumer {
    /// The position behind the last byte consumed.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that can be popped now.
    pub fn available(&mut self, direction: &Direction) -> Result<usize, Broken> {
        let line = direction.sender();
        let tail = line.tail.load(Ordering::Acquire);
        if tail != self.tail {
            NEWS_DELAY.wait();
            let capacity = u64::from(direction.capacity());
            // The sender skips only while the ring is empty, that is when everything known
            // here was consumed, and only to the next start of the ring.
            let base = line.base.load(Ordering::Relaxed);
            if base > self.head {
                let skip = base - self.head;
                if self.head != self.tail
                    || skip >= capacity
                    || base & (capacity - 1) != 0
                    || base > tail
                {
                    return Err(Broken);
                }
                self.head = base;
                // A death here leaves a head beyond the tail, which the next look puts right.
                // The other way round it would take the skipped positions for bytes.
                compiler_fence(Ordering::SeqCst);
            }
            if tail < self.tail || tail < self.head || tail - self.head > capacity {
                return Err(Broken);
            }
            self.tail = tail;
        }
        match self.tail.checked_sub(self.head) {
            Some(len) => Ok(len as usize),
            None => Err(Broken),
        }
    }

    /// The position up to which [`Consumer::available`] has last found bytes. It only grows.
    pub fn published(&self) -> u64 {
        self.tail
    }

    /// Copies `len` bytes, `offset` bytes behind the head, to `target`.
    ///
    /// # Safety
    /// `target` is writable for `len` bytes, and `offset + len` is at most what
    /// [`Consumer::available`] returned last.
    pub unsafe fn load(&self, direction: &Direction, offset: usize, target: *mut u8, len: usize) {
        let capacity = direction.capacity() as usize;
        let place = (self.head as usize + offset) & (capacity - 1);
        let first = len.min(capacity - place);
        // SAFETY: both pieces lie within the ring, and `available` checked that they were
        // published. What a peer writes there meanwhile is its own stream.
        unsafe {
            let data = direction.data().as_ptr();
            core::ptr::copy_nonoverlapping(data.add(place), target, first);
            core::ptr::copy_nonoverlapping(data, target.add(first), len - first);
        }
    }

    /// Where `len` bytes lie, `offset` bytes behind the head: addresses in the ring and lengths,
    /// in order. For somebody who moves them without copying; `offset + len` is at most what
    /// [`Consumer::available`] returned last.
    pub fn pieces(
        &self,
        direction: &Direction,
        offset: usize,
        len: usize,
    ) -> [(NonNull<u8>, usize); 2] {
        let capacity = direction.capacity() as usize;
        let place = (self.head as usize + offset) & (capacity - 1);
        let first = len.min(capacity - place);
        // SAFETY: `place < capacity`, within the ring.
        let start = unsafe { direction.data().add(place) };
        [(start, first), (direction.data(), len - first)]
    }

    /// Gives `len` bytes back to the sender.
    pub fn consume(&mut self, direction: &Direction, len: usize) {
        self.head += len as u64;
        self.republish(direction);
    }

    /// Writes the private position to the shared line again; see [`Producer::republish`].
    pub fn republish(&self, direction: &Direction) {
        direction
            .receiver()
            .head
            .store(self.head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "ring_oracle.rs"]
mod oracle;
