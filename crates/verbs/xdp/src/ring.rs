//! The rings between a socket and the kernel (`Documentation/networking/af_xdp.rst`).
//!
//! Each has one producer and one consumer, of which one is the kernel. Producer and consumer are
//! numbers that only grow (modulo 2³²); their difference is how many entries there are.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::os::fd::RawFd;

use sluice_sys::errno::Errno;

use crate::umem::Mapping;

/// What can stand in a ring.
pub trait Entry: Copy {}

/// An address in the packet memory.
impl Entry for u64 {}

/// `struct xdp_desc`: a piece of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub options: u32,
}

impl Entry for Descriptor {}

/// One mapped ring.
#[derive(Debug)]
struct Ring<T> {
    /// Holds what the pointers point to.
    _mapping: Mapping,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    size: u32,
}

// SAFETY: the mapping belongs to the value, not to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// `size` is the number of entries that the socket was told, a power of two.
    fn map(
        fd: RawFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> Result<Self, Errno> {
        let fits = |offset: u64, bytes: usize, len: usize| {
            (offset as usize)
                .checked_add(bytes)
                .is_some_and(|end| end <= len)
                && (offset as usize).is_multiple_of(align_of::<u32>())
        };
        let entries_bytes = size as usize * size_of::<T>();
        let len = offsets.desc as usize + entries_bytes;
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        if !words.iter().all(|word| fits(*word, size_of::<u32>(), len))
            || !(offsets.desc as usize).is_multiple_of(align_of::<T>())
            || !size.is_power_of_two()
        {
            return Err(Errno::PROTO);
        }
        let mapping = Mapping::new(len, libc::MAP_SHARED, fd, page)?;
        let base = mapping.base();
        // SAFETY: the offsets are inside the mapping (checked above).
        let word = |offset: u64| unsafe { base.add(offset as usize) }.cast::<AtomicU32>();
        Ok(Self {
            _mapping: mapping,
            producer: word(offsets.producer),
            consumer: word(offsets.consumer),
            flags: word(offsets.flags),
            // SAFETY: the offset of the entries is inside the mapping, whose length was computed from it:
            // `size` entries from there end where the mapping does.
            entries: unsafe { base.add(offsets.desc as usize) }.cast::<T>(),
            size,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping (`map`), which lives as long as `self` in the process
        // that made it; it is reached as an atomic only, by both sides.
        unsafe { &*self.producer }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping (`map`), which lives as long as `self` in the process
        // that made it; it is reached as an atomic only, by both sides.
        unsafe { &*self.consumer }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping (`map`), which lives as long as `self` in the process
        // that made it; only the kernel writes it, and it is reached as an atomic only.
        unsafe { &*self.flags }
    }

    fn entry(&self, number: u32) -> *mut T {
        let index = number & (self.size - 1);
        // SAFETY: the index is below `size`, and so many entries are mapped.
        unsafe { self.entries.add(index as usize) }
    }
}

/// A ring into which we put: fill, transmit.
#[derive(Debug)]
pub struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes; the kernel sees it after [`Producer::publish`].
    next: u32,
    /// What the kernel had taken when we last looked.
    taken: u32,
}

impl<T: Entry> Producer<T> {
    pub fn map(
        fd: RawFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> Result<Self, Errno> {
        let ring = Ring::map(fd, page, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        let taken = ring.consumer().load(Ordering::Acquire);
        Ok(Self { ring, next, taken })
    }

    /// False: full.
    pub fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.taken) >= self.ring.size {
            self.taken = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.taken) >= self.ring.size {
                return false;
            }
        }
        // SAFETY: the entry is the producer's, because the kernel has taken what was there.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the kernel what was put in.
    pub fn publish(&self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// How many entries the kernel has not taken, published or not.
    pub fn waiting(&mut self) -> u32 {
        self.taken = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken)
    }

    /// Whether the kernel looks only when called.
    pub fn needs_wakeup(&self) -> bool {
        // What was published must be visible before the flag is read: the kernel sets the flag
        // and then looks once more.
        fence(Ordering::SeqCst);
        self.still_needs_wakeup()
    }

    /// The same when nothing was published since, and what is seen now or the next time makes no
    /// difference.
    pub fn still_needs_wakeup(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring from which we take: receive, completion.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
}

impl<T: Entry> Consumer<T> {
    pub fn map(
        fd: RawFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> Result<Self, Errno> {
        let ring = Ring::map(fd, page, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Self { ring, next })
    }

    /// How many entries there are to take.
    pub fn waiting(&self) -> u32 {
        let there = self.ring.producer().load(Ordering::Acquire);
        there.wrapping_sub(self.next).min(self.ring.size)
    }

    /// To be called no more often than [`Consumer::waiting`] said.
    pub fn take(&mut self) -> T {
        // SAFETY: inside the mapping, and any bytes are an entry; the kernel has written it, as
        // `waiting` said, and does not write again before `release`.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Gives the entries that were taken back to the kernel.
    pub fn release(&self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
