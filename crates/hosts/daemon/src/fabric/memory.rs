//! The memory of lanes to other hosts: chunks that a program shares with sluiced.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use sluice_rdma::{Node, Region};
use sluice_shmem::chunk;
use sluice_shmem::geometry::{Geometry, LANE_HEADER_BYTES};
use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SEAL, SEAL_SHRINK};
use sluice_sys::unix::Fd;

use crate::lanes::NoLane;
use crate::matching::ClientId;
use crate::memory_limits::{Charge, MemoryLimits, Size};

/// Lanes of the first, second, … chunk of a program; the last number holds for all further ones.
const CHUNK_LANES: [u32; 4] = [16, 64, 256, 512];
/// Numbers of these chunks have this bit; those that two programs share do not.
const NUMBER_BIT: u32 = 1 << 31;

/// A chunk, mapped here as well.
#[derive(Debug)]
pub struct Shared {
    /// Its number, for the program.
    pub number: u32,
    /// For the program.
    pub memory: Fd,
    /// The program's peer in it is this process.
    mapping: Mapping,
    geometry: Geometry,
}

impl Shared {
    fn new(number: u32, lanes: u32, ring_bytes: u32) -> Result<Self, Errno> {
        let geometry = Geometry::new(lanes, ring_bytes).map_err(|_| Errno::INVAL)?;
        let memory = memfd::create(c"sluice-fabric")?;
        memfd::set_len(memory.raw(), geometry.chunk_bytes())?;
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)?;
        let bytes = geometry.chunk_bytes() as usize;
        let mapping = Mapping::shared(memory.raw(), bytes, Access::ReadWrite)?;
        Ok(Self {
            number,
            memory,
            mapping,
            geometry,
        })
    }

    /// The shape.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A view, which is good as long as this is.
    pub(super) fn view(&self) -> chunk::Chunk {
        // SAFETY: mapped for writing with this geometry. Carriers, which alone ask, keep a reference with
        // each lane until their engine has forgotten it; several of them may have lanes in it, and use atomics.
        unsafe { chunk::Chunk::from_raw(self.mapping.base(), self.geometry) }
    }

    /// Makes the ring of `direction` of a lane known to a device.
    pub(super) fn register(
        &self,
        node: &Node,
        lane: u32,
        direction: u32,
        access: sluice_rdma::Access,
    ) -> Result<Region, sluice_rdma::Error> {
        let offset = self.geometry.ring_offset(lane, direction) as usize;
        let bytes = self.geometry.ring_bytes() as usize;
        // SAFETY: the ring lies in the mapping, which the lane keeps longer than its regions; the
        // program and this process touch it by atomics and raw copies alone.
        unsafe { node.register(self.mapping.base().add(offset), bytes, access) }
    }
}

/// A program's parking table, mapped here.
#[derive(Debug)]
pub struct ForeignParkingTable(Mapping);

impl ForeignParkingTable {
    /// Maps it; only its program writes there.
    pub fn map(parking: &Fd) -> Result<Self, Errno> {
        Ok(Self(Mapping::shared(
            parking.raw(),
            PARKING_BYTES,
            Access::ReadOnly,
        )?))
    }

    /// A view, which is good as long as this is.
    pub(super) fn view(&self) -> ParkingTable {
        // SAFETY: the file has this size and cannot shrink (`Program::new`); a carrier keeps a
        // reference with each lane, and only looks who is asleep.
        unsafe { ParkingTable::from_raw(self.0.base()) }
    }
}

/// sluiced's own parking table.
#[derive(Debug)]
pub struct OwnParkingTable {
    /// For programs.
    pub memory: Fd,
    mapping: Mapping,
}

impl OwnParkingTable {
    /// A new one, on which nobody sleeps.
    pub fn new() -> Result<Self, Errno> {
        let memory = memfd::create(c"sluice-parking")?;
        memfd::set_len(memory.raw(), PARKING_BYTES as u64)?;
        let mapping = Mapping::shared(memory.raw(), PARKING_BYTES, Access::ReadWrite)?;
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
        Ok(Self { memory, mapping })
    }

    /// A view, which is good as long as this is.
    pub(super) fn view(&self) -> ParkingTable {
        // SAFETY: `new` gave the file this size and sealed it against shrinking; each carrier keeps a
        // reference for as long as it runs.
        unsafe { ParkingTable::from_raw(self.mapping.base()) }
    }
}

/// A lane that was taken, and which carrier has it.
#[derive(Clone, Debug)]
pub struct Taken {
    pub chunk: Arc<Shared>,
    pub lane: u32,
    pub carrier: usize,
}

#[derive(Debug)]
struct Chunk {
    shared: Arc<Shared>,
    free: Vec<u32>,
    given: bool,
    _charge: Charge,
}

/// All chunks.
#[derive(Debug)]
pub struct Memory {
    ring_bytes: u32,
    lanes_max: u32,
    in_use: u32,
    /// By carrier.
    in_use_by: Vec<u32>,
    next_number: u32,
    limits: MemoryLimits,
    programs: HashMap<ClientId, Vec<Chunk>>,
}

impl Memory {
    /// None yet.
    pub fn new(ring_bytes: u32, lanes_max: u32) -> Self {
        Self {
            ring_bytes,
            lanes_max,
            in_use: 0,
            in_use_by: Vec::new(),
            next_number: 0,
            limits: MemoryLimits::default(),
            programs: HashMap::new(),
        }
    }

    /// Heeds the limits of the groups that programs are in. Without, there are none.
    pub fn heed(&mut self, limits: MemoryLimits) {
        self.limits = limits;
    }

    /// Lanes there may be.
    pub fn lanes_max(&self) -> u32 {
        self.lanes_max
    }

    /// Lanes that are in use.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Lanes that a carrier has.
    pub fn in_use_by(&self, carrier: usize) -> u32 {
        self.in_use_by.get(carrier).copied().unwrap_or_default()
    }

    /// A lane for a program, which this carrier has. Its header is all zero.
    ///
    /// Errors: as many are in use as may be, a group is near its limit, or what the kernel says.
    pub fn take(&mut self, client: ClientId, carrier: usize) -> Result<Taken, NoLane> {
        if self.in_use >= self.lanes_max {
            return Err(NoLane::Full);
        }
        let chunks = self.programs.entry(client).or_default();
        let at = match chunks.iter().position(|chunk| !chunk.free.is_empty()) {
            Some(at) => at,
            None => {
                let wanted = Size {
                    lanes: CHUNK_LANES[chunks.len().min(CHUNK_LANES.len() - 1)],
                    ring_bytes: self.ring_bytes,
                };
                let writers = [client, MemoryLimits::SLUICED];
                let charged = self.limits.charge(&writers, wanted);
                let (Size { lanes, ring_bytes }, charge) = charged.ok_or(NoLane::Limit)?;
                let number = NUMBER_BIT | self.next_number;
                self.next_number = (self.next_number + 1) & !NUMBER_BIT;
                let shared = Shared::new(number, lanes, ring_bytes).map_err(NoLane::Memory)?;
                chunks.push(Chunk {
                    shared: Arc::new(shared),
                    free: (0..lanes).rev().collect(),
                    given: false,
                    _charge: charge,
                });
                chunks.len() - 1
            }
        };
        let chunk = &mut chunks[at];
        let Some(lane) = chunk.free.pop() else {
            return Err(NoLane::Full);
        };
        let offset = chunk.shared.geometry.lane_header_offset(lane);
        memfd::write_at(chunk.shared.memory.raw(), &[0; LANE_HEADER_BYTES], offset)
            .map_err(NoLane::Memory)?;
        self.in_use += 1;
        if carrier >= self.in_use_by.len() {
            self.in_use_by.resize(carrier + 1, 0);
        }
        self.in_use_by[carrier] += 1;
        Ok(Taken {
            chunk: chunk.shared.clone(),
            lane,
            carrier,
        })
    }

    /// Whether the program has the chunk's descriptor. It must get it once: a program that maps a
    /// chunk twice would look for its lanes in two places.
    pub fn is_given(&mut self, client: ClientId, taken: &Taken) -> bool {
        self.find(client, taken).is_some_and(|chunk| chunk.given)
    }

    /// The program has the chunk's descriptor.
    pub fn set_given(&mut self, client: ClientId, taken: &Taken) {
        if let Some(chunk) = self.find(client, taken) {
            chunk.given = true;
        }
    }

    /// Nobody uses the lane any more.
    pub fn give_back(&mut self, client: ClientId, taken: &Taken) {
        let Some(chunk) = self.find(client, taken) else {
            return;
        };
        chunk.free.push(taken.lane);
        let geometry = chunk.shared.geometry;
        // Not having it back wastes memory until the program ends, and nothing else.
        let _ = memfd::punch_hole(
            chunk.shared.memory.raw(),
            geometry.ring_offset(taken.lane, 0),
            2 * u64::from(geometry.ring_bytes()),
        );
        self.in_use -= 1;
        if let Some(count) = self.in_use_by.get_mut(taken.carrier) {
            *count -= 1;
        }
    }

    /// The program is gone. Its lanes stay until they are given back.
    pub fn program_gone(&mut self, client: ClientId) {
        if let Some(chunks) = self.programs.get_mut(&client) {
            chunks.retain(|it| it.free.len() < it.shared.geometry.lanes() as usize);
            if chunks.is_empty() {
                self.programs.remove(&client);
            }
        }
    }

    fn find(&mut self, client: ClientId, taken: &Taken) -> Option<&mut Chunk> {
        let chunks = self.programs.get_mut(&client)?;
        chunks
            .iter_mut()
            .find(|it| Arc::ptr_eq(&it.shared, &taken.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_given_once_and_come_back() {
        let mut memory = Memory::new(4096, 20);
        let mut taken = Vec::new();
        let mut given = 0;
        for _ in 0..20 {
            taken.push(memory.take(3, 1).expect("a lane"));
        }
        for lane in &taken {
            given += u32::from(!memory.is_given(3, lane));
            memory.set_given(3, lane);
        }
        assert_eq!(given, 2, "once for each chunk");
        assert_eq!(memory.take(3, 1).err(), Some(NoLane::Full));
        let numbers = |it: &Taken| (it.chunk.number, it.lane);
        let mut all: Vec<_> = taken.iter().map(numbers).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 20);
        memory.give_back(3, &taken[0]);
        assert_eq!(memory.in_use(), 19);
        assert_eq!((memory.in_use_by(1), memory.in_use_by(0)), (19, 0));
        let again = memory.take(3, 1).expect("the one that came back");
        assert_eq!(numbers(&again), numbers(&taken[0]));
        memory.program_gone(3);
        assert!(memory.programs.contains_key(&3), "its lanes are in use");
        for lane in taken {
            memory.give_back(3, &lane);
        }
        memory.program_gone(3);
        assert!(memory.programs.is_empty());
    }
}
