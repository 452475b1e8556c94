//! What is known of a queue pair: its numbers, what it has sent, and what it expects.

use core::sync::atomic::AtomicU32;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_transport::fault::Messages;
use sluice_transport::tap::Tap;
use sluice_verbs::locks::lock;
use sluice_verbs::responder::{RecvDone, RecvWqe};
use sluice_verbs::{Aftermath, Qp, QpAttr, QpType, WcStatus, WrOpcode};

use crate::kept::Kept;
use crate::link::Incoming;
use crate::route::Route;

/// Requests that a link carries for one queue pair without growing its list.
const QUEUE_START: usize = 256;

/// Of a path for which the program has set none.
const MTU_BYTES: u64 = 4096;

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
    pub rewinds: u16,
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
    /// A request has failed and the engine is about to hear of it: nothing behind it is carried out, not
    /// even past the ring, until the queue pair sends anew.
    pub failed: bool,
}

impl SendSide {
    /// Nothing more is sent of what it holds: the engine flushes it, or is about to.
    pub fn forget(&mut self) {
        self.queue.clear();
        self.next_send = 0;
        self.rewinds = self.rewinds.wrapping_add(1);
        self.blocked_until = 0;
        self.give_up = 0;
        self.busy = false;
    }
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
    pub tap: Option<Arc<Tap>>,
    /// What it sends is to suffer.
    pub faults: Option<Box<Messages<Kept>>>,
}

impl Part {
    pub fn new(
        qpn: u32,
        slot: u32,
        kind: QpType,
        pd: u32,
        faults: Option<Box<Messages<Kept>>>,
    ) -> Self {
        Self {
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
                rewinds: 0,
                blocked_until: 0,
                give_up: 0,
                rnr_left: 0,
                rnr_retry: 0,
                patience: u64::MAX,
                mtu: MTU_BYTES,
                busy: false,
                failed: false,
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
            faults,
        }
    }

    /// Acknowledgements, sequence checks and retries.
    pub fn is_reliable(&self) -> bool {
        matches!(self.kind, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// What tells the trace of messages that come by this link: between queue pairs of one process
    /// the requester's side tells all.
    pub fn tap_of_incoming(&self, incoming: &Incoming) -> Option<&Tap> {
        let tap = self.tap.as_deref()?;
        (!incoming.peer.same_process).then_some(tap)
    }

    /// Takes no request any more, and gives back a receive that is half filled.
    pub fn flush_receive(&self, after: &mut Aftermath) {
        let mut side = lock(&self.recv);
        side.ready = false;
        if core::mem::take(&mut side.taken)
            && let Some(qp) = side.qp.clone()
        {
            let flushed = RecvDone::failed(WcStatus::WrFlushErr);
            qp.complete_recv(&mut side.recv, &flushed, after);
        }
    }

    /// The attributes of the requester's side.
    pub fn take_requester_attr(&self, attr: &QpAttr) {
        let mut side = lock(&self.send);
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

    /// The engine has flushed its requests.
    pub fn forget_requests(&self) {
        lock(&self.send).forget();
    }
}
