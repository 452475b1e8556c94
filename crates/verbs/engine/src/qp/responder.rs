//! What a transport asks on the responder's side: may this message touch that memory, and
//! which receive does it go to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_verbs_model::refusal::{LocalFault, NakReason};
use sluice_verbs_model::types::{EventType, QpState, QpType, Sge, Wc, WcStatus, access};

use super::Qp;
use crate::aftermath::Aftermath;
use crate::cq::{Completion, Cq, Release};
use crate::keys::KeyTable;
use crate::memory;
use crate::pair::add;
use crate::srq::Srq;

pub use sluice_verbs_model::limits::MAX_SGE;
pub use sluice_verbs_model::responder::{RecvDone, RemoteOp, RemoteRequest, TakeError, receives};

/// Memory that a peer may touch. While it lives the region stays registered and whoever takes
/// the key away waits: drop it before any other call into the engine.
pub struct RemoteMemory<'a> {
    ptr: *mut u8,
    len: usize,
    /// None for 0 bytes.
    pin: Option<(&'a KeyTable, u32)>,
}

impl RemoteMemory<'_> {
    /// Valid for reads and writes of [`RemoteMemory::len`] bytes. The program's threads and
    /// other peers may touch them at the same time: copy, never make a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for RemoteMemory<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((keys, place)) = self.pin {
            keys.unpin(place);
        }
    }
}

/// Where a taken receive came from.
enum Source {
    /// Not taken.
    Nowhere,
    Own,
    Shared,
    Xrc(Arc<Srq>),
}

/// A receive that a message goes to. Make one per place where you need it and use it again and
/// again; a receive that was taken must be completed.
pub struct RecvWqe {
    wr_id: u64,
    room: u64,
    count: usize,
    source: Source,
    sges: [Sge; MAX_SGE],
    /// Places in the key table.
    pins: [u32; MAX_SGE],
    /// How many of these are pinned: `count`, or fewer between two packets of a message.
    pinned: usize,
}

impl Default for RecvWqe {
    fn default() -> RecvWqe {
        RecvWqe::new()
    }
}

impl RecvWqe {
    pub const fn new() -> RecvWqe {
        RecvWqe {
            wr_id: 0,
            room: 0,
            count: 0,
            source: Source::Nowhere,
            sges: [Sge {
                addr: 0,
                length: 0,
                lkey: 0,
            }; MAX_SGE],
            pins: [0; MAX_SGE],
            pinned: 0,
        }
    }

    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Addresses of this process, checked; they stay registered until the receive is completed.
    pub fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }

    /// Bytes of room. A longer message is completed with LOC_LEN_ERR, and refused with
    /// [`NakReason::InvalidRequest`].
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Whether it was taken and not completed.
    pub fn is_taken(&self) -> bool {
        !matches!(self.source, Source::Nowhere)
    }

    /// Copies `bytes` to the place that is `offset` bytes into the list. False, and nothing
    /// copied, when there is not enough room.
    pub fn scatter(&self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.room) {
            return false;
        }
        memory::scatter(self.sges(), offset, bytes);
        true
    }

    /// The rest of the message is still to come: lets the program deregister the memory in the
    /// meantime. [`RecvWqe::pin_again`] must come before the next bytes.
    pub fn unpin(&mut self, qp: &Qp) {
        let keys = &qp.adapter().keys;
        for place in &self.pins[..core::mem::take(&mut self.pinned)] {
            keys.unpin(*place);
        }
    }

    /// Undoes [`RecvWqe::unpin`]. False: the memory is not registered any more, and the receive
    /// is to be completed with LOC_PROT_ERR.
    #[must_use]
    pub fn pin_again(&mut self, qp: &Qp) -> bool {
        let keys = &qp.adapter().keys;
        while self.pinned < self.count {
            let piece = &self.sges[self.pinned];
            let Some(info) = keys.pin(piece.lkey) else {
                return false;
            };
            self.pins[self.pinned] = info.slot;
            self.pinned += 1;
            let end = piece.addr.checked_add(u64::from(piece.length));
            let inside = end.is_some_and(|end| {
                piece.addr >= info.host && end <= info.host.saturating_add(info.len)
            });
            if !inside || info.access & access::LOCAL_WRITE == 0 {
                return false;
            }
        }
        true
    }

    /// Checks and pins a receive's pieces. On a fault nothing stays pinned.
    #[inline]
    fn fill(
        &mut self,
        keys: &KeyTable,
        pd: u32,
        wr_id: u64,
        pieces: &[Sge],
    ) -> Result<(), LocalFault> {
        self.wr_id = wr_id;
        self.room = 0;
        self.count = 0;
        self.pinned = 0;
        for piece in pieces.iter().filter(|piece| piece.length != 0) {
            match keys.pin_local(piece.lkey, pd, piece.addr, piece.length) {
                Some((place, host)) => {
                    self.pins[self.count] = place;
                    self.pinned += 1;
                    self.sges[self.count] = Sge {
                        addr: host,
                        ..*piece
                    };
                    self.count += 1;
                    self.room += u64::from(piece.length);
                }
                None => {
                    self.let_go(keys);
                    return Err(LocalFault::Protection);
                }
            }
        }
        Ok(())
    }

    fn let_go(&mut self, keys: &KeyTable) {
        for place in &self.pins[..core::mem::take(&mut self.pinned)] {
            keys.unpin(*place);
        }
        self.count = 0;
        self.room = 0;
    }
}

/// For the transport, responder's side. All of these refuse when the QP does not receive in its
/// state.
impl Qp {
    /// May the peer do this? The refusal's reason goes back to it; for RC call
    /// [`Qp::responder_failed`] then, for UC drop the message.
    ///
    /// In the order of IBTA 9.7.4.1: the operation, then the key.
    pub fn check_remote(&self, request: &RemoteRequest) -> Result<RemoteMemory<'_>, NakReason> {
        let result = self.look_at_remote(request);
        if result.is_err() {
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn look_at_remote(&self, request: &RemoteRequest) -> Result<RemoteMemory<'_>, NakReason> {
        let right = request.op.right();
        let answers = match self.qp_type() {
            QpType::Rc | QpType::XrcRecv => true,
            QpType::Uc => request.op == RemoteOp::Write,
            QpType::Ud | QpType::XrcSend => false,
        };
        let atomic_fault =
            request.op == RemoteOp::Atomic && (request.len != 8 || !request.addr.is_multiple_of(8));
        let willing = receives(self.state()) && self.remote_access() & right != 0;
        if !answers || !willing || atomic_fault {
            return Err(NakReason::InvalidRequest);
        }
        self.first_message();
        if request.len == 0 {
            return Ok(RemoteMemory {
                ptr: core::ptr::NonNull::dangling().as_ptr(),
                len: 0,
                pin: None,
            });
        }
        let pd = match self.qp_type() {
            QpType::XrcRecv => self
                .xrc_srq(request.srqn)
                .map(|srq| srq.domain().id)
                .ok_or(NakReason::InvalidRequest)?,
            _ => self.pd_id,
        };
        let keys = &self.adapter().keys;
        let info = keys.pin(request.rkey).ok_or(NakReason::RemoteAccess)?;
        let bound_to_other = info.qpn != 0 && info.qpn != self.num();
        let good = info.pd == pd && !bound_to_other && info.access & right != 0;
        let host = info.translate(request.addr, request.len);
        match (good, host, usize::try_from(request.len)) {
            (true, Some(host), Ok(len)) => Ok(RemoteMemory {
                ptr: host as *mut u8,
                len,
                pin: Some((keys, info.slot)),
            }),
            _ => {
                keys.unpin(info.slot);
                Err(NakReason::RemoteAccess)
            }
        }
    }

    /// The receive for the next message. Takes for one QP must be completed in order, and
    /// before waiting for anything: `dereg_mr` waits for them.
    pub fn take_recv(&self, into: &mut RecvWqe, after: &mut Aftermath) -> Result<(), TakeError> {
        debug_assert!(!into.is_taken());
        if !receives(self.state()) {
            // The way out of INIT looks at this.
            return Err(TakeError::NotReady);
        }
        self.first_message();
        let keys = &self.adapter().keys;
        let (filled, source) = match self.srq() {
            Some(srq) => {
                let pd = srq.domain().id;
                let filled = srq.take(
                    || self.weak(),
                    |wr_id, pieces| into.fill(keys, pd, wr_id, pieces),
                );
                (filled, Source::Shared)
            }
            None => {
                let mut queue = self.lock_receive();
                if !receives(queue.state) {
                    return Err(TakeError::NotReady);
                }
                let filled = queue
                    .take()
                    .map(|(wr_id, pieces)| into.fill(keys, self.pd_id, wr_id, pieces));
                queue.starved |= filled.is_none();
                (filled, Source::Own)
            }
        };
        self.taken(into, filled, source, after)
    }

    /// The same for an XRC target: from the SRQ that the message names.
    pub fn take_recv_xrc(
        &self,
        srqn: u32,
        into: &mut RecvWqe,
        after: &mut Aftermath,
    ) -> Result<(), TakeError> {
        debug_assert!(!into.is_taken());
        if !receives(self.state()) {
            return Err(TakeError::NotReady);
        }
        let srq = self
            .xrc_srq(srqn)
            .ok_or(TakeError::Bad(NakReason::InvalidRequest))?;
        self.first_message();
        let keys = &self.adapter().keys;
        let pd = srq.domain().id;
        let filled = srq.take(
            || self.weak(),
            |wr_id, pieces| into.fill(keys, pd, wr_id, pieces),
        );
        self.taken(into, filled, Source::Xrc(srq), after)
    }

    fn taken(
        &self,
        into: &mut RecvWqe,
        filled: Option<Result<(), LocalFault>>,
        source: Source,
        after: &mut Aftermath,
    ) -> Result<(), TakeError> {
        let Some(filled) = filled else {
            self.tally.rnr.fetch_add(1, Ordering::Relaxed);
            return Err(TakeError::Empty);
        };
        into.source = source;
        filled.map_err(|fault| {
            self.complete_recv(into, &RecvDone::failed(fault.status()), after);
            TakeError::Bad(NakReason::RemoteOperation)
        })
    }

    /// Ends a taken receive: completion, events. A failure moves an RC QP to ERR.
    pub fn complete_recv(&self, recv: &mut RecvWqe, done: &RecvDone, after: &mut Aftermath) {
        recv.let_go(&self.adapter().keys);
        let source = core::mem::replace(&mut recv.source, Source::Nowhere);
        let (place, release) = match &source {
            Source::Nowhere => return,
            Source::Own => (self.recv_place(), Release::Receive),
            Source::Shared => (self.recv_place(), Release::SharedReceive),
            Source::Xrc(srq) => (srq.cq_place(), Release::SharedReceive),
        };
        let Some((cq, owner)) = place else { return };
        if self.state() == QpState::Reset {
            // Nobody is told; an SRQ has its room again.
            if let (Source::Shared, Some(srq)) = (&source, self.srq()) {
                srq.polled.fetch_add(1, Ordering::Release);
            }
            return;
        }
        let failed = done.status != WcStatus::Success;
        if !failed {
            add(&self.tally.receives_done, 1);
            add(&self.tally.receive_bytes, u64::from(done.byte_len));
        }
        let pushed = Cq::push(
            cq,
            owner,
            &Completion {
                wc: Wc {
                    wr_id: recv.wr_id,
                    status: done.status as u32,
                    opcode: done.opcode as u32,
                    vendor_err: 0,
                    byte_len: done.byte_len,
                    imm: done.imm,
                    qp_num: self.num(),
                    src_qp: done.src_qp,
                    wc_flags: done.wc_flags,
                    pkey_index: 0,
                    slid: done.slid,
                    sl: done.sl,
                    dlid_path_bits: 0,
                },
                release,
                solicited: done.solicited,
            },
        );
        if pushed.is_err() {
            self.overrun(after);
        } else if failed && done.status != WcStatus::WrFlushErr {
            // A datagram that does not fit harms nobody else (IBTA 9.9.3: UD and UC receive on).
            if matches!(self.qp_type(), QpType::Rc | QpType::XrcRecv) {
                after.break_down(&self.me, self.incarnation(), QpState::Err);
            }
        }
    }

    /// SEND_WITH_INV: takes a type 2 window's key away. Call it before `complete_recv`.
    pub fn invalidate(&self, rkey: u32) -> Result<(), NakReason> {
        let windows = &self.adapter().windows;
        let result = windows.invalidate(rkey, self.pd_id, self.num());
        if result.is_err() {
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// A request of the peer was refused: the QP moves to ERR and the program gets the
    /// asynchronous event that belongs to the reason (IBTA 11.6.3). Nothing happens on UC and
    /// UD.
    pub fn responder_failed(&self, reason: NakReason, after: &mut Aftermath) {
        if !matches!(self.qp_type(), QpType::Rc | QpType::XrcRecv) {
            return;
        }
        let event = match reason {
            NakReason::RemoteAccess => Some(EventType::QpAccessErr),
            NakReason::InvalidRequest => Some(EventType::QpReqErr),
            // The bad receive's own completion says it.
            NakReason::RemoteOperation => None,
        };
        self.fail(event, after);
    }

    /// The SRQ of this QP's XRC domain with this number.
    pub fn xrc_srq(&self, srqn: u32) -> Option<Arc<Srq>> {
        let srq = self.directory.srqs.get(srqn)?;
        let domain = srq.xrcd()?.id();
        (self.xrcd()?.id() == domain).then_some(srq)
    }

    /// The first message in RTR tells the program that the peer is there (IBTA 11.6.3.1.1).
    #[inline]
    fn first_message(&self) {
        if self.state() == QpState::Rtr && !self.communicating.swap(true, Ordering::Relaxed) {
            self.raise(EventType::CommEst);
        }
    }
}
