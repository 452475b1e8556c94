//! A queue pair: its requester's half, and what both halves share.
//!
//! Requests are numbered and leave in order, each as one frame or several. Nothing is lost on the
//! way, so an answer ends all requests before its own. A peer that is not ready for one says so, and
//! it and all behind it are sent again: no bytes are kept for it at either side.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_sys::clock::now_ns;
use sluice_transport::pieces::{gather, parts};
use sluice_verbs::locks::{Guard, lock};
use sluice_verbs::opcode::facts;
use sluice_verbs::transport::QpChange;
use sluice_verbs::{
    Aftermath, Gid, Posted, Qp, QpAttr, QpState, QpType, SendDone, WcStatus, Wqe, qp_mask,
    send_flags,
};
use sluice_window::View;
use sluice_wire::extended::RnrTimer;

use crate::channel::Payload;
use crate::frame::{Frame, MULTICAST_QPN, PSN_MASK, What, flag, slot_of};
use crate::peer::{Peer, Peers, Put, Sent};
use crate::responder::Responder;
use crate::turn::Turn;

pub struct Part {
    peers: Arc<Peers>,
    pub turn: Arc<Turn>,
    pub state: Mutex<State>,
    pub responder: Mutex<Responder>,
    pub groups: Mutex<Vec<Gid>>,
}

/// The requester's half: never locked over a call into the engine.
#[derive(Default)]
pub struct State {
    /// None when it is being destroyed.
    pub qp: Option<Arc<Qp>>,
    pub attr: QpAttr,
    pub peer: Option<Arc<Peer>>,
    /// Which connection of this queue pair it is.
    epoch: u8,
    /// The packet number of the next request.
    psn: u32,
    /// Requests without an answer, or not sent yet.
    open: VecDeque<Open>,
    /// So many of these have left as a whole, and of the next so many bytes.
    sent: usize,
    offset: u64,
    /// READs and atomics among those that have left.
    reads: usize,
    rnr_left: u8,
    blocked: Option<Blocked>,
    /// When the first of its timers is due.
    armed_ns: Option<u64>,
}

#[derive(Clone, Copy)]
struct Open {
    seq: u64,
    psn: u32,
    length: u64,
    reads: bool,
    /// Bytes that a READ has brought.
    got: u64,
}

/// Nothing is sent until the peer is ready, or until then.
#[derive(Clone, Copy)]
struct Blocked {
    until_ns: u64,
    /// Then it is over, instead of tried again.
    fatal: bool,
}

enum Piece {
    Whole,
    Some,
    Full,
    Down,
    /// Its memory is not registered any more.
    Fault,
}

impl State {
    fn may_send(&self) -> bool {
        self.blocked.is_none()
            && self.open.get(self.sent).is_some_and(|next| {
                let reads_max = usize::from(self.attr.max_rd_atomic.max(1));
                !next.reads || self.reads < reads_max
            })
    }

    fn forget(&mut self) {
        self.open.clear();
        (self.sent, self.offset, self.reads) = (0, 0, 0);
        self.blocked = None;
    }

    /// Whether a timer is to be set for then. One that is due before does: a peer that is not ready and is, in turn,
    /// has no more of them.
    fn arm(&mut self, until_ns: u64) -> bool {
        let needs = until_ns != u64::MAX && self.armed_ns.is_none_or(|at| until_ns < at);
        if needs {
            self.armed_ns = Some(until_ns);
        }
        needs
    }

    /// Its timers of before have been.
    fn disarm(&mut self, now: u64) {
        self.armed_ns = self.armed_ns.filter(|at| *at > now);
    }

    /// All from this request on is sent again.
    fn rewind(&mut self) {
        (self.sent, self.offset, self.reads) = (0, 0, 0);
        for open in &mut self.open {
            open.got = 0;
        }
    }

    /// Which request an answer is for. None: for none, or one of an earlier connection.
    fn find(&self, qpn: u32, peer: &Peer, frame: &Frame) -> Option<usize> {
        if self.peer.as_ref()?.slot != peer.slot {
            return None;
        }
        let first = self.open.front()?;
        let index = (frame.psn.wrapping_sub(first.psn) & PSN_MASK) as usize;
        let known = self.open.get(index)?.seq == frame.seq;
        // One of which a part has left may be refused, and one that is to come again may end instead.
        let begun = self.sent + usize::from(self.offset > 0);
        let left = index < begun || index == 0 && self.blocked.is_some();
        (known && left && frame.to == self.name(qpn)).then_some(index)
    }

    fn name(&self, qpn: u32) -> u32 {
        qpn | u32::from(self.epoch) << 24
    }

    /// Takes the first `count` away, which have ended well. None: that cannot be, as some are waiting
    /// for bytes.
    fn take(&mut self, count: usize, done: &mut Vec<(u64, SendDone)>) -> Option<()> {
        for open in self.open.iter().take(count) {
            if open.reads && open.got < open.length.max(1) {
                return None;
            }
            done.push((open.seq, SendDone::ok(open.length as u32)));
        }
        let reads = self.open.drain(..count).filter(|open| open.reads).count();
        // A peer may say that what has not left has ended.
        self.reads = self.reads.saturating_sub(reads);
        self.sent = self.sent.saturating_sub(count);
        self.rnr_left = self.attr.rnr_retry;
        Some(())
    }
}

impl Part {
    pub fn new(peers: &Arc<Peers>, qpn: u32, kind: QpType) -> Part {
        Part {
            peers: peers.clone(),
            turn: Arc::new(Turn::new(qpn, kind)),
            state: Mutex::default(),
            responder: Mutex::default(),
            groups: Mutex::default(),
        }
    }

    pub fn qp(&self) -> Option<Arc<Qp>> {
        lock(&self.state).qp.clone()
    }

    /// Whether it is connected, and none of its requests waits for anything.
    pub fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.peer.is_some() && state.open.is_empty()
    }

    fn is_reliable(&self) -> bool {
        self.turn.is_reliable()
    }

    pub fn post(self: &Arc<Self>, wqe: &Wqe<'_>) -> Posted {
        if self.turn.kind == QpType::Ud {
            return self.post_datagram(wqe);
        }
        let mut state = lock(&self.state);
        let Some(peer) = state.peer.clone() else {
            return Posted::Done(SendDone::failed(WcStatus::RetryExcErr));
        };
        let psn = state.psn;
        state.psn = psn.wrapping_add(1) & PSN_MASK;
        state.open.push_back(Open {
            seq: wqe.seq,
            psn,
            length: match facts(wqe.wr.opcode).atomic {
                true => 8,
                false => wqe.length,
            },
            reads: facts(wqe.wr.opcode).reads,
            got: 0,
        });
        let first = state.sent + 1 == state.open.len();
        if first && state.may_send() && !self.turn.is_queued() {
            match self.send_piece(&mut state, &peer, wqe, None) {
                Piece::Whole if !self.is_reliable() => {
                    state.forget();
                    return Posted::Done(SendDone::ok(wqe.length as u32));
                }
                Piece::Whole => return Posted::Pending,
                _ => {}
            }
        }
        drop(state);
        peer.call(&self.turn);
        Posted::Pending
    }

    /// Sends the next piece of the first request that has not left. `pins`: the request was posted
    /// before, so what it names is looked up again.
    fn send_piece(
        &self,
        state: &mut State,
        peer: &Peer,
        wqe: &Wqe<'_>,
        pins: Option<&Qp>,
    ) -> Piece {
        let Some(open) = state.open.get(state.sent).copied() else {
            return Piece::Full;
        };
        let most = peer.piece_bytes();
        if most == 0 {
            return Piece::Down;
        }
        let (wr, facts) = (&wqe.wr, facts(wqe.wr.opcode));
        let bytes = match open.reads {
            true => 0,
            false => (wqe.length - state.offset).min(most),
        };
        let what = match state.offset {
            0 => What::Request,
            _ => What::More,
        };
        let mut frame = Frame {
            code: wr.opcode as u16,
            len: bytes as u32,
            to: state.attr.dest_qp_num,
            from: state.name(self.turn.qpn),
            seq: open.seq,
            psn: open.psn,
            imm: wr.imm,
            addr: wr.remote_addr,
            rkey: wr.rkey,
            about: wr.xrc_srqn,
            words: match facts.atomic {
                true => [wr.compare_add, wr.swap],
                false => [wqe.length, 0],
            },
            ..Frame::new(what)
        };
        if wr.flags & send_flags::SOLICITED != 0 {
            frame.flags |= flag::SOLICITED;
        }
        if self.is_reliable() {
            frame.flags |= flag::RELIABLE;
        }
        let mut held = Vec::new();
        if let Some(qp) = pins.filter(|_| !wr.is_inline() && bytes > 0) {
            for piece in parts(wr.sges, state.offset, bytes as usize) {
                match qp.pin_local(&piece, false) {
                    Some(memory) => held.push(memory),
                    None => return Piece::Fault,
                }
            }
        }
        let pieces = gather(wr.sges, state.offset, bytes as usize);
        // SAFETY: the request's own pieces: by the contract of ibv_post_send during the call that posts
        // them, later because they are pinned here or the engine's own copy of inline data; and
        // `gather` gives `bytes` of them, of which the request has that many left.
        match unsafe { peer.put(&frame, pieces) } {
            Put::Yes => {}
            Put::Full => return Piece::Full,
            Put::Down => return Piece::Down,
        }
        state.offset += bytes;
        if !open.reads && state.offset < wqe.length {
            return Piece::Some;
        }
        state.sent += 1;
        state.offset = 0;
        state.reads += usize::from(open.reads);
        Piece::Whole
    }

    /// Its turn: sends one piece. Whoever gives it the turn has said that it is not queued.
    pub fn send_next(&self, peer: &Peer, after: &mut Aftermath) -> Sent {
        let (qp, seq) = {
            let state = lock(&self.state);
            let its = state.peer.as_ref().is_some_and(|its| its.slot == peer.slot);
            let (Some(qp), true, true) = (&state.qp, its, state.may_send()) else {
                return Sent::Idle;
            };
            (qp.clone(), state.open[state.sent].seq)
        };
        let piece = qp.with_wqe(seq, |wqe| {
            let mut state = lock(&self.state);
            let is_next = state
                .open
                .get(state.sent)
                .is_some_and(|next| next.seq == seq);
            if !is_next || !state.may_send() {
                // Somebody else has sent it.
                return (Piece::Some, 0);
            }
            let piece = self.send_piece(&mut state, peer, wqe, Some(&qp));
            if matches!(piece, Piece::Whole) {
                if !self.is_reliable() {
                    state.open.pop_front();
                    state.sent -= 1;
                }
                if let Some(tap) = &self.turn.tap {
                    tap.sent(wqe);
                }
            }
            (piece, wqe.length)
        });
        match piece {
            Some((Piece::Whole, length)) => {
                if !self.is_reliable() {
                    self.complete_one(&qp, seq, SendDone::ok(length as u32), after);
                }
                Sent::Some
            }
            Some((Piece::Some, _)) => Sent::Some,
            Some((Piece::Full, _)) => Sent::Full,
            // The worker calls again when there is a channel, or ends it.
            Some((Piece::Down, _)) => Sent::Full,
            Some((Piece::Fault, _)) => {
                lock(&self.state).forget();
                self.complete_one(&qp, seq, SendDone::failed(WcStatus::LocProtErr), after);
                Sent::Idle
            }
            // It was flushed.
            None => Sent::Idle,
        }
    }

    /// Which request a frame of the peer is about, as [`State::find`].
    fn find(&self, peer: &Peer, frame: &Frame) -> Option<(Guard<'_, State>, Arc<Qp>, usize)> {
        let state = lock(&self.state);
        let qp = state.qp.clone()?;
        let index = state.find(self.turn.qpn, peer, frame)?;
        Some((state, qp, index))
    }

    /// The peer says how a request ended.
    pub fn answered(self: &Arc<Self>, peer: &Peer, frame: &Frame, after: &mut Aftermath) {
        let mut done = Vec::new();
        let Some((mut state, qp, index)) = self.find(peer, frame) else {
            return;
        };
        let seq = state.open[index].seq;
        let status = WcStatus::try_from(u32::from(frame.code)).unwrap_or(WcStatus::BadRespErr);
        let (count, failed) = match status {
            WcStatus::Success => (index + 1, None),
            status => (index, Some(status)),
        };
        let failed = match state.take(count, &mut done) {
            Some(()) => failed,
            // Whoever says so has not kept to the order.
            None => Some(WcStatus::BadRespErr),
        };
        let waits = state.may_send();
        drop(state);
        done.extend(failed.map(|status| (seq, SendDone::failed(status))));
        self.complete(&qp, &done, after);
        if waits {
            peer.call(&self.turn);
        }
    }

    /// The peer is not ready for a request.
    pub fn refused(self: &Arc<Self>, peer: &Peer, frame: &Frame, after: &mut Aftermath) {
        let mut done = Vec::new();
        if self.turn.tap.is_some()
            && let Some((state, qp, index)) = self.find(peer, frame)
        {
            let seq = state.open[index].seq;
            drop(state);
            // Waits for a `post` under way, which says to the trace what it has posted: that comes first.
            qp.with_wqe(seq, |_| ());
        }
        let Some((mut state, qp, index)) = self.find(peer, frame) else {
            return;
        };
        if state.blocked.is_some() {
            // It knows: nothing has left since then.
            return;
        }
        let seq = state.open[index].seq;
        let mut failed = None;
        if state.take_kept(index, &mut done).is_none() {
            failed = Some(WcStatus::BadRespErr);
        } else if frame.is(flag::NO_RECEIVE) && state.attr.rnr_retry < 7 && state.rnr_left == 0 {
            failed = Some(WcStatus::RnrRetryExcErr);
        } else {
            state.rewind();
            if let Some(tap) = &self.turn.tap {
                tap.put_off(frame.is(flag::NO_RECEIVE).then_some(frame.code as u8));
            }
            let wait = match frame.is(flag::NO_RECEIVE) {
                // It says when there is one.
                true if state.attr.rnr_retry == 7 => u64::MAX,
                true => {
                    state.rnr_left -= 1;
                    RnrTimer::from_code(frame.code as u8).duration().as_nanos() as u64
                }
                false => patience_ns(&state.attr),
            };
            let until_ns = now_ns().saturating_add(wait);
            state.blocked = Some(Blocked {
                until_ns,
                fatal: !frame.is(flag::NO_RECEIVE),
            });
            self.set_timer(&mut state, until_ns);
        }
        drop(state);
        done.extend(failed.map(|status| (seq, SendDone::failed(status))));
        self.complete(&qp, &done, after);
    }

    /// Tells the engine how requests have ended, and a trace before it. No lock of this queue pair is
    /// held.
    fn complete(&self, qp: &Qp, done: &[(u64, SendDone)], after: &mut Aftermath) {
        if let Some(tap) = &self.turn.tap {
            for (seq, done) in done {
                tap.completing(qp, *seq, done);
            }
        }
        qp.complete_sends(done, after);
    }

    fn complete_one(&self, qp: &Qp, seq: u64, done: SendDone, after: &mut Aftermath) {
        if let Some(tap) = &self.turn.tap {
            tap.completing(qp, seq, &done);
        }
        qp.complete_send(seq, done, after);
    }

    /// The peer is ready for what it was not ready for.
    pub fn readied(self: &Arc<Self>, peer: &Peer, frame: &Frame) {
        let mut state = lock(&self.state);
        let its = state.peer.as_ref().is_some_and(|its| its.slot == peer.slot);
        if its && frame.to == state.name(self.turn.qpn) && state.blocked.take().is_some() {
            drop(state);
            peer.call(&self.turn);
        }
    }

    fn set_timer(&self, state: &mut State, until_ns: u64) {
        if state.arm(until_ns) {
            self.peers.host.set_timer(until_ns, self.turn.qpn);
        }
    }

    /// A timer of it may be due.
    pub fn due(self: &Arc<Self>, now: u64, after: &mut Aftermath) {
        if let Some(qp) = self.qp() {
            lock(&self.responder).due(&self.turn, &qp, &self.peers);
        }
        let mut state = lock(&self.state);
        state.disarm(now);
        let Some(blocked) = state.blocked else {
            return;
        };
        if blocked.until_ns > now {
            return self.set_timer(&mut state, blocked.until_ns);
        }
        state.blocked = None;
        let peer = state.peer.clone();
        drop(state);
        match peer {
            Some(peer) if !blocked.fatal => peer.call(&self.turn),
            _ => self.give_up(WcStatus::RetryExcErr, after),
        }
    }

    /// Bytes that a READ or an atomic has asked for.
    pub fn brought<V: View>(
        self: &Arc<Self>,
        peer: &Peer,
        frame: &Frame,
        payload: &Payload<'_, V>,
        after: &mut Aftermath,
    ) {
        let Some((state, qp, index)) = self.find(peer, frame) else {
            return;
        };
        let open = state.open[index];
        drop(state);
        let end = frame.addr.checked_add(payload.len() as u64);
        let fits =
            open.reads && frame.addr == open.got && end.is_some_and(|end| end <= open.length);
        if !fits || payload.len() == 0 && open.length > 0 {
            self.fails(&qp, open.seq, WcStatus::BadRespErr, after);
            return;
        }
        let mut offset = 0;
        let put = qp.with_wqe(open.seq, |wqe| {
            parts(wqe.wr.sges, frame.addr, payload.len()).all(|piece| {
                let Some(memory) = qp.pin_local(&piece, true) else {
                    return false;
                };
                // SAFETY: the piece is registered and may be written while `memory` lives.
                unsafe { payload.copy(offset, memory.as_ptr(), memory.len()) };
                offset += memory.len();
                true
            })
        });
        if put == Some(false) {
            self.fails(&qp, open.seq, WcStatus::LocProtErr, after);
            return;
        }
        let mut done = Vec::new();
        let Some((mut state, _, index)) = self.find(peer, frame) else {
            return;
        };
        state.open[index].got =
            (frame.addr + payload.len() as u64).max(u64::from(open.length == 0));
        let complete = end == Some(open.length);
        if complete && state.take(index + 1, &mut done).is_none() {
            drop(state);
            self.fails(&qp, open.seq, WcStatus::BadRespErr, after);
            return;
        }
        let waits = state.may_send();
        drop(state);
        if complete {
            self.complete(&qp, &done, after);
        }
        if waits {
            peer.call(&self.turn);
        }
    }

    fn fails(&self, qp: &Qp, seq: u64, status: WcStatus, after: &mut Aftermath) {
        self.complete_one(qp, seq, SendDone::failed(status), after);
    }

    /// There is no peer any more: the oldest request fails, and the queue pair in any case.
    pub fn give_up(&self, status: WcStatus, after: &mut Aftermath) {
        let mut state = lock(&self.state);
        let Some(qp) = state.qp.clone() else { return };
        let first = state.open.front().map(|open| open.seq);
        state.forget();
        drop(state);
        if !self.is_reliable() {
            // What has not left is lost, and nobody is told.
            if let Some(seq) = first {
                self.complete_one(&qp, seq, SendDone::ok(0), after);
            }
            qp.resume(after);
            return;
        }
        if let Some(seq) = first {
            self.complete_one(&qp, seq, SendDone::failed(status), after);
        }
        qp.fail(None, after);
    }

    pub fn changed(self: &Arc<Self>, qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) {
        let mut state = lock(&self.state);
        state.attr = *change.attr;
        if change.mask & qp_mask::SQ_PSN != 0 {
            state.psn = change.attr.sq_psn & PSN_MASK;
        }
        state.rnr_left = change.attr.rnr_retry;
        match change.to {
            QpState::Rtr if change.from != QpState::Rtr => {
                state.forget();
                state.epoch = state.epoch.wrapping_add(1);
                if self.turn.kind != QpType::Ud {
                    state.peer = self.peers.of(slot_of(change.attr.dest_qp_num)).cloned();
                }
                let peer = state.peer.clone();
                drop(state);
                if peer.is_some_and(|peer| !peer.is_up()) {
                    self.peers.host.wake();
                }
                lock(&self.responder).start(&self.turn, &self.peers, change.attr);
            }
            QpState::Err | QpState::Reset => {
                state.forget();
                drop(state);
                lock(&self.responder).stop(&self.peers, qp, after);
            }
            QpState::Sqe => state.forget(),
            _ => {}
        }
    }

    pub fn receives_posted(&self) {
        lock(&self.responder).receives_posted(&self.turn, &self.peers);
    }

    pub fn destroyed(&self, after: &mut Aftermath) {
        for peer in self.peers.iter() {
            peer.flush_all();
        }
        let mut state = lock(&self.state);
        let qp = state.qp.take();
        state.forget();
        state.peer = None;
        drop(state);
        if let Some(qp) = qp {
            lock(&self.responder).stop(&self.peers, &qp, after);
        }
    }

    fn post_datagram(self: &Arc<Self>, wqe: &Wqe<'_>) -> Posted {
        let psn = lock(&self.state).psn;
        let posted = self.put_datagram(wqe, psn);
        if matches!(posted, Posted::Done(_)) {
            lock(&self.state).psn = psn.wrapping_add(1) & PSN_MASK;
        }
        posted
    }

    fn put_datagram(self: &Arc<Self>, wqe: &Wqe<'_>, psn: u32) -> Posted {
        let done = Posted::Done(SendDone::ok(wqe.length as u32));
        let Some(to) = wqe.wr.ud else { return done };
        let gid = u128::from_le_bytes(to.ah.grh.dgid.0);
        let mut frame = Frame {
            code: wqe.wr.opcode as u16,
            len: wqe.length as u32,
            to: to.qpn,
            from: self.turn.qpn,
            // Nobody answers it, so it needs no other number; where requests have theirs a datagram has
            // its sender's address, if that is known.
            seq: psn.into(),
            imm: wqe.wr.imm,
            about: to.qkey,
            words: [gid as u64, (gid >> 64) as u64],
            ..Frame::new(What::Request)
        };
        if wqe.wr.flags & send_flags::SOLICITED != 0 {
            frame.flags |= flag::SOLICITED;
        }
        let put = |peer: &Peer| {
            let pieces = gather(wqe.wr.sges, 0, wqe.length as usize);
            // SAFETY: the request's own pieces, by the contract of ibv_post_send, and no longer than
            // the device's MTU, which is less than a piece.
            unsafe { peer.put(&frame, pieces) }
        };
        if to.qpn == MULTICAST_QPN {
            if let Some(peer) = self.peers.iter().find(|peer| peer.is_coming()) {
                peer.datagram_waits(self.turn.clone());
                self.peers.host.wake();
                return Posted::Busy;
            }
            // Whoever has no room does not get it.
            for peer in self.peers.iter() {
                let _ = put(peer);
            }
            return done;
        }
        let Some(peer) = self.peers.of(slot_of(to.qpn)) else {
            return done;
        };
        match put(peer) {
            Put::Yes => done,
            Put::Down if !peer.is_coming() => done,
            put => {
                peer.datagram_waits(self.turn.clone());
                match put {
                    Put::Down => self.peers.host.wake(),
                    _ => self.peers.host.called(),
                }
                Posted::Busy
            }
        }
    }
}

impl State {
    /// As [`State::take`], without saying that the peer receives again.
    fn take_kept(&mut self, count: usize, done: &mut Vec<(u64, SendDone)>) -> Option<()> {
        let left = self.rnr_left;
        let taken = self.take(count, done);
        if count == 0 {
            self.rnr_left = left;
        }
        taken
    }
}

/// How long a requester waits for a queue pair that is not ready: all its repetitions (IBTA
/// 9.7.6.1.3).
fn patience_ns(attr: &QpAttr) -> u64 {
    match attr.timeout & 31 {
        0 => u64::MAX,
        code => (4096_u64 << code).saturating_mul(u64::from(attr.retry_cnt) + 1),
    }
}

#[cfg(test)]
mod tests;
