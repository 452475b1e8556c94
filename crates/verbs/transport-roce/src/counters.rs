//! What is counted where it happens. [`crate::node::report`] adds it up.

use core::ops::AddAssign;
use core::sync::atomic::{AtomicU64, Ordering};

use sluice_protocol::Counters;

/// Packets that came for a queue pair and were not its protocol's to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotTaken {
    /// The queue pair does not receive in its state.
    pub not_ready: u64,
    /// Another partition's.
    pub bad_pkey: u64,
    /// Not from its peer's address, or not to its own.
    pub wrong_peer: u64,
}

/// What queue pairs have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub protocol: Counters,
    pub not_taken: NotTaken,
}

impl AddAssign<&Seen> for Seen {
    fn add_assign(&mut self, other: &Seen) {
        self.protocol += &other.protocol;
        let NotTaken {
            not_ready,
            bad_pkey,
            wrong_peer,
        } = other.not_taken;
        self.not_taken.not_ready += not_ready;
        self.not_taken.bad_pkey += bad_pkey;
        self.not_taken.wrong_peer += wrong_peer;
    }
}

/// What a shard has dropped, and why.
#[derive(Debug, Default)]
pub struct ShardCounters {
    /// Not a legal packet.
    pub malformed: AtomicU64,
    /// No such queue pair here.
    pub unknown_qp: AtomicU64,
    /// Not from the peer's address, or the queue pair does not receive in its state.
    pub not_taken: AtomicU64,
    /// There was no way to the destination.
    pub unreachable: AtomicU64,
    /// Too many waited for the shard that were brought to it.
    pub crowded: AtomicU64,
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
