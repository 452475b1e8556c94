//! Where the two halves of a lane lie: in this daemon's memory, and in the far one's.

use sluice_shmem::chunk::Chunk;
use sluice_shmem::parking::ParkingTable;

use crate::Violation;
use crate::message::LaneNumber;
use crate::wire::Remote;

/// Where a lane lies in this daemon's memory.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    /// The memory shared with the program.
    pub chunk: Chunk,
    /// The lane in it.
    pub lane: u32,
    /// Which side the daemon is, 0 or 1.
    pub side: u32,
    /// Where the program announces the sleep of its epoll instances.
    pub parking: Option<ParkingTable>,
    /// The key of a region with the ring that the program writes.
    pub region: u32,
}

/// The same lane at the far daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Its number there.
    pub number: LaneNumber,
    /// The start of the ring that the far program reads.
    pub ring: Remote,
    /// The size of that ring, bytes; a power of two.
    pub ring_bytes: u32,
}

impl Far {
    /// Whether there can be such a lane.
    pub fn check(&self) -> Result<(), Violation> {
        use sluice_shmem::geometry::{RING_BYTES_MAX, RING_BYTES_MIN};
        let bytes = self.ring_bytes;
        if bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
            Ok(())
        } else {
            Err(Violation("has a ring of an impossible size"))
        }
    }
}
