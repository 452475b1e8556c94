//! The parking table: where a process tells its peers which of its epoll instances sleep, and sluiced, in its own,
//! whether the machine has more to do than it has processors.
//!
//! A memory file that its process maps for writing and then seals (`F_SEAL_FUTURE_WRITE`), so
//! that peers can only read it. One cache line a slot.
#![allow(unsafe_code)]

use crate::geometry::SLOTS;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use core::ptr::NonNull;

/// Bytes of a parking table.
pub const PARKING_BYTES: usize = SLOTS as usize * 64;

/// One slot: how many threads sleep in the kernel on its epoll instance.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slot {
    sleepers: AtomicU32,
    /// Not 0: the machine is oversubscribed. Only in slot 0 of sluiced's parking table.
    oversubscribed: AtomicU32,
    /// Slots in use, a bit each. Only in slot 0; peers do not look at it.
    taken: AtomicU64,
    /// When the process last began to write to a connection without a lane, on its monotonic clock. Only in the
    /// last slot, whose line hardly any peer looks at for its sleepers.
    tcp_began_ns: AtomicU64,
    /// Reads and writes of the process that went through the kernel, on whatever descriptor, and have returned.
    /// In the last slot, too.
    kernel_transfers: AtomicU64,
}

/// A parking table of this process or of a peer. The memory stays mapped as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingTable {
    slots: NonNull<Slot>,
}

// SAFETY: a parking table is reached only through atomics.
unsafe impl Send for ParkingTable {}
// SAFETY: a shared `ParkingTable` gives out only the slots' atomics.
unsafe impl Sync for ParkingTable {}

impl ParkingTable {
    /// A parking table at `base`.
    ///
    /// # Safety
    /// `base` is 64-byte aligned and [`PARKING_BYTES`] from it stay mapped for the rest of the
    /// process's life, for writing if any method but [`ParkingTable::any_asleep`], [`ParkingTable::is_oversubscribed`],
    /// [`ParkingTable::tcp_began_ns`] and [`ParkingTable::kernel_transfers`] is used.
    pub unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self { slots: base.cast() }
    }

    /// The address, to keep in memory that forks share.
    pub fn address(&self) -> u64 {
        self.slots.as_ptr() as u64
    }

    fn slot(&self, index: u32) -> &Slot {
        debug_assert!(index < SLOTS);
        // SAFETY: `from_raw` promised SLOTS lines, and the index is reduced below them.
        unsafe { &*self.slots.as_ptr().add((index % SLOTS) as usize) }
    }

    /// Takes a free slot for an epoll instance; none is left after 64.
    ///
    /// The slot's count stays as it is: somebody may still sleep on the instance that had the
    /// slot before, and a count set to zero would then go below it and later cancel out a real
    /// sleeper. A count that a killed thread left behind makes its slot the last choice.
    pub fn take_slot(&self) -> Option<u32> {
        let taken = &self.slot(0).taken;
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let free = || (0..SLOTS).filter(|index| seen & 1 << index == 0);
            let is_quiet = |index: &u32| self.slot(*index).sleepers.load(Ordering::Relaxed) == 0;
            let index = free().find(is_quiet).or_else(|| free().next())?;
            match taken.compare_exchange_weak(
                seen,
                seen | 1 << index,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(index),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives a slot back.
    pub fn free_slot(&self, index: u32) {
        self.slot(0)
            .taken
            .fetch_and(!(1u64 << (index % SLOTS)), Ordering::AcqRel);
    }

    /// Announces that one more thread is about to sleep on the slot's epoll instance. A full
    /// fence. The caller looks at the slot's ready lines once more and enters the kernel only
    /// if all are empty and no lane whose bit it took before has a write in flight.
    pub fn announce_sleep(&self, index: u32) {
        self.slot(index).sleepers.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
    }

    /// Says whether far more threads want to run than the machine has processors.
    pub fn set_oversubscribed(&self, is_oversubscribed: bool) {
        let word = &self.slot(0).oversubscribed;
        word.store(u32::from(is_oversubscribed), Ordering::Relaxed);
    }

    /// What [`ParkingTable::set_oversubscribed`] said last.
    pub fn is_oversubscribed(&self) -> bool {
        self.slot(0).oversubscribed.load(Ordering::Relaxed) != 0
    }

    /// Says when a write began by TCP, on a connection without a lane to say it in.
    pub fn note_tcp_write(&self, now_ns: u64) {
        let word = &self.slot(SLOTS - 1).tcp_began_ns;
        word.store(now_ns, Ordering::Relaxed);
    }

    /// When the last such write began; 0 for never.
    pub fn tcp_began_ns(&self) -> u64 {
        self.slot(SLOTS - 1).tcp_began_ns.load(Ordering::Relaxed)
    }

    /// Counts a write that the kernel has taken, or a read that it answered.
    pub fn count_kernel_transfer(&self) {
        let word = &self.slot(SLOTS - 1).kernel_transfers;
        word.fetch_add(1, Ordering::Release);
    }

    /// How many there were. Who saw ring bytes before sees all in it that had returned when these bytes were
    /// written.
    pub fn kernel_transfers(&self) -> u64 {
        self.slot(SLOTS - 1)
            .kernel_transfers
            .load(Ordering::Acquire)
    }

    /// Takes one announcement back.
    pub fn withdraw_sleep(&self, index: u32) {
        self.slot(index).sleepers.fetch_sub(1, Ordering::Release);
    }

    /// Whether any epoll instance of `watchers`, a mask of slots, sleeps. To be called behind a
    /// full fence.
    pub fn any_asleep(&self, watchers: u64) -> bool {
        let mut rest = watchers;
        while rest != 0 {
            let index = rest.trailing_zeros();
            rest &= rest - 1;
            if self.slot(index).sleepers.load(Ordering::Acquire) != 0 {
                return true;
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots() -> [Slot; SLOTS as usize] {
        core::array::from_fn(|_| Slot::default())
    }

    fn parking(slots: &[Slot; SLOTS as usize]) -> ParkingTable {
        // SAFETY: no test uses the parking table after its slots.
        unsafe { ParkingTable::from_raw(NonNull::from(slots).cast()) }
    }

    #[test]
    fn hands_out_each_slot_once() {
        let slots = slots();
        let parking = parking(&slots);
        let mut taken: Vec<u32> = core::iter::from_fn(|| parking.take_slot()).collect();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..SLOTS));
        parking.free_slot(17);
        assert_eq!(parking.take_slot(), Some(17));
        assert_eq!(parking.take_slot(), None);
    }

    #[test]
    fn sees_only_sleepers_of_the_mask() {
        let slots = slots();
        let parking = parking(&slots);
        parking.announce_sleep(63);
        assert!(parking.any_asleep(u64::MAX));
        assert!(parking.any_asleep(1 << 63));
        assert!(!parking.any_asleep(!(1 << 63)));
        parking.withdraw_sleep(63);
        assert!(!parking.any_asleep(u64::MAX));
    }

    #[test]
    fn slot_reused_while_a_thread_still_sleeps_on_it() {
        let slots = slots();
        let parking = parking(&slots);
        let first = parking.take_slot().unwrap();
        parking.announce_sleep(first);
        parking.free_slot(first);
        let mut slot = parking.take_slot().unwrap();
        assert_ne!(slot, first, "a slot with a sleeper is the last choice");
        while slot != first {
            slot = parking.take_slot().unwrap();
        }
        // The old sleeper leaves, and a new one comes in between: it must not be cancelled out.
        parking.announce_sleep(slot);
        parking.withdraw_sleep(slot);
        assert!(parking.any_asleep(1 << slot));
        parking.withdraw_sleep(slot);
        parking.announce_sleep(slot);
        assert!(parking.any_asleep(1 << slot));
    }
}
