//! Requests in the words of the protocols ([`sluice_protocol`]).

use sluice_protocol::{Operation, Remote, Request, Status};
use sluice_verbs::{WcStatus, Wqe, WrOpcode, send_flags};
use sluice_wire::Qpn;
use sluice_wire::extended::ImmDt;

/// What a protocol needs to know of a request. `xrc`: it names a shared receive queue. None for what
/// never leaves the engine.
pub fn request(wqe: &Wqe<'_>, xrc: bool) -> Option<Request> {
    let wr = &wqe.wr;
    Some(Request {
        seq: wqe.seq,
        operation: operation(wqe)?,
        // The engine refuses more than the transport's max_msg_sz.
        length: wqe.length as u32,
        solicited: wr.flags & send_flags::SOLICITED != 0,
        srq: xrc.then(|| Qpn::new(wr.xrc_srqn)),
    })
}

/// A protocol's name for what a request wants; None for what never leaves the engine.
pub fn operation(wqe: &Wqe<'_>) -> Option<Operation> {
    let wr = &wqe.wr;
    let remote = Remote {
        address: wr.remote_addr,
        rkey: wr.rkey,
    };
    let immediate = ImmDt(wr.imm.to_ne_bytes());
    Some(match wr.opcode {
        WrOpcode::Send => Operation::Send,
        WrOpcode::SendWithImm => Operation::SendImmediate(immediate),
        WrOpcode::SendWithInv => Operation::SendInvalidate(wr.imm),
        WrOpcode::RdmaWrite => Operation::Write(remote),
        WrOpcode::RdmaWriteWithImm => Operation::WriteImmediate(remote, immediate),
        WrOpcode::RdmaRead => Operation::Read(remote),
        WrOpcode::AtomicCmpAndSwp => Operation::CompareSwap {
            remote,
            compare: wr.compare_add,
            swap: wr.swap,
        },
        WrOpcode::AtomicFetchAndAdd => Operation::FetchAdd {
            remote,
            add: wr.compare_add,
        },
        WrOpcode::LocalInv | WrOpcode::BindMw => return None,
    })
}

/// The engine's name for how a request or a receive ended.
pub fn status(status: Status) -> WcStatus {
    match status {
        Status::Success => WcStatus::Success,
        Status::LocalLength => WcStatus::LocLenErr,
        Status::LocalProtection => WcStatus::LocProtErr,
        Status::Flushed => WcStatus::WrFlushErr,
        Status::RemoteInvalidRequest => WcStatus::RemInvReqErr,
        Status::RemoteAccess => WcStatus::RemAccessErr,
        Status::RemoteOperation => WcStatus::RemOpErr,
        Status::RetryExceeded => WcStatus::RetryExcErr,
        Status::RnrRetryExceeded => WcStatus::RnrRetryExcErr,
    }
}
