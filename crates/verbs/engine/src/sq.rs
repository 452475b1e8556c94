//! The send queue: what was posted, what the transport has, what is complete.
//!
//! Requests are counted from 0. `head ≤ handed ≤ tail`: those before `head` are complete, those
//! before `handed` are the transport's or done, those before `tail` are held. The room of a
//! request is free again when its completion was polled ([`Credit::sends`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::opcode::{Facts, facts};
use sluice_verbs_model::refusal::LocalFault;
use sluice_verbs_model::states::{Posting, sending};
use sluice_verbs_model::transport::{Posted, SendDone};
use sluice_verbs_model::types::{
    AhAttr, QpCap, QpState, QpType, Sge, Wc, WcStatus, WrOpcode, send_flags,
};

use crate::adapter::Adapter;
use crate::cq::{Completion, Credit, Overrun, Release};
use crate::memory;
use crate::mr::Mr;
use crate::mw::{Mw, check_bind};
use crate::wr::{MwBind, SendWr, UdDestination, Wqe};

/// The queue pair, as its send queue knows it.
pub(crate) trait Pair {
    fn num(&self) -> u32;
    fn pd_id(&self) -> u32;
    fn qkey(&self) -> u32;
    fn adapter(&self) -> &Adapter;
    fn sent(&self) -> &SendTally;

    /// Hands a request to the transport.
    fn hand(&self, wqe: &Wqe<'_>) -> Posted;

    /// Puts a completion to the CQ of sends.
    fn push_send(&self, completion: &Completion) -> Result<(), Overrun>;
}

/// What the QP must do once the queue's lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct After {
    /// A request failed.
    pub broken: bool,
    /// A completion was lost.
    pub overrun: bool,
    /// SQD and nothing is under way any more.
    pub drained: bool,
}

impl After {
    pub fn and(&mut self, other: After) {
        self.broken |= other.broken;
        self.overrun |= other.overrun;
        self.drained |= other.drained;
    }

    pub fn is_nothing(self) -> bool {
        self == After::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Pending,
    Done(SendDone),
}

/// A request that has to be kept.
struct Slot {
    phase: Phase,
    wr_id: u64,
    opcode: WrOpcode,
    flags: u32,
    imm: u32,
    pieces: u32,
    /// Addresses have taken the place of keys, or the data is inline.
    translated: bool,
    length: u64,
    remote_addr: u64,
    rkey: u32,
    xrc_srqn: u32,
    compare_add: u64,
    swap: u64,
    ud: Option<(AhAttr, u32, u32)>,
    bind: Option<KeptBind>,
}

struct KeptBind {
    mw: Arc<Mw>,
    mr: Option<Arc<Mr>>,
    rkey: u32,
    addr: u64,
    length: u64,
    access: u32,
}

impl Slot {
    const EMPTY: Slot = Slot {
        phase: Phase::Held,
        wr_id: 0,
        opcode: WrOpcode::Send,
        flags: 0,
        imm: 0,
        pieces: 0,
        translated: false,
        length: 0,
        remote_addr: 0,
        rkey: 0,
        xrc_srqn: 0,
        compare_add: 0,
        swap: 0,
        ud: None,
        bind: None,
    };

    fn view<'a>(&'a self, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
            imm: self.imm,
            sges,
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            xrc_srqn: self.xrc_srqn,
            compare_add: self.compare_add,
            swap: self.swap,
            ud: self.ud.as_ref().map(|(ah, qpn, qkey)| UdDestination {
                ah,
                qpn: *qpn,
                qkey: *qkey,
            }),
            bind: self.bind.as_ref().map(|bind| MwBind {
                mw: &bind.mw,
                rkey: bind.rkey,
                mr: bind.mr.as_ref(),
                addr: bind.addr,
                length: bind.length,
                access: bind.access,
            }),
        }
    }
}

/// Lists and inline data of kept requests, a fixed part for each slot.
#[derive(Default)]
struct Storage {
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
}

pub(crate) struct SendQueue {
    pub state: QpState,
    /// SQ_DRAINED is wished.
    pub drain_event: bool,
    head: u64,
    handed: u64,
    tail: u64,
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
    max_wr: u32,
    max_sge: u32,
    max_inline: u32,
    /// Bytes.
    max_length: u64,
    slots: Box<[Slot]>,
    storage: Storage,
}

/// What went through a send queue. Written by whoever has the queue, one at a time, so that a count
/// needs no locked instruction; read without it, as a program that posts much hardly lets go of it.
#[derive(Default)]
#[repr(align(64))]
pub struct SendTally {
    pub posted: AtomicU64,
    /// Of successful requests.
    pub bytes: AtomicU64,
    pub failed: AtomicU64,
}

/// See [`SendTally`].
#[inline]
pub fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl SendQueue {
    pub fn new(qp_type: QpType, cap: &QpCap, always: bool, max_length: u64) -> SendQueue {
        let places = match cap.max_send_wr {
            0 => 0,
            wanted => wanted.next_power_of_two() as usize,
        };
        SendQueue {
            state: QpState::Reset,
            drain_event: false,
            head: 0,
            handed: 0,
            tail: 0,
            reads: 0,
            busy: false,
            stuck: false,
            dead: false,
            flushed: false,
            always: if always { send_flags::SIGNALED } else { 0 },
            type_bit: sluice_verbs_model::opcode::type_bit(qp_type),
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_length,
            slots: (0..places).map(|_| Slot::EMPTY).collect(),
            storage: Storage {
                sges: vec![Sge::default(); places * cap.max_send_sge as usize].into(),
                inline: vec![0; places * cap.max_inline_data as usize].into(),
            },
        }
    }

    #[inline]
    fn index(&self, seq: u64) -> usize {
        seq as usize & (self.slots.len() - 1)
    }

    /// Requests are under way although the queue is to drain.
    pub fn is_draining(&self) -> bool {
        self.state == QpState::Sqd && self.head < self.handed
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
        if self.head != seq {
            // Others are before it: it waits for its turn.
            self.keep(seq, wr, &[], true, length);
            return Ok(self.finish(seq, done));
        }
        self.head += 1;
        let signalled = (wr.flags | self.always) & send_flags::SIGNALED != 0;
        if done.status != WcStatus::Success {
            self.stuck = true;
            self.dead = true;
            add(&qp.sent().failed, 1);
        } else {
            add(&qp.sent().bytes, u64::from(done.byte_len));
            if !signalled {
                return Ok(After::default());
            }
        }
        Ok(self.complete(qp, wr.wr_id, wr.opcode, done, seq))
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
        if facts.types & self.type_bit == 0 || wr.flags & !send_flags::ALL != 0 {
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
                    self.keep(seq, wr, wr.sges, false, length);
                    let at = self.index(seq);
                    let posted = self.hand_kept(qp, at, seq, facts);
                    if posted == Posted::Pending {
                        self.slots[at].phase = Phase::Pending;
                    }
                    return posted;
                }
            }
        }
        let mut wr = *wr;
        resolve_qkey(qp, &mut wr);
        let posted = qp.hand(&Wqe { seq, wr, length });
        match posted {
            Posted::Done(_) => {}
            Posted::Pending => {
                self.keep(seq, &wr, wr.sges, true, length);
                let at = self.index(seq);
                self.slots[at].phase = Phase::Pending;
            }
            Posted::Busy => self.keep(seq, &wr, wr.sges, true, length),
        }
        posted
    }

    /// Queues a request behind others, or flushes it where nothing is carried out any more.
    #[cold]
    fn hold(&mut self, qp: &impl Pair, wr: &SendWr<'_>, length: u64) -> After {
        let seq = self.tail;
        self.tail += 1;
        if self.flushed {
            self.handed = self.tail;
            self.head = self.tail;
            add(&qp.sent().failed, 1);
            let done = SendDone::failed(WcStatus::WrFlushErr);
            let mut after = self.complete(qp, wr.wr_id, wr.opcode, done, seq);
            after.broken = false;
            return after;
        }
        self.keep(seq, wr, wr.sges, false, length);
        After::default()
    }

    /// Copies a request to its slot, inline data included.
    fn keep(&mut self, seq: u64, wr: &SendWr<'_>, pieces: &[Sge], translated: bool, length: u64) {
        let at = self.index(seq);
        let first = at * self.max_sge as usize;
        let list = &mut self.storage.sges[first..first + self.max_sge as usize];
        let mut kept = pieces.len();
        if wr.is_inline() && !pieces.is_empty() {
            let first = at * self.max_inline as usize;
            let bytes = &mut self.storage.inline[first..first + length as usize];
            memory::gather(pieces, bytes);
            list[0] = Sge {
                addr: bytes.as_ptr() as u64,
                length: length as u32,
                lkey: 0,
            };
            kept = 1;
        } else {
            list[..kept].copy_from_slice(pieces);
        }
        self.slots[at] = Slot {
            phase: Phase::Held,
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.flags,
            imm: wr.imm,
            pieces: kept as u32,
            translated: translated || wr.is_inline(),
            length,
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
            xrc_srqn: wr.xrc_srqn,
            compare_add: wr.compare_add,
            swap: wr.swap,
            ud: wr.ud.map(|ud| (*ud.ah, ud.qpn, ud.qkey)),
            bind: wr.bind.map(|bind| KeptBind {
                mw: bind.mw.clone(),
                mr: bind.mr.cloned(),
                rkey: bind.rkey,
                addr: bind.addr,
                length: bind.length,
                access: bind.access,
            }),
        };
    }

    /// The end of a request that is kept. Out of turn it only takes note.
    pub fn finish(&mut self, seq: u64, done: SendDone) -> After {
        let at = self.index(seq);
        self.slots[at].phase = Phase::Done(done);
        self.stuck |= done.status != WcStatus::Success;
        After::default()
    }

    /// `Qp::complete_send`: false when there is no such request.
    pub fn end_pending(&mut self, seq: u64, done: SendDone) -> bool {
        if seq < self.head || seq >= self.handed {
            return false;
        }
        let at = self.index(seq);
        if self.slots[at].phase != Phase::Pending {
            return false;
        }
        self.reads -= u32::from(facts(self.slots[at].opcode).reads);
        let _ = self.finish(seq, done);
        true
    }

    /// `Qp::with_wqe`.
    pub fn look<R>(&self, seq: u64, look: impl FnOnce(&Wqe<'_>) -> R) -> Option<R> {
        if seq < self.head || seq >= self.handed {
            return None;
        }
        let at = self.index(seq);
        let slot = &self.slots[at];
        if slot.phase != Phase::Pending {
            return None;
        }
        let first = at * self.max_sge as usize;
        let wr = slot.view(&self.storage.sges[first..first + slot.pieces as usize]);
        let length = slot.length;
        Some(look(&Wqe { seq, wr, length }))
    }

    pub fn no_longer_busy(&mut self) {
        self.busy = false;
    }

    /// Completes what is done and hands over what is held, as far as both go.
    pub fn pump(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        loop {
            let before = (self.head, self.handed);
            if matches!(self.state, QpState::Rts | QpState::Sqd) && !self.dead {
                self.hand_held(qp);
                after.and(self.retire(qp));
            }
            if before == (self.head, self.handed) || self.dead {
                break;
            }
        }
        self.note_drained(&mut after);
        after
    }

    /// Completes what is done, as far as that goes without handing anything over.
    pub fn retire_ended(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        if matches!(self.state, QpState::Rts | QpState::Sqd) && !self.dead {
            after = self.retire(qp);
        }
        self.note_drained(&mut after);
        after
    }

    fn note_drained(&mut self, after: &mut After) {
        if self.state == QpState::Sqd && self.drain_event && self.head == self.handed {
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
        let at = self.index(self.handed);
        self.reads == 0 || self.slots[at].flags & send_flags::FENCE == 0
    }

    fn hand_held(&mut self, qp: &impl Pair) {
        while self.handed < self.tail && self.state == QpState::Rts && !self.busy && !self.stuck {
            let seq = self.handed;
            let at = self.index(seq);
            let facts = facts(self.slots[at].opcode);
            if self.reads > 0 && self.slots[at].flags & send_flags::FENCE != 0 {
                return;
            }
            match self.hand_kept(qp, at, seq, facts) {
                Posted::Busy => {
                    self.busy = true;
                    return;
                }
                Posted::Pending => {
                    self.slots[at].phase = Phase::Pending;
                    self.reads += u32::from(facts.reads);
                }
                Posted::Done(done) => {
                    let _ = self.finish(seq, done);
                }
            }
            self.handed += 1;
        }
    }

    fn hand_kept(&mut self, qp: &impl Pair, at: usize, seq: u64, facts: &Facts) -> Posted {
        let first = at * self.max_sge as usize;
        let slot = &mut self.slots[at];
        let list = &mut self.storage.sges[first..first + slot.pieces as usize];
        if facts.local {
            return Posted::Done(carry_out_locally(qp, &slot.view(list)));
        }
        if !slot.translated {
            let checked =
                check_pieces(qp, facts, list, slot.length).and_then(|_| translate(qp, facts, list));
            if let Err(fault) = checked {
                return Posted::Done(SendDone::failed(fault.status()));
            }
            slot.translated = true;
        }
        let mut wr = slot.view(list);
        resolve_qkey(qp, &mut wr);
        let length = slot.length;
        qp.hand(&Wqe { seq, wr, length })
    }

    /// Completes the oldest requests as far as they are done.
    fn retire(&mut self, qp: &impl Pair) -> After {
        let mut after = After::default();
        while self.head < self.handed {
            let seq = self.head;
            let at = self.index(seq);
            let Phase::Done(done) = self.slots[at].phase else {
                break;
            };
            let slot = &mut self.slots[at];
            slot.bind = None;
            let (wr_id, opcode) = (slot.wr_id, slot.opcode);
            let signalled = (slot.flags | self.always) & send_flags::SIGNALED != 0;
            self.head += 1;
            if done.status == WcStatus::Success {
                add(&qp.sent().bytes, u64::from(done.byte_len));
                if !signalled {
                    continue;
                }
            } else {
                add(&qp.sent().failed, 1);
                self.dead = true;
            }
            after.and(self.complete(qp, wr_id, opcode, done, seq));
            if self.dead {
                break;
            }
        }
        after
    }

    /// Puts a completion to the QP's CQ.
    #[inline]
    fn complete(
        &self,
        qp: &impl Pair,
        wr_id: u64,
        opcode: WrOpcode,
        done: SendDone,
        seq: u64,
    ) -> After {
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
            owner: 0,
            release: Release::SendsTo(seq + 1),
            solicited: false,
        });
        After {
            broken: failed,
            overrun: overrun.is_err(),
            drained: false,
        }
    }

    /// ERR or SQE: everything that is not complete is flushed, signalled or not, in order
    /// (IBTA 10.3.1.5, 10.3.1.6).
    pub fn flush(&mut self, qp: &impl Pair) {
        for seq in self.head..self.tail {
            let at = self.index(seq);
            let slot = &mut self.slots[at];
            slot.bind = None;
            let (wr_id, opcode) = (slot.wr_id, slot.opcode);
            add(&qp.sent().failed, 1);
            // In ERR there is nothing worse to come of a full CQ.
            let _ = self.complete(
                qp,
                wr_id,
                opcode,
                SendDone::failed(WcStatus::WrFlushErr),
                seq,
            );
        }
        self.head = self.tail;
        self.handed = self.tail;
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
        for slot in &mut self.slots {
            slot.bind = None;
        }
        self.head = 0;
        self.handed = 0;
        self.tail = 0;
        self.reads = 0;
        self.drain_event = false;
        self.recover();
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
    if let Some(ud) = &mut wr.ud
        && ud.qkey & 1 << 31 != 0
    {
        ud.qkey = qp.qkey();
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
