//! What untagged messages carry that are not the program's bytes.

use super::error::{Error, Result};
use crate::bytes::{Reader, Writer};

/// A READ request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's key, which the response names.
    pub sink_stag: u32,
    /// Where the response goes, in that region's counting.
    pub sink_offset: u64,
    /// Bytes.
    pub length: u32,
    /// The key of what is to be read.
    pub source_stag: u32,
    /// Where, in that region's counting.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Bytes of the message.
    pub const BYTES: usize = 28;

    /// All bytes are legal.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let mut reader = Reader::new(bytes);
        Self {
            sink_stag: reader.u32(),
            sink_offset: reader.u64(),
            length: reader.u32(),
            source_stag: reader.u32(),
            source_offset: reader.u64(),
        }
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.u32(self.sink_stag);
        writer.u64(self.sink_offset);
        writer.u32(self.length);
        writer.u32(self.source_stag);
        writer.u64(self.source_offset);
        bytes
    }
}

/// An atomic operation on 8 bytes (RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Add; the mask has a 1 where a field of the sum ends and carries nothing further.
    FetchAdd {
        /// What to add.
        add: u64,
        /// The fields. None set: one field of 64 bits.
        mask: u64,
    },
    /// Put bits there.
    Swap {
        /// What to put there.
        swap: u64,
        /// Which bits.
        mask: u64,
    },
    /// Put bits there if others are as said.
    CompareSwap {
        /// What to put there.
        swap: u64,
        /// Which bits.
        mask: u64,
        /// What has to be there.
        compare: u64,
        /// Of which bits.
        compare_mask: u64,
    },
}

/// An atomic request (RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Comes back in the response.
    pub id: u32,
    /// The region's key.
    pub stag: u32,
    /// Where, in the region's counting.
    pub offset: u64,
    /// What to do.
    pub operation: Operation,
}

impl AtomicRequest {
    /// Bytes of the message.
    pub const BYTES: usize = 52;

    /// [`Error::Atomic`] for an operation that is not known.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let code = reader.u32() & 0xf;
        let (id, stag, offset) = (reader.u32(), reader.u32(), reader.u64());
        let (value, mask) = (reader.u64(), reader.u64());
        let (compare, compare_mask) = (reader.u64(), reader.u64());
        let operation = match code {
            0 => Operation::FetchAdd { add: value, mask },
            1 => Operation::Swap { swap: value, mask },
            2 => Operation::CompareSwap {
                swap: value,
                mask,
                compare,
                compare_mask,
            },
            _ => return Err(Error::Atomic(code as u8)),
        };
        Ok(Self {
            id,
            stag,
            offset,
            operation,
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let (code, words) = match self.operation {
            Operation::FetchAdd { add, mask } => (0, [add, mask, 0, 0]),
            Operation::Swap { swap, mask } => (1, [swap, mask, 0, 0]),
            Operation::CompareSwap {
                swap,
                mask,
                compare,
                compare_mask,
            } => (2, [swap, mask, compare, compare_mask]),
        };
        let mut bytes = [0; Self::BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.u32(code);
        writer.u32(self.id);
        writer.u32(self.stag);
        writer.u64(self.offset);
        for word in words {
            writer.u64(word);
        }
        bytes
    }
}

/// An atomic response (RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// [`AtomicRequest::id`].
    pub id: u32,
    /// What was there before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes of the message.
    pub const BYTES: usize = 12;

    /// All bytes are legal.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let mut reader = Reader::new(bytes);
        Self {
            id: reader.u32(),
            original: reader.u64(),
        }
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.u32(self.id);
        writer.u64(self.original);
        bytes
    }
}

/// Bytes of immediate data (RFC 7306).
pub const IMMEDIATE_BYTES: usize = 8;
