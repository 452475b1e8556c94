//! The transport's part of a queue pair.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sluice_protocol::Datagram;
use sluice_verbs::transport::{QpChange, QpParams};
use sluice_verbs::types::qp_mask;
use sluice_verbs::{Gid, Posted, Qp, QpState, QpTransport, QpType, Result, SendDone};
use sluice_verbs::{WcStatus, Wqe};
use sluice_wire::Qpn;

use crate::lane::Lane;
use crate::lanes::Member;
use crate::locks::{lock, try_lock};
use crate::machine::Machine;
use crate::node::Node;
use crate::path::{self, Way};
use crate::requests::{Outbox, To, operation};

/// Asked for while the machine was in use further up the same stack.
const STOP_SENDING: u8 = 1;
const STOP: u8 = 2;
const CLEAR: u8 = 4;

/// A queue pair.
pub struct Part {
    pub node: Arc<Node>,
    pub qpn: u32,
    /// Its number among the node's queue pairs, for the scheduler.
    pub index: usize,
    pub kind: QpType,
    /// The lane that works on it.
    pub lane: usize,
    /// Tells its completion queues of the lane.
    _member: Member,
    outbox: Mutex<Outbox>,
    machine: Mutex<Machine>,
    /// Which thread holds the machine; 0: none.
    holder: AtomicU64,
    asked: AtomicU8,
}

/// The machine, in this thread's hands. What was asked for in the meantime is done when it is
/// let go.
pub struct Held<'a> {
    part: &'a Part,
    machine: MutexGuard<'a, Machine>,
}

impl Deref for Held<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Only this thread asks while it holds the machine.
        while self.part.asked.load(Ordering::Relaxed) != 0 {
            let asked = self.part.asked.swap(0, Ordering::AcqRel);
            carry_out(&mut self.machine, asked);
        }
        self.part.holder.store(0, Ordering::Release);
    }
}

fn carry_out(machine: &mut Machine, asked: u8) {
    if asked & CLEAR != 0 {
        machine.clear();
    } else if asked & STOP != 0 {
        machine.stop();
    } else if asked & STOP_SENDING != 0 {
        machine.stop_sending();
    }
}

/// A number of the calling thread's own, not 0.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // A number without a destructor may be used at any moment of a thread's life.
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Part {
    pub fn new(node: &Arc<Node>, qpn: u32, index: usize, params: &QpParams) -> Self {
        let lane = node.lane_number(qpn);
        let queues = [params.send_cq, params.recv_cq];
        Self {
            node: node.clone(),
            qpn,
            index,
            kind: params.qp_type,
            lane,
            _member: node.completions.join(lane, queues),
            outbox: Mutex::default(),
            machine: Mutex::new(Machine::new(params.cap)),
            holder: AtomicU64::new(0),
            asked: AtomicU8::new(0),
        }
    }

    /// The lane that works on it.
    pub fn lane(&self) -> &Lane {
        &self.node.lanes[self.lane]
    }

    /// The machine. Not twice in one thread, and not with the send half's lock held.
    pub fn lock(&self) -> Held<'_> {
        let machine = lock(&self.machine);
        self.holder.store(this_thread(), Ordering::Relaxed);
        Held {
            part: self,
            machine,
        }
    }

    /// The machine, if nobody has it.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let machine = try_lock(&self.machine)?;
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(Held {
            part: self,
            machine,
        })
    }

    /// Takes over what was posted.
    pub fn absorb(&self, machine: &mut Machine) {
        machine.absorb(&mut lock(&self.outbox));
    }

    /// Has something done by the machine: now, or, when this thread is inside of it, as soon as
    /// it is let go.
    fn ask(&self, what: u8) {
        if self.holder.load(Ordering::Relaxed) == this_thread() {
            self.asked.fetch_or(what, Ordering::AcqRel);
        } else {
            carry_out(&mut self.lock(), what);
        }
    }

    /// The way to a connected queue pair's peer. Extended targets have one too: answers go there.
    fn way(&self, qp: &Qp, change: &QpChange<'_>) -> Result<Option<Way>> {
        if self.kind == QpType::Ud {
            return Ok(None);
        }
        let attr = change.attr;
        let path = path::of(qp, &attr.ah_attr, attr.dest_qp_num)?;
        self.node.serve_and_way(&path, attr.path_mtu).map(Some)
    }
}

/// What the engine holds.
pub struct RoceQp(pub Arc<Part>);

impl QpTransport for RoceQp {
    fn bind(&self, qp: &Arc<Qp>) {
        self.0.lock().qp = Some(qp.clone());
        self.0.node.add_part(&self.0);
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        let part = &self.0;
        let failed = |status| Posted::Done(SendDone::failed(status));
        let Some(operation) = operation(wqe) else {
            return failed(WcStatus::LocQpOpErr);
        };
        let to = match (part.kind, wqe.wr.ud) {
            (QpType::Ud, Some(ud)) => {
                let way = path::of(qp, ud.ah, ud.qpn)
                    .and_then(|path| part.node.way_and_serve_soon(&path));
                let Ok(way) = way else {
                    // Nobody hears of a datagram that finds no way, as on a network.
                    return Posted::Done(SendDone::ok(wqe.length as u32));
                };
                let datagram = Datagram {
                    destination: Qpn::new(ud.qpn),
                    qkey: ud.qkey,
                };
                Some(To { way, datagram })
            }
            (QpType::Ud, None) => return failed(WcStatus::LocQpOpErr),
            _ => None,
        };
        let xrc = part.kind == QpType::XrcSend;
        lock(&part.outbox).push(wqe, operation, to, xrc);
        match part.node.posted(part, wqe.seq, wqe.length) {
            Some(done) => Posted::Done(done),
            None => Posted::Pending,
        }
    }

    fn modify(&self, qp: &Qp, change: &QpChange<'_>) -> Result<()> {
        let part = &*self.0;
        let attr = change.attr;
        match change.to {
            QpState::Reset => {
                // What the program has seen come is answered: its peer may wait for that, and the
                // queue pair will be gone when it asks again.
                if part.holder.load(Ordering::Relaxed) != this_thread() {
                    part.lane().settle(&part.node);
                }
                lock(&part.outbox).clear();
                part.ask(CLEAR);
            }
            QpState::Err => {
                lock(&part.outbox).clear();
                part.ask(STOP);
            }
            QpState::Sqe => {
                lock(&part.outbox).clear();
                part.ask(STOP_SENDING);
            }
            QpState::Rtr if change.from == QpState::Init => {
                let way = part.way(qp, change)?;
                let mtu = part.node.mtu();
                let mut machine = part.lock();
                machine.ready_to_receive(qp, attr, way, mtu);
                // What was heard of the neighbour since did not reach it.
                machine.reroute(|way| part.node.network.way_again(way));
            }
            QpState::Rts if change.from == QpState::Rtr => part.lock().ready_to_send(qp, attr),
            QpState::Rtr | QpState::Rts | QpState::Sqd => {
                let way = match change.mask & qp_mask::AV {
                    0 => None,
                    _ => part.way(qp, change)?,
                };
                part.lock().change(qp, change, way);
            }
            QpState::Init => {}
        }
        Ok(())
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        self.0.node.groups.attach(&self.0, gid)
    }

    fn detach_multicast(&self, gid: &Gid) {
        self.0.node.groups.detach(&self.0, gid);
    }

    fn destroy(&self) {
        let part = &self.0;
        part.node.remove_part(part);
        lock(&part.outbox).clear();
        part.ask(CLEAR);
        if part.holder.load(Ordering::Relaxed) != this_thread() {
            let mut machine = part.lock();
            machine.qp = None;
            *lock(&part.node.gone) += &machine.take_seen();
        }
        part.node.numbers().give(part.qpn);
    }
}
