//! What the protocol asks of memory, answered by the engine.
#![allow(unsafe_code)]

use sluice_protocol::{Access, Atomic, Memory, Received, Refusal, Remote, ScatterError, TakeError};
use sluice_shmem::verbs::copy;
use sluice_transport::inbound;
use sluice_verbs::responder::{RemoteMemory, RemoteOp, RemoteRequest};
use sluice_verbs::{Aftermath, NakReason, Qp, QpType, wc_flags};
use sluice_wire::{Qpn, grh};

use crate::queue_pair::requests::Requests;

/// The receive of the message under way, and what came with a datagram.
pub struct Inbound {
    receive: inbound::Inbound,
    /// The shared receive queue that the message names (XRC).
    srq: u32,
    /// UD: the sender, and the header that goes in front of the data.
    pub source: u32,
    pub header: [u8; grh::BYTES],
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            receive: inbound::Inbound::default(),
            srq: 0,
            source: 0,
            header: [0; grh::BYTES],
        }
    }
}

impl Inbound {
    /// A packet has been looked at.
    pub fn suspend(&mut self, qp: &Qp) {
        self.receive.suspend(qp);
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
        // The engine found it aligned in the region's own counting.
        inbound::atomic(&memory, atomic).ok_or(Refusal::InvalidRequest)
    }

    fn take_receive(&mut self) -> Result<(), TakeError> {
        let (qp, srq) = (self.qp, self.inbound.srq);
        let after = &mut *self.after;
        self.inbound.receive.take(|recv| match qp.qp_type() {
            QpType::XrcRecv => qp.take_recv_xrc(srq, recv, after),
            _ => qp.take_recv(recv, after),
        })
    }

    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError> {
        let front = self.front();
        let Inbound {
            receive, header, ..
        } = &mut *self.inbound;
        let recv = receive.take_up(self.qp).ok_or(ScatterError::Fault)?;
        let header_fits = front == 0 || offset != 0 || recv.scatter(0, header);
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
        let mut done = inbound::done(received);
        let front = self.front();
        if front != 0 {
            done.wc_flags |= wc_flags::GRH;
            done.src_qp = self.inbound.source;
            done.sl = grh::packet_type(&self.inbound.header);
            done.byte_len += front;
        }
        self.inbound.receive.complete(self.qp, &done, self.after);
    }
}
