//! What a transport asks on the responder's side: may this message touch that memory, and
//! which receive does it go to.

use std::sync::Arc;

use crate::error::NakReason;
use crate::types::{Sge, WcOpcode, WcStatus};
use crate::{Qp, Srq};

/// Pieces of memory that a work request can have at most.
pub const MAX_SGE: usize = 32;

/// What a peer wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOp {
    Write,
    Read,
    /// 8 bytes, aligned.
    Atomic,
}

/// A peer's request for memory, as it came over the wire.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRequest {
    pub op: RemoteOp,
    pub rkey: u32,
    pub addr: u64,
    /// Bytes. With 0 neither key nor address is looked at (IBTA 9.7.4.1.6).
    pub len: u64,
    /// The SRQ that an XRC message names; its domain is the one that counts. Else 0.
    pub srqn: u32,
}

/// Memory that a peer may touch. While it lives the region stays registered, so drop it soon.
pub struct RemoteMemory<'a> {
    ptr: *mut u8,
    len: usize,
    _pin: core::marker::PhantomData<&'a Qp>,
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

/// A receive that a message goes to. Make one per place where you need it and use it again and
/// again; a receive that was taken must be completed.
pub struct RecvWqe {
    _todo: (),
}

impl RecvWqe {
    #[allow(clippy::new_without_default)]
    pub fn new() -> RecvWqe {
        RecvWqe { _todo: () }
    }

    pub fn wr_id(&self) -> u64 {
        todo!()
    }

    /// Addresses of this process, checked; they stay registered until the receive is completed.
    pub fn sges(&self) -> &[Sge] {
        todo!()
    }

    /// Bytes of room. A longer message is completed with LOC_LEN_ERR, and refused with
    /// [`NakReason::InvalidRequest`].
    pub fn room(&self) -> u64 {
        todo!()
    }

    /// Copies `bytes` to the place that is `offset` bytes into the list. False, and nothing
    /// copied, when there is not enough room.
    pub fn scatter(&self, offset: u64, bytes: &[u8]) -> bool {
        let _ = (offset, bytes);
        todo!()
    }
}

/// Why there is no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// RC: answer RNR, and try again after `receives_posted` or a while; UC, UD: drop.
    Empty,
    /// The QP is not in a state to receive: drop, the requester will time out.
    NotReady,
    /// The program's receive was bad. It has been completed with an error and the QP is in
    /// ERR; refuse with this.
    Bad(NakReason),
}

/// How a receive ended.
#[derive(Clone, Copy, Debug)]
pub struct RecvDone {
    pub status: WcStatus,
    /// [`WcOpcode::Recv`] or [`WcOpcode::RecvRdmaWithImm`].
    pub opcode: WcOpcode,
    /// Bytes of the message; UD: with the 40 of the GRH.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the key that was invalidated.
    pub imm: u32,
    /// [`crate::types::wc_flags`].
    pub wc_flags: u32,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    pub src_qp: u32,
    pub slid: u16,
    pub sl: u8,
}

impl RecvDone {
    pub const fn ok(byte_len: u32) -> RecvDone {
        RecvDone {
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: 0,
            wc_flags: 0,
            solicited: false,
            src_qp: 0,
            slid: 0,
            sl: 0,
        }
    }

    pub const fn failed(status: WcStatus) -> RecvDone {
        RecvDone {
            status,
            ..RecvDone::ok(0)
        }
    }
}

/// For the transport, responder's side. All of these refuse when the QP does not receive in its
/// state.
impl Qp {
    /// May the peer do this? The refusal's reason goes back to it; for RC call
    /// [`Qp::responder_failed`] then, for UC drop the message.
    pub fn check_remote(&self, request: &RemoteRequest) -> Result<RemoteMemory<'_>, NakReason> {
        let _ = request;
        todo!()
    }

    /// The receive for the next message. Takes for one QP must be completed in order.
    pub fn take_recv(&self, into: &mut RecvWqe) -> Result<(), TakeError> {
        let _ = into;
        todo!()
    }

    /// The same for an XRC target: from the SRQ that the message names.
    pub fn take_recv_xrc(&self, srqn: u32, into: &mut RecvWqe) -> Result<(), TakeError> {
        let _ = (srqn, into);
        todo!()
    }

    /// Ends a taken receive: completion, events. A failure moves an RC QP to ERR.
    pub fn complete_recv(&self, recv: &mut RecvWqe, done: &RecvDone) {
        let _ = (recv, done);
        todo!()
    }

    /// SEND_WITH_INV: takes a type 2 window's key away. Call it before `complete_recv`.
    pub fn invalidate(&self, rkey: u32) -> Result<(), NakReason> {
        let _ = rkey;
        todo!()
    }

    /// A request of the peer was refused: the QP moves to ERR and the program gets the
    /// asynchronous event that belongs to the reason (IBTA 11.6.3). Nothing happens on UC and
    /// UD.
    pub fn responder_failed(&self, reason: NakReason) {
        let _ = reason;
        todo!()
    }

    /// The SRQ of this QP's XRC domain with this number.
    pub fn xrc_srq(&self, srqn: u32) -> Option<Arc<Srq>> {
        let _ = srqn;
        todo!()
    }
}
