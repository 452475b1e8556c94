//! The send queue: what was posted, what the transport has, what is complete.
//!
//! Requests are counted from 0. `front ≤ handed ≤ tail`: those before [`Front`] are complete, those
//! before `handed` are the transport's or done, those before `tail` are held. The room of a
//! request is free again when its completion was polled ([`Credit::sends`]).
//!
//! A transport that works by record ends requests in their order, and without the queue's lock
//! ([`SendQueue`] is behind it) as long as they are all that there is: none is held or done and waits for its turn,
//! nothing has failed, nothing is to drain. Else the front is guarded.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::opcode::{Facts, Opcodes, facts};
use sluice_verbs_model::refusal::LocalFault;
use sluice_verbs_model::states::{Posting, sending};
use sluice_verbs_model::transport::{Posted, SendDone};
use sluice_verbs_model::types::{QpCap, QpState, QpType, Sge, Wc, WcStatus, WrOpcode, send_flags};

use crate::cq::{Completion, Credit, Release};
use crate::front::Front;
use crate::mw::check_bind;
use crate::pair::{After, Pair, add};
use crate::records::{Name, Phase, Records};
use crate::sync::wait_a_moment;
use crate::wr::{Handed, SendWr, Wqe};

pub(crate) struct SendQueue {
    pub state: QpState,
    /// SQ_DRAINED is wished.
    pub drain_event: bool,
    /// The first request that is not complete, where the transport does not work by record.
    head: u64,
    /// The same where it does.
    front: Arc<Front>,
    /// It is guarded, or nobody ends requests without the lock.
    guarded: bool,
    handed: u64,
    tail: u64,
    /// Requests behind the front that are done and wait for their turn.
    waiting: u64,
    /// READs and atomics that are under way.
    reads: u32,
    /// The transport said so.
    busy: bool,
    /// A request has failed: nothing more goes out.
    stuck: bool,
    /// That failure has been completed: the rest will be flushed, whatever becomes of it.
    dead: bool,
    /// ERR or SQE, and all that there was is flushed.
    flushed: bool,
    /// QpInit::sq_sig_all as a flag.
    always: u32,
    type_bit: u8,
    /// What may be posted.
    opcodes: Opcodes,
    max_wr: u32,
    max_sge: u32,
    max_inline: u32,
    /// Bytes.
    max_length: u64,
    records: Records,
    /// What was lent to the transport, which is to hear of it.
    lent: Handed,
    /// The transport works on requests by their records ([`crate::QpTransport::posted`]).
    by_record: bool,
}

/// What a send queue is like.
pub struct Making {
    pub qp_type: QpType,
    /// What can be posted.
    pub opcodes: Opcodes,
    /// All requests are signalled.
    pub always: bool,
    /// Bytes of a message.
    pub max_length: u64,
    /// The transport works [by record](crate::QpTransport::is_by_record).
    pub by_record: bool,
}

impl SendQueue {
    pub fn new(making: &Making, cap: &QpCap, records: Records, front: Arc<Front>) -> SendQueue {
        let &Making {
            qp_type,
            opcodes,
            always,
            max_length,
            by_record,
        } = making;
        SendQueue {
            state: QpState::Reset,
            drain_event: false,
            head: 0,
            front,
            guarded: true,
            handed: 0,
            tail: 0,
            waiting: 0,
            reads: 0,
            busy: false,
            stuck: false,
            dead: false,
            flushed: false,
            always: if always { send_flags::SIGNALED } else { 0 },
            type_bit: sluice_verbs_model::opcode::type_bit(qp_type),
            opcodes,
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_length,
            records,
            lent: Handed::default(),
            by_record,
        }
    }

    /// The first request that is not complete.
    #[inline]
    fn head(&self) -> u64 {
        if self.by_record {
            self.front.position()
        } else {
            self.head
        }
    }

    /// Requests are under way although the queue is to drain.
    pub fn is_draining(&self) -> bool {
        self.state == QpState::Sqd && self.head() < self.handed
    }

    /// Requests wait for the transport to have room.
    pub fn holds_requests(&self) -> bool {
        self.state == QpState::Rts && self.busy && self.handed < self.tail
    }

    /// Takes a request, and carries it out if nothing is in its way.
    #[inline]
    pub fn post(&mut self, qp: &impl Pair, credit: &Credit, wr: &SendWr<'_>) -> Result<After> {
        let posting = sending(self.state);
        if posting == Posting::Refused {
            return Err(Error::WrongState);
        }
        let facts = facts(wr.opcode);
        let length = self.check(wr, facts)?;
        let polled = credit.sends.load(Ordering::Acquire);
        if self.tail - polled >= u64::from(self.max_wr) {
            return Err(Error::QueueFull);
        }
        add(&qp.sent().posted, 1);
        if self.by_record {
            self.await_place();
        }
        let seq = self.tail;
        let at_once = self.handed == seq
            && posting == Posting::Works
            && !self.busy
            && !self.stuck
            && (self.reads == 0 || wr.flags & send_flags::FENCE == 0);
        if !at_once {
            return Ok(self.hold(qp, wr, length));
        }
        let posted = self.hand_at_once(qp, wr, facts, length, seq);
        let done = match posted {
            Posted::Done(done) => done,
            Posted::Pending => {
                // `hand_at_once` has kept it.
                self.tail += 1;
                self.handed += 1;
                self.reads += u32::from(facts.reads);
                self.lend(seq, length);
                return Ok(After::default());
            }
            Posted::Busy => {
                self.tail += 1;
                self.busy = true;
                return Ok(After::default());
            }
        };
        self.tail += 1;
        self.handed += 1;
        if self.head() != seq {
            // Others are before it: it waits for its turn, unless that has come meanwhile.
            self.records.keep(seq, wr, &[], true, length);
            self.guard();
            self.finish(seq, done);
            return Ok(self.retire_ended(qp));
        }
        self.pass();
        let signalled = (wr.flags | self.always) & send_flags::SIGNALED != 0;
        if done.status != WcStatus::Success {
            self.stuck = true;
            self.dead = true;
            self.guard();
            add(&qp.sent().failed, 1);
        } else {
            add(&qp.sent().bytes, u64::from(done.byte_len));
            if !signalled {
                return Ok(After::default());
            }
        }
        Ok(complete(qp, wr.wr_id, wr.opcode, done, seq))
    }

    /// Whether [`SendQueue::post`] would take a request that comes after `ahead` others.
    pub fn check_post(&self, credit: &Credit, wr: &SendWr<'_>, ahead: u64) -> Result<()> {
        if sending(self.state) == Posting::Refused {
            return Err(Error::WrongState);
        }
        self.check(wr, facts(wr.opcode))?;
        let polled = credit.sends.load(Ordering::Acquire);
        if self.tail - polled + ahead >= u64::from(self.max_wr) {
            return Err(Error::QueueFull);
        }
        Ok(())
    }

    /// What makes the call itself fail. Bytes of local memory.
    #[inline]
    fn check(&self, wr: &SendWr<'_>, facts: &Facts) -> Result<u64> {
        if !self.opcodes.contains(wr.opcode) || wr.flags & !send_flags::ALL != 0 {
            return Err(Error::BadOpcode);
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(Error::TooManySges);
        }
        let length = wr.length();
        if wr.is_inline() {
            if !facts.may_inline {
                return Err(Error::BadOpcode);
            }
            if length > u64::from(self.max_inline) {
                return Err(Error::InlineTooLong);
            }
        }
        if length > self.max_length {
            return Err(Error::MessageTooLong);
        }
        if self.type_bit == sluice_verbs_model::opcode::UD && wr.ud.is_none() {
            return Err(Error::WrongObject);
        }
        if facts.local && wr.opcode == WrOpcode::BindMw {
            check_bind(wr.bind.as_ref().ok_or(Error::WrongObject)?)?;
        }
        Ok(length)
    }

    /// Hands over a request of which nothing is kept yet; keeps it if the transport does not do
    /// it at once.
    #[inline]
    fn hand_at_once(
        &mut self,
        qp: &impl Pair,
        wr: &SendWr<'_>,
        facts: &Facts,
        length: u64,
        seq: u64,
    ) -> Posted {
        if facts.local {
            return Posted::Done(carry_out_locally(qp, wr));
        }
        if !wr.is_inline() {
            match check_pieces(qp, facts, wr.sges, length) {
                Err(fault) => return Posted::Done(SendDone::failed(fault.status())),
                Ok(Moved::No) => {}
                // Regions whose addresses are not the process's: the list must be rewritten.
                Ok(Moved::Yes) => {
                    self.records.keep(seq, wr, wr.sges, false, length);
                    let posted = self.hand_kept(qp, seq, facts);
                    self.note(seq, posted);
                    return posted;
                }
            }
        }
        let mut wr = *wr;
        resolve_qkey(qp, &mut wr);
        let posted = qp.hand(&Wqe { seq, wr, length });
        if !matches!(posted, Posted::Done(_)) {
            self.records.keep(seq, &wr, wr.sges, true, length);
            self.note(seq, posted);
        }
        posted
    }

    /// What the transport has said of a request that is kept.
    #[inline]
    fn note(&mut self, seq: u64, posted: Posted) {
        let phase = match posted {
            Posted::Done(done) => Phase::Done(done),
            Posted::Pending => Phase::Pending,
            Posted::Busy => Phase::Held,
        };
        self.records.set_phase(seq, phase);
    }

    /// A request is the transport's from now on, which works on its record if it does so at all.
    #[inline]
    fn lend(&mut self, seq: u64, length: u64) {
        if self.by_record {
            self.records.lend(seq);
            self.lent.and(Handed::one(seq, length));
        }
    }

    /// What was lent to the transport since it last heard of it.
    #[inline]
    pub fn take_lent(&mut self) -> Handed {
        core::mem::take(&mut self.lent)
    }

    /// Queues a request behind others, or flushes it where nothing is carried out any more.
    #[cold]
    fn hold(&mut self, qp: &impl Pair, wr: &SendWr<'_>, length: u64) -> After {
        let seq = self.tail;
        self.tail += 1;
        self.guard();
        if self.flushed {
            self.handed = self.tail;
            self.jump(self.tail);
            add(&qp.sent().failed, 1);
            let done = SendDone::failed(WcStatus::WrFlushErr);
            let mut after = complete(qp, wr.wr_id, wr.opcode, done, seq);
            after.broken = false;
            return after;
        }
        self.records.keep(seq, wr, wr.sges, false, length);
        self.note(seq, Posted::Busy);
        After::default()
    }

    /// The end of a request that is kept, which is completed in its turn.
    fn finish(&mut self, seq: u64, done: SendDone) {
        self.note(seq, Posted::Done(done));
        self.waiting += 1;
        self.stuck |= done.status != WcStatus::Success;
    }

    /// Waits until the place of the next request is free. It is, but for the few instructions between a
    /// completion that somebody has polled already and the front that goes past it.
    #[inline]
    fn await_place(&self) {
        let mut rounds = 0;
        while self.tail - self.head() >= self.records.len() as u64 {
            wait_a_moment(&mut rounds);
        }
    }

    /// The transport is to take the lock for what ends from now on.
    #[inline]
    fn guard(&mut self) {
        if !self.guarded {
            self.guarded = true;
            self.front.guard();
        }
    }

    /// Lets the transport end requests without the lock if they are all that there is, or does not.
    fn guard_if_needed(&mut self) {
        let plain = self.by_record
            && self.state == QpState::Rts
            && self.handed == self.tail
            && self.waiting == 0
            && !(self.stuck || self.dead || self.flushed || self.busy || self.drain_event);
        if !plain {
            self.guard();
        } else if self.guarded {
            self.guarded = false;
            self.front.unguard();
        }
    }

    /// The first request is complete.
    #[inline]
    fn pass(&mut self) {
        if self.by_record {
            self.front.pass();
        } else {
            self.head += 1;
        }
    }

    /// All requests before this one are complete or flushed.
    fn jump(&mut self, seq: u64) {
        self.guarded = true;
        self.head = seq;
        self.front.jump(seq);
    }

    /// `Qp::complete_send`: false when there is no such request. The first one is complete then if it went well;
    /// others are completed in their turn ([`SendQueue::retire_ended`]).
    pub fn end_pending(
        &mut self,
        qp: &impl Pair,
        seq: u64,
        done: SendDone,
        after: &mut After,
    ) -> bool {
        let head = self.head();
        if seq < head || seq >= self.handed {
            return false;
        }
        let (phase, name) = self.records.state(seq);
        if phase != Phase::Pending {
            return false;
        }
        if self.reads > 0 {
            self.reads -= u32::from(facts(name.opcode).reads);
        }
        // Nobody else goes past the first one, which is no longer lent.
        if head == seq && done.status == WcStatus::Success && self.completes() {
            add(&qp.sent().bytes, u64::from(done.byte_len));
            if (name.flags | self.always) & send_flags::SIGNALED != 0 {
                after.and(complete(qp, name.wr_id, name.opcode, done, seq));
            }
            self.pass();
            return true;
        }
        self.guard();
        self.finish(seq, done);
        true
    }

    /// Requests that have ended are completed in the state that it is in.
    fn completes(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd) && !self.dead
    }

    /// `Qp::with_wqe`.
    pub fn look<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        if seq < self.head() || seq >= self.handed {
            return None;
        }
        if self.records.phase(seq) != Phase::Pending {
            return None;
        }
        Some(self.records.look(seq, look))
    }

    pub fn no_longer_busy(&mut self) {
        self.busy = false;
    }

    /// Completes what is done and hands over what is held, as far as both go.
    pub fn pump(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        self.guard_if_needed();
        loop {
            let before = (self.head(), self.handed);
            if self.completes() {
                self.hand_held(qp);
                after.and(self.retire(qp));
            }
            if before == (self.head(), self.handed) || self.dead {
                break;
            }
        }
        self.note_drained(&mut after);
        self.guard_if_needed();
        after
    }

    /// Completes what is done, as far as that goes without handing anything over.
    pub fn retire_ended(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        if self.completes() {
            after = self.retire(qp);
        }
        self.note_drained(&mut after);
        self.guard_if_needed();
        after
    }

    fn note_drained(&mut self, after: &mut After) {
        if self.state == QpState::Sqd && self.drain_event && self.head() == self.handed {
            self.drain_event = false;
            after.drained = true;
        }
    }

    /// Whether the next held request can go out now.
    pub fn can_hand_over(&self) -> bool {
        if self.handed == self.tail
            || self.state != QpState::Rts
            || self.busy
            || self.stuck
            || self.dead
        {
            return false;
        }
        self.reads == 0 || self.records.name(self.handed).flags & send_flags::FENCE == 0
    }

    fn hand_held(&mut self, qp: &impl Pair) {
        while self.handed < self.tail && self.state == QpState::Rts && !self.busy && !self.stuck {
            let seq = self.handed;
            let Name { opcode, flags, .. } = self.records.name(seq);
            let facts = facts(opcode);
            if self.reads > 0 && flags & send_flags::FENCE != 0 {
                break;
            }
            let posted = self.hand_kept(qp, seq, facts);
            self.note(seq, posted);
            match posted {
                Posted::Busy => {
                    self.busy = true;
                    break;
                }
                Posted::Pending => {
                    self.reads += u32::from(facts.reads);
                    let length = self.records.look(seq, |wqe| wqe.length);
                    self.lend(seq, length);
                }
                Posted::Done(done) => {
                    self.finish(seq, done);
                }
            }
            self.handed += 1;
        }
    }

    fn hand_kept(&mut self, qp: &impl Pair, seq: u64, facts: &Facts) -> Posted {
        if facts.local {
            let done = self.records.look(seq, |wqe| carry_out_locally(qp, &wqe.wr));
            return Posted::Done(done);
        }
        if !self.records.is_translated(seq) {
            let translated = self.records.translate(seq, |list, length| {
                check_pieces(qp, facts, list, length)?;
                translate(qp, facts, list)
            });
            if let Err(fault) = translated {
                return Posted::Done(SendDone::failed(fault.status()));
            }
        }
        if self.type_bit == sluice_verbs_model::opcode::UD {
            self.records.set_qkey(seq, |key| resolved(qp, key));
        }
        self.records.look(seq, |wqe| qp.hand(wqe))
    }

    /// Completes the oldest requests as far as they are done.
    fn retire(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        loop {
            let seq = self.head();
            if seq >= self.handed {
                break;
            }
            let (Phase::Done(done), name) = self.records.state(seq) else {
                break;
            };
            let Name {
                wr_id,
                opcode,
                flags,
            } = name;
            if opcode == WrOpcode::BindMw {
                self.records.release(seq);
            }
            let signalled = (flags | self.always) & send_flags::SIGNALED != 0;
            self.waiting -= 1;
            if done.status == WcStatus::Success {
                add(&qp.sent().bytes, u64::from(done.byte_len));
            } else {
                add(&qp.sent().failed, 1);
                self.dead = true;
            }
            if signalled || self.dead {
                after.and(complete(qp, wr_id, opcode, done, seq));
            }
            // Behind the completion: the transport may end the next one from here on.
            self.pass();
            if self.dead {
                break;
            }
        }
        after
    }

    /// ERR or SQE: everything that is not complete is flushed, signalled or not, in order
    /// (IBTA 10.3.1.5, 10.3.1.6).
    pub fn flush(&mut self, qp: &impl Pair) {
        for seq in self.head()..self.tail {
            let Name { wr_id, opcode, .. } = self.records.name(seq);
            if opcode == WrOpcode::BindMw {
                self.records.release(seq);
            }
            add(&qp.sent().failed, 1);
            // In ERR there is nothing worse to come of a full CQ.
            let _ = complete(
                qp,
                wr_id,
                opcode,
                SendDone::failed(WcStatus::WrFlushErr),
                seq,
            );
        }
        self.jump(self.tail);
        self.handed = self.tail;
        self.waiting = 0;
        self.reads = 0;
        self.busy = false;
        self.flushed = true;
    }

    /// SQE to RTS.
    pub fn recover(&mut self) {
        self.stuck = false;
        self.dead = false;
        self.flushed = false;
        self.busy = false;
    }

    /// RESET.
    pub fn clear(&mut self) {
        self.records.release_all();
        self.jump(0);
        self.handed = 0;
        self.tail = 0;
        self.waiting = 0;
        self.reads = 0;
        self.drain_event = false;
        self.recover();
    }
}

/// Puts a completion to the QP's CQ.
#[inline]
fn complete(qp: &impl Pair, wr_id: u64, opcode: WrOpcode, done: SendDone, seq: u64) -> After {
    let failed = done.status != WcStatus::Success;
    let overrun = qp.push_send(&Completion {
        wc: Wc {
            wr_id,
            status: done.status as u32,
            opcode: facts(opcode).completion as u32,
            vendor_err: done.vendor_err,
            byte_len: done.byte_len,
            qp_num: qp.num(),
            ..Wc::default()
        },
        release: Release::SendsTo(seq + 1),
        solicited: false,
    });
    After {
        broken: failed,
        overrun: overrun.is_err(),
        ..After::default()
    }
}

/// What became of a request that was to end without the queue's lock.
pub(crate) enum Ended {
    /// It is complete.
    Complete(After),
    /// So it is, and the lock is to be taken for what follows.
    Followed(After),
    /// The lock is to be taken for it.
    NotYet,
}

/// Ends a request of a transport that works by record, by the one who has the lent records. `always`: as
/// [`QpInit::sq_sig_all`](crate::QpInit::sq_sig_all).
#[inline]
pub(crate) fn end_lent(
    qp: &impl Pair,
    front: &Front,
    name: &Name,
    always: bool,
    seq: u64,
    done: SendDone,
) -> Ended {
    let reads = facts(name.opcode).reads;
    if reads || done.status != WcStatus::Success || !front.may_end(seq) {
        return Ended::NotYet;
    }
    add(&qp.sent().lent_bytes, u64::from(done.byte_len));
    let mut after = After::default();
    if always || name.flags & send_flags::SIGNALED != 0 {
        after = complete(qp, name.wr_id, name.opcode, done, seq);
    }
    match front.pass() {
        false => Ended::Complete(after),
        true => Ended::Followed(after),
    }
}

enum Moved {
    No,
    Yes,
}

/// Looks whether the pieces are registered memory that the operation may touch.
#[inline]
fn check_pieces(
    qp: &impl Pair,
    facts: &Facts,
    pieces: &[Sge],
    length: u64,
) -> Result<Moved, LocalFault> {
    if facts.atomic && length != 8 {
        return Err(LocalFault::Length);
    }
    let keys = &qp.adapter().keys;
    let mut moved = Moved::No;
    for piece in pieces.iter().filter(|piece| piece.length != 0) {
        let host = keys
            .local(
                piece.lkey,
                qp.pd_id(),
                piece.addr,
                piece.length,
                facts.reads,
            )
            .ok_or(LocalFault::Protection)?;
        if host != piece.addr {
            moved = Moved::Yes;
        }
    }
    Ok(moved)
}

/// Puts addresses of the process in place of those in the regions.
fn translate(qp: &impl Pair, facts: &Facts, pieces: &mut [Sge]) -> Result<(), LocalFault> {
    let keys = &qp.adapter().keys;
    for piece in pieces.iter_mut().filter(|piece| piece.length != 0) {
        piece.addr = keys
            .local(
                piece.lkey,
                qp.pd_id(),
                piece.addr,
                piece.length,
                facts.reads,
            )
            .ok_or(LocalFault::Protection)?;
    }
    Ok(())
}

/// A datagram whose key has the highest bit set goes with the QP's own (IBTA 10.2.5).
fn resolve_qkey(qp: &impl Pair, wr: &mut SendWr<'_>) {
    if let Some(ud) = &mut wr.ud {
        ud.qkey = resolved(qp, ud.qkey);
    }
}

fn resolved(qp: &impl Pair, key: u32) -> u32 {
    match key & 1 << 31 {
        0 => key,
        _ => qp.qkey(),
    }
}

/// Bindings and local invalidations.
#[cold]
fn carry_out_locally(qp: &impl Pair, wr: &SendWr<'_>) -> SendDone {
    let status = match (wr.opcode, &wr.bind) {
        (WrOpcode::BindMw, Some(bind)) => bind.mw.bind(bind, qp.pd_id(), qp.num()),
        (WrOpcode::LocalInv, _) => {
            let windows = &qp.adapter().windows;
            match windows.invalidate(wr.imm, qp.pd_id(), qp.num()) {
                Ok(()) => WcStatus::Success,
                Err(_) => WcStatus::MwBindErr,
            }
        }
        _ => WcStatus::LocQpOpErr,
    };
    SendDone {
        status,
        byte_len: 0,
        vendor_err: 0,
    }
}
