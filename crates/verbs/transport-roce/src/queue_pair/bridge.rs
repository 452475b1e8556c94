//! What the protocol asks of memory, answered by the engine.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_protocol::{
    Access, Atomic, Memory, Received, Refusal, Remote, ScatterError, Status, TakeError,
};
use sluice_shmem::verbs::copy;
use sluice_verbs::responder::{self, RecvDone, RecvWqe, RemoteMemory, RemoteOp, RemoteRequest};
use sluice_verbs::{Aftermath, NakReason, Qp, QpType, WcOpcode, WcStatus, wc_flags};
use sluice_wire::{Qpn, grh};

use crate::queue_pair::requests::Requests;

/// The receive of the message under way, and what came with a datagram.
pub struct Inbound {
    recv: RecvWqe,
    /// It was put aside between two packets.
    aside: bool,
    /// The shared receive queue that the message names (XRC).
    srq: u32,
    /// UD: the sender, and the header that goes in front of the data.
    pub source: u32,
    pub header: [u8; grh::BYTES],
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            recv: RecvWqe::new(),
            aside: false,
            srq: 0,
            source: 0,
            header: [0; grh::BYTES],
        }
    }
}

impl Inbound {
    /// A packet has been looked at. The memory of a message that goes on may be deregistered
    /// until the next one comes.
    pub fn put_aside(&mut self, qp: &Qp) {
        if self.recv.is_taken() && !self.aside {
            self.recv.unpin(qp);
            self.aside = true;
        }
    }

    fn take_up(&mut self, qp: &Qp) -> bool {
        !core::mem::take(&mut self.aside) || self.recv.pin_again(qp)
    }
}

/// A queue pair's memory while one of its packets is looked at.
pub struct Bridge<'a> {
    pub qp: &'a Qp,
    pub requests: &'a Requests,
    pub inbound: &'a mut Inbound,
    pub after: &'a mut Aftermath,
}

fn refusal(reason: NakReason) -> Refusal {
    match reason {
        NakReason::InvalidRequest => Refusal::InvalidRequest,
        NakReason::RemoteAccess => Refusal::Access,
        NakReason::RemoteOperation => Refusal::Operation,
    }
}

/// The engine's name for it.
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

impl<'a> Bridge<'a> {
    fn remote(
        &self,
        op: RemoteOp,
        remote: Remote,
        length: u32,
    ) -> Result<RemoteMemory<'a>, Refusal> {
        remote_memory(self.qp, op, remote, length, self.inbound.srq)
    }

    /// Bytes in front of the data of a datagram.
    fn front(&self) -> u32 {
        match self.qp.qp_type() {
            QpType::Ud => grh::BYTES as u32,
            _ => 0,
        }
    }
}

/// Memory that a peer may touch. `srq`: the number of the queue that an XRC message names, or 0.
pub fn remote_memory(
    qp: &Qp,
    op: RemoteOp,
    remote: Remote,
    length: u32,
    srq: u32,
) -> Result<RemoteMemory<'_>, Refusal> {
    qp.check_remote(&RemoteRequest {
        op,
        rkey: remote.rkey,
        addr: remote.address,
        len: u64::from(length),
        srqn: srq,
    })
    .map_err(refusal)
}

/// Copies what a peer reads. False: it may not, or the memory is gone.
pub fn read_region(
    qp: &Qp,
    remote: Remote,
    srq: Option<Qpn>,
    into: &mut [u8],
) -> Result<(), Refusal> {
    let srq = srq.map_or(0, Qpn::get);
    let memory = remote_memory(qp, RemoteOp::Read, remote, into.len() as u32, srq)?;
    // SAFETY: checked and pinned for as many bytes as `into` has; `into` is ours alone.
    unsafe { core::ptr::copy_nonoverlapping(memory.as_ptr(), into.as_mut_ptr(), memory.len()) };
    Ok(())
}

impl Memory for Bridge<'_> {
    fn place(&mut self, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.requests.place(self.qp, seq, offset, bytes)
    }

    fn select(&mut self, srq: Qpn) {
        self.inbound.srq = srq.get();
    }

    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        let op = match access {
            Access::Write => RemoteOp::Write,
            Access::Read => RemoteOp::Read,
        };
        self.remote(op, remote, length).map(drop)
    }

    fn write(&mut self, remote: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        let memory = self.remote(RemoteOp::Write, remote, bytes.len() as u32)?;
        // SAFETY: checked and pinned for as many bytes; `bytes` is the packet, in memory of our
        // own, which no key opens.
        unsafe { copy::ascending(memory.as_ptr(), bytes.as_ptr(), memory.len()) };
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        let memory = self.remote(RemoteOp::Atomic, remote, 8)?;
        // SAFETY: checked and pinned for 8 bytes, which the engine found aligned in the region's
        // own counting; alignment in this process is looked at here.
        let word = unsafe {
            let word = memory.as_ptr().cast::<u64>();
            if !word.is_aligned() {
                return Err(Refusal::InvalidRequest);
            }
            AtomicU64::from_ptr(word)
        };
        Ok(match atomic {
            Atomic::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
        })
    }

    fn take_receive(&mut self) -> Result<(), TakeError> {
        let inbound = &mut *self.inbound;
        inbound.aside = false;
        let taken = match self.qp.qp_type() {
            QpType::XrcRecv => self
                .qp
                .take_recv_xrc(inbound.srq, &mut inbound.recv, self.after),
            _ => self.qp.take_recv(&mut inbound.recv, self.after),
        };
        taken.map_err(|error| match error {
            responder::TakeError::Empty | responder::TakeError::NotReady => TakeError::Empty,
            responder::TakeError::Bad(_) => TakeError::Bad,
        })
    }

    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError> {
        if !self.inbound.take_up(self.qp) {
            return Err(ScatterError::Fault);
        }
        let front = self.front();
        let recv = &self.inbound.recv;
        let header_fits = front == 0 || offset != 0 || recv.scatter(0, &self.inbound.header);
        if header_fits && recv.scatter(u64::from(front) + u64::from(offset), bytes) {
            Ok(())
        } else {
            Err(ScatterError::TooLong)
        }
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal> {
        self.qp.invalidate(rkey).map_err(refusal)
    }

    fn complete_receive(&mut self, received: &Received) {
        self.inbound.aside = false;
        let is_datagram = self.front() != 0;
        let (imm, mut flags) = match (received.immediate, received.invalidated) {
            (Some(data), _) => (u32::from_ne_bytes(data.0), wc_flags::WITH_IMM),
            (None, Some(rkey)) => (rkey, wc_flags::WITH_INV),
            (None, None) => (0, 0),
        };
        if is_datagram {
            flags |= wc_flags::GRH;
        }
        let done = RecvDone {
            status: status(received.status),
            opcode: if received.write {
                WcOpcode::RecvRdmaWithImm
            } else {
                WcOpcode::Recv
            },
            imm,
            wc_flags: flags,
            solicited: received.solicited,
            src_qp: if is_datagram { self.inbound.source } else { 0 },
            ..RecvDone::ok(received.length + self.front())
        };
        self.qp
            .complete_recv(&mut self.inbound.recv, &done, self.after);
    }
}
