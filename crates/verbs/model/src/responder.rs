//! The responder's side: what a peer asks for, what becomes of it, and how a receive ends.

use crate::refusal::NakReason;
use crate::types::{QpState, WcOpcode, WcStatus, access};

/// What a peer wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOp {
    Write,
    Read,
    /// 8 bytes, aligned.
    Atomic,
}

impl RemoteOp {
    /// The right that it needs, of the QP and of the key.
    #[inline]
    pub const fn right(self) -> u32 {
        match self {
            RemoteOp::Write => access::REMOTE_WRITE,
            RemoteOp::Read => access::REMOTE_READ,
            RemoteOp::Atomic => access::REMOTE_ATOMIC,
        }
    }
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

/// Why there is no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// RC: answer RNR, and try again after `receives_posted` or a while; UC, UD: drop.
    Empty,
    /// The QP is not in a state to receive. `receives_posted` comes when it is.
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
    #[inline]
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

    #[inline]
    pub const fn failed(status: WcStatus) -> RecvDone {
        RecvDone {
            status,
            ..RecvDone::ok(0)
        }
    }
}

/// Whether a QP takes messages in this state.
#[inline]
pub const fn receives(state: QpState) -> bool {
    matches!(
        state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    )
}
