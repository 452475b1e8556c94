//! The processes that write to the rings of an instance, and what they wrote through the kernel.
//!
//! What a process wrote through the kernel is reported no later than what it wrote to a ring behind it, and so is
//! what another process wrote before it told this one. Asking the kernel with each report would cost as much as
//! the ring saves. So each process counts what it gave to the kernel and got from it, and the kernel is asked
//! when that count has moved.

use sluice_shmem::parking::ParkingTable;

/// Processes that are remembered.
const KNOWN_MAX: usize = 16;

/// What the writers' counts were when the kernel was last asked.
pub(crate) struct Writers {
    known: [(u64, u64); KNOWN_MAX],
    /// The next place to be taken.
    next: usize,
}

impl Writers {
    pub const fn new() -> Self {
        Self {
            known: [(0, 0); KNOWN_MAX],
            next: 0,
        }
    }

    /// Whether the kernel was asked since it last took something from this process or gave it something.
    pub fn is_heard(&self, parking: ParkingTable) -> bool {
        let seen = (parking.address(), parking.kernel_transfers());
        self.known.contains(&seen)
    }

    /// The kernel was asked when the process's count was `transfers`.
    pub fn note(&mut self, parking: ParkingTable, transfers: u64) {
        let address = parking.address();
        let known = self.known.iter_mut().find(|known| known.0 == address);
        if let Some(known) = known {
            known.1 = transfers;
        } else {
            self.known[self.next] = (address, transfers);
            self.next = (self.next + 1) % KNOWN_MAX;
        }
    }
}

impl Default for Writers {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use core::ptr::NonNull;
    use sluice_shmem::parking::PARKING_BYTES;

    #[repr(align(64))]
    struct Memory([u8; PARKING_BYTES]);

    fn parking() -> ParkingTable {
        let memory = Box::leak(Box::new(Memory([0; PARKING_BYTES])));
        // SAFETY: aligned memory of that size that is never freed.
        unsafe { ParkingTable::from_raw(NonNull::from(&mut memory.0).cast()) }
    }

    #[test]
    fn a_writer_is_heard_until_it_uses_the_kernel_again() {
        let mut writers = Writers::new();
        let parking = parking();
        assert!(!writers.is_heard(parking), "nothing is known of a stranger");
        writers.note(parking, parking.kernel_transfers());
        assert!(writers.is_heard(parking));
        parking.count_kernel_transfer();
        assert!(!writers.is_heard(parking));
        writers.note(parking, parking.kernel_transfers());
        assert!(writers.is_heard(parking));
    }

    #[test]
    fn a_writer_that_was_forgotten_is_a_stranger() {
        let mut writers = Writers::new();
        let first = parking();
        writers.note(first, 0);
        for _ in 0..KNOWN_MAX {
            writers.note(parking(), 0);
        }
        assert!(!writers.is_heard(first));
    }
}
