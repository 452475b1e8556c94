//! Unreliable datagrams: sent once, dropped without a word where there is nobody to take them.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;
use std::sync::Arc;

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::{Header, Record};
use sluice_verbs::fault::Fate;
use sluice_verbs::responder::{RecvDone, TakeError};
use sluice_verbs::{
    Gid, Posted, Qp, QpType, SendDone, Sge, WcStatus, Wqe, WrOpcode, send_flags, wc_flags,
};

use crate::impair::{Held, Impair};
use crate::link::{CHUNK_BYTES, Incoming, IncomingState, Outgoing, lock};
use crate::multicast;
use crate::node::Node;
use crate::os;
use crate::qp::{Part, RecvSide};
use crate::reach;
use crate::responder::{self, Taken};
use crate::route::{self, Route};
use crate::tap;
use crate::wire::{Datagram, flags, request};

/// The header that a receiver finds in front of the data (IBTA 8.3).
pub const GRH_BYTES: usize = 40;
/// Largest datagram, bytes: the largest MTU.
pub const DATAGRAM_BYTES_MAX: usize = 4096;
/// The number by which a multicast message is addressed.
pub const MULTICAST_QPN: u32 = 0xFF_FFFF;
/// How long a full ring is waited for before datagrams to it are dropped: longer than its reader
/// lets one wait for a receive, so only for a reader that is stopped.
const PATIENCE_NS: u64 = 3_000_000_000;
const RETRY_NS: u64 = 500_000;

/// Numbers of packets have 24 bits.
const SEQUENCE_MASK: u32 = 0xFF_FFFF;

const _: () = assert!(DATAGRAM_BYTES_MAX <= CHUNK_BYTES);

/// A datagram on its way out.
struct Outbound<'a> {
    header: Header,
    head: [u8; Datagram::BYTES],
    /// The data, `len` bytes.
    pieces: &'a [Sge],
    len: usize,
    /// To this group, or to the queue pair that the header names.
    group: Option<Gid>,
}

/// A datagram from the engine. It is copied, so it is done when it is in the ring.
pub fn post(part: &Part, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
    let Some(destination) = wqe.wr.ud else {
        return Posted::Done(SendDone::failed(WcStatus::LocQpOpErr));
    };
    if wqe.length > DATAGRAM_BYTES_MAX as u64 {
        return Posted::Done(SendDone::failed(WcStatus::LocLenErr));
    }
    let mut header = Header {
        kind: request::DATAGRAM,
        target: destination.qpn,
        origin: part.qpn,
        sequence: part.next_datagram.load(Ordering::Relaxed) & SEQUENCE_MASK,
        immediate: wqe.wr.imm,
        ..Header::default()
    };
    if wqe.wr.opcode == WrOpcode::SendWithImm {
        header.flags |= flags::IMMEDIATE;
    }
    if wqe.wr.flags & send_flags::SOLICITED != 0 {
        header.flags |= flags::SOLICITED;
    }
    let is_multicast = destination.qpn == MULTICAST_QPN;
    let message = Outbound {
        header,
        head: head(qp, &destination),
        pieces: wqe.wr.sges,
        len: wqe.length as usize,
        group: is_multicast.then_some(destination.ah.grh.dgid),
    };
    let posted = match &part.impair {
        None => send(part, &message),
        Some(impair) => send_impaired(part, impair, wqe.seq, &message),
    };
    if posted != Posted::Busy {
        let next = message.header.sequence.wrapping_add(1);
        part.next_datagram.store(next, Ordering::Relaxed);
    }
    posted
}

fn send(part: &Part, message: &Outbound<'_>) -> Posted {
    let done = Posted::Done(SendDone::ok(message.len as u32));
    if let Some(group) = &message.group {
        let members = multicast::members(&part.node, group);
        if waits_for(part, &members) {
            return Posted::Busy;
        }
        for route in members {
            if let Some(link) = route.link() {
                push(part, link, message);
            }
        }
        return done;
    }
    let Ok(route) = route::to(&part.node, message.header.target) else {
        return done;
    };
    let Some(link) = route.link() else {
        if waits_for(part, core::slice::from_ref(&route)) {
            return Posted::Busy;
        }
        return match route.link() {
            Some(link) => sent_or_busy(part, link, message),
            None => done,
        };
    };
    sent_or_busy(part, link, message)
}

/// Sends it as its fate has it. The engine gets the completion that it would get from a network:
/// the sender of a datagram never hears what became of it.
fn send_impaired(part: &Part, impair: &Impair, seq: u64, message: &Outbound<'_>) -> Posted {
    let done = Posted::Done(SendDone::ok(message.len as u32));
    let fate = impair.datagram(seq);
    match fate {
        Fate::Drop | Fate::Corrupt => return done,
        Fate::Late if is_joined(part, message) => {
            if let Some(due_ns) = impair.hold(|due_ns| message.keep(due_ns)) {
                part.node.set_timer(due_ns, part.slot);
                return done;
            }
        }
        _ => {}
    }
    let posted = send(part, message);
    if posted == Posted::Busy {
        return posted;
    }
    if fate == Fate::Duplicate {
        send_now(part, message);
    }
    release_held(part, u64::MAX);
    posted
}

/// Whether there is a link for it; one that is held back makes none.
fn is_joined(part: &Part, message: &Outbound<'_>) -> bool {
    message.group.is_some()
        || route::to(&part.node, message.header.target).is_ok_and(|route| route.link().is_some())
}

/// Sends what was held back, if it is due.
pub fn release_held(part: &Part, now_ns: u64) {
    let Some(impair) = &part.impair else { return };
    let Some(held) = impair.due(now_ns) else {
        return;
    };
    let piece = [Sge {
        addr: held.data.as_ptr() as u64,
        length: held.data.len() as u32,
        lkey: 0,
    }];
    let message = Outbound {
        header: held.header,
        head: held.head,
        pieces: &piece,
        len: held.data.len(),
        group: held.group,
    };
    send_now(part, &message);
}

/// Sends it where there is a link with room for it, which the engine does not wait for.
fn send_now(part: &Part, message: &Outbound<'_>) {
    let routes = match &message.group {
        Some(group) => multicast::members(&part.node, group),
        None => route::to(&part.node, message.header.target)
            .into_iter()
            .collect(),
    };
    for route in routes {
        if let Some(link) = route.link() {
            push(part, link, message);
        }
    }
}

impl Outbound<'_> {
    /// A copy for later.
    fn keep(&self, due_ns: u64) -> Held {
        let mut data = vec![0; self.len];
        let mut used = 0;
        for (source, len) in reach::gather(self.pieces, 0, self.len) {
            let Some(place) = data.get_mut(used..used + len) else {
                break;
            };
            // SAFETY: the engine checked the pieces; `place` has `len` bytes.
            unsafe { copy::ascending(place.as_mut_ptr(), source, len) };
            used += len;
        }
        Held {
            header: self.header,
            head: self.head,
            data,
            group: self.group,
            due_ns,
        }
    }
}

/// Whether a connection is still being made; the queue pair goes on when it is there.
fn waits_for(part: &Part, routes: &[Arc<Route>]) -> bool {
    // Locked before the route knows of us: it may have news at once, and must find us busy.
    let mut side = lock(&part.send);
    let waits = routes.iter().any(|route| route.wait(part.slot));
    side.busy |= waits;
    waits
}

fn sent_or_busy(part: &Part, link: &Outgoing, message: &Outbound<'_>) -> Posted {
    let done = Posted::Done(SendDone::ok(message.len as u32));
    let pushed = push(part, link, message);
    let mut side = lock(&part.send);
    if pushed {
        side.give_up = 0;
        return done;
    }
    let now = os::now_ns();
    if side.give_up == 0 {
        side.give_up = now + PATIENCE_NS;
    }
    if now >= side.give_up {
        return done;
    }
    side.busy = true;
    drop(side);
    part.node.set_timer(now + RETRY_NS, part.slot);
    Posted::Busy
}

fn head(qp: &Qp, destination: &sluice_verbs::wr::UdDestination<'_>) -> [u8; Datagram::BYTES] {
    let grh = &destination.ah.grh;
    let sgid = qp
        .gid(destination.ah.port_num.max(1), u32::from(grh.sgid_index))
        .map_or(Gid::default(), |entry| entry.gid);
    Datagram {
        qkey: destination.qkey,
        class_and_label: u32::from(grh.traffic_class) << 20 | (grh.flow_label & 0xF_FFFF),
        sgid: u128::from_ne_bytes(sgid.0),
        dgid: u128::from_ne_bytes(grh.dgid.0),
        hop_limit: u32::from(grh.hop_limit),
        sl: u32::from(destination.ah.sl),
    }
    .encode()
}

fn push(part: &Part, link: &Outgoing, message: &Outbound<'_>) -> bool {
    let (head, len) = (&message.head, message.len);
    let pushed = {
        let mut writer = lock(&link.writer);
        let first = core::iter::once((head.as_ptr(), head.len()));
        let parts = first.chain(reach::gather(message.pieces, 0, len));
        // Before the peer can answer, as for other requests.
        link.in_flight.fetch_add(1, Ordering::SeqCst);
        // SAFETY: an array and pieces that the engine checked, `len` bytes together.
        let end = unsafe { writer.ring.push(&message.header, head.len() + len, parts) };
        if end.is_none() {
            link.in_flight.fetch_sub(1, Ordering::Relaxed);
            if !writer.starved.contains(&part.slot) {
                writer.starved.push_back(part.slot);
            }
        }
        if let Some(end) = end {
            // Nobody waits for it, but its room must come back.
            writer.sent.push_back(crate::link::Sent {
                end,
                slot: u32::MAX,
                sequence: 0,
                turn: 0,
            });
        }
        end.is_some()
    };
    link.peer.ring_if_asleep();
    pushed
}

/// A datagram from a peer.
pub fn take(node: &Node, incoming: &Incoming, state: &mut IncomingState, record: &Record) -> Taken {
    let mut bytes = [0; Datagram::BYTES];
    let Some(len) = record.payload_bytes.checked_sub(bytes.len()) else {
        return Taken::Broken;
    };
    if len > DATAGRAM_BYTES_MAX {
        return Taken::Broken;
    }
    // SAFETY: the payload lies in the ring and has that many bytes.
    unsafe { copy::ascending(bytes.as_mut_ptr(), record.payload, bytes.len()) };
    let datagram = Datagram::decode(&bytes);
    let header = &record.header;
    if incoming.peer.directory.qp_slot(header.origin).is_none() {
        return Taken::Done;
    }
    if header.target == MULTICAST_QPN {
        let group = Gid(datagram.dgid.to_ne_bytes());
        for part in multicast::attached(node, &group) {
            if let Some(tap) = tap::responder(&part, incoming) {
                tap.datagram(record, &datagram, len);
            }
            // One late member holds back no others.
            deliver(&part, record, &datagram, len, |_, _| None);
        }
        return Taken::Done;
    }
    let part = node
        .directory
        .qp_slot(header.target)
        .and_then(|slot| node.part(slot as u32))
        .filter(|part| part.qpn == header.target && part.kind == QpType::Ud);
    let held = part.and_then(|part| {
        let held = deliver(&part, record, &datagram, len, |qp, side| {
            responder::wait_for_receive(&part, qp, side, incoming, state)
        });
        // One that is held comes again.
        if held.is_none()
            && let Some(tap) = tap::responder(&part, incoming)
        {
            tap.datagram(record, &datagram, len);
        }
        held
    });
    held.unwrap_or(Taken::Done)
}

/// Puts a datagram into a receive, or asks `without_receive` what is to become of it.
fn deliver(
    part: &Arc<Part>,
    record: &Record,
    datagram: &Datagram,
    len: usize,
    without_receive: impl FnOnce(&Qp, &mut RecvSide) -> Option<Taken>,
) -> Option<Taken> {
    let mut side = lock(&part.recv);
    let held = match side.qp.clone() {
        Some(qp) if side.ready && datagram.qkey == side.qkey => {
            match qp.take_recv(&mut side.recv) {
                Ok(()) => {
                    fill(&qp, &mut side, record, datagram, len);
                    None
                }
                Err(TakeError::Empty) => without_receive(&qp, &mut side),
                Err(_) => None,
            }
        }
        _ => None,
    };
    part.finish_flush(&mut side);
    held
}

/// Fills the receive that was taken, and completes it.
fn fill(qp: &Qp, side: &mut RecvSide, record: &Record, datagram: &Datagram, len: usize) {
    side.taken = true;
    side.dry = false;
    let whole = (GRH_BYTES + len) as u64;
    let done = if side.recv.room() < whole {
        RecvDone::failed(WcStatus::LocLenErr)
    } else {
        let grh = grh(datagram, len);
        // SAFETY: the engine checked the receive, which has room; the payload lies in the ring.
        unsafe {
            let data = record.payload.add(Datagram::BYTES);
            reach::scatter(side.recv.sges(), GRH_BYTES as u64, data, len);
            reach::scatter(side.recv.sges(), 0, grh.as_ptr(), GRH_BYTES);
        }
        let header = &record.header;
        let immediate = header.flags & flags::IMMEDIATE != 0;
        RecvDone {
            imm: if immediate { header.immediate } else { 0 },
            wc_flags: wc_flags::GRH | if immediate { wc_flags::WITH_IMM } else { 0 },
            solicited: header.flags & flags::SOLICITED != 0,
            src_qp: header.origin,
            sl: datagram.sl as u8,
            ..RecvDone::ok(whole as u32)
        }
    };
    side.taken = false;
    qp.complete_recv(&mut side.recv, &done);
}

/// The global route header (IBTA 8.3): an IPv6 header whose payload is a BTH, as RoCE has it.
fn grh(datagram: &Datagram, len: usize) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    let first = 6 << 28 | (datagram.class_and_label & 0x0FFF_FFFF);
    grh[..4].copy_from_slice(&first.to_be_bytes());
    grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    grh[6] = 0x1B;
    grh[7] = datagram.hop_limit as u8;
    grh[8..24].copy_from_slice(&datagram.sgid.to_ne_bytes());
    grh[24..].copy_from_slice(&datagram.dgid.to_ne_bytes());
    grh
}
