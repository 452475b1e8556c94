//! The responder's side of a trace: what came to it, and what it said to that.
#![allow(unsafe_code)]

use sluice_trace::{Direction, End, Ending, Flow, Kind, Mtu, NakCode, Psn, RnrTimer, Syndrome};
use sluice_verbs::responder::RemoteRequest;
use sluice_verbs::{Gid, NakReason, Qp, Sge};

use super::fill::{from_memory, from_pieces, nothing};
use super::{State, Tap};
use sluice_verbs::locks::lock;

/// What a message has besides its data.
#[derive(Clone, Copy, Debug)]
pub struct Extras {
    /// How it ends.
    pub ending: Ending,
    /// The receiver is to be told at once.
    pub solicited: bool,
}

/// An atomic operation, in the words of its header (IBTA 9.4.5).
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Compare and swap, not fetch and add.
    pub compares: bool,
    /// What to put in or to add.
    pub swap_add: u64,
    /// What to compare with.
    pub compare: u64,
}

/// A datagram that has come.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// The queue pair that it is for, or that of all groups.
    pub target: u32,
    /// The one that it is from.
    pub source: u32,
    /// Where it is from and where to.
    pub gids: [Gid; 2],
    /// As in the address handle.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// As in the address handle.
    pub hop_limit: u8,
    /// The key that it brings.
    pub qkey: u32,
    /// The number that its sender gave it.
    pub psn: u32,
    /// What it has besides its data.
    pub extras: Extras,
}

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

    /// A SEND whose `len` bytes are in a receive's pieces. `srq`: the queue that an XRC message names,
    /// or 0.
    pub fn received(&self, extras: Extras, srq: u32, len: u32, pieces: &[Sge]) {
        let kind = Kind::Send {
            ending: extras.ending,
            solicited: extras.solicited,
            srq,
            qkey: 0,
        };
        self.arrived_with_data(kind, len, from_pieces(pieces));
    }

    /// All of a WRITE is in its target.
    ///
    /// # Safety
    /// `target` is readable for the bytes of the request.
    pub unsafe fn written(&self, request: &RemoteRequest, extras: Extras, target: *const u8) {
        let kind = Kind::Write {
            address: request.addr,
            rkey: request.rkey,
            ending: extras.ending,
            solicited: extras.solicited,
            srq: request.srqn,
        };
        // SAFETY: the caller's promise.
        let fill = unsafe { from_memory(target) };
        self.arrived_with_data(kind, request.len as u32, fill);
    }

    /// Immediate data whose WRITE the peer carried out itself.
    pub fn written_by_peer(&self, qp: &Qp, request: &RemoteRequest, extras: Extras) {
        // The key may be gone by now; then nobody knows what was written.
        if let Ok(memory) = qp.check_remote(request) {
            // SAFETY: the engine gave memory of that many bytes, which is held.
            unsafe { self.written(request, extras, memory.as_ptr()) };
        }
    }

    /// All of a READ has been answered.
    ///
    /// # Safety
    /// `source` is readable for the bytes of the request.
    pub unsafe fn read(&self, request: &RemoteRequest, source: *const u8) {
        let length = request.len as u32;
        let kind = Kind::ReadRequest {
            address: request.addr,
            rkey: request.rkey,
            length,
            srq: request.srqn,
        };
        self.arrived(kind, 0, nothing, |state, psn, _| {
            let kind = Kind::ReadResponse { msn: state.msn };
            // SAFETY: the caller's promise.
            let fill = unsafe { from_memory(source) };
            self.record(state, Direction::Outbound, psn, kind, length, fill);
        });
    }

    /// An atomic operation has been carried out, and found `original`.
    pub fn operated(&self, request: &RemoteRequest, operation: Operation, original: u64) {
        let kind = Kind::Atomic {
            compares: operation.compares,
            address: request.addr,
            rkey: request.rkey,
            swap_add: operation.swap_add,
            compare: operation.compare,
            srq: request.srqn,
        };
        self.arrived(kind, 0, nothing, |state, psn, _| {
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

    /// A message found no receive. `rnr_timer`: the code of the time that its sender is to wait.
    pub fn not_ready(&self, rnr_timer: u8) {
        let state = lock(&self.state);
        let timer = RnrTimer::from_code(rnr_timer);
        self.acknowledge(&state, state.receive_psn, Syndrome::RnrNak(timer));
    }

    /// A datagram has come, whether it finds a receive or not.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes.
    pub unsafe fn datagram(&self, datagram: &Datagram, data: *const u8, len: usize) {
        let [source, destination] = datagram.gids;
        let flow = Flow {
            service: self.service,
            mtu: Mtu::Bytes4096,
            local: End::new(destination.0, datagram.target),
            remote: End::new(source.0, datagram.source),
            traffic_class: datagram.traffic_class,
            flow_label: datagram.flow_label,
            hop_limit: datagram.hop_limit,
        };
        let mut state = lock(&self.state);
        Self::set_flow(&mut state, flow);
        let kind = Kind::Send {
            ending: datagram.extras.ending,
            solicited: datagram.extras.solicited,
            srq: 0,
            qkey: datagram.qkey,
        };
        // SAFETY: the caller's promise.
        let fill = unsafe { from_memory(data) };
        let psn = Psn::new(datagram.psn);
        self.record(&state, Direction::Inbound, psn, kind, len as u32, fill);
    }
}
