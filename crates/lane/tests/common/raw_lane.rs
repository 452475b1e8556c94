//! The shared words of a lane, for tests that play a broken, stopped or hostile peer.

use sluice_shmem::chunk::Chunk;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of one direction's words: a sender's and a receiver's line.
const DIRECTION_BYTES: u64 = 256;
/// Offsets of the words, as docs/decisions/0002 lays them out.
const TAIL: u64 = 0;
const BASE: u64 = 8;
const MARK: u64 = 16;
const MODE: u64 = 24;
const INTENT: u64 = 64;
const HEAD: u64 = 128;
const WATCHERS: u64 = 192;
const SLEEPERS: u64 = 200;
const ADOPTED: u64 = 204;
const CLOSED: u64 = 208;

/// Lane 0 of a chunk.
#[derive(Clone, Copy)]
pub struct Words {
    base: u64,
}

/// The words of one direction.
pub struct DirectionWords {
    pub tail: &'static AtomicU64,
    pub base: &'static AtomicU64,
    pub mark: &'static AtomicU64,
    pub mode: &'static AtomicU32,
    pub intent: &'static AtomicU32,
    pub head: &'static AtomicU64,
    pub watchers: &'static AtomicU64,
    pub sleepers: &'static AtomicU32,
    pub adopted: &'static AtomicU32,
    pub closed: &'static AtomicU32,
}

impl Words {
    pub fn of(chunk: Chunk) -> Self {
        Self {
            base: chunk.address() + chunk.geometry().lane_header_offset(0),
        }
    }

    /// The words of the direction that side `from` writes.
    pub fn direction(&self, from: u32) -> DirectionWords {
        let base = self.base + u64::from(from) * DIRECTION_BYTES;
        let long = |offset| {
            // SAFETY: an aligned word in a chunk that is never unmapped.
            unsafe { AtomicU64::from_ptr((base + offset) as *mut u64) }
        };
        let short = |offset| {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr((base + offset) as *mut u32) }
        };
        DirectionWords {
            tail: long(TAIL),
            base: long(BASE),
            mark: long(MARK),
            mode: short(MODE),
            intent: short(INTENT),
            head: long(HEAD),
            watchers: long(WATCHERS),
            sleepers: short(SLEEPERS),
            adopted: short(ADOPTED),
            closed: short(CLOSED),
        }
    }

    /// The word at `index`, counted in 32-bit words over both directions.
    pub fn word(&self, index: usize) -> &'static AtomicU32 {
        let offset = index as u64 * 4 % (2 * DIRECTION_BYTES);
        // SAFETY: an aligned word in the lane's header, which is never unmapped.
        unsafe { AtomicU32::from_ptr((self.base + offset) as *mut u32) }
    }
}
