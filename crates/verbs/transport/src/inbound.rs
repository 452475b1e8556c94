//! The responder's memory, in the words of the protocols ([`sluice_protocol`]).
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_protocol::{Atomic, Received, TakeError};
use sluice_verbs::responder::{self, RecvDone, RecvWqe, RemoteMemory};
use sluice_verbs::{Aftermath, Qp, WcOpcode, wc_flags};

use crate::request::status;

/// The receive of the message under way.
#[derive(Default)]
pub struct Inbound {
    recv: RecvWqe,
    /// It was suspended between two parts of the message.
    suspended: bool,
}

impl Inbound {
    /// Takes the receive of the next message, by `take`.
    pub fn take(
        &mut self,
        take: impl FnOnce(&mut RecvWqe) -> Result<(), responder::TakeError>,
    ) -> Result<(), TakeError> {
        self.suspended = false;
        take(&mut self.recv).map_err(|error| match error {
            responder::TakeError::Empty | responder::TakeError::NotReady => TakeError::Empty,
            responder::TakeError::Bad(_) => TakeError::Bad,
        })
    }

    /// Whether a receive was taken and has not ended.
    pub fn is_taken(&self) -> bool {
        self.recv.is_taken()
    }

    /// All that came has been looked at. The memory of a message that goes on may be deregistered
    /// until more of it comes.
    pub fn suspend(&mut self, qp: &Qp) {
        if self.recv.is_taken() && !self.suspended {
            self.recv.unpin(qp);
            self.suspended = true;
        }
    }

    /// The receive, for bytes of its message. None: its memory is gone.
    pub fn take_up(&mut self, qp: &Qp) -> Option<&RecvWqe> {
        let there = !core::mem::take(&mut self.suspended) || self.recv.pin_again(qp);
        there.then_some(&self.recv)
    }

    /// Bytes that it has room for.
    pub fn room(&self) -> u64 {
        self.recv.room()
    }

    /// Ends it.
    pub fn complete(&mut self, qp: &Qp, done: &RecvDone, after: &mut Aftermath) {
        self.suspended = false;
        qp.complete_recv(&mut self.recv, done, after);
    }
}

/// The engine's words for how a receive ended.
pub fn done(received: &Received) -> RecvDone {
    let (imm, flags) = match (received.immediate, received.invalidated) {
        (Some(data), _) => (u32::from_ne_bytes(data.0), wc_flags::WITH_IMM),
        (None, Some(rkey)) => (rkey, wc_flags::WITH_INV),
        (None, None) => (0, 0),
    };
    RecvDone {
        status: status(received.status),
        opcode: if received.write {
            WcOpcode::RecvRdmaWithImm
        } else {
            WcOpcode::Recv
        },
        imm,
        wc_flags: flags,
        solicited: received.solicited,
        ..RecvDone::ok(received.length)
    }
}

/// Carries out a peer's atomic operation on memory that [`Qp::check_remote`] gave for one: the value
/// from before it. None: it is not aligned in this process.
pub fn atomic(memory: &RemoteMemory<'_>, atomic: Atomic) -> Option<u64> {
    let word = memory.as_ptr().cast::<u64>();
    if !word.is_aligned() || memory.len() != size_of::<u64>() {
        return None;
    }
    // SAFETY: checked and pinned for 8 bytes, and aligned.
    let word = unsafe { AtomicU64::from_ptr(word) };
    Some(match atomic {
        Atomic::CompareSwap { compare, swap } => word
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|found| found),
        Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
    })
}
