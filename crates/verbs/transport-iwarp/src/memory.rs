//! What the protocol asks of memory, answered by the engine.
#![allow(unsafe_code)]

use sluice_protocol::iwarp::{Direct, Memory, Payload, Place, Refusal};
use sluice_protocol::{Access, Atomic, Received, Remote, TakeError};
use sluice_shmem::verbs::copy;
use sluice_transport::inbound::{self, Inbound};
use sluice_transport::pieces;
use sluice_verbs::responder::{RecvWqe, RemoteMemory, RemoteOp, RemoteRequest};
use sluice_verbs::{Aftermath, NakReason, Qp};

use crate::pins::{Pinned, Pins};
use crate::requests::Requests;
use crate::socket::piece;

/// Memory of ours that is read.
pub struct Source<'a> {
    pub qp: &'a Qp,
    pub requests: &'a Requests,
}

impl<'a> Source<'a> {
    /// Pins bytes that leave, `skip` bytes into them. The requests' own refusal is
    /// [`Refusal::Local`].
    pub fn pin(&self, payload: &Payload, skip: u32, into: &mut Pins<'a>) -> Result<(), Refusal> {
        match *payload {
            Payload::None => Ok(()),
            Payload::Request {
                seq,
                offset,
                length,
            } => {
                let range = (offset + skip, length - skip);
                let pinned = self.requests.pin(self.qp, seq, range, false, into);
                pinned.then_some(()).ok_or(Refusal::Local)
            }
            Payload::Region { remote, length } => {
                let remote = Remote {
                    address: remote.address.wrapping_add(u64::from(skip)),
                    ..remote
                };
                let memory = region(self.qp, RemoteOp::Read, remote, length - skip)?;
                into.try_push(Pinned::Remote(memory))
                    .map_err(|_| Refusal::Local)
            }
        }
    }
}

/// A queue pair's memory while its stream is looked at.
pub struct Bridge<'a> {
    pub qp: &'a Qp,
    pub requests: &'a Requests,
    pub inbound: &'a mut Inbound,
    pub after: &'a mut Aftermath,
}

/// Memory that a peer may touch.
fn region(qp: &Qp, op: RemoteOp, remote: Remote, len: u32) -> Result<RemoteMemory<'_>, Refusal> {
    let request = RemoteRequest {
        op,
        rkey: remote.rkey,
        addr: remote.address,
        len: u64::from(len),
        srqn: 0,
    };
    qp.check_remote(&request).map_err(|reason| match reason {
        // The queue pair does not take the operation.
        NakReason::InvalidRequest => Refusal::AccessRights,
        // The engine does not say which of key, domain, bounds and rights it was.
        NakReason::RemoteAccess => Refusal::InvalidStag,
        NakReason::RemoteOperation => Refusal::Local,
    })
}

/// Pieces of a receive, from `offset` on.
fn receive_pieces(recv: &RecvWqe, offset: u32, len: usize, into: &mut Pins<'_>) -> bool {
    let parts = pieces::gather(recv.sges(), u64::from(offset), len);
    let mut left = len;
    for (start, bytes) in parts {
        left -= bytes;
        let piece = piece(start.cast_mut(), bytes);
        if into.try_push(Pinned::Receive(piece)).is_err() {
            return false;
        }
    }
    left == 0
}

impl<'a> Bridge<'a> {
    /// Pins the place that the next bytes of the stream go to.
    pub fn pin<'p>(&mut self, direct: &Direct, into: &mut Pins<'p>) -> Result<(), Refusal>
    where
        'a: 'p,
    {
        let (qp, requests): (&'a Qp, &'a Requests) = (self.qp, self.requests);
        let len = direct.length as u32; // At most a frame's.
        match direct.place {
            Place::Region(remote) => {
                let memory = region(qp, RemoteOp::Write, remote, len)?;
                into.try_push(Pinned::Remote(memory))
                    .map_err(|_| Refusal::Local)
            }
            Place::Receive { offset } => {
                let recv = self.inbound.take_up(qp).ok_or(Refusal::Local)?;
                let pinned = receive_pieces(recv, offset, direct.length, into);
                pinned.then_some(()).ok_or(Refusal::Local)
            }
            Place::Request { seq, offset } => {
                let pinned = requests.pin(qp, seq, (offset, len), true, into);
                pinned.then_some(()).ok_or(Refusal::Local)
            }
        }
    }
}

impl Memory for Bridge<'_> {
    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        let op = match access {
            Access::Write => RemoteOp::Write,
            Access::Read => RemoteOp::Read,
        };
        region(self.qp, op, remote, length).map(drop)
    }

    fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Refusal> {
        let mut pins = Pins::new();
        let length = bytes.len();
        self.pin(&Direct { place, length }, &mut pins)?;
        let mut at = 0;
        for pinned in &pins {
            let piece = pinned.piece();
            // SAFETY: the piece is pinned for writing, and the pieces add up to the bytes that go
            // there; `bytes` is memory of our own, which no key opens.
            unsafe {
                let from = bytes.as_ptr().add(at);
                copy::ascending(piece.iov_base.cast(), from, piece.iov_len);
            }
            at += piece.iov_len;
        }
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        if !remote.address.is_multiple_of(8) {
            return Err(Refusal::Unsupported);
        }
        let memory = region(self.qp, RemoteOp::Atomic, remote, 8)?;
        inbound::atomic(&memory, atomic).ok_or(Refusal::Unsupported)
    }

    fn take_receive(&mut self) -> Result<u32, TakeError> {
        let (qp, after) = (self.qp, &mut *self.after);
        self.inbound.take(|recv| qp.take_recv(recv, after))?;
        Ok(u32::try_from(self.inbound.room()).unwrap_or(u32::MAX))
    }

    fn invalidate(&mut self, stag: u32) -> Result<(), Refusal> {
        self.qp
            .invalidate(stag)
            .map_err(|_| Refusal::CannotInvalidate)
    }

    fn complete_receive(&mut self, received: &Received) {
        let done = inbound::done(received);
        self.inbound.complete(self.qp, &done, self.after);
    }
}
