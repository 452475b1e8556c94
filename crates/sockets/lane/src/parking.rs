//! What this process says in its parking table, of writes that go by no lane.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use sluice_shmem::parking::ParkingTable;

/// The parking table of this process, for what has no lane to be said in, and those it had before it was forked, at
/// which the peers of inherited lanes look; null for none.
static OWN_TABLES: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4];

/// Says which parking table this process writes.
pub fn set_own_parking(parking: ParkingTable) {
    let mut before = parking.address() as *mut u8;
    for word in &OWN_TABLES {
        before = word.swap(before, Ordering::AcqRel);
    }
}

pub(crate) fn own_parking_tables() -> impl Iterator<Item = ParkingTable> {
    OWN_TABLES
        .iter()
        .map_while(|word| NonNull::new(word.load(Ordering::Acquire)))
        // SAFETY: `set_own_parking` got parking tables, which stay mapped for writing for the process's life.
        .map(|base| unsafe { ParkingTable::from_raw(base) })
}

/// Says that the kernel has taken a write of this process, to whatever descriptor, or given it what somebody
/// else wrote. A reader that finds what was written to a ring behind it asks the kernel, too.
pub fn count_kernel_transfer() {
    for parking in own_parking_tables() {
        parking.count_kernel_transfer();
    }
}
