//! The programs' memory that the daemon watches: which lanes have news, and which of the programs'
//! waiters got bytes last.

use sluice_shmem::chunk::Chunk;
use sluice_shmem::geometry::SLOTS;

use crate::ab_test::AbTest;
use crate::halves::Near;

/// A chunk whose ready lines are looked at.
#[derive(Debug)]
struct Watched {
    chunk: Chunk,
    side: u32,
    /// Which place of the table each of its lanes has.
    places: Vec<Option<usize>>,
}

/// What was found out about an epoll instance of a program, which holds for all lanes that it watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiter {
    /// When bytes came last for any of them.
    pub busy_ns: u64,
    /// Whether rings pay.
    pub ab_test: AbTest,
}

/// A parking table of a program, with its epoll instances.
#[derive(Debug)]
struct Waiters {
    address: u64,
    lanes: usize,
    by_slot: [Waiter; SLOTS as usize],
}

/// All of them.
#[derive(Debug, Default)]
pub struct Watch {
    /// Of the engine, in the ready lines.
    slot: u32,
    chunks: Vec<Watched>,
    /// Those of programs that are gone are empty.
    parking_tables: Vec<Option<Waiters>>,
}

/// The waiters of a lane's program: an index that holds as long as the lane does; none for a program
/// without a parking table.
pub type WaitersId = Option<usize>;

impl Watch {
    /// Of an engine with this slot in the daemon's parking table and in the ready lines: it is one waiter for
    /// all its lanes.
    pub fn new(slot: u32) -> Self {
        Self {
            slot,
            ..Self::default()
        }
    }

    /// Watches one more lane, which has this place in the table.
    pub fn add(&mut self, near: &Near, place: usize) -> WaitersId {
        let address = near.chunk.address();
        let at = self
            .chunks
            .iter()
            .position(|it| it.chunk.address() == address);
        let at = at.unwrap_or_else(|| {
            self.chunks.push(Watched {
                chunk: near.chunk,
                side: near.side,
                places: vec![None; near.chunk.geometry().lanes() as usize],
            });
            self.chunks.len() - 1
        });
        if let Some(entry) = self.chunks[at].places.get_mut(near.lane as usize) {
            *entry = Some(place);
        }
        near.parking
            .map(|parking| self.add_waiters(parking.address()))
    }

    fn add_waiters(&mut self, address: u64) -> usize {
        let mut parking_tables = self.parking_tables.iter_mut().enumerate();
        let known = parking_tables.find_map(|(at, parking)| {
            let parking = parking.as_mut().filter(|it| it.address == address)?;
            parking.lanes += 1;
            Some(at)
        });
        known.unwrap_or_else(|| {
            let waiters = Some(Waiters {
                address,
                lanes: 1,
                by_slot: [Waiter::default(); SLOTS as usize],
            });
            match self.parking_tables.iter().position(Option::is_none) {
                Some(free) => {
                    self.parking_tables[free] = waiters;
                    free
                }
                None => {
                    self.parking_tables.push(waiters);
                    self.parking_tables.len() - 1
                }
            }
        })
    }

    /// The lane is over.
    pub fn remove(&mut self, near: &Near, waiters: WaitersId) {
        let address = near.chunk.address();
        for it in &mut self.chunks {
            if it.chunk.address() == address
                && let Some(entry) = it.places.get_mut(near.lane as usize)
            {
                *entry = None;
            }
        }
        self.chunks
            .retain(|it| it.places.iter().any(Option::is_some));
        self.remove_waiters(waiters);
    }

    fn remove_waiters(&mut self, waiters: WaitersId) {
        if let Some(parking) = waiters.and_then(|at| self.parking_tables.get_mut(at)) {
            parking.take_if(|it| {
                it.lanes -= 1;
                it.lanes == 0
            });
        }
    }

    /// Calls `each` with the places of the lanes that programs have written to.
    pub fn take_ready(&self, mut each: impl FnMut(usize)) {
        for it in &self.chunks {
            let line = it.chunk.ready(it.side, self.slot);
            if line.any() {
                line.take(|lane| {
                    if let Some(Some(place)) = it.places.get(lane as usize) {
                        each(*place);
                    }
                });
            }
        }
    }

    /// Bytes came for a lane that these epoll instances watch, a mask of slots.
    pub fn note_busy(&mut self, waiters: WaitersId, watchers: u64, now_ns: u64) {
        if let Some(Some(it)) = waiters.and_then(|at| self.parking_tables.get_mut(at)) {
            for slot in slots(watchers) {
                it.by_slot[slot].busy_ns = now_ns;
            }
        }
    }

    /// The first of these epoll instances, if there is any.
    pub fn waiter(&mut self, waiters: WaitersId, watchers: u64) -> Option<&mut Waiter> {
        let known = self.parking_tables.get_mut(waiters?)?.as_mut()?;
        let slot = slots(watchers).next()?;
        Some(&mut known.by_slot[slot])
    }
}

fn slots(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(slot)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoll_instance_is_busy_by_itself() {
        let mut watch = Watch::default();
        let [one, other] = [64, 128].map(|address| Some(watch.add_waiters(address)));
        assert_eq!(Some(watch.add_waiters(64)), one);
        watch.note_busy(one, 1 << 3 | 1 << 63, 10);
        watch.note_busy(one, 1 << 3, 20);
        let mut busy_ns = |of, watchers| watch.waiter(of, watchers).map(|it| it.busy_ns);
        assert_eq!(busy_ns(one, 1 << 3 | 1 << 4), Some(20));
        assert_eq!(busy_ns(one, 1 << 63), Some(10));
        assert_eq!(busy_ns(one, 1 << 4), Some(0));
        assert_eq!(busy_ns(one, 0), None, "reads without epoll");
        assert_eq!(busy_ns(other, 1 << 3), Some(0));
        assert_eq!(busy_ns(None, 1 << 3), None);
    }

    #[test]
    fn a_program_that_comes_in_place_of_another_begins_anew() {
        let mut watch = Watch::default();
        let lanes = [64, 64].map(|address| Some(watch.add_waiters(address)));
        watch.note_busy(lanes[0], 1, 10);
        watch.remove_waiters(lanes[0]);
        assert_eq!(watch.waiter(lanes[1], 1).map(|it| it.busy_ns), Some(10));
        watch.remove_waiters(lanes[1]);
        let next = Some(watch.add_waiters(128));
        assert_eq!(next, lanes[0]);
        assert_eq!(watch.waiter(next, 1).map(|it| it.busy_ns), Some(0));
    }
}
