//! A queue pair, as the shards see it: the machine that whoever has its shard works.

use std::sync::Arc;

use sluice_verbs::QpType;
use sluice_verbs::transport::QpParams;

use crate::completions::Member;
use crate::keyed::{Key, Keyed, Keyhole};
use crate::queue_pair::machine::Machine;
use crate::queue_pair::requests::Targets;

/// A queue pair.
pub struct Part {
    pub qpn: u32,
    /// Its number among the transport's queue pairs, for the scheduler.
    pub index: usize,
    pub kind: QpType,
    /// The shard that works on it.
    pub shard: usize,
    /// Tells its completion queues of the shard.
    _member: Member,
    /// Where its datagrams go.
    pub targets: Arc<Targets>,
    machine: Keyed<Machine>,
}

impl Part {
    /// `index`: its number among the transport's queue pairs. `shard`: who works on it, by
    /// its number and what its key opens.
    pub fn new(
        qpn: u32,
        index: usize,
        (shard, hole): (usize, Keyhole),
        member: Member,
        params: &QpParams,
    ) -> Self {
        let targets = Targets::new(params.qp_type, &params.cap);
        Self {
            qpn,
            index,
            kind: params.qp_type,
            shard,
            _member: member,
            machine: Keyed::new(
                hole,
                Machine::new(params.qp_type, params.cap, targets.clone()),
            ),
            targets,
        }
    }

    /// Whether it is on that shard.
    pub fn is_of(&self, shard: &Key) -> bool {
        self.machine.is_opened_by(shard)
    }

    /// The machine, for whoever has the shard.
    #[inline]
    pub fn machine<'a>(&'a self, shard: &'a mut Key) -> &'a mut Machine {
        self.machine.open(shard)
    }
}
