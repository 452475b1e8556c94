//! A queue pair as the engine sees it: its calls, and what each means for peers.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use sluice_shmem::verbs::directory::QpEntry;
use sluice_verbs::transport::QpChange;
use sluice_verbs::{Aftermath, Gid, Posted, Qp, QpAttr, QpState, QpTransport, QpType, Result, Wqe};

use crate::node::Node;
use crate::os;
use crate::part::Part;
use crate::{connect, datagram, requester, responder};
use sluice_verbs::locks::lock;

/// How long datagrams that wait for a connection or for room outlive the program's interest.
const LINGER_NS: u64 = 500_000_000;
const LINGER_STEP: Duration = Duration::from_micros(100);

/// What the engine holds.
pub struct ShmQp {
    node: Arc<Node>,
    part: Arc<Part>,
}

impl ShmQp {
    pub fn new(node: Arc<Node>, part: Arc<Part>) -> Self {
        Self { node, part }
    }

    /// Waits until nobody touches memory for this queue pair any more: threads of this process
    /// that carry out a request for it, and the peer that carries out its own. It takes no
    /// request from now on; but what has begun goes on, and a program that has moved it to ERR or
    /// RESET, or destroyed it, may use the memory for something else.
    ///
    /// One that breaks by itself is not waited for: the program has called for nothing.
    fn wait_for_others(&self) {
        let peer_qpn = lock(&self.part.recv).peer_qpn;
        if matches!(self.part.kind, QpType::Rc | QpType::Uc) && peer_qpn != 0 {
            self.node.wait_for_initiator(peer_qpn);
        }
    }

    /// Messages that wait for a receive of this queue pair are looked at again, here if `now` takes
    /// what follows, else by the engine thread.
    fn release_held(&self, now: Option<&mut Aftermath>) {
        let mut now = now;
        for incoming in &self.node.links().incoming {
            if !incoming.release(self.part.slot) {
                continue;
            }
            match &mut now {
                Some(after) => {
                    responder::progress(&self.node, incoming, after);
                }
                None => self.node.wake_engine(),
            }
        }
    }

    fn publish(&self, attr: &QpAttr, receives: bool) {
        self.node.directory.set_qp(
            self.part.slot as usize,
            &QpEntry {
                qpn: self.part.qpn,
                kind: self.part.kind as u8,
                receives,
                peer_qpn: attr.dest_qp_num,
                pd: self.part.pd,
                access: attr.qp_access_flags,
            },
        );
    }

    fn connect(&self, attr: &QpAttr) {
        let mut side = lock(&self.part.send);
        side.peer_qpn = attr.dest_qp_num;
        // A peer that is not there yet is looked for again when there is something to send.
        side.route = connect::to(&self.node, attr.dest_qp_num).ok();
    }
}

impl QpTransport for ShmQp {
    fn bind(&self, qp: &Arc<Qp>) {
        lock(&self.part.send).qp = Some(qp.clone());
        lock(&self.part.recv).qp = Some(qp.clone());
        self.node.parts.set(self.part.slot, Some(self.part.clone()));
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        if self.part.kind == QpType::Ud {
            datagram::post(&self.node, &self.part, qp, wqe)
        } else {
            requester::post(&self.node, &self.part, wqe)
        }
    }

    fn modify(&self, _qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()> {
        let (part, attr) = (&*self.part, change.attr);
        let receives = matches!(
            change.to,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        match change.to {
            QpState::Reset | QpState::Err => {
                self.publish(attr, false);
                // What is on its way arrives, whatever becomes of its sender.
                datagram::release_held(&self.node, part, u64::MAX);
                part.forget_requests();
                part.flush_receive(after);
                self.release_held(None);
                if !change.by_itself {
                    self.wait_for_others();
                }
                if change.to == QpState::Reset {
                    lock(&part.send).route = None;
                }
                return Ok(());
            }
            QpState::Sqe => part.forget_requests(),
            _ => {}
        }
        if receives {
            let mut side = lock(&part.recv);
            if change.to == QpState::Rtr && change.from == QpState::Init {
                side.expected = attr.rq_psn & 0xFF_FFFF;
                side.peer_qpn = attr.dest_qp_num;
            }
            side.rnr_code = u32::from(attr.min_rnr_timer);
            side.qkey = attr.qkey;
            side.ready = true;
        }
        if change.to == QpState::Rts {
            lock(&part.send).failed = false;
        }
        if change.to == QpState::Rts && change.from == QpState::Rtr {
            lock(&part.send).next_sequence = attr.sq_psn & 0xFF_FFFF;
            part.next_datagram.store(attr.sq_psn, Ordering::Relaxed);
        }
        part.take_requester_attr(attr);
        self.publish(attr, receives);
        if change.to == QpState::Rtr
            && change.from == QpState::Init
            && !matches!(part.kind, QpType::Ud | QpType::XrcRecv)
        {
            self.connect(attr);
        }
        Ok(())
    }

    fn receives_posted(&self, after: &mut Aftermath) {
        self.release_held(Some(after));
    }

    fn linger(&self) {
        let end = os::now_ns() + LINGER_NS;
        // The thread of the transport does the work.
        while lock(&self.part.send).busy && os::now_ns() < end {
            std::thread::sleep(LINGER_STEP);
        }
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        let (node, part) = (&self.node, &self.part);
        node.groups
            .attach(node.names.rendezvous(), gid, part.qpn, part.slot)
    }

    fn detach_multicast(&self, gid: &Gid) {
        let (node, part) = (&self.node, &self.part);
        node.groups
            .detach(node.names.rendezvous(), gid, part.qpn, part.slot);
    }

    fn destroy(&self, after: &mut Aftermath) {
        let part = &*self.part;
        self.node.parts.set(part.slot, None);
        self.node.directory.clear_qp(part.slot as usize);
        self.wait_for_others();
        part.forget_requests();
        part.flush_receive(after);
        self.release_held(None);
        {
            let mut side = lock(&part.send);
            side.route = None;
            side.qp = None;
        }
        lock(&part.recv).qp = None;
        self.node.names.give(part.qpn);
    }
}
