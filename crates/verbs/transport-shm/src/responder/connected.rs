//! Requests for connected queue pairs, into receives and registered memory.
#![allow(unsafe_code)]

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::{Header, Record};
use sluice_transport::pieces;
use sluice_verbs::locks::lock;
use sluice_verbs::responder::{RecvDone, RemoteOp, RemoteRequest, TakeError};
use sluice_verbs::{Aftermath, NakReason, Qp, QpType, WcOpcode, WcStatus, wc_flags};

use super::described::fetch;
use crate::hold::{Taken, wait_for_receive};
use crate::link::{CHUNK_BYTES, Incoming, IncomingState};
use crate::node::Node;
use crate::part::{Part, RecvSide};
use crate::wire::{self, Atomic, SEQUENCE_MASK, Span, answer, flags, request};
use crate::{reach, requester, tap};

/// What becomes of a request.
enum Outcome {
    Done,
    /// The answer has been written.
    Answered,
    Rnr,
    NotReady,
    /// To be refused; the queue pair is told when its locks are free.
    Refused(NakReason),
    /// Refused, and the engine knows already.
    RefusedByEngine(NakReason),
    /// The peer breaks the protocol.
    Broken,
}

/// A request for a connected queue pair. False: the link is to be broken.
pub fn take(
    node: &Node,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
    after: &mut Aftermath,
) -> Result<bool, Taken> {
    let header = &record.header;
    let part = node
        .directory
        .qp_slot(header.target)
        .and_then(|slot| node.parts.get(slot as u32))
        .filter(|part| part.qpn == header.target && part.kind != QpType::Ud);
    let Some(part) = part else {
        return Ok(answer(incoming, state, header, answer::NOT_READY, 0));
    };
    let (outcome, qp, rnr_code) = {
        let mut side = lock(&part.recv);
        let outcome = run(node, &part, &mut side, incoming, state, record, after);
        if matches!(outcome, Outcome::Rnr)
            && let Some(qp) = side.qp.clone()
            && let Some(held) = wait_for_receive(node, &part, &qp, &mut side, incoming, state)
        {
            return Err(held);
        }
        if matches!(outcome, Outcome::Done | Outcome::Answered) {
            side.expected = side.expected.wrapping_add(1) & SEQUENCE_MASK;
        }
        let refused = matches!(outcome, Outcome::Refused(_));
        if part.is_reliable() && (refused || matches!(outcome, Outcome::RefusedByEngine(_))) {
            // It is about to move to ERR.
            side.ready = false;
        }
        let qp = if refused { side.qp.clone() } else { None };
        (outcome, qp, side.rnr_code)
    };
    if !part.is_reliable() {
        return Ok(!matches!(outcome, Outcome::Broken));
    }
    Ok(match outcome {
        Outcome::Done | Outcome::Answered => true,
        Outcome::Rnr => {
            if let Some(tap) = part.tap_of_incoming(incoming) {
                tap.not_ready(rnr_code as u8);
            }
            answer(incoming, state, header, answer::RNR, rnr_code)
        }
        Outcome::NotReady => answer(incoming, state, header, answer::NOT_READY, 0),
        Outcome::Refused(reason) | Outcome::RefusedByEngine(reason) => {
            if let Some(tap) = part.tap_of_incoming(incoming) {
                tap.refused(reason);
            }
            let code = wire::reason_code(reason);
            let answered = answer(incoming, state, header, answer::REFUSED, code);
            if let Some(qp) = qp {
                qp.responder_failed(reason, after);
            }
            answered
        }
        Outcome::Broken => false,
    })
}

fn answer_header(header: &Header, kind: u8, immediate: u32) -> Header {
    Header {
        kind,
        flags: 0,
        short: header.short,
        target: header.origin,
        origin: header.target,
        sequence: header.sequence,
        immediate,
        argument: 0,
    }
}

fn answer(
    incoming: &Incoming,
    state: &mut IncomingState,
    header: &Header,
    kind: u8,
    immediate: u32,
) -> bool {
    incoming.respond(state, &answer_header(header, kind, immediate), &[])
}

fn run(
    node: &Node,
    part: &Part,
    side: &mut RecvSide,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
    after: &mut Aftermath,
) -> Outcome {
    let header = &record.header;
    let Some(qp) = side.qp.clone() else {
        return Outcome::NotReady;
    };
    // The peer must be the one that we are connected to, and own the number it uses.
    if !side.ready
        || header.origin != side.peer_qpn
        || incoming.peer.directory.qp_slot(header.origin).is_none()
    {
        return Outcome::NotReady;
    }
    if part.is_reliable() && header.sequence != side.expected {
        return Outcome::NotReady;
    }
    match header.kind {
        request::SEND => send(node, part, &qp, side, incoming, record, after),
        request::WRITE => write(node, part, &qp, side, incoming, record, after),
        request::READ => read(part, &qp, incoming, state, record),
        request::ATOMIC => atomic(part, &qp, incoming, state, record),
        _ => Outcome::Broken,
    }
}

/// Takes the receive for a message; with XRC from the SRQ that it names.
fn take_receive(
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    srqn: u32,
    after: &mut Aftermath,
) -> Option<Outcome> {
    let taken = if part.kind == QpType::XrcRecv {
        qp.take_recv_xrc(srqn, &mut side.recv, after)
    } else {
        qp.take_recv(&mut side.recv, after)
    };
    match taken {
        Ok(()) => {
            side.taken = true;
            side.dry = false;
            side.received = 0;
            None
        }
        Err(TakeError::Empty) => Some(Outcome::Rnr),
        Err(TakeError::NotReady) => Some(Outcome::NotReady),
        Err(TakeError::Bad(reason)) => Some(Outcome::RefusedByEngine(reason)),
    }
}

/// Acknowledges a message whose bytes are placed, before a program that sleeps hears of it: its
/// reply must not overtake the acknowledgement, since programs wait for the two in this order.
/// And this message may be such a reply: what it was acknowledged with comes first.
fn acknowledge_early(node: &Node, incoming: &Incoming, record: &Record, after: &mut Aftermath) {
    if node.control.is_armed() {
        incoming.publish_head(record.end);
        requester::progress_all(node, &node.links(), after);
    }
}

fn send(
    node: &Node,
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    incoming: &Incoming,
    record: &Record,
    after: &mut Aftermath,
) -> Outcome {
    let header = &record.header;
    let total = header.argument >> 32;
    let first = header.flags & flags::FIRST != 0;
    if first == side.taken {
        // The middle of a message whose beginning was lost, or a beginning in the middle: an
        // unreliable sender was reset. A reliable one does not do that.
        if part.is_reliable() {
            return Outcome::Broken;
        }
        if !first {
            return Outcome::NotReady;
        }
    }
    if !side.taken
        && let Some(outcome) = take_receive(part, qp, side, header.argument as u32, after)
    {
        return outcome;
    }
    if first {
        side.received = 0;
    }
    if total > side.recv.room() {
        side.taken = false;
        qp.complete_recv(
            &mut side.recv,
            &RecvDone::failed(WcStatus::LocLenErr),
            after,
        );
        return Outcome::RefusedByEngine(NakReason::InvalidRequest);
    }
    let placed = if header.flags & flags::DESCRIBED != 0 {
        fetch(incoming, side.recv.sges(), record, total)
    } else if side.received + record.payload_bytes as u64 <= total {
        // SAFETY: the engine checked the receive; the payload lies in the ring, whose reader is
        // locked by the caller.
        unsafe {
            let (source, len) = (record.payload, record.payload_bytes);
            pieces::scatter(side.recv.sges(), side.received, source, len);
        }
        side.received += record.payload_bytes as u64;
        true
    } else {
        return Outcome::Broken;
    };
    if !placed {
        side.taken = false;
        qp.complete_recv(
            &mut side.recv,
            &RecvDone::failed(WcStatus::LocQpOpErr),
            after,
        );
        return Outcome::RefusedByEngine(NakReason::RemoteOperation);
    }
    if header.flags & flags::LAST == 0 {
        return Outcome::Done;
    }
    if let Some(tap) = part.tap_of_incoming(incoming) {
        let (extras, srq) = (tap::extras(header), header.argument as u32);
        tap.received(extras, srq, total as u32, side.recv.sges());
    }
    let mut done = RecvDone {
        solicited: header.flags & flags::SOLICITED != 0,
        src_qp: header.origin,
        ..RecvDone::ok(total as u32)
    };
    side.taken = false;
    if header.flags & flags::IMMEDIATE != 0 {
        done.imm = header.immediate;
        done.wc_flags = wc_flags::WITH_IMM;
    }
    if header.flags & flags::INVALIDATE != 0 {
        if let Err(reason) = qp.invalidate(header.immediate) {
            qp.complete_recv(
                &mut side.recv,
                &RecvDone::failed(WcStatus::LocQpOpErr),
                after,
            );
            return Outcome::RefusedByEngine(reason);
        }
        done.imm = header.immediate;
        done.wc_flags = wc_flags::WITH_INV;
    }
    acknowledge_early(node, incoming, record, after);
    qp.complete_recv(&mut side.recv, &done, after);
    Outcome::Done
}

fn span(record: &Record) -> Option<Span> {
    let mut bytes = [0; Span::BYTES];
    if record.payload_bytes < bytes.len() {
        return None;
    }
    // SAFETY: the payload lies in the ring and has that many bytes.
    unsafe { copy::ascending(bytes.as_mut_ptr(), record.payload, bytes.len()) };
    Some(Span::decode(&bytes))
}

fn write(
    node: &Node,
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    incoming: &Incoming,
    record: &Record,
    after: &mut Aftermath,
) -> Outcome {
    let header = &record.header;
    let Some(span) = span(record) else {
        return Outcome::Broken;
    };
    let len = (record.payload_bytes - Span::BYTES) as u64;
    let written = header.flags & flags::WRITTEN != 0;
    if !written && u64::from(span.offset) + len > u64::from(span.total) {
        return Outcome::Broken;
    }
    let immediate = header.flags & flags::IMMEDIATE != 0 && header.flags & flags::LAST != 0;
    // Nothing is written before it is certain that the receive is there.
    if immediate
        && !side.taken
        && let Some(outcome) = take_receive(part, qp, side, span.srqn, after)
    {
        return outcome;
    }
    let wanted = RemoteRequest {
        op: RemoteOp::Write,
        rkey: span.rkey,
        addr: header.argument,
        len: u64::from(span.total),
        srqn: span.srqn,
    };
    if !written {
        match qp.check_remote(&wanted) {
            Ok(memory) => {
                // SAFETY: the engine gave `total` bytes, and the part lies within them.
                unsafe {
                    let target = memory.as_ptr().wrapping_add(span.offset as usize);
                    let source = record.payload.add(Span::BYTES);
                    copy::ascending(target, source, len as usize);
                }
                // The last part makes the message: now all of it is in the target.
                if header.flags & flags::LAST != 0
                    && let Some(tap) = part.tap_of_incoming(incoming)
                {
                    // SAFETY: the engine gave memory of that many bytes, which is held.
                    unsafe { tap.written(&wanted, tap::extras(header), memory.as_ptr()) };
                }
            }
            Err(reason) => {
                if side.taken {
                    side.taken = false;
                    qp.complete_recv(
                        &mut side.recv,
                        &RecvDone::failed(WcStatus::WrFlushErr),
                        after,
                    );
                }
                return Outcome::Refused(reason);
            }
        }
    }
    if immediate {
        if written && let Some(tap) = part.tap_of_incoming(incoming) {
            tap.written_by_peer(qp, &wanted, tap::extras(header));
        }
        side.taken = false;
        let done = RecvDone {
            opcode: WcOpcode::RecvRdmaWithImm,
            imm: header.immediate,
            wc_flags: wc_flags::WITH_IMM,
            solicited: header.flags & flags::SOLICITED != 0,
            src_qp: header.origin,
            ..RecvDone::ok(span.total)
        };
        acknowledge_early(node, incoming, record, after);
        qp.complete_recv(&mut side.recv, &done, after);
    }
    Outcome::Done
}

fn read(
    part: &Part,
    qp: &Qp,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
) -> Outcome {
    let header = &record.header;
    let Some(span) = span(record) else {
        return Outcome::Broken;
    };
    let room = (record.payload_bytes - Span::BYTES).min(CHUNK_BYTES);
    if span.len as usize > room
        || u64::from(span.offset) + u64::from(span.len) > u64::from(span.total)
    {
        return Outcome::Broken;
    }
    let wanted = RemoteRequest {
        op: RemoteOp::Read,
        rkey: span.rkey,
        addr: header.argument,
        len: u64::from(span.total),
        srqn: span.srqn,
    };
    let memory = match qp.check_remote(&wanted) {
        Ok(memory) => memory,
        Err(reason) => return Outcome::Refused(reason),
    };
    // The last part makes the message.
    if header.flags & flags::LAST != 0
        && let Some(tap) = part.tap_of_incoming(incoming)
    {
        // SAFETY: the engine gave memory of that many bytes, which is held.
        unsafe { tap.read(&wanted, memory.as_ptr()) };
    }
    let reply = answer_header(header, answer::DATA, span.offset);
    let source = memory.as_ptr().wrapping_add(span.offset as usize);
    // SAFETY: the engine gave `total` bytes, and the part lies within them.
    if unsafe { incoming.respond_raw(state, &reply, source, span.len as usize) } {
        Outcome::Answered
    } else {
        Outcome::Broken
    }
}

fn atomic(
    part: &Part,
    qp: &Qp,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
) -> Outcome {
    let header = &record.header;
    let mut bytes = [0; Atomic::BYTES];
    if record.payload_bytes < bytes.len() {
        return Outcome::Broken;
    }
    // SAFETY: the payload lies in the ring and has that many bytes.
    unsafe { copy::ascending(bytes.as_mut_ptr(), record.payload, bytes.len()) };
    let operation = Atomic::decode(&bytes);
    let wanted = RemoteRequest {
        op: RemoteOp::Atomic,
        rkey: operation.rkey,
        addr: header.argument,
        len: 8,
        srqn: operation.srqn,
    };
    let memory = match qp.check_remote(&wanted) {
        Ok(memory) => memory,
        Err(reason) => return Outcome::Refused(reason),
    };
    let target = memory.as_ptr();
    if !target.addr().is_multiple_of(8) {
        return Outcome::Refused(NakReason::InvalidRequest);
    }
    let swaps = operation.swaps == 1;
    // SAFETY: 8 bytes that the engine gave, aligned.
    let old = unsafe { reach::atomic(target, swaps, operation.compare_add, operation.swap) };
    if let Some(tap) = part.tap_of_incoming(incoming) {
        tap.operated(&wanted, tap::operation(&operation), old);
    }
    let mut reply = answer_header(header, answer::VALUE, 0);
    reply.argument = old;
    if incoming.respond(state, &reply, &[]) {
        Outcome::Answered
    } else {
        Outcome::Broken
    }
}
