//! The transport's part of a queue pair.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_shmem::verbs::directory::QpEntry;
use sluice_verbs::responder::{RecvDone, RecvWqe};
use sluice_verbs::transport::QpChange;
use sluice_verbs::{
    Gid, Posted, Qp, QpAttr, QpState, QpTransport, QpType, Result, WcStatus, Wqe, WrOpcode,
};

use crate::impair::Impair;
use crate::lock::lock;
use crate::node::Node;
use crate::os;
use crate::route::Route;
use crate::tap::Tap;
use crate::{datagram, multicast, requester, responder, route, work};

/// Requests that a link carries for one queue pair without growing its list.
const QUEUE_START: usize = 256;

/// Of a path for which the program has set none.
const MTU_BYTES: u64 = 4096;

/// How long datagrams that wait for a connection or for room outlive the program's interest.
const LINGER_NS: u64 = 500_000_000;
const LINGER_STEP: Duration = Duration::from_micros(100);

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The engine's number.
    pub seq: u64,
    pub opcode: WrOpcode,
    /// Bytes.
    pub len: u32,
    pub first: u32,
    /// Records that it takes, and how many of them are in the ring.
    pub records: u32,
    pub sent: u32,
    /// Answers with data that have come.
    pub answered: u32,
    /// The receiver fetches the data.
    pub described: bool,
    /// WRITE with immediate data whose bytes are there already.
    pub written: bool,
}

/// What the requester's side of a queue pair knows.
pub struct SendSide {
    pub qp: Option<Arc<Qp>>,
    pub route: Option<Arc<Route>>,
    pub peer_qpn: u32,
    pub peer_slot: usize,
    pub queue: VecDeque<Entry>,
    /// The first entry of the queue that is not completely in the ring.
    pub next_send: usize,
    /// 24 bits.
    pub next_sequence: u32,
    /// Counts rewinds: acknowledgements from before one mean nothing.
    pub turn: u16,
    /// Nothing is sent before this time; 0: no wait.
    pub blocked_until: u64,
    /// When the peer is given up; 0: it answers.
    pub give_up: u64,
    pub rnr_left: u8,
    pub rnr_retry: u8,
    /// How long an unanswered request is tried, nanoseconds.
    pub patience: u64,
    /// Of the path, bytes.
    pub mtu: u64,
    /// The engine got [`Posted::Busy`] and waits for `resume`.
    pub busy: bool,
}

/// What the responder's side of a queue pair knows.
pub struct RecvSide {
    pub qp: Option<Arc<Qp>>,
    /// In a state that takes requests.
    pub ready: bool,
    pub peer_qpn: u32,
    pub expected: u32,
    pub rnr_code: u32,
    pub qkey: u32,
    /// A message has waited its time for a receive: until there is one, others do not wait.
    pub dry: bool,
    pub recv: RecvWqe,
    /// `recv` holds a receive, into which `received` bytes have come.
    pub taken: bool,
    pub received: u64,
}

/// A queue pair.
pub struct Part {
    pub node: Arc<Node>,
    pub qpn: u32,
    /// Its place in the directory.
    pub slot: u32,
    pub kind: QpType,
    pub pd: u32,
    pub send: Mutex<SendSide>,
    pub recv: Mutex<RecvSide>,
    /// UD: the number of the next datagram, which only a trace shows. Read and written by `post`,
    /// of which there is one at a time.
    pub next_datagram: AtomicU32,
    /// Somebody traces.
    pub tap: Option<Box<Tap>>,
    /// What it sends is to suffer.
    pub impair: Option<Box<Impair>>,
    /// The receive that is being filled must be given back by whoever fills it.
    flush: AtomicBool,
}

impl Part {
    pub fn new(node: &Arc<Node>, qpn: u32, slot: u32, kind: QpType, pd: u32) -> Self {
        Self {
            node: node.clone(),
            qpn,
            slot,
            kind,
            pd,
            send: Mutex::new(SendSide {
                qp: None,
                route: None,
                peer_qpn: 0,
                peer_slot: 0,
                queue: VecDeque::with_capacity(QUEUE_START),
                next_send: 0,
                next_sequence: 0,
                turn: 0,
                blocked_until: 0,
                give_up: 0,
                rnr_left: 0,
                rnr_retry: 0,
                patience: u64::MAX,
                mtu: MTU_BYTES,
                busy: false,
            }),
            recv: Mutex::new(RecvSide {
                qp: None,
                ready: false,
                peer_qpn: 0,
                expected: 0,
                rnr_code: 0,
                qkey: 0,
                dry: false,
                recv: RecvWqe::new(),
                taken: false,
                received: 0,
            }),
            next_datagram: AtomicU32::new(0),
            tap: Tap::new(kind, qpn),
            impair: node.impair(kind),
            flush: AtomicBool::new(false),
        }
    }

    /// Acknowledgements, sequence checks and retries.
    pub fn is_reliable(&self) -> bool {
        matches!(self.kind, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Gives back a receive that is half filled. The side may be in use further up this very
    /// stack (a refused request moves the QP to ERR); then its user does it.
    pub fn flush_receive(&self) {
        self.flush.store(true, Ordering::SeqCst);
        if let Ok(mut side) = self.recv.try_lock() {
            side.ready = false;
            self.finish_flush(&mut side);
        }
    }

    /// The user's part of it, before it lets go of the side.
    pub fn finish_flush(&self, side: &mut RecvSide) {
        if !self.flush.swap(false, Ordering::SeqCst) {
            return;
        }
        side.ready = false;
        if side.taken {
            side.taken = false;
            if let Some(qp) = side.qp.clone() {
                qp.complete_recv(&mut side.recv, &RecvDone::failed(WcStatus::WrFlushErr));
            }
        }
    }

    /// Waits until nobody touches memory for this queue pair any more: threads of this process
    /// that carry out a request for it, and the peer that carries out its own. It takes no
    /// request from now on; but what has begun goes on, and a program that has moved it to ERR or
    /// RESET, or destroyed it, may use the memory for something else.
    ///
    /// A queue pair that breaks while this thread does the transport's work is not waited for: the
    /// request may be one of this very thread's, further up its stack, and the program has not
    /// called for anything.
    fn wait_for_others(&self) {
        if work::is_under_way() {
            return;
        }
        let peer_qpn = lock(&self.recv).peer_qpn;
        if matches!(self.kind, QpType::Rc | QpType::Uc) && peer_qpn != 0 {
            self.node.wait_for_initiator(peer_qpn);
        }
    }

    /// Messages that wait for a receive of this queue pair are looked at again, here if `now`,
    /// else by the engine thread.
    fn release_held(&self, now: bool) {
        for incoming in &self.node.links().incoming {
            if !incoming.release(self.slot) {
                continue;
            }
            if now {
                responder::progress(&self.node, incoming);
            } else {
                self.node.wake_engine();
            }
        }
    }

    fn publish(&self, attr: &QpAttr, receives: bool) {
        self.node.directory.set_qp(
            self.slot as usize,
            &QpEntry {
                qpn: self.qpn,
                kind: self.kind as u8,
                receives,
                peer_qpn: attr.dest_qp_num,
                pd: self.pd,
                access: attr.qp_access_flags,
            },
        );
    }

    fn take_requester_attr(&self, side: &mut SendSide, attr: &QpAttr) {
        // IBTA 11.2.5.2: 4.096 us times a power of two; 0 is for ever.
        side.patience = match attr.timeout {
            0 => u64::MAX,
            code => (4096u64 << (code & 31)) * (u64::from(attr.retry_cnt) + 1),
        };
        side.rnr_retry = attr.rnr_retry;
        side.rnr_left = attr.rnr_retry;
        side.mtu = match attr.path_mtu {
            code @ 1..=5 => 128 << code,
            _ => MTU_BYTES,
        };
    }

    fn forget_requests(&self) {
        let mut side = lock(&self.send);
        side.queue.clear();
        side.next_send = 0;
        side.turn = side.turn.wrapping_add(1);
        side.blocked_until = 0;
        side.give_up = 0;
        side.busy = false;
    }

    fn connect(&self, attr: &QpAttr) {
        let mut side = lock(&self.send);
        side.peer_qpn = attr.dest_qp_num;
        // A peer that is not there yet is looked for again when there is something to send.
        side.route = route::to(&self.node, attr.dest_qp_num).ok();
    }
}

/// What the engine holds.
pub struct ShmQp(pub Arc<Part>);

impl QpTransport for ShmQp {
    fn bind(&self, qp: &Arc<Qp>) {
        lock(&self.0.send).qp = Some(qp.clone());
        lock(&self.0.recv).qp = Some(qp.clone());
        self.0.node.set_part(self.0.slot, Some(self.0.clone()));
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        let posted = if self.0.kind == QpType::Ud {
            datagram::post(&self.0, qp, wqe)
        } else {
            requester::post(&self.0, wqe)
        };
        if let Some(tap) = &self.0.tap {
            tap.posted(qp, wqe, &posted);
        }
        posted
    }

    fn modify(&self, qp: &Qp, change: &QpChange<'_>) -> Result<()> {
        let (part, attr) = (&*self.0, change.attr);
        if let Some(tap) = &part.tap {
            tap.modified(qp, change);
        }
        let receives = matches!(
            change.to,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        match change.to {
            QpState::Reset | QpState::Err => {
                part.publish(attr, false);
                // What is on its way arrives, whatever becomes of its sender.
                datagram::release_held(part, u64::MAX);
                part.forget_requests();
                part.flush_receive();
                part.release_held(false);
                part.wait_for_others();
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
            part.flush.store(false, Ordering::SeqCst);
            side.rnr_code = u32::from(attr.min_rnr_timer);
            side.qkey = attr.qkey;
            side.ready = true;
        }
        if change.to == QpState::Rts && change.from == QpState::Rtr {
            lock(&part.send).next_sequence = attr.sq_psn & 0xFF_FFFF;
            part.next_datagram.store(attr.sq_psn, Ordering::Relaxed);
        }
        part.take_requester_attr(&mut lock(&part.send), attr);
        part.publish(attr, receives);
        if change.to == QpState::Rtr
            && change.from == QpState::Init
            && !matches!(part.kind, QpType::Ud | QpType::XrcRecv)
        {
            part.connect(attr);
        }
        Ok(())
    }

    fn receives_posted(&self) {
        self.0.release_held(true);
    }

    fn linger(&self) {
        let end = os::now_ns() + LINGER_NS;
        // The thread of the transport does the work.
        while lock(&self.0.send).busy && os::now_ns() < end {
            std::thread::sleep(LINGER_STEP);
        }
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        multicast::attach(&self.0, gid)
    }

    fn detach_multicast(&self, gid: &Gid) {
        multicast::detach(&self.0, gid);
    }

    fn destroy(&self) {
        let part = &self.0;
        part.node.set_part(part.slot, None);
        part.node.directory.clear_qp(part.slot as usize);
        part.wait_for_others();
        part.forget_requests();
        part.flush_receive();
        part.release_held(false);
        {
            let mut side = lock(&part.send);
            side.route = None;
            side.qp = None;
        }
        lock(&part.recv).qp = None;
        part.node.give_number(part.qpn);
    }
}
