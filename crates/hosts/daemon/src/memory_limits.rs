//! Rings do not push programs over the memory limits of their control groups.
//!
//! The kernel counts a page of a ring for the group of whoever writes there first: each of two programs pays for the ring
//! that it writes to. Where a group is near its limit, chunks of memory get smaller rings and fewer lanes, or are
//! refused; the connections stay on TCP then, whose buffers the kernel makes smaller by itself.

mod groups;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::matching::ClientId;
use groups::{Hierarchies, Limited};

/// Of what a group may still take, the rings of all lanes may take one part in so many: the rest is the program's.
const PARTS: u64 = 4;
/// A chunk may take one part in so many of what is left for rings, because other chunks come later. Its rings are made
/// smaller for that.
const CHUNK_PARTS: u64 = 4;
/// The smallest rings that are made for that, and how many lanes a chunk has at least then.
const RING_BYTES_MIN: u32 = 16 << 10;
const LANES_MIN: u32 = 16;

/// The size of a chunk of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub lanes: u32,
    pub ring_bytes: u32,
}

/// Where programs are, and what is charged to their groups.
#[derive(Debug, Default)]
struct State {
    processes: HashMap<ClientId, i32>,
    /// What the rings of each group take at most, bytes.
    charged: HashMap<PathBuf, u64>,
}

/// What is known of limits, for all who make rings.
#[derive(Clone, Debug, Default)]
pub struct MemoryLimits {
    hierarchies: Arc<Hierarchies>,
    state: Arc<Mutex<State>>,
}

/// What a chunk is charged, until it is dropped.
#[derive(Debug, Default)]
pub struct Charge {
    state: Arc<Mutex<State>>,
    groups: Vec<(PathBuf, u64)>,
}

/// A group that pays for rings: for so many of those of each lane.
#[derive(Debug, PartialEq, Eq)]
struct Payer {
    folder: PathBuf,
    /// Bytes that rings may still take of it.
    left: u64,
    rings: u64,
}

impl MemoryLimits {
    /// sluiced itself, where clients are numbered: it pays for rings from other hosts.
    pub const SLUICED: ClientId = 0;

    pub fn of_this_machine() -> Self {
        let limits = Self {
            hierarchies: Arc::new(Hierarchies::find()),
            state: Arc::default(),
        };
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        limits.came(Self::SLUICED, own);
        limits
    }

    /// A program's process. One whose number is 0 cannot be seen, and has no limit that is known.
    pub fn came(&self, client: ClientId, pid: i32) {
        if pid > 0 {
            lock(&self.state).processes.insert(client, pid);
        }
    }

    pub fn gone(&self, client: ClientId) {
        lock(&self.state).processes.remove(&client);
    }

    /// Charges a chunk to the groups of its writers; each writer writes to one ring of every lane. The chunk has the
    /// wanted size, or a smaller one. `None`: a group has no room for a chunk.
    pub fn charge(&self, writers: &[ClientId], wanted: Size) -> Option<(Size, Charge)> {
        let limited: Vec<Limited> = writers
            .iter()
            .filter_map(|writer| lock(&self.state).processes.get(writer).copied())
            .flat_map(|pid| self.hierarchies.limited(pid))
            .collect();
        let mut state = lock(&self.state);
        let payers = payers(limited, &state.charged);
        let size = fitting(&payers, wanted)?;
        let groups: Vec<(PathBuf, u64)> = payers
            .into_iter()
            .map(|payer| (payer.folder, cost(payer.rings, size)))
            .collect();
        for (folder, bytes) in &groups {
            *state.charged.entry(folder.clone()).or_default() += bytes;
        }
        let state = Arc::clone(&self.state);
        Some((size, Charge { state, groups }))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for (folder, bytes) in &self.groups {
            if let Some(charged) = state.charged.get_mut(folder) {
                *charged -= bytes;
                if *charged == 0 {
                    state.charged.remove(folder);
                }
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each group once, for all writers that are in it.
fn payers(limited: Vec<Limited>, charged: &HashMap<PathBuf, u64>) -> Vec<Payer> {
    let mut payers: Vec<Payer> = Vec::new();
    for Limited { folder, room } in limited {
        if let Some(known) = payers.iter_mut().find(|payer| payer.folder == folder) {
            known.rings += 1;
            continue;
        }
        let charged = charged.get(&folder).copied().unwrap_or(0);
        payers.push(Payer {
            folder,
            left: (room / PARTS).saturating_sub(charged),
            rings: 1,
        });
    }
    payers
}

fn cost(rings: u64, size: Size) -> u64 {
    rings * u64::from(size.lanes) * u64::from(size.ring_bytes)
}

/// The largest rings for all lanes that leave room for other chunks; else the smallest that there may be.
fn fitting(payers: &[Payer], wanted: Size) -> Option<Size> {
    let fits = |size, parts| {
        payers
            .iter()
            .all(|payer| cost(payer.rings, size) <= payer.left / parts)
    };
    let mut size = wanted;
    loop {
        if fits(size, CHUNK_PARTS) {
            return Some(size);
        }
        if size.ring_bytes <= RING_BYTES_MIN {
            break;
        }
        size.ring_bytes /= 2;
    }
    size.lanes = wanted.lanes.min(LANES_MIN);
    fits(size, 1).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Size = Size {
        lanes: 16,
        ring_bytes: 1 << 20,
    };

    fn payer(left: u64, rings: u64) -> Payer {
        Payer {
            folder: "/g".into(),
            left,
            rings,
        }
    }

    fn limited(folder: &str, room: u64) -> Limited {
        Limited {
            folder: folder.into(),
            room,
        }
    }

    #[test]
    fn rings_shrink_before_lanes_are_refused() {
        let size = |left| fitting(&[payer(left, 1)], WANTED);
        let rings = |left| size(left).map(|size| size.ring_bytes >> 10);
        assert_eq!(fitting(&[], WANTED), Some(WANTED));
        assert_eq!(rings(64 << 20), Some(1024));
        assert_eq!(rings((64 << 20) - 1), Some(512));
        assert_eq!(rings(10 << 20), Some(128));
        assert_eq!(rings(1 << 20), Some(16));
        // Its last part is used up, and then there is none.
        assert_eq!(rings(256 << 10), Some(16));
        assert_eq!(rings((256 << 10) - 1), None);
        assert_eq!(rings(0), None);
        // The other writer's group has less.
        let both = [payer(64 << 20, 1), payer(2 << 20, 1)];
        assert_eq!(fitting(&both, WANTED).unwrap().ring_bytes, 32 << 10);
        // A group that writes to both rings.
        let twice = fitting(&[payer(64 << 20, 2)], WANTED);
        assert_eq!(twice.unwrap().ring_bytes, 512 << 10);
        // Who is content with small rings keeps them.
        let small = Size {
            lanes: 64,
            ring_bytes: 4096,
        };
        assert_eq!(fitting(&[payer(1 << 20, 1)], small), Some(small));
        let fewer = fitting(&[payer(200 << 10, 1)], small).unwrap();
        assert_eq!(fewer, Size { lanes: 16, ..small });
    }

    #[test]
    fn what_is_charged_is_the_less_for_others_until_it_is_given_back() {
        let limits = MemoryLimits::default();
        let take = |room| {
            let mut state = lock(&limits.state);
            let payers = payers(vec![limited("/g", room)], &state.charged);
            let size = fitting(&payers, WANTED)?;
            let bytes = cost(1, size);
            *state.charged.entry("/g".into()).or_default() += bytes;
            let (state, groups) = (Arc::clone(&limits.state), vec![("/g".into(), bytes)]);
            Some((size.ring_bytes >> 10, Charge { state, groups }))
        };
        let mut held = Vec::new();
        // Nobody has written yet: all of the room is there each time.
        while let Some(taken) = take(40 << 20) {
            held.push(taken);
        }
        let rings: Vec<u32> = held.iter().map(|(ring, _)| *ring).collect();
        assert_eq!(rings[..4], [128, 128, 64, 64]);
        assert!(rings.is_sorted_by(|a, b| a >= b));
        let all: u64 = rings.iter().map(|ring| u64::from(*ring) << 14).sum();
        assert!(all <= 10 << 20 && all > (10 << 20) - (256 << 10), "{all}");
        held.clear();
        assert!(lock(&limits.state).charged.is_empty());
    }

    #[test]
    fn a_group_of_both_writers_pays_for_both_rings() {
        let charged = HashMap::from([(PathBuf::from("/b"), 1 << 20)]);
        let all = vec![
            limited("/a", 8 << 20),
            limited("/b", 8 << 20),
            limited("/a", 4 << 20),
        ];
        let payers = payers(all, &charged);
        let told: Vec<_> = payers.iter().map(|it| (it.left >> 20, it.rings)).collect();
        assert_eq!(told, [(2, 2), (1, 1)]);
    }

    #[test]
    fn nobody_who_is_unknown_is_limited() {
        let limits = MemoryLimits::of_this_machine();
        limits.came(7, 0);
        let (size, charge) = limits.charge(&[7, 8], WANTED).expect("no limit");
        assert!(size == WANTED && charge.groups.is_empty());
        limits.gone(7);
    }
}
