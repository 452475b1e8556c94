//! Where everything lies inside a pair chunk.
//!
//! ```text
//! 0       header page, reserved
//! 4096    ready lines: 2 receiving sides x 64 slots x 64 bytes
//! 12288   lane headers: lanes x 512 bytes
//!         rings, page aligned: lanes x 2 directions x ring_bytes
//! ```
//!
//! Both processes and sluiced compute this from numbers that came from sluiced, never from
//! the chunk itself.

use core::fmt;

/// Epoll instances of one process that can watch lanes; bits of a watcher mask.
pub const SLOTS: u32 = 64;
/// Lanes that one ready line can name.
pub const LANES_MAX: u32 = 512;
/// Bytes of the header of one lane: two directions of a sender line and a receiver line.
pub const LANE_HEADER_BYTES: usize = 512;
/// Bytes of one ring when nobody says otherwise; docs/decisions/0003 has the measurement.
pub const RING_BYTES_DEFAULT: u32 = 1024 * 1024;
/// The smallest and the largest ring.
pub const RING_BYTES_MIN: u32 = 4096;
/// See [`RING_BYTES_MIN`].
pub const RING_BYTES_MAX: u32 = 16 * 1024 * 1024;

pub(crate) const READY_OFFSET: u64 = 4096;
pub(crate) const READY_LINE_BYTES: u64 = 64;
const READY_BYTES: u64 = 2 * SLOTS as u64 * READY_LINE_BYTES;
const LANES_OFFSET: u64 = READY_OFFSET + READY_BYTES;
const PAGE_BYTES: u64 = 4096;

/// The shape of a chunk: how many lanes, and how many bytes each of a lane's two rings has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    lanes: u32,
    ring_bytes: u32,
}

/// A geometry that no chunk can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Not in 1..=[`LANES_MAX`].
    Lanes(u32),
    /// Not a power of two in [`RING_BYTES_MIN`]..=[`RING_BYTES_MAX`].
    RingBytes(u32),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lanes(n) => write!(f, "a chunk has 1 to {LANES_MAX} lanes, not {n}"),
            Self::RingBytes(n) => write!(
                f,
                "a ring is a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, not {n}"
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

impl Geometry {
    /// Checks both numbers.
    pub fn new(lanes: u32, ring_bytes: u32) -> Result<Self, GeometryError> {
        if lanes == 0 || lanes > LANES_MAX {
            return Err(GeometryError::Lanes(lanes));
        }
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
        {
            return Err(GeometryError::RingBytes(ring_bytes));
        }
        Ok(Self { lanes, ring_bytes })
    }

    /// Lanes in the chunk.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Bytes of one ring.
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Size of the chunk's memory, bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.ring_offset(self.lanes, 0)
    }

    /// Where the header of `lane` starts.
    pub fn lane_header_offset(&self, lane: u32) -> u64 {
        LANES_OFFSET + u64::from(lane) * LANE_HEADER_BYTES as u64
    }

    /// Where the ring of `lane` in `direction` (0: written by side 0) starts.
    pub fn ring_offset(&self, lane: u32, direction: u32) -> u64 {
        let rings = self
            .lane_header_offset(self.lanes)
            .next_multiple_of(PAGE_BYTES);
        rings + (u64::from(lane) * 2 + u64::from(direction)) * u64::from(self.ring_bytes)
    }

    /// Where the ready line of `slot` for connections received by `side` starts.
    pub fn ready_line_offset(&self, side: u32, slot: u32) -> u64 {
        READY_OFFSET + (u64::from(side) * u64::from(SLOTS) + u64::from(slot)) * READY_LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_no_chunk_can_be() {
        assert_eq!(Geometry::new(0, 4096), Err(GeometryError::Lanes(0)));
        assert_eq!(Geometry::new(513, 4096), Err(GeometryError::Lanes(513)));
        assert_eq!(Geometry::new(1, 5000), Err(GeometryError::RingBytes(5000)));
        assert_eq!(Geometry::new(1, 2048), Err(GeometryError::RingBytes(2048)));
    }

    #[test]
    fn parts_do_not_overlap() {
        let g = Geometry::new(512, 4096).unwrap();
        assert!(g.ready_line_offset(1, SLOTS - 1) + READY_LINE_BYTES <= g.lane_header_offset(0));
        assert!(g.lane_header_offset(512) <= g.ring_offset(0, 0));
        assert_eq!(g.ring_offset(511, 1) + 4096, g.chunk_bytes());
        assert_eq!(g.ring_offset(0, 0) % 4096, 0);
    }
}
