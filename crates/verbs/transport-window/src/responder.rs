//! A queue pair's responder's half: requests of the peer are carried out one after the other.
//!
//! It is locked while it carries a request out, before all locks of the engine and before what leaves
//! ([`crate::peer`]), so that what it says to the peer leaves in the order of what it has decided.
#![allow(unsafe_code)]

use std::sync::Arc;

use sluice_protocol::{Atomic, TakeError};
use sluice_sys::clock::now_ns;
use sluice_transport::inbound::{Inbound, atomic};
use sluice_transport::pieces::gather;
use sluice_transport::tap::{self, Ending, Extras, Operation, Tap};
use sluice_verbs::message::GRH_BYTES;
use sluice_verbs::opcode::{Facts, facts};
use sluice_verbs::responder::{RecvDone, RemoteOp, RemoteRequest, receives};
use sluice_verbs::{
    Aftermath, Gid, NakReason, Qp, QpAttr, QpState, QpType, WcStatus, WrOpcode, wc_flags,
};
use sluice_window::{Broken, View};

use crate::answers::{Answer, Answers, TooMany, is_good};
use crate::channel::Payload;
use crate::frame::{Frame, MULTICAST_QPN, PSN_MASK, What, flag, slot_of};
use crate::peer::{Peer, Peers, Put, Sent};
use crate::turn::Turn;

/// How soon to look again whether a queue pair is in RTR that is about to be.
const STARTING_NS: u64 = 50_000;
/// Bytes of a message at most.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

#[derive(Default)]
pub struct Responder {
    /// The peer's number.
    partner: u32,
    min_rnr_timer: u8,
    /// The packet number of the next request.
    expected: u32,
    /// One was refused: nothing more is done.
    refused: bool,
    inbound: Inbound,
    current: Option<Current>,
    answers: Answers,
    /// The peer's request that is to come again when there is a receive, or when the queue pair is ready.
    waits: Option<Frame>,
    /// The last request of each host that came before the queue pair had a peer. A stranger's request must not
    /// take the place of the peer's.
    early: Vec<Frame>,
    /// The engine has been told that it may be in RTR, and is or will be in a moment.
    started: bool,
}

/// A message of which more is to come.
struct Current {
    request: Frame,
    total: u64,
    got: u64,
}

/// Where a frame came from, and what follows from it.
pub struct Place<'a> {
    pub peer: &'a Peer,
    pub after: &'a mut Aftermath,
}

impl Place<'_> {
    /// Who is told what comes. Where both ends are in one process the requester says it all.
    fn tap<'t>(&self, turn: &'t Turn) -> Option<&'t Tap> {
        let tap = turn.tap.as_deref()?;
        (self.peer.slot != self.peer.host.slot).then_some(tap)
    }

    /// Says how a request ended, or that it is to come again, to whoever waits for that.
    fn say(&self, responder: &mut Responder, turn: &Arc<Turn>, frame: Frame) {
        responder.say(self.peer, turn, frame);
    }
}

/// An answer.
fn answer(request: &Frame, status: WcStatus) -> Frame {
    Frame {
        code: status as u16,
        ..Frame::about(What::Answer, request)
    }
}

/// A request for a queue pair that is not there.
pub fn nobody(peer: &Peer, request: &Frame) {
    if request.is(flag::RELIABLE) {
        peer.owe(answer(request, WcStatus::RetryExcErr), true);
    }
}

/// The same, for a request that was kept.
fn nobody_for(peers: &Peers, request: &Frame) {
    if let Some(peer) = peers.of(slot_of(request.from)) {
        nobody(peer, request);
    }
}

fn total(request: &Frame, facts: &Facts) -> u64 {
    match facts.atomic {
        true => 8,
        false => request.words[0],
    }
}

impl Responder {
    /// A connection begins.
    pub fn start(&mut self, turn: &Arc<Turn>, peers: &Peers, attr: &QpAttr) {
        self.partner = attr.dest_qp_num;
        self.min_rnr_timer = attr.min_rnr_timer;
        self.expected = attr.rq_psn & PSN_MASK;
        self.refused = false;
        self.started = true;
        for request in core::mem::take(&mut self.early) {
            match request.from & PSN_MASK == self.partner {
                true => self.waits = Some(request),
                false => nobody_for(peers, &request),
            }
        }
        self.ready(turn, peers);
    }

    /// What it was not ready for may come again.
    fn ready(&mut self, turn: &Arc<Turn>, peers: &Peers) {
        if let Some(request) = self.waits.take()
            && let Some(peer) = peers.of(slot_of(request.from))
        {
            // Its NOT_YET may still wait. The requester takes a READY that comes before it for nothing, and would
            // wait for ever.
            self.say(peer, turn, Frame::about(What::Ready, &request));
        }
    }

    /// A frame leaves, not before what a READ brings that came earlier.
    fn say(&mut self, peer: &Peer, turn: &Arc<Turn>, frame: Frame) {
        if self.answers.is_empty() {
            return peer.owe(frame, !is_good(&frame));
        }
        match self.answers.short(frame) {
            Ok(()) => peer.call(turn),
            Err(TooMany) => peer.breaks(Broken("does not take what its READs bring")),
        }
    }

    /// Those that wait wait in vain.
    pub fn stop(&mut self, peers: &Peers, qp: &Qp, after: &mut Aftermath) {
        self.started = false;
        self.current = None;
        self.answers.clear();
        self.flush(qp, after);
        for request in self
            .waits
            .take()
            .iter()
            .chain(&core::mem::take(&mut self.early))
        {
            nobody_for(peers, request);
        }
    }

    pub fn receives_posted(&mut self, turn: &Arc<Turn>, peers: &Peers) {
        self.ready(turn, peers);
    }

    /// The peer's host is gone.
    pub fn lost(&mut self, qp: &Qp, after: &mut Aftermath) {
        self.current = None;
        self.answers.clear();
        self.waits = None;
        self.flush(qp, after);
    }

    /// A message under way does not come to its end.
    fn flush(&mut self, qp: &Qp, after: &mut Aftermath) {
        if self.inbound.is_taken() {
            let flushed = RecvDone::failed(WcStatus::WrFlushErr);
            self.inbound.complete(qp, &flushed, after);
        }
    }

    /// A request has come, or more of one.
    pub fn came<V: View>(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        frame: &Frame,
        payload: &Payload<'_, V>,
        place: &mut Place<'_>,
    ) {
        if frame.what == What::More {
            return self.more(turn, qp, frame, payload, place);
        }
        match qp.state() {
            QpState::Reset | QpState::Init => return self.not_ready(turn, frame, place),
            QpState::Err => return nobody(place.peer, frame),
            _ => {}
        }
        let known = frame.from & PSN_MASK == self.partner;
        let in_order = !turn.is_reliable() || !self.refused && frame.psn == self.expected;
        // Of a connection of before, or behind a request that has ended this one or comes again.
        if !known || !in_order {
            return;
        }
        if self.inbound.is_taken() {
            // The rest of a message does not come any more.
            self.current = None;
            if turn.is_reliable() {
                return self.refuse(turn, qp, frame, NakReason::InvalidRequest, place);
            }
            self.flush(qp, place.after);
        }
        self.current = None;
        let Ok(opcode) = WrOpcode::try_from(u32::from(frame.code)) else {
            return self.refuse(turn, qp, frame, NakReason::InvalidRequest, place);
        };
        let facts = facts(opcode);
        let total = total(frame, facts);
        let sane = !facts.local
            && total <= MESSAGE_BYTES_MAX
            && payload.len() as u64 <= total
            && (!facts.reads || payload.len() == 0)
            && (facts.reads || payload.len() > 0 || total == 0);
        if !sane {
            return self.refuse(turn, qp, frame, NakReason::InvalidRequest, place);
        }
        if facts.reads {
            return self.read(turn, qp, frame, opcode, place);
        }
        if facts.takes_receive && !self.take_receive(turn, qp, frame, place) {
            return;
        }
        let fits = facts.remote.is_some() || total <= self.inbound.room();
        if !fits {
            let done = RecvDone::failed(WcStatus::LocLenErr);
            self.inbound.complete(qp, &done, place.after);
            return self.refuse(turn, qp, frame, NakReason::InvalidRequest, place);
        }
        // The whole of what it wants to write, before any of it is.
        if facts.remote == Some(RemoteOp::Write)
            && payload.len() as u64 != total
            && let Err(reason) = qp.check_remote(&remote(frame, frame.addr, total)).map(drop)
        {
            return self.refuse(turn, qp, frame, reason, place);
        }
        self.current = Some(Current {
            request: *frame,
            total,
            got: 0,
        });
        self.bytes(turn, qp, payload, place);
    }

    fn more<V: View>(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        frame: &Frame,
        payload: &Payload<'_, V>,
        place: &mut Place<'_>,
    ) {
        let Some(current) = &self.current else {
            // Of a message that was refused, or dropped.
            return;
        };
        let its = current.request.from == frame.from && current.request.seq == frame.seq;
        if !its {
            return;
        }
        let request = current.request;
        let left = current.total - current.got;
        if payload.len() == 0 || payload.len() as u64 > left {
            return self.refuse(turn, qp, &request, NakReason::InvalidRequest, place);
        }
        self.bytes(turn, qp, payload, place);
    }

    /// Bytes of the message under way, which fit; perhaps the last.
    fn bytes<V: View>(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        payload: &Payload<'_, V>,
        place: &mut Place<'_>,
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        let (request, offset, total) = (current.request, current.got, current.total);
        current.got += payload.len() as u64;
        let is_last = current.got == total;
        let Ok(opcode) = WrOpcode::try_from(u32::from(request.code)) else {
            return;
        };
        let facts = facts(opcode);
        let written = match facts.remote {
            Some(_) => {
                let addr = request.addr.wrapping_add(offset);
                let wanted = remote(&request, addr, payload.len() as u64);
                qp.check_remote(&wanted).map(|memory| {
                    // SAFETY: checked and pinned for these bytes while `memory` lives.
                    unsafe { payload.copy(0, memory.as_ptr(), memory.len()) }
                })
            }
            None => self.scatter(qp, offset, payload),
        };
        if let Err(reason) = written {
            return self.refuse(turn, qp, &request, reason, place);
        }
        if !is_last {
            return self.inbound.suspend(qp);
        }
        self.current = None;
        if facts.invalidates
            && let Err(reason) = qp.invalidate(request.imm)
        {
            return self.refuse(turn, qp, &request, reason, place);
        }
        // Before the program sees that the message is there: its answer may leave at once, and is to
        // find the acknowledgement in front of it. `ib_send_lat -e` looks for the end of its SEND
        // when the answer has come, and once only.
        self.well(turn, &request, place);
        if let Some(tap) = place.tap(turn) {
            self.trace(tap, qp, &request, facts, total);
        }
        if facts.takes_receive {
            let solicited = request.is(flag::SOLICITED);
            let done = facts.received(total as u32, request.imm, solicited);
            // A WRITE's receive may have been suspended, which ends it as well.
            self.inbound.complete(qp, &done, place.after);
        }
    }

    /// A message has come whole.
    fn trace(&mut self, tap: &Tap, qp: &Qp, request: &Frame, facts: &Facts, total: u64) {
        let told = extras(request);
        if facts.remote.is_some() {
            tap.written_by_peer(qp, &remote(request, request.addr, total), told);
        } else if let Some(receive) = self.inbound.take_up(qp) {
            tap.received(told, request.about, total as u32, receive.sges());
        }
    }

    fn scatter<V: View>(
        &mut self,
        qp: &Qp,
        offset: u64,
        payload: &Payload<'_, V>,
    ) -> Result<(), NakReason> {
        let Some(receive) = self.inbound.take_up(qp) else {
            return Err(NakReason::RemoteOperation);
        };
        let mut at = 0;
        for (to, len) in gather(receive.sges(), offset, payload.len()) {
            // SAFETY: the receive's pieces are checked and pinned until it is completed or suspended.
            unsafe { payload.copy(at, to.cast_mut(), len) };
            at += len;
        }
        Ok(())
    }

    /// The request has been carried out.
    fn well(&mut self, turn: &Arc<Turn>, request: &Frame, place: &mut Place<'_>) {
        self.expected = self.expected.wrapping_add(1) & PSN_MASK;
        if turn.is_reliable() {
            place.say(self, turn, answer(request, WcStatus::Success));
        }
    }

    /// Whether it got one; else everything is said.
    fn take_receive(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        frame: &Frame,
        place: &mut Place<'_>,
    ) -> bool {
        let after = &mut *place.after;
        let taken = self.inbound.take(|recv| match turn.kind {
            QpType::XrcRecv => qp.take_recv_xrc(frame.about, recv, after),
            _ => qp.take_recv(recv, after),
        });
        match taken {
            Ok(()) => return true,
            Err(TakeError::Empty) if turn.is_reliable() => {
                self.waits = Some(*frame);
                place.peer.counts.not_yet.add(1);
                if let Some(tap) = place.tap(turn) {
                    tap.not_ready(self.min_rnr_timer);
                }
                let again = Frame {
                    code: self.min_rnr_timer.into(),
                    flags: flag::NO_RECEIVE,
                    ..Frame::about(What::NotYet, frame)
                };
                place.say(self, turn, again);
            }
            Err(TakeError::Empty) => {}
            Err(TakeError::Bad) => {
                // IBTA 9.7.4.1: what the receive named is this side's fault, an SRQ that does not exist
                // the requester's.
                let reason = match turn.kind == QpType::XrcRecv && qp.xrc_srq(frame.about).is_none()
                {
                    true => NakReason::InvalidRequest,
                    false => NakReason::RemoteOperation,
                };
                self.refuse(turn, qp, frame, reason, place);
            }
        }
        false
    }

    fn not_ready(&mut self, turn: &Turn, frame: &Frame, place: &mut Place<'_>) {
        if !frame.is(flag::RELIABLE) {
            return;
        }
        let known = |waits: &Frame| waits.from == frame.from;
        if self.waits.iter().chain(&self.early).any(known) {
            return;
        }
        if !self.started {
            self.early
                .retain(|early| slot_of(early.from) != slot_of(frame.from));
            self.early.push(*frame);
        } else if frame.from & PSN_MASK == self.partner {
            self.waits = Some(*frame);
            place.peer.host.set_timer(now_ns() + STARTING_NS, turn.qpn);
        } else {
            return nobody(place.peer, frame);
        }
        place.peer.owe(Frame::about(What::NotYet, frame), true);
    }

    /// The engine changes the state behind [`Responder::start`] and says nothing then: what came in between
    /// is asked for when it has.
    pub fn due(&mut self, turn: &Arc<Turn>, qp: &Qp, peers: &Peers) {
        if self.waits.is_none() || !self.started {
            return;
        }
        match receives(qp.state()) {
            // Those that found no receive wait for that, and may come again in vain.
            true => self.ready(turn, peers),
            false => peers.host.set_timer(now_ns() + STARTING_NS, turn.qpn),
        }
    }

    fn refuse(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        request: &Frame,
        reason: NakReason,
        place: &mut Place<'_>,
    ) {
        self.current = None;
        if self.inbound.is_taken() {
            let status = match reason {
                NakReason::RemoteOperation => WcStatus::LocProtErr,
                _ => WcStatus::WrFlushErr,
            };
            let done = RecvDone::failed(status);
            self.inbound.complete(qp, &done, place.after);
        }
        if !turn.is_reliable() {
            return;
        }
        self.refused = true;
        if let Some(tap) = place.tap(turn) {
            tap.refused(reason);
        }
        qp.responder_failed(reason, place.after);
        place.say(self, turn, answer(request, reason.requester_status()));
    }

    fn read(
        &mut self,
        turn: &Arc<Turn>,
        qp: &Qp,
        frame: &Frame,
        opcode: WrOpcode,
        place: &mut Place<'_>,
    ) {
        if !self.answers.have_room() {
            return self.refuse(turn, qp, frame, NakReason::InvalidRequest, place);
        }
        let op = match opcode {
            WrOpcode::RdmaRead => RemoteOp::Read,
            _ => RemoteOp::Atomic,
        };
        let length = total(frame, facts(opcode));
        let wanted = RemoteRequest {
            op,
            ..remote(frame, frame.addr, length)
        };
        match qp.check_remote(&wanted) {
            Err(reason) => return self.refuse(turn, qp, frame, reason, place),
            Ok(memory) if op == RemoteOp::Read => {
                if let Some(tap) = place.tap(turn) {
                    // SAFETY: the engine gave memory of that many bytes, which is held.
                    unsafe { tap.read(&wanted, memory.as_ptr()) };
                }
                self.answers.read(*frame);
            }
            Ok(memory) => {
                let [first, second] = frame.words;
                let operation = match opcode {
                    WrOpcode::AtomicFetchAndAdd => Atomic::FetchAdd(first),
                    _ => Atomic::CompareSwap {
                        compare: first,
                        swap: second,
                    },
                };
                let old = atomic(&memory, operation);
                drop(memory);
                match old {
                    Some(old) => {
                        if let Some(tap) = place.tap(turn) {
                            tap.operated(&wanted, told(operation), old);
                        }
                        self.answers.atomic(*frame, old);
                    }
                    None => {
                        let reason = NakReason::InvalidRequest;
                        return self.refuse(turn, qp, frame, reason, place);
                    }
                }
            }
        }
        self.expected = self.expected.wrapping_add(1) & PSN_MASK;
        place.peer.call(turn);
    }

    /// A datagram.
    pub fn datagram<V: View>(
        &mut self,
        turn: &Turn,
        qp: &Qp,
        frame: &Frame,
        payload: &Payload<'_, V>,
        place: &mut Place<'_>,
    ) {
        if frame.is(flag::RELIABLE) || frame.what != What::Request {
            return;
        }
        let Some(facts) = WrOpcode::try_from(u32::from(frame.code)).ok().map(facts) else {
            return;
        };
        if frame.about != qp.qkey() || !facts.takes_receive || facts.remote.is_some() {
            return;
        }
        if let Some(tap) = place.tap(turn) {
            trace_datagram(tap, qp, frame, payload);
        }
        let after = &mut *place.after;
        let taken = self.inbound.take(|recv| qp.take_recv(recv, after));
        if taken.is_err() {
            return;
        }
        let length = GRH_BYTES as u64 + payload.len() as u64;
        let done = if length > self.inbound.room() {
            RecvDone::failed(WcStatus::LocLenErr)
        } else {
            if let Some(receive) = self.inbound.take_up(qp) {
                receive.scatter(0, &[0; GRH_BYTES]);
            }
            let _ = self.scatter(qp, GRH_BYTES as u64, payload);
            let mut done = facts.received(length as u32, frame.imm, frame.is(flag::SOLICITED));
            done.src_qp = frame.from & PSN_MASK;
            done.wc_flags |= wc_flags::GRH;
            done
        };
        self.inbound.complete(qp, &done, after);
    }

    /// Sends what waits, one piece.
    pub fn send_next(&mut self, turn: &Arc<Turn>, qp: &Qp, place: &mut Place<'_>) -> Sent {
        let sent = match self.answers.front_mut() {
            None => return Sent::Idle,
            Some(Answer::Short(frame)) => {
                // SAFETY: no bytes are promised.
                unsafe { place.peer.put(frame, core::iter::empty()) }
            }
            Some(Answer::Atomic { request, old }) => {
                let bytes = old.to_ne_bytes();
                let frame = Frame {
                    len: 8,
                    ..Frame::about(What::Data, request)
                };
                let bytes = core::iter::once((bytes.as_ptr(), bytes.len()));
                // SAFETY: an array of that length.
                unsafe { place.peer.put(&frame, bytes) }
            }
            Some(Answer::Read { request, offset }) => {
                let total = request.words[0];
                let most = place.peer.piece_bytes();
                if most == 0 {
                    return Sent::Full;
                }
                let len = (total - *offset).min(most);
                let frame = Frame {
                    len: len as u32,
                    addr: *offset,
                    ..Frame::about(What::Data, request)
                };
                let wanted = RemoteRequest {
                    op: RemoteOp::Read,
                    ..remote(request, request.addr.wrapping_add(*offset), len)
                };
                let put = qp.check_remote(&wanted).map(|memory| {
                    let bytes = (memory.as_ptr().cast_const(), memory.len());
                    // SAFETY: checked and pinned for these bytes while `memory` lives.
                    unsafe { place.peer.put(&frame, core::iter::once(bytes)) }
                });
                match put {
                    Ok(Put::Yes) => {
                        *offset += len;
                        if *offset < total {
                            return Sent::Some;
                        }
                        Put::Yes
                    }
                    Ok(other) => other,
                    Err(reason) => {
                        let request = *request;
                        self.answers.clear();
                        self.refuse(turn, qp, &request, reason, place);
                        return Sent::Idle;
                    }
                }
            }
        };
        match sent {
            Put::Yes => {
                self.answers.pop_front();
                Sent::Some
            }
            Put::Full | Put::Down => Sent::Full,
        }
    }
}

/// What a message has besides its data, in the words of a trace.
fn extras(request: &Frame) -> Extras {
    let facts = WrOpcode::try_from(u32::from(request.code)).ok().map(facts);
    let ending = match facts {
        Some(facts) if facts.immediate => Ending::Immediate(request.imm.to_ne_bytes()),
        Some(facts) if facts.invalidates => Ending::Invalidate(request.imm),
        _ => Ending::Plain,
    };
    Extras {
        ending,
        solicited: request.is(flag::SOLICITED),
    }
}

/// An atomic operation, likewise.
fn told(operation: Atomic) -> Operation {
    match operation {
        Atomic::FetchAdd(add) => Operation {
            compares: false,
            swap_add: add,
            compare: 0,
        },
        Atomic::CompareSwap { compare, swap } => Operation {
            compares: true,
            swap_add: swap,
            compare,
        },
    }
}

/// A datagram has come. Where it does not say its sender's address the trace has this host's own, as for
/// peers within a host.
fn trace_datagram<V: View>(tap: &Tap, qp: &Qp, frame: &Frame, payload: &Payload<'_, V>) {
    let own = qp.gid(1, 0).map_or(Gid::default(), |entry| entry.gid);
    let gid = |[first, second]: [u64; 2]| {
        Gid((u128::from(second) << 64 | u128::from(first)).to_le_bytes())
    };
    let said = gid([
        frame.addr,
        u64::from(frame.rkey) << 32 | u64::from(frame.psn),
    ]);
    let from = if said.is_zero() { own } else { said };
    let to = match frame.to {
        MULTICAST_QPN => gid(frame.words),
        _ => own,
    };
    let datagram = tap::Datagram {
        target: frame.to,
        source: frame.from & PSN_MASK,
        gids: [from, to],
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 0,
        qkey: frame.about,
        psn: frame.seq as u32 & PSN_MASK,
        extras: extras(frame),
    };
    let mut bytes = vec![0_u8; payload.len()];
    // SAFETY: `bytes` is as long as the payload, and lives through both calls.
    unsafe {
        payload.copy(0, bytes.as_mut_ptr(), bytes.len());
        tap.datagram(&datagram, bytes.as_ptr(), bytes.len());
    }
}

fn remote(request: &Frame, addr: u64, len: u64) -> RemoteRequest {
    RemoteRequest {
        op: RemoteOp::Write,
        rkey: request.rkey,
        addr,
        len,
        srqn: request.about,
    }
}
