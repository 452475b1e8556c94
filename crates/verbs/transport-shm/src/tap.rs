//! Tells a trace what queue pairs do (`SLUICE_VERBS_TRACE_FILE`, decision 0009).
//!
//! There is no wire here, so the trace gets messages, with the numbers that packets would have:
//! sequence numbers start where the queue pair's attributes say and count packets of the path
//! MTU. The requester's side sees everything that it asked for, also what it did itself in the
//! peer's memory; the responder's side sees what came through a ring. Between queue pairs of one
//! process only the requester's side speaks, so that nothing is there twice.
//!
//! Off, it is one look at a null pointer. On, it is never waited for ([`Recorder::record`]).
#![allow(unsafe_code)]

mod management;

pub use management::Management;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::{Header, Record};
use sluice_trace::{
    Direction, End, Ending, Flow, Kind, Message, Mtu, NakCode, Psn, Recorder, RnrTimer, Service,
    Syndrome,
};
use sluice_verbs::responder::{RemoteOp, RemoteRequest};
use sluice_verbs::transport::QpChange;
use sluice_verbs::{
    AhAttr, Gid, NakReason, Posted, Qp, QpState, QpType, SendDone, Sge, WcStatus, Wqe, WrOpcode,
    send_flags,
};

use crate::lock::lock;
use crate::pieces;
use crate::wire::{Atomic, Datagram, Span, answer, flags};

/// The process's recorder, if somebody traces.
fn trace() -> Option<&'static Arc<Recorder>> {
    sluice_trace::of_process()
}

/// A queue pair's tap.
pub struct Tap {
    recorder: Arc<Recorder>,
    service: Service,
    qpn: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// To the connected peer; of datagrams the last one's.
    flow: Option<Arc<Flow>>,
    send_psn: Psn,
    /// Requests without an answer.
    sent: VecDeque<Sent>,
    /// Messages that the peer has completed.
    peer_msn: u32,
    receive_psn: Psn,
    /// Messages of the peer that this side has completed.
    msn: u32,
}

struct Sent {
    /// The engine's number.
    seq: u64,
    psn: Psn,
    /// It was refused for now, or is behind one that was.
    again: bool,
}

/// What the requester's fields say of a request without data of its own.
fn kind(wqe: &Wqe<'_>) -> Kind {
    let wr = &wqe.wr;
    let solicited = wr.flags & send_flags::SOLICITED != 0;
    let (address, rkey, srq) = (wr.remote_addr, wr.rkey, wr.xrc_srqn);
    match wr.opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Kind::Write {
            address,
            rkey,
            ending: ending(wr.opcode == WrOpcode::RdmaWriteWithImm, false, wr.imm),
            solicited,
            srq,
        },
        WrOpcode::RdmaRead => Kind::ReadRequest {
            address,
            rkey,
            length: wqe.length as u32,
            srq,
        },
        WrOpcode::AtomicCmpAndSwp => Kind::Atomic {
            compares: true,
            address,
            rkey,
            swap_add: wr.swap,
            compare: wr.compare_add,
            srq,
        },
        WrOpcode::AtomicFetchAndAdd => Kind::Atomic {
            compares: false,
            address,
            rkey,
            swap_add: wr.compare_add,
            compare: 0,
            srq,
        },
        opcode => Kind::Send {
            ending: ending(
                opcode == WrOpcode::SendWithImm,
                opcode == WrOpcode::SendWithInv,
                wr.imm,
            ),
            solicited,
            srq,
            qkey: wr.ud.map_or(0, |ud| ud.qkey),
        },
    }
}

fn ending(immediate: bool, invalidate: bool, imm: u32) -> Ending {
    match (immediate, invalidate) {
        (true, _) => Ending::Immediate(imm.to_ne_bytes()),
        (_, true) => Ending::Invalidate(imm),
        _ => Ending::Plain,
    }
}

fn reads(kind: &Kind) -> bool {
    matches!(kind, Kind::ReadRequest { .. } | Kind::Atomic { .. })
}

/// Copies from pieces of the program's memory.
fn from_pieces(pieces: &[Sge]) -> impl FnMut(usize, &mut [u8]) + '_ {
    |offset, bytes| {
        let mut used = 0;
        for (source, len) in pieces::gather(pieces, offset as u64, bytes.len()) {
            let Some(place) = bytes.get_mut(used..used + len) else {
                return;
            };
            // SAFETY: the engine checked the pieces and keeps them registered while a request
            // or receive that has them is not complete; `place` has `len` bytes.
            unsafe { copy::ascending(place.as_mut_ptr(), source, len) };
            used += len;
        }
    }
}

/// Copies from memory in one piece.
///
/// # Safety
/// `source` is readable for as many bytes as will be asked for, until the result is dropped.
unsafe fn from_memory(source: *const u8) -> impl FnMut(usize, &mut [u8]) {
    move |offset, bytes| {
        // SAFETY: the caller's promise.
        unsafe { copy::ascending(bytes.as_mut_ptr(), source.wrapping_add(offset), bytes.len()) };
    }
}

fn nothing(_: usize, _: &mut [u8]) {}

impl Tap {
    /// None while nobody traces.
    pub fn new(qp_type: QpType, qpn: u32) -> Option<Box<Self>> {
        let recorder = trace()?;
        Some(Box::new(Self {
            recorder: recorder.clone(),
            service: match qp_type {
                QpType::Rc => Service::Rc,
                QpType::Uc => Service::Uc,
                QpType::Ud => Service::Ud,
                QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            },
            qpn,
            state: Mutex::default(),
        }))
    }

    fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Xrc)
    }

    /// A state change that happens.
    pub fn modified(&self, qp: &Qp, change: &QpChange<'_>) {
        let mut state = lock(&self.state);
        match (change.from, change.to) {
            (_, QpState::Reset) => *state = State::default(),
            (QpState::Init, QpState::Rtr) => {
                state.receive_psn = Psn::new(change.attr.rq_psn);
                if self.service != Service::Ud {
                    let attr = change.attr;
                    let mtu = Mtu::from_code(attr.path_mtu as u8).unwrap_or(Mtu::Bytes1024);
                    let flow = self.flow(qp, &attr.ah_attr, attr.dest_qp_num, mtu);
                    state.flow = Some(Arc::new(flow));
                }
            }
            (QpState::Rtr, QpState::Rts) => state.send_psn = Psn::new(change.attr.sq_psn),
            (_, QpState::Err | QpState::Sqe) => state.sent.clear(),
            _ => {}
        }
    }

    fn flow(&self, qp: &Qp, ah: &AhAttr, qpn: u32, mtu: Mtu) -> Flow {
        let entry = qp.gid(ah.port_num.max(1), u32::from(ah.grh.sgid_index));
        let own = entry.map_or(Gid::default(), |entry| entry.gid);
        // Peers find each other by number here, and a program may leave the address out.
        let peer = if ah.grh.dgid.is_zero() {
            own
        } else {
            ah.grh.dgid
        };
        Flow {
            service: self.service,
            mtu,
            local: End::new(own.0, self.qpn),
            remote: End::new(peer.0, qpn),
            traffic_class: ah.grh.traffic_class,
            flow_label: ah.grh.flow_label,
            hop_limit: ah.grh.hop_limit,
        }
    }

    fn record(
        &self,
        state: &State,
        direction: Direction,
        psn: Psn,
        kind: Kind,
        len: u32,
        fill: impl FnMut(usize, &mut [u8]),
    ) {
        if let Some(flow) = &state.flow {
            let message = Message {
                flow,
                direction,
                psn,
                kind,
                len,
            };
            self.recorder.record(&message, fill);
        }
    }

    /// The flow of a datagram, which most often is that of the one before.
    fn set_flow(state: &mut State, flow: Flow) {
        if state.flow.as_deref() != Some(&flow) {
            state.flow = Some(Arc::new(flow));
        }
    }
}

/// The requester's side.
impl Tap {
    /// What became of a request that the engine handed over.
    pub fn posted(&self, qp: &Qp, wqe: &Wqe<'_>, posted: &Posted) {
        let done = match posted {
            Posted::Busy => return,
            Posted::Done(done) if done.status != WcStatus::Success => return,
            Posted::Done(done) => Some(*done),
            Posted::Pending => None,
        };
        let mut state = lock(&self.state);
        if let Some(ud) = &wqe.wr.ud {
            Self::set_flow(&mut state, self.flow(qp, ud.ah, ud.qpn, Mtu::Bytes4096));
        }
        let Some(flow) = &state.flow else { return };
        // A READ takes the numbers of its answer (IBTA 9.7.3); an atomic takes one.
        let packets = match wqe.wr.opcode {
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => 1,
            _ => flow.mtu.packets(wqe.length),
        };
        let psn = state.send_psn;
        state.send_psn = psn.after(packets as u32);
        self.requested(&state, psn, wqe);
        match done {
            Some(done) => self.answered(&mut state, psn, wqe, &done),
            None => state.sent.push_back(Sent {
                seq: wqe.seq,
                psn,
                again: false,
            }),
        }
    }

    fn requested(&self, state: &State, psn: Psn, wqe: &Wqe<'_>) {
        let kind = kind(wqe);
        let len = if reads(&kind) { 0 } else { wqe.length as u32 };
        let fill = from_pieces(wqe.wr.sges);
        self.record(state, Direction::Outbound, psn, kind, len, fill);
    }

    /// The answer to a request that has ended.
    fn answered(&self, state: &mut State, psn: Psn, wqe: &Wqe<'_>, done: &SendDone) {
        if !self.is_reliable() {
            return;
        }
        let nak = match done.status {
            WcStatus::Success => None,
            WcStatus::RemInvReqErr => Some(NakCode::InvalidRequest),
            WcStatus::RemAccessErr => Some(NakCode::RemoteAccess),
            WcStatus::RemOpErr => Some(NakCode::RemoteOperational),
            // No answer, or one that is there already.
            _ => return,
        };
        if let Some(code) = nak {
            return self.acknowledged(state, psn, Syndrome::Nak(code));
        }
        state.peer_msn += 1;
        let msn = state.peer_msn;
        let inbound = Direction::Inbound;
        match wqe.wr.opcode {
            WrOpcode::RdmaRead => {
                let (kind, len) = (Kind::ReadResponse { msn }, wqe.length as u32);
                self.record(state, inbound, psn, kind, len, from_pieces(wqe.wr.sges));
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let mut original = [0; 8];
                from_pieces(wqe.wr.sges)(0, &mut original);
                let original = u64::from_ne_bytes(original);
                let kind = Kind::AtomicResponse { original, msn };
                self.record(state, inbound, psn, kind, 0, nothing);
            }
            _ => {
                let packets = match &state.flow {
                    Some(flow) => flow.mtu.packets(wqe.length) as u32,
                    None => return,
                };
                self.acknowledged(state, psn.after(packets - 1), Syndrome::Ack(None));
            }
        }
    }

    fn acknowledged(&self, state: &State, psn: Psn, syndrome: Syndrome) {
        let msn = state.peer_msn;
        let kind = Kind::Acknowledge { syndrome, msn };
        self.record(state, Direction::Inbound, psn, kind, 0, nothing);
    }

    /// A pending request is about to be completed. Not with any lock of the queue pair held: it
    /// waits for a `post` under way to have said what it posted.
    pub fn completing(&self, qp: &Qp, seq: u64, done: &SendDone) {
        qp.with_wqe(seq, |wqe| {
            let mut state = lock(&self.state);
            while let Some(sent) = state.sent.front() {
                let (found, psn) = (sent.seq, sent.psn);
                if found > seq {
                    break;
                }
                state.sent.pop_front();
                if found == seq {
                    self.answered(&mut state, psn, wqe, done);
                }
            }
        });
    }

    /// The peer did not take the oldest request now; it and all later ones are sent again.
    pub fn put_off(&self, kind: u8, code: u32) {
        let mut state = lock(&self.state);
        if kind == answer::RNR
            && let Some(first) = state.sent.front()
        {
            let psn = first.psn;
            let timer = RnrTimer::from_code(code as u8);
            self.acknowledged(&state, psn, Syndrome::RnrNak(timer));
        }
        for sent in &mut state.sent {
            sent.again = true;
        }
    }

    /// A request is in the ring completely, maybe not for the first time.
    pub fn sent(&self, wqe: &Wqe<'_>) {
        let mut state = lock(&self.state);
        let found = state.sent.iter_mut().find(|sent| sent.seq == wqe.seq);
        let Some(sent) = found.filter(|sent| sent.again) else {
            return;
        };
        sent.again = false;
        let psn = sent.psn;
        self.requested(&state, psn, wqe);
    }
}

/// The responder's side.
impl Tap {
    /// A message of the peer that takes `packets` numbers; where the answer starts.
    fn arrived(
        &self,
        kind: Kind,
        len: u32,
        fill: impl FnMut(usize, &mut [u8]),
        answer: impl FnOnce(&State, Psn, u32),
    ) {
        let mut state = lock(&self.state);
        let Some(flow) = &state.flow else { return };
        let packets = match kind {
            Kind::ReadRequest { length, .. } => flow.mtu.packets(u64::from(length)),
            _ => flow.mtu.packets(u64::from(len)),
        } as u32;
        let psn = state.receive_psn;
        state.receive_psn = psn.after(packets);
        state.msn += 1;
        self.record(&state, Direction::Inbound, psn, kind, len, fill);
        answer(&state, psn, packets);
    }

    /// A message with data, and its acknowledgement.
    fn arrived_with_data(&self, kind: Kind, len: u32, fill: impl FnMut(usize, &mut [u8])) {
        self.arrived(kind, len, fill, |state, psn, packets| {
            if self.is_reliable() {
                self.acknowledge(state, psn.after(packets - 1), Syndrome::Ack(None));
            }
        });
    }

    fn acknowledge(&self, state: &State, psn: Psn, syndrome: Syndrome) {
        let msn = state.msn;
        let kind = Kind::Acknowledge { syndrome, msn };
        self.record(state, Direction::Outbound, psn, kind, 0, nothing);
    }

    /// A SEND whose `len` bytes are in a receive's pieces.
    pub fn received(&self, header: &Header, len: u32, pieces: &[Sge]) {
        let kind = Kind::Send {
            ending: ending(
                header.flags & flags::IMMEDIATE != 0,
                header.flags & flags::INVALIDATE != 0,
                header.immediate,
            ),
            solicited: header.flags & flags::SOLICITED != 0,
            srq: header.argument as u32,
            qkey: 0,
        };
        self.arrived_with_data(kind, len, from_pieces(pieces));
    }

    /// A part of a WRITE is in the target, which has all of the message's bytes; the last one
    /// makes the message.
    pub fn written(&self, header: &Header, span: &Span, target: *const u8) {
        if header.flags & flags::LAST == 0 {
            return;
        }
        let kind = Kind::Write {
            address: header.argument,
            rkey: span.rkey,
            ending: ending(
                header.flags & flags::IMMEDIATE != 0,
                false,
                header.immediate,
            ),
            solicited: header.flags & flags::SOLICITED != 0,
            srq: span.srqn,
        };
        // SAFETY: the caller holds the memory, which has the span's bytes.
        let fill = unsafe { from_memory(target) };
        self.arrived_with_data(kind, span.total, fill);
    }

    /// Immediate data whose WRITE the peer carried out itself.
    pub fn written_by_peer(&self, qp: &Qp, header: &Header, span: &Span) {
        let wanted = RemoteRequest {
            op: RemoteOp::Write,
            rkey: span.rkey,
            addr: header.argument,
            len: u64::from(span.total),
            srqn: span.srqn,
        };
        // The key may be gone by now; then nobody knows what was written.
        if let Ok(memory) = qp.check_remote(&wanted) {
            self.written(header, span, memory.as_ptr());
        }
    }

    /// A part of a READ has been answered from the source, which has all of the message's bytes;
    /// the last one makes the message.
    pub fn read(&self, header: &Header, span: &Span, source: *const u8) {
        if header.flags & flags::LAST == 0 {
            return;
        }
        let request = Kind::ReadRequest {
            address: header.argument,
            rkey: span.rkey,
            length: span.total,
            srq: span.srqn,
        };
        self.arrived(request, 0, nothing, |state, psn, _| {
            let kind = Kind::ReadResponse { msn: state.msn };
            // SAFETY: the caller holds the memory, which has the span's bytes.
            let fill = unsafe { from_memory(source) };
            self.record(state, Direction::Outbound, psn, kind, span.total, fill);
        });
    }

    /// An atomic operation has been carried out.
    pub fn operated(&self, header: &Header, operation: &Atomic, original: u64) {
        let compares = operation.swaps == 1;
        let request = Kind::Atomic {
            compares,
            address: header.argument,
            rkey: operation.rkey,
            swap_add: if compares {
                operation.swap
            } else {
                operation.compare_add
            },
            compare: if compares { operation.compare_add } else { 0 },
            srq: operation.srqn,
        };
        self.arrived(request, 0, nothing, |state, psn, _| {
            let msn = state.msn;
            let kind = Kind::AtomicResponse { original, msn };
            self.record(state, Direction::Outbound, psn, kind, 0, nothing);
        });
    }

    /// A request was refused. What it was is in the requester's file.
    pub fn refused(&self, reason: NakReason) {
        let code = match reason {
            NakReason::InvalidRequest => NakCode::InvalidRequest,
            NakReason::RemoteAccess => NakCode::RemoteAccess,
            NakReason::RemoteOperation => NakCode::RemoteOperational,
        };
        let state = lock(&self.state);
        self.acknowledge(&state, state.receive_psn, Syndrome::Nak(code));
    }

    /// A message found no receive.
    pub fn not_ready(&self, code: u32) {
        let state = lock(&self.state);
        let timer = RnrTimer::from_code(code as u8);
        self.acknowledge(&state, state.receive_psn, Syndrome::RnrNak(timer));
    }

    /// A datagram has come, whether it finds a receive or not.
    pub fn datagram(&self, record: &Record, datagram: &Datagram, len: usize) {
        let header = &record.header;
        let flow = Flow {
            service: self.service,
            mtu: Mtu::Bytes4096,
            local: End::new(datagram.dgid.to_ne_bytes(), header.target),
            remote: End::new(datagram.sgid.to_ne_bytes(), header.origin),
            traffic_class: (datagram.class_and_label >> 20) as u8,
            flow_label: datagram.class_and_label & 0xf_ffff,
            hop_limit: datagram.hop_limit as u8,
        };
        let mut state = lock(&self.state);
        Self::set_flow(&mut state, flow);
        let kind = Kind::Send {
            ending: ending(
                header.flags & flags::IMMEDIATE != 0,
                false,
                header.immediate,
            ),
            solicited: header.flags & flags::SOLICITED != 0,
            srq: 0,
            qkey: datagram.qkey,
        };
        // SAFETY: the payload lies in the ring, whose reader is locked, and has `len` bytes
        // behind the datagram's head.
        let fill = unsafe { from_memory(record.payload.wrapping_add(Datagram::BYTES)) };
        // The number that the sender gave it.
        let psn = Psn::new(header.sequence);
        self.record(&state, Direction::Inbound, psn, kind, len as u32, fill);
    }
}
