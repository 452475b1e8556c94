//! What the lanes of a transport have in common. None of it is a lane's to hold.

use std::sync::Arc;

use sluice_rendezvous::Names;

use crate::gsi::Gsi;
use crate::lane::gate::Gate;
use crate::multicast::Groups;
use crate::neighbours::forward::Forward;
use crate::network::Network;
use crate::queue_pair::table::QueuePairs;

/// What whoever works on a lane needs besides it.
pub struct Common {
    pub names: Names,
    pub queue_pairs: QueuePairs,
    pub network: Network,
    pub gsi: Gsi,
    pub groups: Groups,
    pub forward: Forward,
    /// Each lane's gate, at least one.
    pub gates: Box<[Arc<Gate>]>,
}

impl Common {
    /// The number of the lane that a queue pair is on.
    pub fn lane_of(&self, qpn: u32) -> usize {
        qpn as usize % self.gates.len()
    }

    /// The gate of the lane that has what is the whole transport's: queue pair 1, groups,
    /// neighbours.
    pub fn first_gate(&self) -> &Gate {
        &self.gates[0]
    }
}
