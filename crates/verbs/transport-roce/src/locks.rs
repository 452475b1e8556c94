//! The locks of this crate, and their order.
//!
//! Whoever holds one takes only such as come behind it:
//!
//! 1. whoever joins a group ([`crate::multicast`]) or serves an interface ([`crate::node`]);
//! 2. a lane. Who holds one takes no other, but may put packets into what another waits with;
//! 3. a queue pair's machine;
//! 4. the engine's own, a send half among them.
//!
//! Whoever posts holds a send half already. So it only tries a lane and a machine, and tells the
//! engine nothing from there.
//!
//! Behind all of these, so that a lane or a machine may be held by whoever takes one: the numbers,
//! and behind these the routes, which a new block is made known to; a queue pair's outbox; the table of
//! queue pairs; completion queues, and behind them the lanes of each; groups' members; forwarding; a
//! gate's notes; what was brought; a queue that lanes share, and behind it what waits for it; what is
//! not shared by several modules. Nobody who holds one of these takes another, or asks for
//! a lane or a machine, where nothing else is said.
//!
//! A lane and a shared queue are [`crate::baton`]s, all others the standard library's.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Waits for a lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// The same, unless somebody has it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Ok(guard) => Some(guard),
    }
}

/// What a lock guards is whole whatever its holder did: every call leaves it so.
pub fn unpoisoned<T>(result: core::result::Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
