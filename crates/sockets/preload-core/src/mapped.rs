//! Memory that peers share with this process: the chunks of its lanes, and the peers' parking tables.
//!
//! A long-lived server meets any number of short-lived clients, so what a dead peer leaves is
//! given back. Addresses are never unmapped: a thread may look at a lane that another one is
//! just closing. Private zeroes take the place of the shared memory, and later the memory of
//! another peer does.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use sluice_control::message::Lane;
use sluice_lane::table::EndTable;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::Geometry;
use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::locked;
use sluice_sys::memfd::{self, SEAL_SHRINK};
use sluice_sys::unix::Fd;

/// Pair chunks that a process has mapped at a time, at most.
const CHUNKS_MAX: usize = 4096;
/// Peers whose parking tables a process has mapped at a time, at most.
const PEERS_MAX: usize = 4096;

/// What a mapping is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The peer lives.
    Live,
    /// No new lane will be in it; connections may still use it.
    Gone,
    /// Zeroes, to be replaced by other shared memory of the same shape.
    Vacant,
}

#[derive(Clone, Copy)]
struct KnownChunk {
    id: u32,
    peer: u32,
    chunk: Chunk,
    state: Use,
}

#[derive(Clone, Copy)]
struct KnownParkingTable {
    peer: u32,
    parking: ParkingTable,
    state: Use,
}

/// All of it. Made as a static only: it is too large for a stack.
pub struct Mapped {
    chunks: [Option<KnownChunk>; CHUNKS_MAX],
    chunk_count: usize,
    parking_tables: [Option<KnownParkingTable>; PEERS_MAX],
    parking_count: usize,
    has_gone: bool,
}

impl Mapped {
    /// Nothing mapped yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            chunks: [None; CHUNKS_MAX],
            chunk_count: 0,
            parking_tables: [None; PEERS_MAX],
            parking_count: 0,
            has_gone: false,
        }
    }

    /// The chunk that sluiced calls `id`.
    pub fn chunk(&self, id: u32) -> Option<Chunk> {
        self.chunks[..self.chunk_count]
            .iter()
            .flatten()
            .find(|known| known.id == id && known.state == Use::Live)
            .map(|known| known.chunk)
    }

    /// The parking table of `peer`.
    pub fn parking(&self, peer: u32) -> Option<ParkingTable> {
        self.parking_tables[..self.parking_count]
            .iter()
            .flatten()
            .find(|known| known.peer == peer && known.state == Use::Live)
            .map(|known| known.parking)
    }

    /// Maps the chunk of a lane. `None` if it cannot be had, or is not what sluiced says.
    pub fn map_chunk(&mut self, lane: &Lane, fd: &Fd) -> Option<Chunk> {
        let geometry = Geometry::new(lane.lanes, lane.ring_bytes).ok()?;
        let bytes = usize::try_from(geometry.chunk_bytes()).ok()?;
        let reach = lane.offset.checked_add(bytes as u64)?;
        memfd::check_lasting(fd.raw(), reach).ok()?;
        let vacant = self.chunks[..self.chunk_count].iter().position(|known| {
            // An epoll instance may still know the old chunk, by address and shape.
            known.is_some_and(|known| {
                known.state == Use::Vacant && known.chunk.geometry() == geometry
            })
        });
        let (slot, base) = match vacant {
            Some(slot) => {
                let address = self.chunks[slot]?.chunk.address();
                let memory = Some((fd, lane.offset));
                (slot, replace(address, bytes, memory, Access::ReadWrite)?)
            }
            None if self.chunk_count == CHUNKS_MAX => return None,
            None => {
                let mapping = Mapping::piece(fd.raw(), lane.offset, bytes).ok()?;
                self.chunk_count += 1;
                (self.chunk_count - 1, mapping.leak())
            }
        };
        // SAFETY: something is mapped at these addresses for the rest of the process's life.
        let chunk = unsafe { Chunk::from_raw(base, geometry) };
        self.chunks[slot] = Some(KnownChunk {
            id: lane.chunk,
            peer: lane.peer,
            chunk,
            state: Use::Live,
        });
        Some(chunk)
    }

    /// Maps the parking table of a peer. Without it the peer counts as asleep where it uses epoll.
    pub fn map_parking(&mut self, peer: u32, fd: &Fd) {
        if memfd::check_foreign(fd.raw(), PARKING_BYTES as u64, SEAL_SHRINK).is_err() {
            return;
        }
        let vacant = self.parking_tables[..self.parking_count]
            .iter()
            .position(|known| known.is_some_and(|known| known.state == Use::Vacant));
        let placed = match vacant {
            Some(slot) => self.parking_tables[slot].and_then(|known| {
                let address = known.parking.address();
                let base = replace(address, PARKING_BYTES, Some((fd, 0)), Access::ReadOnly)?;
                Some((slot, base))
            }),
            None if self.parking_count == PEERS_MAX => None,
            None => Mapping::shared(fd.raw(), PARKING_BYTES, Access::ReadOnly)
                .ok()
                .map(|mapping| {
                    self.parking_count += 1;
                    (self.parking_count - 1, mapping.leak())
                }),
        };
        if let Some((slot, base)) = placed {
            // SAFETY: mapped for the rest of the process's life; peers' parking tables are only read.
            let parking = unsafe { ParkingTable::from_raw(base) };
            self.parking_tables[slot] = Some(KnownParkingTable {
                peer,
                parking,
                state: Use::Live,
            });
        }
    }

    /// sluiced says that a peer has ended; `None`: sluiced has, and its numbers mean nothing now.
    pub fn peer_gone(&mut self, peer: Option<u32>) {
        let is_concerned = |number: u32| peer.is_none_or(|peer| peer == number);
        for known in self.chunks[..self.chunk_count].iter_mut().flatten() {
            if known.state == Use::Live && is_concerned(known.peer) {
                known.state = Use::Gone;
                self.has_gone = true;
            }
        }
        for known in self.parking_tables[..self.parking_count]
            .iter_mut()
            .flatten()
        {
            if known.state == Use::Live && is_concerned(known.peer) {
                known.state = Use::Gone;
                self.has_gone = true;
            }
        }
    }

    /// Gives back what dead peers left and no connection in `table` uses. To be called while no
    /// thread is about to attach a lane.
    pub fn sweep(&mut self, table: &EndTable) {
        if !self.has_gone {
            return;
        }
        self.has_gone = false;
        for known in self.chunks[..self.chunk_count].iter_mut().flatten() {
            let address = known.chunk.address();
            let bytes = known.chunk.geometry().chunk_bytes() as usize;
            if known.state == Use::Gone
                && !table.any_attached(|end| end.is_in_chunk(address))
                && replace(address, bytes, None, Access::ReadWrite).is_some()
            {
                known.state = Use::Vacant;
            }
            self.has_gone |= known.state == Use::Gone;
        }
        for known in self.parking_tables[..self.parking_count]
            .iter_mut()
            .flatten()
        {
            let address = known.parking.address();
            if known.state == Use::Gone
                && !table.any_attached(|end| end.uses_parking(address))
                && replace(address, PARKING_BYTES, None, Access::ReadOnly).is_some()
            {
                known.state = Use::Vacant;
            }
            self.has_gone |= known.state == Use::Gone;
        }
    }
}

/// Maps a file from an offset on, or zeroes without one, at an address where [`Mapped`] has a
/// mapping of `bytes`.
fn replace(
    address: u64,
    bytes: usize,
    file: Option<(&Fd, u64)>,
    access: Access,
) -> Option<NonNull<u8>> {
    let (flags, fd, offset) = match file {
        Some((fd, offset)) => (libc::MAP_SHARED, fd.raw(), i64::try_from(offset).ok()?),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    let prot = match access {
        Access::ReadOnly => libc::PROT_READ,
        Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: the range belongs to this module, was mapped before and stays mapped with the same
    // access; code that still looks at it finds other values, as from any hostile peer.
    let map = || unsafe {
        libc::mmap(
            address as *mut _,
            bytes,
            prot,
            flags | libc::MAP_FIXED | libc::MAP_NORESERVE,
            fd,
            offset,
        )
    };
    let mapped = locked::unlocked(bytes, map);
    if mapped == libc::MAP_FAILED {
        return None;
    }
    match file {
        Some(_) => locked::forget(mapped as usize),
        None => locked::note(mapped as usize, bytes),
    }
    NonNull::new(mapped.cast())
}
