//! Where the memory of an end's lane is mapped: the chunk, its shape, and who announces sleeps where.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::Geometry;
use sluice_shmem::parking::ParkingTable;

/// Addresses of this process and of its forks; without a chunk's there is no lane, and the others mean nothing.
#[repr(C)]
pub(super) struct Memory {
    pub(super) chunk: AtomicU64,
    pub(super) peer_parking: AtomicU64,
    pub(super) own_parking: AtomicU64,
    /// The chunk's shape.
    pub(super) lanes: AtomicU32,
    pub(super) ring_bytes: AtomicU32,
}

impl Memory {
    /// Says who announces sleeps where. All of it, and what else is stored of a lane, is found by whoever finds the chunk
    /// ([`Memory::publish`]).
    pub fn prepare(&self, chunk: &Chunk, peer_parking: Option<ParkingTable>, own: ParkingTable) {
        let geometry = chunk.geometry();
        self.lanes.store(geometry.lanes(), Ordering::Relaxed);
        self.ring_bytes
            .store(geometry.ring_bytes(), Ordering::Relaxed);
        self.peer_parking
            .store(peer_parking.map_or(0, |it| it.address()), Ordering::Relaxed);
        self.own_parking.store(own.address(), Ordering::Relaxed);
    }

    /// There is a lane in that chunk from now on.
    pub fn publish(&self, chunk: &Chunk) {
        self.chunk.store(chunk.address(), Ordering::Release);
    }

    /// There is none any more.
    pub fn clear(&self) {
        self.chunk.store(0, Ordering::Relaxed);
    }

    /// The chunk with the lane, if there is one.
    pub fn chunk(&self) -> Option<Chunk> {
        let base = NonNull::new(self.chunk.load(Ordering::Acquire) as *mut u8)?;
        let geometry = Geometry::new(
            self.lanes.load(Ordering::Relaxed),
            self.ring_bytes.load(Ordering::Relaxed),
        )
        .ok()?;
        // SAFETY: only `prepare` and `publish` store here, the shape and the address of one chunk, which stays mapped in
        // this process and in forks made since.
        Some(unsafe { Chunk::from_raw(base, geometry) })
    }

    /// Whether the lane lies in the chunk at this address.
    pub fn is_at(&self, address: u64) -> bool {
        self.chunk.load(Ordering::Acquire) == address
    }

    /// Whether the peer announces its sleep in the parking table at this address.
    pub fn uses_parking(&self, address: u64) -> bool {
        self.peer_parking.load(Ordering::Relaxed) == address
    }

    /// Where the peer announces the sleep of its epoll instances.
    pub fn peer_parking(&self) -> Option<ParkingTable> {
        parking(&self.peer_parking)
    }

    /// Where this process announces the sleep of its own.
    pub fn own_parking(&self) -> Option<ParkingTable> {
        parking(&self.own_parking)
    }
}

fn parking(word: &AtomicU64) -> Option<ParkingTable> {
    NonNull::new(word.load(Ordering::Relaxed) as *mut u8)
        // SAFETY: only `prepare` stores such addresses, of parking tables, which stay mapped for the process's life.
        .map(|base| unsafe { ParkingTable::from_raw(base) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shmem::parking::PARKING_BYTES;

    #[repr(C, align(4096))]
    struct Page([u8; PARKING_BYTES]);

    fn parking() -> ParkingTable {
        let page = Box::leak(Box::new(Page([0; PARKING_BYTES])));
        // SAFETY: aligned memory of that size that is never freed.
        unsafe { ParkingTable::from_raw(NonNull::from(page).cast()) }
    }

    fn chunk() -> Chunk {
        let geometry = Geometry::new(2, 4096).expect("a shape");
        let pages = geometry.chunk_bytes().div_ceil(PARKING_BYTES as u64);
        let memory: Vec<Page> = (0..pages).map(|_| Page([0; PARKING_BYTES])).collect();
        // SAFETY: that many zeroed bytes, page aligned, are never freed.
        unsafe { Chunk::from_raw(NonNull::from(memory.leak()).cast(), geometry) }
    }

    #[test]
    fn what_was_prepared_is_found_when_the_chunk_is_published() {
        let memory = Memory {
            chunk: AtomicU64::new(0),
            peer_parking: AtomicU64::new(0),
            own_parking: AtomicU64::new(0),
            lanes: AtomicU32::new(0),
            ring_bytes: AtomicU32::new(0),
        };
        assert!(memory.chunk().is_none() && memory.peer_parking().is_none());
        let (chunk, peer, own) = (chunk(), parking(), parking());
        memory.prepare(&chunk, Some(peer), own);
        assert!(memory.chunk().is_none(), "not published yet");
        memory.publish(&chunk);
        let found = memory.chunk().expect("published");
        assert_eq!(found.address(), chunk.address());
        assert_eq!(found.geometry(), chunk.geometry());
        assert_eq!(
            (memory.peer_parking(), memory.own_parking()),
            (Some(peer), Some(own))
        );
        assert!(memory.is_at(chunk.address()) && !memory.is_at(own.address()));
        assert!(memory.uses_parking(peer.address()) && !memory.uses_parking(own.address()));

        memory.clear();
        assert!(memory.chunk().is_none() && memory.is_at(0));
        memory.prepare(&chunk, None, own);
        assert!(memory.peer_parking().is_none(), "the peer's is not known");
    }
}
