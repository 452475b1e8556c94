//! A queue pair, as the lanes see it: the machine that whoever has its lane works.

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
    /// The lane that works on it.
    pub lane: usize,
    /// Tells its completion queues of the lane.
    _member: Member,
    /// Where its datagrams go.
    pub targets: Arc<Targets>,
    machine: Keyed<Machine>,
}

impl Part {
    /// `index`: its number among the transport's queue pairs. `lane`: who works on it, by
    /// its number and what its key opens.
    pub fn new(
        qpn: u32,
        index: usize,
        (lane, hole): (usize, Keyhole),
        member: Member,
        params: &QpParams,
    ) -> Self {
        let targets = Targets::new(params.qp_type, &params.cap);
        Self {
            qpn,
            index,
            kind: params.qp_type,
            lane,
            _member: member,
            machine: Keyed::new(
                hole,
                Machine::new(params.qp_type, params.cap, targets.clone()),
            ),
            targets,
        }
    }

    /// Whether it is on that lane.
    pub fn is_of(&self, lane: &Key) -> bool {
        self.machine.is_opened_by(lane)
    }

    /// The machine, for whoever has the lane.
    #[inline]
    pub fn machine<'a>(&'a self, lane: &'a mut Key) -> &'a mut Machine {
        self.machine.open(lane)
    }
}
