//! The requester's side: requests into rings, acknowledgements and answers out of them.
//!
//! The protocol is that of a reliable connection without a lossy wire (IBTA 9.7): requests
//! carry sequence numbers; a position acknowledges all before it; an answer that refuses one
//! makes the requester go back to it and send everything from there again.

mod answers;
mod records;

use answers::fail_first;
pub use answers::{finish, progress_all};

use std::sync::Arc;

use sluice_verbs::{Aftermath, Posted, Qp, QpType, SendDone, WcStatus, Wqe, WrOpcode};

use crate::connect;
use crate::link::{CHUNK_BYTES, Outgoing};
use crate::node::Node;
use crate::os;
use crate::part::{Entry, Part, SendSide};
use crate::reach::{self, Ends};
use crate::route::Route;
use crate::wire::SEQUENCE_MASK;
use records::{SPAN_DATA_BYTES, is_described, is_send, opcode_is_atomic, push_records};
use sluice_verbs::locks::lock;

/// Between two tries of a peer that is not ready.
const RETRY_NS: u64 = 500_000;
/// Room that makes it worth to let a starved queue pair go on.
const ROOM_BYTES: usize = 16 * CHUNK_BYTES;

/// Whether `a` is `b` or comes after it, in 24-bit sequence numbers.
fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) & SEQUENCE_MASK < 1 << 23
}

/// A request from the engine.
pub fn post(node: &Node, part: &Part, wqe: &Wqe<'_>) -> Posted {
    let mut side = lock(&part.send);
    if side.failed {
        // The engine flushes it.
        return Posted::Busy;
    }
    if let Some(faults) = &part.faults {
        let packets = wqe.length.div_ceil(side.mtu).max(1);
        if !faults.arrives(wqe.seq, packets) {
            return Posted::Done(SendDone::ok(wqe.length as u32));
        }
    }
    if side
        .route
        .as_ref()
        .is_none_or(|route| route.link().is_none())
        && let Some(posted) = without_link(node, part, &mut side)
    {
        return posted;
    }
    // Out of its place meanwhile: to count one more user of it costs as much as a lock.
    let Some(route) = side.route.take() else {
        return Posted::Done(SendDone::failed(WcStatus::RetryExcErr));
    };
    let posted = post_by(part, &mut side, &route, wqe);
    side.route = Some(route);
    posted
}

fn post_by(part: &Part, side: &mut SendSide, route: &Route, wqe: &Wqe<'_>) -> Posted {
    let Some(link) = route.link() else {
        return Posted::Done(SendDone::failed(WcStatus::RetryExcErr));
    };
    let opcode = wqe.wr.opcode;
    let one_sided = reach::right(opcode).is_some();
    let mut written = false;
    if side.blocked_until != 0 || side.next_send < side.queue.len() {
        return busy(side);
    }
    if one_sided {
        if side.queue.is_empty() {
            if let Some(done) = direct(part, side, link, wqe) {
                if opcode != WrOpcode::RdmaWriteWithImm {
                    return Posted::Done(done);
                }
                written = true;
            }
        } else if wqe.length > SPAN_DATA_BYTES as u64 {
            // It may go past the ring once what is in front of it is done, which saves copies.
            // Short ones follow each other through the ring: where the peer's thread has to carry
            // them out, one wake-up does for all.
            return busy(side);
        }
    }
    let described = is_send(opcode) && is_described(route, link, wqe);
    let data = if is_send(opcode) {
        CHUNK_BYTES
    } else {
        SPAN_DATA_BYTES
    };
    let records = if described || written || opcode_is_atomic(opcode) {
        1
    } else {
        (wqe.length as usize).div_ceil(data).max(1) as u32
    };
    let first = side.next_sequence;
    side.next_sequence = first.wrapping_add(records) & SEQUENCE_MASK;
    side.queue.push_back(Entry {
        seq: wqe.seq,
        opcode,
        len: wqe.length as u32,
        first,
        records,
        sent: 0,
        answered: 0,
        described,
        written,
    });
    push_records(part, side, route, link, wqe);
    Posted::Pending
}

fn busy(side: &mut SendSide) -> Posted {
    side.busy = true;
    Posted::Busy
}

/// There is no link now. None: there is one after all.
fn without_link(node: &Node, part: &Part, side: &mut SendSide) -> Option<Posted> {
    // Each turn either ends or replaces `None` by a route, or finds a route just connected.
    for _ in 0..3 {
        match &side.route {
            Some(route) if route.link().is_some() => return None,
            Some(route) if route.is_down() => break,
            Some(route) => {
                if route.wait(part.slot) {
                    return Some(busy(side));
                }
            }
            None => match connect::to(node, side.peer_qpn) {
                Ok(route) => side.route = Some(route),
                Err(_) => {
                    let now = os::now_ns();
                    if give_up(side, now) {
                        break;
                    }
                    node.set_timer(now + RETRY_NS, part.slot);
                    return Some(busy(side));
                }
            },
        }
    }
    Some(Posted::Done(SendDone::failed(WcStatus::RetryExcErr)))
}

/// Starts or checks the time after which an unresponsive peer is given up.
fn give_up(side: &mut SendSide, now: u64) -> bool {
    if side.give_up == 0 {
        side.give_up = now.saturating_add(side.patience);
    }
    now >= side.give_up
}

fn direct(part: &Part, side: &mut SendSide, link: &Outgoing, wqe: &Wqe<'_>) -> Option<SendDone> {
    if !matches!(part.kind, QpType::Rc | QpType::Uc) {
        return None;
    }
    let ends = Ends {
        own_qpn: part.qpn,
        peer_qpn: side.peer_qpn,
        peer_slot: side.peer_slot,
        same_process: link.peer.same_process,
    };
    if let done @ Some(_) = reach::direct(link, &ends, wqe) {
        return done;
    }
    // The peer's place is looked up when it is first needed.
    let slot = link.peer.directory.qp_slot(side.peer_qpn)?;
    if slot == side.peer_slot {
        return None;
    }
    side.peer_slot = slot;
    reach::direct(
        link,
        &Ends {
            peer_slot: slot,
            ..ends
        },
        wqe,
    )
}

/// Sends what waits: rewound requests and halves, then whatever the engine holds back.
pub fn pump(part: &Part, after: &mut Aftermath) {
    loop {
        let (seq, qp, route) = {
            let side = lock(&part.send);
            if side.blocked_until != 0 {
                return;
            }
            let Some(entry) = side.queue.get(side.next_send) else {
                break;
            };
            match (&side.qp, &side.route) {
                (Some(qp), Some(route)) => (entry.seq, qp.clone(), route.clone()),
                _ => return,
            }
        };
        let Some(link) = route.link() else { return };
        let complete = qp.with_wqe(seq, |wqe| {
            let mut side = lock(&part.send);
            let index = side.next_send;
            match side.queue.get(index) {
                Some(entry) if entry.seq == seq && side.blocked_until == 0 => {
                    push_records(part, &mut side, &route, link, wqe);
                    let complete = side.next_send > index;
                    if complete && let Some(tap) = &part.tap {
                        tap.sent(wqe);
                    }
                    complete
                }
                _ => true,
            }
        });
        match complete {
            Some(true) => {}
            // The ring is full, and the queue pair is in its list of the starved.
            Some(false) => return,
            // Flushed by the engine, which tells us by `modify`.
            None => return,
        }
    }
    resume(part, after);
}

fn resume(part: &Part, after: &mut Aftermath) {
    let qp: Option<Arc<Qp>> = {
        let mut side = lock(&part.send);
        if core::mem::take(&mut side.busy) {
            side.qp.clone()
        } else {
            None
        }
    };
    if let Some(qp) = qp {
        qp.resume(after);
    }
}

/// A timer of the queue pair is due: what it waited for is tried again.
pub fn timer(part: &Part, now: u64, after: &mut Aftermath) {
    {
        let mut side = lock(&part.send);
        if side.blocked_until > now {
            return;
        }
        side.blocked_until = 0;
    }
    pump(part, after);
}

/// The peer's process has ended.
pub fn route_ended(part: &Part, route: &Arc<Route>, after: &mut Aftermath) {
    let side = lock(&part.send);
    let uses = side
        .route
        .as_ref()
        .is_some_and(|used| Arc::ptr_eq(used, route));
    if part.kind == QpType::Ud {
        drop(side);
        return resume(part, after);
    }
    if !uses {
        return;
    }
    if !side.queue.is_empty() {
        return fail_first(part, side, WcStatus::RetryExcErr, after);
    }
    let (qp, peer_qpn) = (side.qp.clone(), side.peer_qpn);
    drop(side);
    resume(part, after);
    // Unreliable connections have no end that anybody could hear of.
    if part.is_reliable()
        && route.ended_connected(part.qpn, peer_qpn)
        && let Some(qp) = qp
    {
        // Whoever waits for a message gets its receives back.
        qp.fail(None, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(0, SEQUENCE_MASK) && !reached(SEQUENCE_MASK, 0));
    }
}
