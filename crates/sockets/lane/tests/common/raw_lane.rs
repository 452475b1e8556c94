//! The shared words of a lane, for tests that play a broken or hostile peer.

use sluice_shmem::chunk::Chunk;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of one direction's words: a sender's and a receiver's line, each of which starts with
/// its position (docs/decisions/0002).
const DIRECTION_BYTES: u64 = 256;
const RECEIVER_OFFSET: u64 = 128;

/// The header of lane 0 of a chunk.
#[derive(Clone, Copy)]
pub struct Words {
    base: u64,
}

impl Words {
    pub fn of(chunk: Chunk) -> Self {
        Self {
            base: chunk.address() + chunk.geometry().lane_header_offset(0),
        }
    }

    fn position(&self, offset: u64) -> &'static AtomicU64 {
        // SAFETY: an aligned word in a chunk that is never unmapped.
        unsafe { AtomicU64::from_ptr((self.base + offset) as *mut u64) }
    }

    /// The tail of the direction that side `from` writes.
    pub fn tail(&self, from: u32) -> &'static AtomicU64 {
        self.position(u64::from(from) * DIRECTION_BYTES)
    }

    /// The head of the direction that side `from` writes.
    pub fn head(&self, from: u32) -> &'static AtomicU64 {
        self.position(u64::from(from) * DIRECTION_BYTES + RECEIVER_OFFSET)
    }

    /// The word at `index`, counted in 32-bit words over both directions.
    pub fn word(&self, index: usize) -> &'static AtomicU32 {
        let offset = index as u64 * 4 % (2 * DIRECTION_BYTES);
        // SAFETY: an aligned word in the lane's header, which is never unmapped.
        unsafe { AtomicU32::from_ptr((self.base + offset) as *mut u32) }
    }
}
