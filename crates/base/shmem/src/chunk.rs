//! A chunk of lanes that exactly two processes share.
#![allow(unsafe_code)]

use crate::direction::Direction;
use crate::geometry::{Geometry, SLOTS};
use crate::ready::Ready;
use core::ptr::NonNull;

/// A mapped chunk. A view: the memory stays mapped as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    base: NonNull<u8>,
    geometry: Geometry,
}

// SAFETY: a chunk is an address and its shape; access goes through `Direction` and `Ready`.
unsafe impl Send for Chunk {}
// SAFETY: a chunk never changes; what it gives out, `Direction` and `Ready`, threads may share.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// The chunk at `base`.
    ///
    /// # Safety
    /// `geometry.chunk_bytes()` bytes from `base`, page aligned, stay mapped for writing for
    /// the rest of the process's life.
    pub unsafe fn from_raw(base: NonNull<u8>, geometry: Geometry) -> Self {
        Self { base, geometry }
    }

    /// The address, to keep in memory that forks share.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The shape.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn at(&self, offset: u64) -> NonNull<u8> {
        // SAFETY: every caller computes offsets with the geometry that `from_raw` vouched for.
        unsafe { self.base.add(offset as usize) }
    }

    /// The direction of `lane` that side `from` (0 or 1) writes. `lane` is taken modulo the
    /// number of lanes.
    pub fn direction(&self, lane: u32, from: u32) -> Direction {
        let lanes = self.geometry.lanes();
        // A division takes as long as a message.
        let lane = if lane < lanes { lane } else { lane % lanes };
        let from = from & 1;
        let header = self.geometry.lane_header_offset(lane) + u64::from(from) * 256;
        // SAFETY: the offsets lie in the chunk, which stays mapped.
        unsafe {
            Direction::from_raw(
                self.at(header).cast(),
                self.at(header + 128).cast(),
                self.at(self.geometry.ring_offset(lane, from)),
                self.geometry.ring_bytes(),
                lane,
                self.at(self.geometry.ready_line_offset(1 - from, 0)),
            )
        }
    }

    /// The ready line of `slot` for connections that `side` receives.
    pub fn ready(&self, side: u32, slot: u32) -> Ready {
        // SAFETY: the offset lies in the chunk, which stays mapped.
        unsafe { Ready::from_raw(self.at(self.geometry.ready_line_offset(side & 1, slot % SLOTS))) }
    }
}
