//! How long a ring stays full before its writer goes to TCP.

use crate::clock::now_ns;
use crate::end::Tx;
use crate::spin::ceiling_ns;
use sluice_shmem::direction::Direction;

/// A full ring's writer waits at least this long for room before it goes to TCP.
const FULL_NS_MIN: u64 = 50_000;

/// How long a writer waits for room, nanoseconds.
pub(crate) fn full_budget_ns() -> u64 {
    (2 * ceiling_ns()).max(FULL_NS_MIN)
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
