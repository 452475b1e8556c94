//! A ring of records between two processes.
//!
//! The writer's area holds the records; the reader's area holds the reader's position. A record
//! starts at a multiple of 64 bytes with a header of four words, and is contiguous. Its first
//! word is stored last, so one cache line carries a small message; before it is stored, the
//! first word of the place behind the record is made zero, so no old payload is ever taken for
//! a header.
//!
//! Positions count bytes from the beginning and never wrap; a place is a position modulo the
//! capacity.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::Broken;
use crate::sync::{self, AtomicU64, Ordering};

/// Records start at multiples of this.
pub const UNIT_BYTES: usize = 64;
/// The header at the start of each record.
pub const HEADER_BYTES: usize = 32;
/// The kind that fills up the ring before its end; not for users.
const KIND_PAD: u8 = 0xFF;

/// The header of a record; what the fields mean is up to the users of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Any value but 255.
    pub kind: u8,
    pub flags: u8,
    pub short: u16,
    pub target: u32,
    pub origin: u32,
    pub sequence: u32,
    pub immediate: u32,
    pub argument: u64,
}

/// Where a ring's bytes lie.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range; accesses to it are argued where they are made.
unsafe impl Send for Ring {}
// SAFETY: it never changes: an address and a size. Accesses to the range are argued where they are made.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `bytes` from `base`, 64-byte aligned, stay mapped as long as the value is used; for
    /// writing on the writer's side. A fresh ring is zero.
    ///
    /// # Panics
    /// If `bytes` is no power of two of at least 4096; it is a constant of the protocol.
    pub unsafe fn from_raw(base: NonNull<u8>, bytes: usize) -> Self {
        // Models cannot afford so many words.
        assert!(bytes.is_power_of_two() && (bytes >= 4096 || cfg!(loom)));
        Self { base, bytes }
    }

    /// The capacity, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn word(&self, position: u64, index: usize) -> &AtomicU64 {
        let place = position as usize & (self.bytes - 1) & !(UNIT_BYTES - 1);
        // SAFETY: `place` is a multiple of 64 below the capacity and `index` below 4, so the
        // word lies within the ring and is aligned; it is reached only as an atomic.
        unsafe { sync::word64(self.base, place + index % 4 * 8) }
    }
}

/// Space that a record of `payload` bytes takes.
pub const fn record_bytes(payload: usize) -> usize {
    (HEADER_BYTES + payload).next_multiple_of(UNIT_BYTES)
}

/// The writing end: private.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    tail: u64,
    /// The reader's position as last accepted.
    head: u64,
}

impl Writer {
    /// The writer of a fresh ring.
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
        }
    }

    /// The position behind the last record.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    #[cfg(all(test, loom))]
    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    #[cfg(all(test, loom))]
    pub(crate) fn set_ring(&mut self, ring: Ring) {
        self.ring = ring;
    }

    /// The reader's position as last accepted.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Accepts a position that the reader published; [`Broken`] when it cannot be one.
    pub fn accept_head(&mut self, head: u64) -> Result<(), Broken> {
        if head < self.head || head > self.tail || !head.is_multiple_of(UNIT_BYTES as u64) {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// The padding before a record of `size` bytes, and the position behind it; None if it does
    /// not fit. One unit stays free for the zero behind the last record.
    fn plan(&self, size: usize) -> Option<(usize, u64)> {
        let place = self.tail as usize & (self.ring.bytes - 1);
        let left = self.ring.bytes - place;
        let pad = if left < size { left } else { 0 };
        let end = self.tail + (pad + size) as u64;
        let used = end - self.head;
        (used + UNIT_BYTES as u64 <= self.ring.bytes as u64).then_some((pad, end))
    }

    /// Whether a record with `payload` bytes fits now.
    pub fn fits(&self, payload: usize) -> bool {
        self.plan(record_bytes(payload)).is_some()
    }

    /// Writes a record whose `payload` bytes are the concatenation of `parts`, of which the
    /// rest is left as it is when they are shorter. Returns the position behind it, or None
    /// when there is no room now.
    ///
    /// # Safety
    /// Each part (address, length) is readable; their sum is at most `payload`.
    pub unsafe fn push(
        &mut self,
        header: &Header,
        payload: usize,
        parts: impl Iterator<Item = (*const u8, usize)>,
    ) -> Option<u64> {
        let size = record_bytes(payload);
        let (pad, end) = self.plan(size)?;
        let start = self.tail + pad as u64;
        if pad > 0 {
            self.ring.word(start, 0).store(0, Ordering::Relaxed);
            let first = first_word(KIND_PAD, 0, 0, pad);
            self.ring.word(self.tail, 0).store(first, Ordering::Release);
        }
        self.ring.word(end, 0).store(0, Ordering::Relaxed);
        let words = [
            u64::from(header.target) | u64::from(header.origin) << 32,
            u64::from(header.sequence) | u64::from(header.immediate) << 32,
            header.argument,
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.ring
                .word(start, index + 1)
                .store(word, Ordering::Relaxed);
        }
        let place = start as usize & (self.ring.bytes - 1);
        let mut offset = place + HEADER_BYTES;
        for (source, len) in parts {
            debug_assert!(offset + len <= place + size);
            // SAFETY: the caller promised the source and that the parts stay within `payload`;
            // `place + size` is within the ring by `plan`, and the reader has left these bytes.
            unsafe { sync::copy_in(self.ring.base, offset, source, len) };
            offset += len;
        }
        let first = first_word(
            header.kind,
            header.flags,
            header.short,
            HEADER_BYTES + payload,
        );
        self.ring.word(start, 0).store(first, Ordering::Release);
        self.tail = end;
        Some(end)
    }
}

fn first_word(kind: u8, flags: u8, short: u16, len: usize) -> u64 {
    len as u64 | u64::from(kind) << 32 | u64::from(flags) << 40 | u64::from(short) << 48
}

/// A record as the reader sees it. The payload lies in memory that the writer can still
/// change: copy it out once, then look at it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub header: Header,
    pub payload: *const u8,
    pub payload_bytes: usize,
    /// The position behind the record.
    pub end: u64,
}

/// The reading end: private.
#[derive(Debug)]
pub struct Reader {
    ring: Ring,
    head: u64,
}

impl Reader {
    /// The reader of a fresh ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, head: 0 }
    }

    /// The position of the next record.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The next record, if there is one. It stays until [`Reader::advance`].
    pub fn peek(&mut self) -> Result<Option<Record>, Broken> {
        let mut first = self.ring.word(self.head, 0).load(Ordering::Acquire);
        if first == 0 {
            return Ok(None);
        }
        if (first >> 32) as u8 == KIND_PAD {
            let place = self.head as usize & (self.ring.bytes - 1);
            // A pad reaches the end of the ring and never starts at its beginning, so at most
            // one is skipped.
            if place == 0 || first as u32 as usize != self.ring.bytes - place {
                return Err(Broken);
            }
            self.head += u64::from(first as u32);
            first = self.ring.word(self.head, 0).load(Ordering::Acquire);
            if first == 0 {
                return Ok(None);
            }
        }
        let kind = (first >> 32) as u8;
        let len = first as u32 as usize;
        let place = self.head as usize & (self.ring.bytes - 1);
        if kind == KIND_PAD || len < HEADER_BYTES || len > self.ring.bytes - place {
            return Err(Broken);
        }
        let word = |index| self.ring.word(self.head, index).load(Ordering::Relaxed);
        let (ids, numbers, argument) = (word(1), word(2), word(3));
        let size = len.next_multiple_of(UNIT_BYTES);
        Ok(Some(Record {
            header: Header {
                kind,
                flags: (first >> 40) as u8,
                short: (first >> 48) as u16,
                target: ids as u32,
                origin: (ids >> 32) as u32,
                sequence: numbers as u32,
                immediate: (numbers >> 32) as u32,
                argument,
            },
            // Within the ring: `place + len` is, checked above.
            payload: self.ring.base.as_ptr().wrapping_add(place + HEADER_BYTES),
            payload_bytes: len - HEADER_BYTES,
            end: self.head + size as u64,
        }))
    }

    /// Whether something waits at `head`, for a look without the reader's lock.
    pub fn is_waiting(ring: &Ring, head: u64) -> bool {
        ring.word(head, 0).load(Ordering::Relaxed) != 0
    }

    /// Leaves a record that [`Reader::peek`] returned.
    pub fn advance(&mut self, record: &Record) {
        self.head = record.end;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const BYTES: usize = 4096;

    #[repr(C, align(64))]
    struct Memory([u8; BYTES]);

    fn ring(memory: &mut Memory) -> Ring {
        // SAFETY: every test keeps the memory longer than the ring's ends.
        unsafe { Ring::from_raw(NonNull::new(memory.0.as_mut_ptr()).unwrap(), BYTES) }
    }

    fn push(writer: &mut Writer, header: &Header, bytes: &[u8]) -> Option<u64> {
        let part = (bytes.as_ptr(), bytes.len());
        // SAFETY: one part, a slice.
        unsafe { writer.push(header, bytes.len(), std::iter::once(part)) }
    }

    fn payload(record: &Record) -> Vec<u8> {
        // SAFETY: the record's payload lies in the test's memory.
        unsafe { std::slice::from_raw_parts(record.payload, record.payload_bytes) }.to_vec()
    }

    proptest! {
        /// Against a queue: what goes in comes out, and only what fits goes in. Payloads are
        /// full of bytes that look like headers.
        #[test]
        fn behaves_like_a_bounded_queue(steps in prop::collection::vec((0usize..1500, any::<bool>()), 1..400)) {
            let mut memory = Box::new(Memory([0; BYTES]));
            let ring = ring(&mut memory);
            let (mut writer, mut reader) = (Writer::new(ring), Reader::new(ring));
            let mut oracle = VecDeque::new();
            for (number, (len, read)) in steps.into_iter().enumerate() {
                if read {
                    let record = reader.peek().unwrap();
                    match oracle.pop_front() {
                        None => prop_assert!(record.is_none()),
                        Some((header, bytes)) => {
                            let record = record.unwrap();
                            prop_assert_eq!(record.header, header);
                            prop_assert_eq!(payload(&record), bytes);
                            reader.advance(&record);
                            writer.accept_head(reader.head()).unwrap();
                        }
                    }
                } else {
                    let header = Header {
                        kind: number as u8 & 0x7F, flags: 1, short: 7, target: number as u32,
                        origin: 9, sequence: !0, immediate: 5, argument: u64::MAX,
                    };
                    let bytes = vec![0x21; len];
                    if push(&mut writer, &header, &bytes).is_some() {
                        oracle.push_back((header, bytes));
                    } else {
                        prop_assert!(!oracle.is_empty());
                    }
                }
            }
        }

        /// A writer that stores anything: the reader says what it is or that it is broken, and
        /// never leaves the ring.
        #[test]
        fn survives_any_memory(seed in prop::collection::vec(any::<u64>(), 512), small in any::<bool>()) {
            let mut memory = Box::new(Memory([0; BYTES]));
            for (chunk, word) in memory.0.chunks_exact_mut(8).zip(&seed) {
                let word = if small { word & 0xFF01_0000_0FFF } else { *word };
                chunk.copy_from_slice(&word.to_ne_bytes());
            }
            let start = memory.0.as_ptr() as usize;
            let mut reader = Reader::new(ring(&mut memory));
            for _ in 0..1000 {
                match reader.peek() {
                    Ok(Some(record)) => {
                        let at = record.payload as usize;
                        prop_assert!(at >= start && at + record.payload_bytes <= start + BYTES);
                        reader.advance(&record);
                    }
                    Ok(None) | Err(Broken) => break,
                }
            }
        }
    }

    #[test]
    fn impossible_positions_break_the_link() {
        let mut memory = Box::new(Memory([0; BYTES]));
        let mut writer = Writer::new(ring(&mut memory));
        push(&mut writer, &Header::default(), &[1; 100]).unwrap();
        push(&mut writer, &Header::default(), &[1; 100]).unwrap();
        assert_eq!(writer.accept_head(448), Err(Broken), "beyond the tail");
        assert_eq!(writer.accept_head(100), Err(Broken), "not a unit");
        writer.accept_head(192).unwrap();
        assert_eq!(writer.accept_head(64), Err(Broken), "backwards");
    }
}
