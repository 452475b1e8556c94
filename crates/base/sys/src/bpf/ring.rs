//! The ring by which programs send records to user space (`Documentation/bpf/ringbuf.rst`).
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::map::{Kind, Map};
use super::memory::{map_memory, page_bytes, unmap};
use crate::errno::Errno;

/// In front of each record: its length with two flags, and a number of the kernel's.
const HEADER_BYTES: u64 = 8;
/// `BPF_RINGBUF_BUSY_BIT`: the program is still writing it.
const BUSY: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`: the program thought better of it.
const DISCARDED: u32 = 1 << 30;

/// A map of [`Kind::RingBuffer`], and the memory behind it. Its descriptor is readable, for poll
/// and epoll, when a record has come since the last [`RingBuffer::read`] found it empty.
#[derive(Debug)]
pub struct RingBuffer {
    map: Map,
    /// One page that we write: up to where we have read.
    consumer: *mut u8,
    /// One page of the kernel's: up to where programs have written. Behind it are the bytes,
    /// twice, so that a record is never in two pieces.
    producer: *const u8,
    page: usize,
    bytes: usize,
}

// SAFETY: the memory is this object's until it is dropped, and is accessed by atomics, except for
// records, which the kernel does not change between their header and our position.
unsafe impl Send for RingBuffer {}
// SAFETY: by a shared reference only the map can be reached; reading takes an exclusive one.
unsafe impl Sync for RingBuffer {}

impl RingBuffer {
    /// `bytes`: room for records, a power of two of at least one page.
    pub fn new(title: &str, bytes: u32) -> Result<Self, Errno> {
        let page = page_bytes()?;
        let map = Map::new(title, Kind::RingBuffer, 0, 0, bytes)?;
        let bytes = bytes as usize;
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let consumer = map_memory(map.raw(), page, write, 0)?;
        let producer = match map_memory(map.raw(), page + 2 * bytes, libc::PROT_READ, page) {
            Ok(address) => address,
            Err(errno) => {
                unmap(consumer, page);
                return Err(errno);
            }
        };
        Ok(Self {
            map,
            consumer,
            producer,
            page,
            bytes,
        })
    }

    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Gives every record that is there to `take`, in the order of their reservation; at most a
    /// ring full, so that writers that never end do not keep the reader. Returns how many. Does
    /// not block.
    pub fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> usize {
        // SAFETY: both positions are aligned 64-bit numbers at the start of their pages, which
        // are mapped as long as `self` is.
        let (consumed, produced) = unsafe {
            (
                AtomicU64::from_ptr(self.consumer.cast()),
                AtomicU64::from_ptr(self.producer.cast_mut().cast()),
            )
        };
        let mut position = consumed.load(Ordering::Relaxed);
        let mut count = 0;
        let start = position;
        let mask = self.bytes as u64 - 1;
        while position < produced.load(Ordering::Acquire) && position - start < self.bytes as u64 {
            let at = self.page + (position & mask) as usize;
            // SAFETY: a header is an aligned 32-bit number within the mapped bytes: positions are
            // multiples of 8.
            let header = unsafe { AtomicU32::from_ptr(self.producer.add(at).cast_mut().cast()) };
            let length = header.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !(BUSY | DISCARDED)) as usize;
            if bytes > self.bytes {
                // The kernel writes no such thing.
                break;
            }
            if length & DISCARDED == 0 {
                // SAFETY: the record lies behind its header, `bytes` is at most the ring's size,
                // and the ring is mapped twice in a row. The kernel leaves it alone until
                // `consumed` is behind it.
                let record = unsafe {
                    let first = self.producer.add(at + HEADER_BYTES as usize);
                    core::slice::from_raw_parts(first, bytes.min(self.bytes - 8))
                };
                take(record);
                count += 1;
            }
            position += (HEADER_BYTES + bytes as u64).next_multiple_of(8);
            // With SeqCst, as the kernel's side compares positions to know whether to wake us.
            consumed.store(position, Ordering::SeqCst);
        }
        count
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        unmap(self.consumer, self.page);
        unmap(self.producer.cast_mut(), self.page + 2 * self.bytes);
    }
}
