//! The responder's side: requests out of rings, into receives and registered memory.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::{Header, Record};
use sluice_verbs::responder::{RecvDone, RemoteOp, RemoteRequest, TakeError};
use sluice_verbs::{NakReason, Qp, QpType, Sge, WcOpcode, WcStatus, wc_flags};

use crate::link::{CHUNK_BYTES, Incoming, IncomingState, requests_max};
use crate::lock::lock;
use crate::node::{self, Node};
use crate::os;
use crate::part::{Part, RecvSide};
use crate::pieces;
use crate::reach;
use crate::wire::{self, Atomic, Piece, Span, answer, flags, request};
use crate::work::Work;
use crate::{datagram, link};

/// Requests carried out in one go.
const BATCH: usize = 64;
/// Requests after which the position is published within a batch.
const PUBLISH_EVERY: usize = 16;
const SEQUENCE_MASK: u32 = 0xFF_FFFF;
/// How long an unreliable message waits for a receive. The program that is to post it may have
/// lost its processor to others, several times in a row.
const HOLD_NS: u64 = 250_000_000;
/// By how many of these times it is prolonged while the program has completions to poll.
const EXTENSIONS_MAX: u32 = 7;
/// How long a reliable one waits at most before its sender is told to try again, which costs
/// more than the wait.
const RELIABLE_HOLD_NS: u64 = 1_000_000;
/// Pieces of a described message.
const PIECES_MAX: usize = 40;

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

/// What becomes of the first request of a ring.
pub enum Taken {
    /// It is over.
    Done,
    /// It stays: there is no receive for it now. `new`: look once more, because a receive that
    /// was posted before the wait was announced released nothing.
    Held { new: bool },
    /// The link is to be broken.
    Broken,
}

/// Carries out what waits in a link. How many requests there were.
///
/// Whoever has the link's lock does the work. Another that finds it locked goes to sleep, so
/// the holder looks once more after it has let go.
pub fn progress(node: &Node, incoming: &Incoming) -> usize {
    let mut done = 0;
    for _ in 0..node::LOOKS {
        if !incoming.is_waiting() {
            return done;
        }
        done += progress_once(node, incoming);
    }
    node.hand_over();
    done
}

fn progress_once(node: &Node, incoming: &Incoming) -> usize {
    let Ok(mut state) = incoming.state.try_lock() else {
        return 0;
    };
    let done = carry_out(node, incoming, &mut state);
    drop(state);
    if done > 0 {
        incoming.peer.ring_if_asleep();
    }
    done
}

/// Carries out everything of a peer that has ended. False: there is still something that waits
/// for a receive.
pub fn finish(node: &Node, incoming: &Incoming) -> bool {
    for _ in 0..requests_max() {
        // Waits for whoever is at it: nothing may be left behind when the link is forgotten.
        let mut state = lock(&incoming.state);
        if !incoming.is_waiting() {
            break;
        }
        carry_out(node, incoming, &mut state);
    }
    if incoming.is_waiting() {
        // It has not ended, it has only hung up.
        incoming.broken.store(true, Ordering::Relaxed);
    }
    !incoming.has_requests()
}

/// The process at the other end of a link has ended. Who has sent it something hears of that from
/// [`crate::requester::route_ended`]; this is for who has only taken, as the target of an extended
/// connection does.
pub fn peer_ended(part: &Part, incoming: &Incoming) {
    if !part.is_reliable() || lock(&part.send).route.is_some() {
        return;
    }
    let (qp, peer_qpn) = {
        let side = lock(&part.recv);
        if !side.ready {
            return;
        }
        (side.qp.clone(), side.peer_qpn)
    };
    if incoming.peer.has_connected(part.qpn, peer_qpn)
        && let Some(qp) = qp
    {
        qp.fail(None);
    }
}

/// Carries out the first requests of a ring. How many there were.
fn carry_out(node: &Node, incoming: &Incoming, state: &mut IncomingState) -> usize {
    let _work = Work::begin();
    let mut done = 0;
    while done < BATCH {
        let taken = match state.requests.peek() {
            Ok(Some(record)) => {
                let taken = take(node, incoming, state, &record);
                if matches!(taken, Taken::Done) {
                    state.requests.advance(&record);
                    done += 1;
                    // It may have got its receive just before its wait was announced.
                    if incoming.holds_until().is_some() {
                        incoming.hold_no_longer();
                    }
                }
                taken
            }
            Ok(None) => break,
            Err(_) => Taken::Broken,
        };
        match taken {
            Taken::Done => {}
            Taken::Held { new: true } => continue,
            Taken::Held { new: false } => break,
            Taken::Broken => {
                incoming.broken.store(true, Ordering::Relaxed);
                os::shutdown(incoming.socket.raw());
                return done;
            }
        }
        if done.is_multiple_of(PUBLISH_EVERY) {
            incoming.publish_head(state.requests.head());
        }
    }
    // Also without a request: the reader may have gone past the ring's end.
    incoming.publish_head(state.requests.head());
    done
}

/// There is no receive for the first request of the ring: whether it waits for one. While it
/// waits the requests behind it do as well, the ring fills up, and the sender is held back, as
/// by the flow control of a lossless link. None: it has waited long enough.
pub fn wait_for_receive(
    node: &Node,
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    incoming: &Incoming,
    state: &mut IncomingState,
) -> Option<Taken> {
    if side.dry {
        return None;
    }
    let now = os::now_ns();
    let patience = if part.is_reliable() {
        (wire::rnr_us(side.rnr_code) * 1000).min(RELIABLE_HOLD_NS)
    } else {
        HOLD_NS
    };
    match incoming.holds_until() {
        Some(until) if now < until => return Some(Taken::Held { new: false }),
        Some(_) => {
            // Completions that nobody has polled: the program is late and will post again.
            let late = qp.recv_cq().is_some_and(|cq| cq.filled() > 0);
            if part.is_reliable() || !late || state.extensions >= EXTENSIONS_MAX {
                incoming.hold_no_longer();
                side.dry = true;
                return None;
            }
            state.extensions += 1;
        }
        None => state.extensions = 0,
    }
    incoming.hold(part.slot, now + patience);
    node.held_until(now + patience);
    Some(Taken::Held { new: true })
}

/// Acknowledges a message whose bytes are placed, before a program that sleeps hears of it: its
/// reply must not overtake the acknowledgement, since programs wait for the two in this order.
/// And this message may be such a reply: what it was acknowledged with comes first.
fn acknowledge_early(node: &Node, incoming: &Incoming, record: &Record) {
    if node.is_armed() {
        incoming.publish_head(record.end);
        node.progress_answers(&node.links());
    }
}

/// Carries out one request.
fn take(node: &Node, incoming: &Incoming, state: &mut IncomingState, record: &Record) -> Taken {
    if record.header.kind == request::DATAGRAM {
        return datagram::take(node, incoming, state, record);
    }
    match take_connected(node, incoming, state, record) {
        Ok(true) => Taken::Done,
        Ok(false) => Taken::Broken,
        Err(held) => held,
    }
}

/// A request for a connected queue pair. False: the link is to be broken.
fn take_connected(
    node: &Node,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
) -> Result<bool, Taken> {
    let header = &record.header;
    let part = node
        .directory
        .qp_slot(header.target)
        .and_then(|slot| node.part(slot as u32))
        .filter(|part| part.qpn == header.target && part.kind != QpType::Ud);
    let Some(part) = part else {
        return Ok(answer(incoming, state, header, answer::NOT_READY, 0));
    };
    let (outcome, qp, rnr_code) = {
        let mut side = lock(&part.recv);
        let outcome = run(node, &part, &mut side, incoming, state, record);
        if matches!(outcome, Outcome::Rnr)
            && let Some(qp) = side.qp.clone()
            && let Some(held) = wait_for_receive(node, &part, &qp, &mut side, incoming, state)
        {
            part.finish_flush(&mut side);
            return Err(held);
        }
        if matches!(outcome, Outcome::Done | Outcome::Answered) {
            side.expected = side.expected.wrapping_add(1) & SEQUENCE_MASK;
        }
        part.finish_flush(&mut side);
        let refused = matches!(outcome, Outcome::Refused(_));
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
                tap.not_ready(rnr_code);
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
                qp.responder_failed(reason);
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
        request::SEND => send(node, part, &qp, side, incoming, record),
        request::WRITE => write(node, part, &qp, side, incoming, record),
        request::READ => read(part, &qp, incoming, state, record),
        request::ATOMIC => atomic(part, &qp, incoming, state, record),
        _ => Outcome::Broken,
    }
}

/// Takes the receive for a message; with XRC from the SRQ that it names.
fn take_receive(part: &Part, qp: &Qp, side: &mut RecvSide, srqn: u32) -> Option<Outcome> {
    let taken = if part.kind == QpType::XrcRecv {
        qp.take_recv_xrc(srqn, &mut side.recv)
    } else {
        qp.take_recv(&mut side.recv)
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

fn send(
    node: &Node,
    part: &Part,
    qp: &Qp,
    side: &mut RecvSide,
    incoming: &Incoming,
    record: &Record,
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
        && let Some(outcome) = take_receive(part, qp, side, header.argument as u32)
    {
        return outcome;
    }
    if first {
        side.received = 0;
    }
    if total > side.recv.room() {
        side.taken = false;
        qp.complete_recv(&mut side.recv, &RecvDone::failed(WcStatus::LocLenErr));
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
        qp.complete_recv(&mut side.recv, &RecvDone::failed(WcStatus::LocQpOpErr));
        return Outcome::RefusedByEngine(NakReason::RemoteOperation);
    }
    if header.flags & flags::LAST == 0 {
        return Outcome::Done;
    }
    if let Some(tap) = part.tap_of_incoming(incoming) {
        tap.received(header, total as u32, side.recv.sges());
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
            qp.complete_recv(&mut side.recv, &RecvDone::failed(WcStatus::LocQpOpErr));
            return Outcome::RefusedByEngine(reason);
        }
        done.imm = header.immediate;
        done.wc_flags = wc_flags::WITH_INV;
    }
    acknowledge_early(node, incoming, record);
    qp.complete_recv(&mut side.recv, &done);
    Outcome::Done
}

/// Copies a described message from the sender's memory. The list is copied before it is looked
/// at; what it names is the sender's own.
fn fetch(incoming: &Incoming, target: &[Sge], record: &Record, total: u64) -> bool {
    let mut list = [0u8; PIECES_MAX * Piece::BYTES];
    let bytes = record.payload_bytes;
    if bytes > list.len() || !bytes.is_multiple_of(Piece::BYTES) {
        return false;
    }
    // SAFETY: the payload lies in the ring and is at least as long; the list was checked to be.
    unsafe { copy::ascending(list.as_mut_ptr(), record.payload, bytes) };
    let mut offset = 0;
    for chunk in list[..bytes].chunks_exact(Piece::BYTES) {
        let Ok(chunk) = chunk.try_into() else {
            return false;
        };
        let piece = Piece::decode(chunk);
        if offset + u64::from(piece.len) > total {
            return false;
        }
        if !fetch_piece(incoming, target, offset, &piece) {
            return false;
        }
        offset += u64::from(piece.len);
    }
    offset == total
}

fn fetch_piece(incoming: &Incoming, target: &[Sge], offset: u64, piece: &Piece) -> bool {
    let len = piece.len as usize;
    if piece.region != 0 {
        // The sender passed the region before it sent this.
        if incoming.peer.region(piece.region).is_none() {
            incoming.peer.read_socket(incoming.socket.raw());
        }
        let Some(region) = incoming.peer.region(piece.region) else {
            return false;
        };
        let end = piece.region_offset.checked_add(u64::from(piece.len));
        if end.is_none_or(|end| end > region.bytes() as u64) {
            return false;
        }
        let source = region
            .base()
            .as_ptr()
            .wrapping_add(piece.region_offset as usize);
        // SAFETY: the bytes lie within the mapped region; the engine checked the receive.
        unsafe { pieces::scatter(target, offset, source, len) };
        return true;
    }
    let Some(memory) = &incoming.peer.memory else {
        return false;
    };
    // SAFETY: the pieces of a receive are writable.
    unsafe { memory.read(target, offset, piece.address, len).is_some() }
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
        && let Some(outcome) = take_receive(part, qp, side, span.srqn)
    {
        return outcome;
    }
    if !written {
        let wanted = RemoteRequest {
            op: RemoteOp::Write,
            rkey: span.rkey,
            addr: header.argument,
            len: u64::from(span.total),
            srqn: span.srqn,
        };
        match qp.check_remote(&wanted) {
            Ok(memory) => {
                // SAFETY: the engine gave `total` bytes, and the part lies within them.
                unsafe {
                    let target = memory.as_ptr().wrapping_add(span.offset as usize);
                    let source = record.payload.add(Span::BYTES);
                    copy::ascending(target, source, len as usize);
                }
                if let Some(tap) = part.tap_of_incoming(incoming) {
                    tap.written(header, &span, memory.as_ptr());
                }
            }
            Err(reason) => {
                if side.taken {
                    side.taken = false;
                    qp.complete_recv(&mut side.recv, &RecvDone::failed(WcStatus::WrFlushErr));
                }
                return Outcome::Refused(reason);
            }
        }
    }
    if immediate {
        if written && let Some(tap) = part.tap_of_incoming(incoming) {
            tap.written_by_peer(qp, header, &span);
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
        acknowledge_early(node, incoming, record);
        qp.complete_recv(&mut side.recv, &done);
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
    if let Some(tap) = part.tap_of_incoming(incoming) {
        tap.read(header, &span, memory.as_ptr());
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
        tap.operated(header, &operation, old);
    }
    let mut reply = answer_header(header, answer::VALUE, 0);
    reply.argument = old;
    if incoming.respond(state, &reply, &[]) {
        Outcome::Answered
    } else {
        Outcome::Broken
    }
}

const _: () = assert!(link::CHUNK_BYTES >= PIECES_MAX * Piece::BYTES);
