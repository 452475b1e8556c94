//! What peers answer: acknowledgements, read data, refusals, and their end.
#![allow(unsafe_code)]

use super::records::{SPAN_DATA_BYTES, opcode_is_atomic};
use super::{RETRY_NS, ROOM_BYTES, give_up, pump, reached};
use crate::link::{LOOKS, Outgoing, Sent, requests_max};
use crate::node::{Links, Node};
use crate::part::{Entry, Part, SendSide};
use crate::route::Route;
use crate::wire::{SEQUENCE_MASK, answer};
use crate::{os, wire};
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use sluice_shmem::verbs::record::{Reader, Record};
use sluice_transport::pieces;
use sluice_verbs::locks::{Guard, lock, try_lock};
use sluice_verbs::{Aftermath, SendDone, WcStatus, WrOpcode};
use std::sync::Arc;

/// Requests that the engine hears of in one go.
const ENDED_AT_ONCE: usize = 16;

/// Takes what peers have answered. How much was done.
pub fn progress_all(node: &Node, links: &Links, after: &mut Aftermath) -> usize {
    let each = links.routes.iter();
    each.map(|route| progress(node, route, after)).sum()
}

/// Reads answers and acknowledgements of a link. How many there were. As on the other side,
/// the holder of the lock looks once more after it has let go.
fn progress(node: &Node, route: &Arc<Route>, after: &mut Aftermath) -> usize {
    let Some(link) = route.link() else { return 0 };
    let mut done = 0;
    for _ in 0..LOOKS {
        if !link.is_waiting() {
            return done;
        }
        done += progress_once(node, route, link, after);
    }
    node.hand_over();
    done
}

/// Reads everything that a peer answered before it ended.
pub fn finish(node: &Node, route: &Arc<Route>, after: &mut Aftermath) {
    let Some(link) = route.link() else { return };
    for _ in 0..requests_max() {
        // Waits for whoever is at it: what it reads is not to be taken for lost.
        let mut answers = lock(&link.responses);
        if !link.is_waiting() || read_answers(node, route, link, &mut answers, after) == 0 {
            break;
        }
    }
}

fn progress_once(node: &Node, route: &Arc<Route>, link: &Outgoing, after: &mut Aftermath) -> usize {
    match try_lock(&link.responses) {
        Some(mut answers) => read_answers(node, route, link, &mut answers, after),
        None => 0,
    }
}

fn read_answers(
    node: &Node,
    route: &Arc<Route>,
    link: &Outgoing,
    answers: &mut Reader,
    after: &mut Aftermath,
) -> usize {
    let mut done = 0;
    let position = link.peer_position();
    // There cannot be more answers than requests fit the ring, so this sees all that were
    // written before the position.
    for _ in 0..=requests_max() {
        match answers.peek() {
            Ok(Some(record)) => {
                take_answer(node, route, link, &record, after);
                answers.advance(&record);
                done += 1;
            }
            Ok(None) => break,
            Err(_) => {
                route.break_off();
                return 0;
            }
        }
    }
    if done > 0 {
        link.publish_response_head(answers.head());
    }
    if lock(&link.writer).ring.accept_head(position).is_err() {
        route.break_off();
        return 0;
    }
    link.accepted.store(position, Ordering::Relaxed);
    done + acknowledge(node, link, position, after)
}

/// Tells queue pairs that their requests before `position` are done.
fn acknowledge(node: &Node, link: &Outgoing, position: u64, after: &mut Aftermath) -> usize {
    const NONE: Sent = Sent {
        end: 0,
        slot: 0,
        sequence: 0,
        rewinds: 0,
    };
    let mut total = 0;
    loop {
        let mut batch = [NONE; 32];
        let mut count = 0;
        {
            let mut writer = lock(&link.writer);
            while count < batch.len()
                && let Some(sent) = writer.sent.front()
                && sent.end <= position
            {
                batch[count] = *sent;
                count += 1;
                writer.sent.pop_front();
            }
            link.count_in_flight(|all| all - count);
        }
        total += count;
        for (index, sent) in batch[..count].iter().enumerate() {
            // The last of a run speaks for all.
            let next = batch[..count].get(index + 1);
            if next.is_some_and(|next| next.slot == sent.slot && next.rewinds == sent.rewinds) {
                continue;
            }
            if let Some(part) = node.parts.get(sent.slot) {
                acknowledged(&part, sent.sequence, sent.rewinds, after);
            }
        }
        if count < batch.len() {
            break;
        }
    }
    feed_starved(node, link, after);
    total
}

/// Lets queue pairs that found the ring full go on, in their order, as long as there is room.
fn feed_starved(node: &Node, link: &Outgoing, after: &mut Aftermath) {
    // Each gets one turn; who fills the ring is at the end of the list again.
    let turns = lock(&link.writer).starved.len();
    for _ in 0..turns {
        let slot = {
            let mut writer = lock(&link.writer);
            if !writer.ring.fits(ROOM_BYTES) {
                return;
            }
            writer.starved.pop_front()
        };
        if let Some(part) = slot.and_then(|slot| node.parts.get(slot)) {
            pump(&part, after);
        }
    }
}

/// Everything up to `sequence` behind so many `rewinds` was carried out.
fn acknowledged(part: &Part, sequence: u32, rewinds: u16, after: &mut Aftermath) {
    loop {
        let mut ended = ArrayVec::<_, ENDED_AT_ONCE>::new();
        let mut resumes = false;
        let qp = {
            let mut side = lock(&part.send);
            if side.rewinds != rewinds {
                return;
            }
            while !ended.is_full()
                && side.next_send > 0
                && let Some(entry) = side.queue.front()
            {
                let last = entry.first.wrapping_add(entry.records - 1) & SEQUENCE_MASK;
                if !reached(sequence, last) {
                    break;
                }
                let outcome = outcome(entry);
                ended.push((entry.seq, outcome));
                side.queue.pop_front();
                side.next_send -= 1;
                if outcome.status != WcStatus::Success {
                    side.forget();
                    break;
                }
            }
            if !ended.is_empty() {
                side.give_up = 0;
                side.rnr_left = side.rnr_retry;
            }
            if !ended.is_full()
                && side.busy
                && side.next_send == side.queue.len()
                && side.blocked_until == 0
            {
                side.busy = false;
                resumes = true;
            }
            if ended.is_empty() && !resumes {
                return;
            }
            side.qp.clone()
        };
        let Some(qp) = qp else { return };
        if let Some(tap) = &part.tap {
            for (seq, outcome) in &ended {
                tap.completing(&qp, *seq, outcome);
            }
        }
        if !ended.is_empty() {
            qp.complete_sends(&ended, after);
        }
        if resumes {
            qp.resume(after);
        }
        if !ended.is_full() {
            return;
        }
    }
}

/// How an acknowledged request ended. One that reads is done only with its data.
fn outcome(entry: &Entry) -> SendDone {
    let reads = entry.opcode == WrOpcode::RdmaRead || opcode_is_atomic(entry.opcode);
    if reads && entry.answered < entry.records {
        SendDone::failed(WcStatus::BadRespErr)
    } else {
        SendDone::ok(entry.len)
    }
}

/// An answer to one request of a queue pair.
fn take_answer(
    node: &Node,
    route: &Arc<Route>,
    link: &Outgoing,
    record: &Record,
    after: &mut Aftermath,
) {
    let header = &record.header;
    let Some(slot) = node.directory.qp_slot(header.target) else {
        return;
    };
    let Some(part) = node.parts.get(slot as u32) else {
        return;
    };
    let is_ours = |side: &SendSide| {
        side.rewinds == header.short
            && side
                .route
                .as_ref()
                .is_some_and(|used| Arc::ptr_eq(used, route))
    };
    if part.qpn != header.target || !part.is_reliable() || !is_ours(&lock(&part.send)) {
        return;
    }
    match header.kind {
        answer::DATA | answer::VALUE => return take_data(&part, link, record),
        answer::RNR | answer::NOT_READY | answer::REFUSED => {}
        _ => return,
    }
    // A refusal acknowledges everything before it.
    let before = header.sequence.wrapping_sub(1) & SEQUENCE_MASK;
    acknowledged(&part, before, header.short, after);
    if part.tap.is_some() {
        let first = {
            let side = lock(&part.send);
            side.qp.clone().zip(side.queue.front().copied())
        };
        // Waits for a `post` under way, which says to the trace what it has posted: that comes first.
        if let Some((qp, entry)) = first {
            qp.with_wqe(entry.seq, |_| ());
        }
    }
    let mut side = lock(&part.send);
    if !is_ours(&side) {
        return;
    }
    let Some(entry) = side.queue.front().copied() else {
        return;
    };
    let record_index = header.sequence.wrapping_sub(entry.first) & SEQUENCE_MASK;
    if side.next_send == 0 && entry.sent == 0 || record_index >= entry.records {
        return;
    }
    if let Some(tap) = &part.tap
        && header.kind != answer::REFUSED
    {
        let rnr = header.kind == answer::RNR;
        tap.put_off(rnr.then_some(header.immediate as u8));
    }
    let now = os::now_ns();
    let status = match header.kind {
        answer::REFUSED => Some(wire::reason(header.immediate).requester_status()),
        answer::RNR if side.rnr_retry == 7 => None,
        answer::RNR => match side.rnr_left.checked_sub(1) {
            Some(left) => {
                side.rnr_left = left;
                None
            }
            None => Some(WcStatus::RnrRetryExcErr),
        },
        _ => give_up(&mut side, now).then_some(WcStatus::RetryExcErr),
    };
    if let Some(status) = status {
        fail_first(&part, side, status, after);
        return;
    }
    rewind(&mut side, record_index);
    side.blocked_until = now
        + match header.kind {
            answer::RNR => wire::rnr_us(header.immediate) * 1000,
            _ => RETRY_NS,
        };
    let when = side.blocked_until;
    drop(side);
    node.set_timer(when, part.slot);
}

/// Goes back to a record of the first request; everything from there on is sent again.
fn rewind(side: &mut SendSide, record_index: u32) {
    side.rewinds = side.rewinds.wrapping_add(1);
    side.next_send = 0;
    for entry in &mut side.queue {
        entry.sent = 0;
    }
    if let Some(first) = side.queue.front_mut() {
        first.sent = record_index;
        first.answered = first.answered.min(record_index);
    }
}

pub(super) fn fail_first(
    part: &Part,
    mut side: Guard<'_, SendSide>,
    status: WcStatus,
    after: &mut Aftermath,
) {
    let Some(entry) = side.queue.pop_front() else {
        return;
    };
    side.forget();
    side.failed = true;
    let qp = side.qp.clone();
    drop(side);
    if let Some(qp) = qp {
        let outcome = SendDone::failed(status);
        if let Some(tap) = &part.tap {
            tap.completing(&qp, entry.seq, &outcome);
        }
        qp.complete_send(entry.seq, outcome, after);
    }
}

/// Data of a READ or the value of an atomic.
fn take_data(part: &Part, link: &Outgoing, record: &Record) {
    let header = &record.header;
    let found = {
        let side = lock(&part.send);
        let entry = side.queue.iter().find(|entry| {
            header.sequence.wrapping_sub(entry.first) & SEQUENCE_MASK < entry.records
        });
        entry.copied().zip(side.qp.clone())
    };
    let Some((entry, qp)) = found else { return };
    let _ = link;
    let index = header.sequence.wrapping_sub(entry.first) & SEQUENCE_MASK;
    let placed = qp.with_wqe(entry.seq, |wqe| match (header.kind, entry.opcode) {
        (answer::VALUE, WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd) => {
            let value = header.argument;
            // SAFETY: the engine checked the pieces and keeps them until completion.
            unsafe { pieces::scatter(wqe.wr.sges, 0, (&raw const value).cast(), 8) };
            true
        }
        (answer::DATA, WrOpcode::RdmaRead) => {
            let offset = u64::from(index) * SPAN_DATA_BYTES as u64;
            let wanted = (wqe.length - offset.min(wqe.length)).min(SPAN_DATA_BYTES as u64);
            if record.payload_bytes as u64 != wanted {
                return false;
            }
            // SAFETY: the engine checked the pieces and keeps them until completion; the payload lies in
            // the ring until its reader, which the caller has locked, goes on.
            unsafe {
                pieces::scatter(wqe.wr.sges, offset, record.payload, record.payload_bytes);
            }
            true
        }
        _ => false,
    });
    if placed == Some(true) {
        let mut side = lock(&part.send);
        if let Some(now) = side.queue.iter_mut().find(|now| now.seq == entry.seq) {
            now.answered += 1;
        }
    }
}
