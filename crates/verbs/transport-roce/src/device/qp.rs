//! What the engine has of a queue pair.

use std::sync::Arc;

use sluice_protocol::Datagram;
use sluice_verbs::transport::QpChange;
use sluice_verbs::types::qp_mask;
use sluice_verbs::{
    Aftermath, Gid, Handed, Posted, Qp, QpState, QpTransport, QpType, Result, SendDone,
};
use sluice_verbs::{WcStatus, Wqe};
use sluice_wire::Qpn;

use crate::network::path::{self, Way};
use crate::node::Node;
use crate::node::membership;
use crate::queue_pair::machine::Machine;
use crate::queue_pair::part::Part;
use crate::queue_pair::requests::To;
use sluice_transport::request::operation;

/// What the engine holds.
pub struct RoceQp {
    pub node: Arc<Node>,
    pub part: Arc<Part>,
}

impl RoceQp {
    fn machine<R>(&self, work: impl FnOnce(&mut Machine) -> R) -> R {
        self.node.shards.with_machine(&self.part, work)
    }

    /// The way to a connected queue pair's peer. Extended targets have one too: answers go there.
    fn way(&self, qp: &Qp, change: &QpChange<'_>) -> Result<Option<Way>> {
        if self.part.kind == QpType::Ud {
            return Ok(None);
        }
        let attr = change.attr;
        let path = path::of(qp, &attr.ah_attr, attr.dest_qp_num)?;
        self.node.serve_and_way(&path, attr.path_mtu).map(Some)
    }
}

impl QpTransport for RoceQp {
    fn bind(&self, qp: &Arc<Qp>) {
        self.machine(|machine| machine.bind(qp));
        self.node.common().queue_pairs.add(&self.part);
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        let part = &self.part;
        let failed = |status| Posted::Done(SendDone::failed(status));
        if operation(wqe).is_none() {
            return failed(WcStatus::LocQpOpErr);
        }
        match (part.kind, wqe.wr.ud) {
            (QpType::Ud, Some(ud)) => {
                let way = path::of(qp, ud.ah, ud.qpn)
                    .and_then(|path| self.node.way_and_serve_soon(&path));
                let Ok(way) = way else {
                    // Nobody hears of a datagram that finds no way, as on a network.
                    return Posted::Done(SendDone::ok(wqe.length as u32));
                };
                let datagram = Datagram {
                    destination: Qpn::new(ud.qpn),
                    qkey: ud.qkey,
                };
                part.targets.set(wqe.seq, To { way, datagram });
                Posted::Pending
            }
            (QpType::Ud, None) => failed(WcStatus::LocQpOpErr),
            _ => Posted::Pending,
        }
    }

    fn is_by_record(&self) -> bool {
        true
    }

    fn posted(&self, handed: &Handed, _after: &mut Aftermath) -> Option<SendDone> {
        self.node.shards.posted(&self.part, handed)
    }

    fn modify(&self, qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()> {
        let part = &*self.part;
        let attr = change.attr;
        match change.to {
            QpState::Reset => {
                // What the program has seen come is answered: its peer may wait for that, and the
                // queue pair will be gone when it asks again.
                self.node.shards.send_due(part.shard, after);
                self.machine(|machine| machine.clear(after));
            }
            QpState::Err => self.machine(|machine| machine.stop(after)),
            QpState::Sqe => self.machine(Machine::stop_sending),
            QpState::Rtr if change.from == QpState::Init => {
                let way = self.way(qp, change)?;
                let network = &self.node.common().network;
                let mtu = network.mtu();
                self.machine(|machine| {
                    machine.ready_to_receive(qp, attr, way, mtu);
                    // What was heard of the neighbour since did not reach it.
                    machine.reroute(|way| network.way_again(way));
                });
            }
            QpState::Rts if change.from == QpState::Rtr => {
                self.machine(|machine| machine.ready_to_send(qp, attr));
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => {
                let way = match change.mask & qp_mask::AV {
                    0 => None,
                    _ => self.way(qp, change)?,
                };
                self.machine(|machine| machine.change(qp, change, way));
            }
            QpState::Init => {}
        }
        Ok(())
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        membership::attach(&self.node, &self.part, gid)
    }

    fn detach_multicast(&self, gid: &Gid) {
        membership::detach(&self.node, &self.part, gid);
    }

    fn destroy(&self, after: &mut Aftermath) {
        let (part, common) = (&self.part, self.node.common());
        membership::forget(&self.node, part);
        common.queue_pairs.remove(part);
        let seen = self.machine(|machine| machine.end(after));
        self.node.remember(&seen);
        common.names.give(part.qpn);
    }
}
