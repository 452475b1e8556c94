//! What the shards of a transport have in common. None of it is a shard's to hold.

use std::sync::Arc;

use sluice_rendezvous::Names;

use crate::gsi::Gsi;
use crate::multicast::Groups;
use crate::neighbours::forward::Forward;
use crate::network::Network;
use crate::queue_pair::table::QueuePairs;
use crate::shard::gate::Gate;

/// What whoever works on a shard needs besides it.
pub struct Common {
    pub names: Names,
    pub queue_pairs: QueuePairs,
    pub network: Network,
    pub gsi: Gsi,
    pub groups: Groups,
    pub forward: Forward,
    /// Each shard's gate, at least one.
    pub gates: Box<[Arc<Gate>]>,
}

impl Common {
    /// The number of the shard that a queue pair is on.
    pub fn shard_of(&self, qpn: u32) -> usize {
        qpn as usize % self.gates.len()
    }

    /// The gate of the shard that has what is the whole transport's: queue pair 1, groups,
    /// neighbours.
    pub fn first_gate(&self) -> &Gate {
        &self.gates[0]
    }
}
