//! The responder's side of a message that is there in one piece, for transports that have it so. One
//! that gets its messages in packets, or reaches memory by itself, makes these calls at its own times.

use sluice_verbs_model::opcode::{Facts, facts};
use sluice_verbs_model::refusal::NakReason;
use sluice_verbs_model::responder::{RecvDone, RemoteRequest, TakeError};
use sluice_verbs_model::types::{QpType, WcStatus, WrOpcode, wc_flags};

use crate::aftermath::Aftermath;
use crate::qp::Qp;
use crate::qp::responder::RecvWqe;

/// Bytes of the global route header in front of a datagram (IBTA 8.3).
pub const GRH_BYTES: usize = 40;

/// A peer's message. What its opcode does not have means nothing.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub opcode: WrOpcode,
    /// What is sent or written.
    pub bytes: &'a [u8],
    /// Bytes that are sent, written or asked for.
    pub len: u64,
    /// RDMA and atomics.
    pub addr: u64,
    pub rkey: u32,
    /// Of an atomic: what to compare with or to add, what to swap in.
    pub operands: [u64; 2],
    /// Immediate data in network byte order, or a key to take away.
    pub imm: u32,
    pub solicited: bool,
    /// XRC: the SRQ.
    pub srqn: u32,
    /// UD: who sent it.
    pub src_qp: u32,
    /// UD: what stands in front.
    pub header: [u8; GRH_BYTES],
}

impl Qp {
    /// Takes a receive, touches memory and completes, as far as the message wants each, in this order:
    /// one that finds no receive has done nothing. The bytes are what a READ or an atomic brings.
    ///
    /// `receive` is a place for the receive while this runs. For RC call [`Qp::responder_failed`]
    /// with the reason of [`TakeError::Bad`], for UC drop the message.
    pub fn carry_out(
        &self,
        message: &Message<'_>,
        receive: &mut RecvWqe,
        after: &mut Aftermath,
    ) -> Result<Vec<u8>, TakeError> {
        let facts = facts(message.opcode);
        if !facts.takes_receive {
            return self.touch(message, facts).map_err(TakeError::Bad);
        }
        match self.qp_type() {
            QpType::XrcRecv => self.take_recv_xrc(message.srqn, receive, after)?,
            _ => self.take_recv(receive, after)?,
        }
        let header: &[u8] = match self.qp_type() {
            QpType::Ud => &message.header,
            _ => &[],
        };
        let at = header.len() as u64;
        let fits = facts.remote.is_some()
            || (receive.scatter(0, header) && receive.scatter(at, message.bytes));
        let touched = match fits {
            true => self.touch(message, facts),
            false => Err(NakReason::InvalidRequest),
        };
        let mut done = match &touched {
            Ok(_) => {
                let len = (at + message.len) as u32;
                facts.received(len, message.imm, message.solicited)
            }
            Err(_) if fits => RecvDone::failed(WcStatus::WrFlushErr),
            Err(_) => RecvDone::failed(WcStatus::LocLenErr),
        };
        if self.qp_type() == QpType::Ud {
            done.src_qp = message.src_qp;
            done.wc_flags |= wc_flags::GRH;
        }
        self.complete_recv(receive, &done, after);
        touched.map_err(TakeError::Bad)
    }

    /// RDMA and atomics, and keys that are taken away.
    fn touch(&self, message: &Message<'_>, facts: &Facts) -> Result<Vec<u8>, NakReason> {
        if facts.invalidates {
            self.invalidate(message.imm)?;
        }
        let Some(op) = facts.remote else {
            return Ok(Vec::new());
        };
        let memory = self.check_remote(&RemoteRequest {
            op,
            rkey: message.rkey,
            addr: message.addr,
            len: message.len,
            srqn: message.srqn,
        })?;
        Ok(memory.carry_out(message.opcode, message.bytes, message.operands))
    }
}
