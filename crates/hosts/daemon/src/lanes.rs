//! Hands out the memory between two processes.
//!
//! Each pair of clients that have a connection shares chunks of their own. A lane is held by the
//! two ends that got it, until each has said that it is done with it or its process has ended:
//! a lane that one of them might still read is never given to another connection.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;

use sluice_shmem::geometry::{Geometry, LANE_HEADER_BYTES};
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, SEAL_GROW, SEAL_SEAL, SEAL_SHRINK};
use sluice_sys::unix::{self, Fd};

use crate::disposal;
use crate::matching::{ClientId, EndKey};
use crate::memory_limits::{Charge, MemoryLimits, Size};
use crate::shares::{Payer, Shares};

/// Lanes of the first, second, … chunk of a pair; the last number holds for all further ones.
const CHUNK_LANES: [u32; 4] = [16, 64, 256, 512];

/// Released lanes of one chunk that keep the memory of their rings, for the next connections.
/// Giving memory back costs both processes a TLB flush and the next user of the lane page
/// faults, which a server with many short connections should not pay for each of them.
const WARM_LANES_MAX: usize = 16;

/// Lanes that one end can hold: it gets another one when the other end has changed hands.
const LANES_PER_END_MAX: usize = 4;

/// A lane among all of sluiced's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneRef {
    pub chunk: u32,
    pub lane: u32,
}

/// Why there is no lane for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLane {
    /// As many are in use as may be.
    Full,
    /// One of the two users has its share.
    Share,
    /// Memory or descriptors could not be had.
    Memory(Errno),
    /// The control group of one of the two programs is near its limit of memory.
    Limit,
}

impl fmt::Display for NoLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("as many are in use as may be"),
            Self::Share => f.write_str("a user has its share"),
            Self::Memory(error) => write!(f, "{error}"),
            Self::Limit => f.write_str("a control group is near its limit of memory"),
        }
    }
}

/// One end's hold on a lane.
#[derive(Clone, Copy, Debug)]
struct Hold {
    generation: u32,
    lane: LaneRef,
    side: usize,
}

#[derive(Debug)]
struct Chunk {
    memory: Fd,
    geometry: Geometry,
    pair: PairKey,
    /// For whom the chunk and each of its lanes counts.
    payers: [Payer; 2],
    /// Which client of the pair has the descriptor.
    given: [bool; 2],
    /// The sides of each lane that are held.
    held: Vec<[bool; 2]>,
    in_use: u32,
    /// Free lanes whose rings may have memory, the coldest first; those without; and how many
    /// were ever used.
    warm: VecDeque<u32>,
    cold: Vec<u32>,
    used: u32,
    _charge: Charge,
}

/// Two clients, the lower number first; twice the same for a program connected to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PairKey([ClientId; 2]);

impl PairKey {
    fn new(a: ClientId, b: ClientId) -> PairKey {
        PairKey([a.min(b), a.max(b)])
    }

    fn place(&self, client: ClientId) -> usize {
        usize::from(self.0[0] != client)
    }
}

#[derive(Debug, Default)]
struct Pair {
    chunks: Vec<u32>,
    /// Which client has the other's parking table.
    parking_given: [bool; 2],
    /// One of the two has ended: no new lanes.
    widowed: bool,
}

/// All lanes.
#[derive(Debug)]
pub struct Lanes {
    ring_bytes: u32,
    lanes_max: u32,
    chunks_max: usize,
    next_chunk: u32,
    in_use: u32,
    lane_shares: Shares,
    chunk_shares: Shares,
    limits: MemoryLimits,
    /// Chunks with smaller rings than usual.
    shrunk: usize,
    /// The clients that count for somebody.
    payers: HashMap<ClientId, u32>,
    chunks: HashMap<u32, Chunk>,
    pairs: HashMap<PairKey, Pair>,
    peers: HashMap<ClientId, HashSet<ClientId>>,
    /// Ordered, so that all of one client lie together.
    holds: BTreeMap<EndKey, Vec<Hold>>,
}

impl Lanes {
    /// `ring_bytes` must be one that [`Geometry::new`] takes; otherwise every
    /// [`take`](Lanes::take) fails.
    /// One user may have `share_percent` of the lanes and chunks, see [`Lanes::set_payer`].
    pub fn new(ring_bytes: u32, lanes_max: u32, chunks_max: usize, share_percent: u32) -> Lanes {
        Lanes {
            lane_shares: Shares::new(lanes_max as usize, share_percent),
            chunk_shares: Shares::new(chunks_max, share_percent),
            limits: MemoryLimits::default(),
            shrunk: 0,
            payers: HashMap::new(),
            ring_bytes,
            lanes_max,
            chunks_max,
            next_chunk: 1,
            in_use: 0,
            chunks: HashMap::new(),
            pairs: HashMap::new(),
            peers: HashMap::new(),
            holds: BTreeMap::new(),
        }
    }

    /// Heeds the limits of the groups that programs are in. Without, there are none.
    pub fn heed(&mut self, limits: MemoryLimits) {
        self.limits = limits;
    }

    /// Lanes that are held by somebody.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Chunks in existence.
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Those of them with smaller rings, because a program's control group has little memory left.
    pub fn shrunk_count(&self) -> usize {
        self.shrunk
    }

    /// Bytes of each ring, where there is no lack of memory.
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// The most lanes that can be in use.
    pub fn lanes_max(&self) -> u32 {
        self.lanes_max
    }

    /// What `client` takes from now on counts for this user.
    pub fn set_payer(&mut self, client: ClientId, payer: Payer) {
        if let Some(user) = payer {
            self.payers.insert(client, user);
        }
    }

    /// Takes a fresh lane for two ends and their generations; the first gets side 0,
    /// and is the one of the lower client.
    pub fn take(&mut self, ends: [(EndKey, u32); 2]) -> Result<LaneRef, NoLane> {
        let has_many = |(key, _): &(EndKey, u32)| {
            self.holds
                .get(key)
                .is_some_and(|holds| holds.len() >= LANES_PER_END_MAX)
        };
        if self.in_use >= self.lanes_max || ends.iter().any(has_many) {
            return Err(NoLane::Full);
        }
        let [(a, _), (b, _)] = ends;
        let payers = [a, b].map(|key| self.payers.get(&key.client).copied());
        if !self.lane_shares.have_room(&payers) {
            return Err(NoLane::Share);
        }
        let id = self.chunk_with_room(PairKey::new(a.client, b.client), payers)?;
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return Err(NoLane::Full);
        };
        let lane = chunk.take().map_err(NoLane::Memory)?;
        self.in_use += 1;
        self.lane_shares.take(&chunk.payers);
        let lane = LaneRef { chunk: id, lane };
        for (side, (key, generation)) in ends.into_iter().enumerate() {
            self.holds.entry(key).or_default().push(Hold {
                generation,
                lane,
                side,
            });
        }
        self.peers.entry(a.client).or_default().insert(b.client);
        self.peers.entry(b.client).or_default().insert(a.client);
        Ok(lane)
    }

    /// The chunk's geometry, and its memory if `client` has not been given it yet.
    pub fn chunk_for(&self, lane: LaneRef, client: ClientId) -> Option<(Geometry, Option<&Fd>)> {
        let chunk = self.chunks.get(&lane.chunk)?;
        let given = chunk.given[chunk.pair.place(client)];
        Some((chunk.geometry, (!given).then_some(&chunk.memory)))
    }

    /// Whether `client` lacks the parking table of `peer`.
    pub fn needs_parking(&self, client: ClientId, peer: ClientId) -> bool {
        let key = PairKey::new(client, peer);
        client != peer
            && self
                .pairs
                .get(&key)
                .is_some_and(|pair| !pair.parking_given[key.place(client)])
    }

    /// Records that `client` has been sent the chunk of `lane` and the parking table of `peer`.
    pub fn set_given(&mut self, lane: LaneRef, client: ClientId, peer: ClientId) {
        let key = PairKey::new(client, peer);
        if let Some(chunk) = self.chunks.get_mut(&lane.chunk) {
            chunk.given[key.place(client)] = true;
        }
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.parking_given[key.place(client)] = true;
        }
    }

    /// The end is done with the lanes of this generation.
    pub fn release(&mut self, key: EndKey, generation: u32) {
        self.release_if(key, |hold| hold.generation == generation);
    }

    /// The end has begun this generation, so it is done with the lanes of all former ones.
    pub fn release_former(&mut self, key: EndKey, generation: u32) {
        self.release_if(key, |hold| hold.generation != generation);
    }

    /// The end is done with this lane, which it has not been told of.
    pub fn take_back(&mut self, key: EndKey, lane: LaneRef) {
        self.release_if(key, |hold| hold.lane == lane);
    }

    /// The process has ended: releases all that it held. Returns the other clients that it
    /// shared memory with.
    pub fn remove_client(&mut self, client: ClientId) -> Vec<ClientId> {
        let all = EndKey { client, end: 0 }..=EndKey {
            client,
            end: u32::MAX,
        };
        let keys: Vec<EndKey> = self.holds.range(all).map(|(key, _)| *key).collect();
        let peers = self.peers.remove(&client).unwrap_or_default();
        // Before its lanes are released: no memory of theirs is kept for others, nor given back one by one.
        for peer in &peers {
            if let Some(theirs) = self.peers.get_mut(peer) {
                theirs.remove(&client);
            }
            if let Some(pair) = self.pairs.get_mut(&PairKey::new(client, *peer)) {
                pair.widowed = true;
            }
        }
        for key in keys {
            self.release_if(key, |_| true);
        }
        self.payers.remove(&client);
        for peer in &peers {
            let key = PairKey::new(client, *peer);
            self.bury_if_unused(key);
            // What the survivor still reads is in other lanes.
            let pair = self.pairs.get(&key);
            for id in pair.iter().flat_map(|pair| &pair.chunks) {
                if let Some(chunk) = self.chunks.get_mut(id) {
                    chunk.cool_all_later();
                }
            }
        }
        peers.into_iter().filter(|peer| *peer != client).collect()
    }

    fn release_if(&mut self, key: EndKey, done: impl Fn(&Hold) -> bool) {
        let Some(holds) = self.holds.get_mut(&key) else {
            return;
        };
        let mut released = Vec::new();
        holds.retain(|hold| {
            let keep = !done(hold);
            if !keep {
                released.push(*hold);
            }
            keep
        });
        if holds.is_empty() {
            self.holds.remove(&key);
        }
        for hold in released {
            self.let_go(hold);
        }
    }

    fn let_go(&mut self, hold: Hold) {
        let Some(chunk) = self.chunks.get_mut(&hold.lane.chunk) else {
            return;
        };
        if chunk.let_go(hold.lane.lane, hold.side) {
            let pair = chunk.pair;
            if !self.pairs.get(&pair).is_some_and(|pair| pair.widowed) {
                chunk.cool();
            }
            self.in_use -= 1;
            self.lane_shares.give_back(&chunk.payers);
            self.bury_if_unused(pair);
        }
    }

    /// Closes the chunks of a pair of which one is dead, once the other has read all it wants.
    fn bury_if_unused(&mut self, key: PairKey) {
        let Some(pair) = self.pairs.get(&key) else {
            return;
        };
        let busy = |id: &u32| self.chunks.get(id).is_some_and(|chunk| chunk.in_use > 0);
        if !pair.widowed || pair.chunks.iter().any(busy) {
            return;
        }
        if let Some(pair) = self.pairs.remove(&key) {
            for id in pair.chunks {
                if let Some(chunk) = self.chunks.remove(&id) {
                    self.chunk_shares.give_back(&chunk.payers);
                    self.shrunk -= usize::from(chunk.is_shrunk(self.ring_bytes));
                    disposal::later(move || chunk.give_memory_back());
                }
            }
        }
    }

    fn chunk_with_room(&mut self, key: PairKey, payers: [Payer; 2]) -> Result<u32, NoLane> {
        let pair = self.pairs.entry(key).or_default();
        let with_room = pair
            .chunks
            .iter()
            .find(|id| self.chunks.get(id).is_some_and(Chunk::has_room));
        if let Some(id) = with_room {
            return Ok(*id);
        }
        if self.chunks.len() >= self.chunks_max {
            return Err(NoLane::Full);
        }
        if !self.chunk_shares.have_room(&payers) {
            return Err(NoLane::Share);
        }
        let wanted = Size {
            lanes: CHUNK_LANES[pair.chunks.len().min(CHUNK_LANES.len() - 1)],
            ring_bytes: self.ring_bytes,
        };
        let (size, charge) = self.limits.charge(&key.0, wanted).ok_or(NoLane::Limit)?;
        let chunk = Chunk::new(key, payers, size, charge).map_err(NoLane::Memory)?;
        self.shrunk += usize::from(chunk.is_shrunk(self.ring_bytes));
        self.chunk_shares.take(&payers);
        let id = self.next_chunk;
        self.next_chunk = self.next_chunk.wrapping_add(1);
        self.chunks.insert(id, chunk);
        pair.chunks.push(id);
        Ok(id)
    }
}

impl Chunk {
    fn new(pair: PairKey, payers: [Payer; 2], size: Size, charge: Charge) -> Result<Chunk, Errno> {
        let Size { lanes, ring_bytes } = size;
        let geometry = Geometry::new(lanes, ring_bytes).map_err(|_| Errno::INVAL)?;
        let memory = memfd::create(c"sluice-chunk")?;
        memfd::set_len(memory.raw(), geometry.chunk_bytes())?;
        // Neither process can turn the other's accesses into SIGBUS.
        memfd::add_seals(memory.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)?;
        Ok(Chunk {
            memory,
            geometry,
            pair,
            payers,
            given: [false; 2],
            held: vec![[false; 2]; lanes as usize],
            in_use: 0,
            warm: VecDeque::new(),
            cold: Vec::new(),
            used: 0,
            _charge: charge,
        })
    }

    fn is_shrunk(&self, ring_bytes: u32) -> bool {
        self.geometry.ring_bytes() < ring_bytes
    }

    fn has_room(&self) -> bool {
        self.in_use < self.geometry.lanes()
    }

    /// Takes the free lane that was used last. Its header is all zero afterwards.
    fn take(&mut self) -> Result<u32, Errno> {
        let lane = self.warm.pop_back().or_else(|| self.cold.pop());
        let lane = lane.unwrap_or(self.used);
        let zero = [0; LANE_HEADER_BYTES];
        let at = self.geometry.lane_header_offset(lane);
        let written = memfd::write_at(self.memory.raw(), &zero, at);
        if lane == self.used {
            self.used += u32::from(written.is_ok());
        } else if written.is_err() {
            self.cold.push(lane);
        }
        written?;
        self.held[lane as usize] = [true; 2];
        self.in_use += 1;
        Ok(lane)
    }

    /// One side is done; returns whether the lane is free now.
    fn let_go(&mut self, lane: u32, side: usize) -> bool {
        let held = &mut self.held[lane as usize];
        if !held[side] {
            return false;
        }
        held[side] = false;
        if *held != [false; 2] {
            return false;
        }
        self.in_use -= 1;
        self.warm.push_back(lane);
        true
    }

    /// Gives back the rings of the lane that has been free for longest, if many are.
    fn cool(&mut self) {
        if self.warm.len() > WARM_LANES_MAX
            && let Some(coldest) = self.warm.pop_front()
        {
            give_rings_back(&self.memory, self.geometry, coldest);
            self.cold.push(coldest);
        }
    }

    /// Gives back the rings of all free lanes, of a pair that gets no more of them.
    fn cool_all_later(&mut self) {
        if self.warm.is_empty() {
            return;
        }
        // Without a descriptor they are given back when the pair ends.
        let Ok(memory) = unix::duplicate(self.memory.raw()) else {
            return;
        };
        let geometry = self.geometry;
        let lanes: Vec<u32> = self.warm.drain(..).collect();
        self.cold.extend(&lanes);
        disposal::later(move || {
            for lane in lanes {
                give_rings_back(&memory, geometry, lane);
            }
        });
    }

    fn give_memory_back(&self) {
        // The survivor may keep the chunk mapped for a while; it holds no bytes that are wanted.
        let bytes = self.geometry.chunk_bytes();
        if let Err(error) = memfd::punch_hole(self.memory.raw(), 0, bytes) {
            tracing::debug!("chunk memory stays in use: {error}");
        }
    }
}

fn give_rings_back(memory: &Fd, geometry: Geometry, lane: u32) {
    let start = geometry.ring_offset(lane, 0);
    let bytes = 2 * u64::from(geometry.ring_bytes());
    // Not having it back wastes memory until the pair ends, and nothing else.
    if let Err(error) = memfd::punch_hole(memory.raw(), start, bytes) {
        tracing::debug!("ring memory stays in use: {error}");
    }
}

#[cfg(test)]
mod tests;
