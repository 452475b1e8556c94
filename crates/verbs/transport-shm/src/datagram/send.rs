//! Datagrams into rings.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;
use std::sync::Arc;

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::directory::BLOCK_QPS;
use sluice_shmem::verbs::record::Header;
use sluice_transport::fault::{Messages, Outlet};
use sluice_verbs::{Gid, Posted, Qp, SendDone, Sge, WcStatus, Wqe, WrOpcode, send_flags};

use super::{DATAGRAM_BYTES_MAX, MULTICAST_QPN};
use crate::connect;
use crate::kept::Kept;
use crate::link::{Outgoing, Sent};
use crate::multicast;
use crate::node::Node;
use crate::os;
use crate::part::Part;
use crate::route::Route;
use crate::wire::{Datagram, SEQUENCE_MASK, flags, request};
use sluice_transport::pieces;
use sluice_verbs::locks::lock;

/// How long a full ring is waited for before datagrams to it are dropped: longer than its reader
/// lets one wait for a receive, so only for a reader that is stopped.
const PATIENCE_NS: u64 = 3_000_000_000;
const RETRY_NS: u64 = 500_000;

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
pub fn post(node: &Node, part: &Part, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
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
    let posted = match &part.faults {
        None => send(node, part, &message),
        Some(faults) => {
            let mut leaving = Leaving {
                node,
                part,
                message: &message,
            };
            faults.post(wqe.seq, message.len as u32, &mut leaving)
        }
    };
    if posted != Posted::Busy {
        let next = message.header.sequence.wrapping_add(1);
        part.next_datagram.store(next, Ordering::Relaxed);
    }
    posted
}

fn send(node: &Node, part: &Part, message: &Outbound<'_>) -> Posted {
    let done = Posted::Done(SendDone::ok(message.len as u32));
    if let Some(group) = &message.group {
        let members = members(node, group);
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
    let Ok(route) = connect::to(node, message.header.target) else {
        return done;
    };
    let Some(link) = route.link() else {
        if waits_for(part, core::slice::from_ref(&route)) {
            return Posted::Busy;
        }
        return match route.link() {
            Some(link) => sent_or_busy(node, part, link, message),
            None => done,
        };
    };
    sent_or_busy(node, part, link, message)
}

/// A datagram that leaves with faults.
struct Leaving<'a> {
    node: &'a Node,
    part: &'a Part,
    message: &'a Outbound<'a>,
}

impl Outlet for Leaving<'_> {
    type Kept = Kept;

    fn send(&mut self) -> Posted {
        send(self.node, self.part, self.message)
    }

    fn keep(&self) -> Option<Kept> {
        let is_joined = || {
            connect::to(self.node, self.message.header.target)
                .is_ok_and(|route| route.link().is_some())
        };
        (self.message.group.is_some() || is_joined()).then(|| self.message.keep())
    }

    fn send_also(&mut self, kept: Option<Kept>) {
        match kept {
            None => send_now(self.node, self.part, self.message),
            Some(kept) => send_kept(self.node, self.part, &kept),
        }
    }

    fn wake_at(&mut self, when_ns: u64) {
        self.node.set_timer(when_ns, self.part.slot);
    }
}

/// Sends what was kept back, if it is due.
pub fn release_held(node: &Node, part: &Part, now_ns: u64) {
    let due = |faults: &Messages<Kept>| faults.due(now_ns);
    if let Some(kept) = part.faults.as_deref().and_then(due) {
        send_kept(node, part, &kept);
    }
}

fn send_kept(node: &Node, part: &Part, kept: &Kept) {
    let piece = [Sge {
        addr: kept.data.as_ptr() as u64,
        length: kept.data.len() as u32,
        lkey: 0,
    }];
    let message = Outbound {
        header: kept.header,
        head: kept.head,
        pieces: &piece,
        len: kept.data.len(),
        group: kept.group,
    };
    send_now(node, part, &message);
}

/// Sends it where there is a link with room for it, which the engine does not wait for.
fn send_now(node: &Node, part: &Part, message: &Outbound<'_>) {
    let routes = match &message.group {
        Some(group) => members(node, group),
        None => connect::to(node, message.header.target)
            .into_iter()
            .collect(),
    };
    for route in routes {
        if let Some(link) = route.link() {
            push(part, link, message);
        }
    }
}

/// A way to each process with members of a group. One that has no link yet misses the message.
fn members(node: &Node, group: &Gid) -> Vec<Arc<Route>> {
    let mut routes: Vec<Arc<Route>> = Vec::new();
    for member in multicast::members(node.names.rendezvous(), group) {
        match connect::to(node, member.block * BLOCK_QPS as u32) {
            Ok(route) if !routes.iter().any(|known| Arc::ptr_eq(known, &route)) => {
                routes.push(route);
            }
            Ok(_) => {}
            Err(_) => member.forget(),
        }
    }
    routes
}

impl Outbound<'_> {
    /// A copy for later.
    fn keep(&self) -> Kept {
        let mut data = vec![0; self.len];
        let mut used = 0;
        for (source, len) in pieces::gather(self.pieces, 0, self.len) {
            let Some(place) = data.get_mut(used..used + len) else {
                break;
            };
            // SAFETY: the engine checked the pieces; `place` has `len` bytes.
            unsafe { copy::ascending(place.as_mut_ptr(), source, len) };
            used += len;
        }
        Kept {
            header: self.header,
            head: self.head,
            data,
            group: self.group,
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

fn sent_or_busy(node: &Node, part: &Part, link: &Outgoing, message: &Outbound<'_>) -> Posted {
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
    node.set_timer(now + RETRY_NS, part.slot);
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
        let parts = first.chain(pieces::gather(message.pieces, 0, len));
        // Before the peer can answer, as for other requests.
        link.count_in_flight(|count| count + 1);
        // SAFETY: an array and pieces that the engine checked, `len` bytes together.
        let end = unsafe { writer.ring.push(&message.header, head.len() + len, parts) };
        if end.is_none() {
            link.count_in_flight(|count| count - 1);
            if !writer.starved.contains(&part.slot) {
                writer.starved.push_back(part.slot);
            }
        }
        if let Some(end) = end {
            // Nobody waits for it, but its room must come back.
            writer.sent.push_back(Sent {
                end,
                slot: u32::MAX,
                sequence: 0,
                rewinds: 0,
            });
        }
        end.is_some()
    };
    link.peer.ring_if_asleep();
    pushed
}
