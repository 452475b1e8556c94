//! The slots of an instance across a fork: those of the parent are not the child's to touch.

use super::State;
use sluice_lane::reason::Reason;
use sluice_shmem::handover::{announce_watcher, withdraw_watcher};

impl State {
    /// In a forked child: the slots are the parent's, and so are the threads that sleep.
    pub fn become_foreign(&mut self) {
        self.is_foreign = true;
        self.asleep = 0;
        self.joined.clear();
    }

    /// Whether [`State::take_slots`] is to be called before this process uses the instance.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Gives the instance slots of this process's own, by which its lanes know it from now on. Connections for
    /// which there is none left stay on TCP.
    #[cold]
    pub fn take_slots(&mut self) {
        self.is_foreign = false;
        for (parking, _) in core::mem::take(&mut self.slots) {
            let Some(slot) = parking.take_slot() else {
                continue;
            };
            for _ in 0..self.asleep {
                parking.announce_sleep(slot);
            }
            self.slots.push((parking, slot));
        }
        let mut without = Vec::new();
        for watched in &mut self.watched {
            let own = self
                .slots
                .iter()
                .find(|(known, _)| *known == watched.parking);
            match own {
                Some((_, slot)) => watched.slot = *slot,
                None => watched.count = 0,
            }
            for (lane, item) in watched.lanes() {
                match own {
                    Some((_, slot)) => {
                        let into = watched.receiving(lane);
                        for _ in 0..if watched.direct { self.asleep } else { 0 } {
                            announce_watcher(&into);
                        }
                        into.watch(*slot);
                    }
                    None => without.push(item),
                }
            }
        }
        self.watched.retain(|watched| watched.count > 0);
        for number in without {
            if let Some(item) = self.item(number) {
                item.lane = None;
                if let Some(conn) = crate::conn::get(item.fd) {
                    conn.pin(Reason::TooManyWatchers);
                }
            }
        }
        // What a lane got before it knew the new slot was said of the old one only.
        for number in 0..self.items.len() as u32 {
            if self.item(number).is_some_and(|item| item.lane.is_some()) {
                self.enqueue(number);
            }
        }
    }

    /// Undoes [`State::take_slots`], and gives back slots that this process has by other ways.
    pub fn give_slots_back(&mut self) {
        if core::mem::replace(&mut self.is_foreign, true) {
            return;
        }
        for watched in &self.watched {
            for (lane, _) in watched.lanes() {
                let into = watched.receiving(lane);
                into.unwatch(watched.slot);
                for _ in 0..if watched.direct { self.asleep } else { 0 } {
                    withdraw_watcher(&into);
                }
            }
        }
        for (parking, slot) in &self.slots {
            for _ in 0..self.asleep {
                parking.withdraw_sleep(*slot);
            }
            parking.free_slot(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Watched;
    use super::*;
    use crate::epoll::item::{Item, Kind};
    use crate::epoll::unlocked::Unlocked;
    use core::ptr::NonNull;
    use sluice_shmem::chunk::Chunk;
    use sluice_shmem::geometry::{Geometry, LANES_MAX};
    use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};

    fn memory(bytes: usize) -> NonNull<u8> {
        crate::memory::zeroed(bytes).expect("memory")
    }

    /// An instance that watches two lanes of a chunk, by items that nothing else knows, and its slot.
    fn watching(chunk: Chunk, parking: ParkingTable) -> (State, u32) {
        let mut state = State::new();
        let slot = parking.take_slot().expect("a slot");
        state.slots.push((parking, slot));
        let mut items = Box::new([0; LANES_MAX as usize]);
        for lane in [1_u32, 3] {
            let mut item = Item::new(1000 + lane as i32, libc::EPOLLIN as u32, 0, Kind::Socket);
            item.watch((chunk.address(), lane));
            state.items.push(Some(item));
            items[lane as usize] = state.items.len() as u32;
            chunk.direction(lane, 0).watch(slot);
        }
        state.watched.push(Watched {
            chunk,
            side: 1,
            parking,
            slot,
            count: 2,
            direct: false,
            items,
        });
        (state, slot)
    }

    /// What fork makes of it in the child.
    fn forked(chunk: Chunk, parking: ParkingTable, parents: u32) -> State {
        let (mut child, slot) = watching(chunk, parking);
        parking.free_slot(slot);
        for lane in [1, 3] {
            chunk.direction(lane, 0).unwatch(slot);
        }
        child.slots[0].1 = parents;
        child.watched[0].slot = parents;
        child.become_foreign();
        child
    }

    fn chunk_and_parking() -> (Chunk, ParkingTable) {
        let geometry = Geometry::new(4, 4096).expect("a shape");
        let base = memory(geometry.chunk_bytes() as usize);
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        let chunk = unsafe { Chunk::from_raw(base, geometry) };
        // SAFETY: zeroed memory of a parking table's size, page aligned, never unmapped.
        let parking = unsafe { ParkingTable::from_raw(memory(PARKING_BYTES)) };
        (chunk, parking)
    }

    /// The slots whose instances a sender names when it writes to the lane.
    fn watchers(chunk: Chunk, lane: u32) -> u64 {
        chunk.direction(lane, 0).watchers()
    }

    #[test]
    fn what_a_forked_child_closes_stays_the_parents() {
        let (chunk, parking) = chunk_and_parking();
        let (_parent, slot) = watching(chunk, parking);
        let this = Unlocked::new();
        let mut child = forked(chunk, parking, slot);
        child.forget(&this, 0);
        child.close();
        assert_eq!(watchers(chunk, 1), 1 << slot);
        assert_eq!(watchers(chunk, 3), 1 << slot);
        assert_ne!(parking.take_slot(), Some(slot), "it is taken");
    }

    #[test]
    fn a_forked_child_that_uses_the_instance_is_named_beside_the_parent() {
        let (chunk, parking) = chunk_and_parking();
        let (mut parent, slot) = watching(chunk, parking);
        let this = Unlocked::new();
        let mut child = forked(chunk, parking, slot);
        child.take_slots();
        let own = child.slots[0].1;
        assert_ne!(own, slot);
        for lane in [1, 3] {
            assert_eq!(watchers(chunk, lane), 1 << slot | 1 << own);
        }
        assert_eq!(child.queue.len(), 2, "what came before is looked for");
        child.announce_sleep();
        assert!(parking.any_asleep(1 << own) && !parking.any_asleep(1 << slot));
        // Either closes what it has, and the other one goes on.
        parent.forget(&this, 0);
        child.forget(&this, 1);
        assert_eq!(watchers(chunk, 1), 1 << own);
        assert_eq!(watchers(chunk, 3), 1 << slot);
        child.give_slots_back();
        assert_eq!(watchers(chunk, 1), 0);
        assert!(!parking.any_asleep(u64::MAX));
        assert_eq!(parking.take_slot(), Some(own), "it is free");
    }

    #[test]
    fn a_forked_child_without_a_slot_leaves_its_connections_to_the_kernel() {
        let (chunk, parking) = chunk_and_parking();
        let (_parent, slot) = watching(chunk, parking);
        let mut child = forked(chunk, parking, slot);
        while parking.take_slot().is_some() {}
        child.take_slots();
        assert!(child.watched.is_empty() && !child.has_lanes());
        assert_eq!(watchers(chunk, 1), 1 << slot);
    }
}
