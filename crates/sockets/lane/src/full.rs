//! How long a ring stays full before its writer goes to TCP.

use crate::clock::now_ns;
use crate::end::Tx;
use crate::spin::ceiling_ns;
use sluice_shmem::direction::Direction;
use sluice_waiting::limits::LIMITS;

/// How long a writer waits for room, nanoseconds.
pub(crate) fn full_budget_ns() -> u64 {
    (LIMITS.full_ceilings * ceiling_ns()).max(LIMITS.full_min_ns)
}

/// How long the ring has been full without its reader taking anything, from the ring or from
/// TCP, nanoseconds.
pub(crate) fn stalled_ns(tx: &mut Tx, out: &Direction) -> u64 {
    let now = now_ns();
    let progress = out.reader_progress();
    if tx.full_since_ns == 0 || progress != tx.progress {
        tx.full_since_ns = now;
        tx.progress = progress;
    }
    now.saturating_sub(tx.full_since_ns)
}
