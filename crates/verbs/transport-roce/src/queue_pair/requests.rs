//! The requester's memory: what a queue pair was asked to send, and where its bytes are.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use sluice_protocol::{Datagram, Operation, Refusal, Remote, Request};
use sluice_shmem::verbs::copy;
use sluice_verbs::{Qp, Sge, Wqe, WrOpcode, send_flags};
use sluice_wire::Qpn;
use sluice_wire::extended::ImmDt;

use crate::network::path::Way;

/// Emptied slots that are kept for the next requests.
const SPARE_MAX: usize = 512;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct To {
    pub way: Way,
    pub datagram: Datagram,
}

/// A request on its way.
#[derive(Debug)]
pub struct Slot {
    pub request: Request,
    pub to: Option<To>,
    /// The pieces of registered memory, with their keys; or nothing, and the bytes are in
    /// `inline`.
    pieces: Vec<Sge>,
    inline: Vec<u8>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            request: Request {
                seq: 0,
                operation: Operation::Send,
                length: 0,
                solicited: false,
                srq: None,
            },
            to: None,
            pieces: Vec::new(),
            inline: Vec::new(),
        }
    }
}

impl Slot {
    /// Copies what the protocol and the later look at the memory need.
    fn fill(&mut self, wqe: &Wqe<'_>, operation: Operation, to: Option<To>, xrc: bool) {
        let wr = &wqe.wr;
        self.request = Request {
            seq: wqe.seq,
            operation,
            // The engine refuses more than the transport's max_msg_sz.
            length: wqe.length as u32,
            solicited: wr.flags & send_flags::SOLICITED != 0,
            srq: xrc.then(|| Qpn::new(wr.xrc_srqn)),
        };
        self.to = to;
        self.pieces.clear();
        self.inline.clear();
        let pieces = wr.sges.iter().filter(|piece| piece.length != 0);
        if wr.is_inline() {
            for piece in pieces {
                let len = piece.length as usize;
                self.inline.reserve(len);
                let at = self.inline.len();
                // SAFETY: by the contract of `QpTransport::post` the pieces are readable during
                // the call; `reserve` made room for `len` bytes behind the first `at`, in memory
                // of our own, and the copy initialises them.
                unsafe {
                    let target = self.inline.as_mut_ptr().add(at);
                    core::ptr::copy_nonoverlapping(piece.addr as *const u8, target, len);
                    self.inline.set_len(at + len);
                }
            }
        } else {
            self.pieces.extend(pieces);
        }
    }

    /// The part of the request's memory that begins at `offset`, piece by piece. False when it
    /// is not that long, or `each` gives false.
    fn walk(&self, offset: u32, len: usize, mut each: impl FnMut(usize, Sge) -> bool) -> bool {
        let (mut skip, mut at) = (offset, 0);
        for piece in &self.pieces {
            if at == len {
                break;
            }
            if skip >= piece.length {
                skip -= piece.length;
                continue;
            }
            let part = (piece.length - skip).min((len - at) as u32);
            let sge = Sge {
                addr: piece.addr + u64::from(skip),
                length: part,
                lkey: piece.lkey,
            };
            if !each(at, sge) {
                return false;
            }
            at += part as usize;
            skip = 0;
        }
        at == len
    }

    /// Copies bytes that leave. False: they cannot be had.
    fn gather(&self, qp: &Qp, offset: u32, into: &mut [u8]) -> bool {
        if !self.inline.is_empty() {
            let end = (offset as usize).checked_add(into.len());
            let Some(bytes) = end.and_then(|end| self.inline.get(offset as usize..end)) else {
                return false;
            };
            into.copy_from_slice(bytes);
            return true;
        }
        self.walk(offset, into.len(), |at, piece| {
            let Some(memory) = qp.pin_local(&piece, false) else {
                return false;
            };
            // SAFETY: pinned, so registered and mapped; `walk` gives pieces that add up to
            // `into.len()` bytes. `into` is ours alone.
            unsafe {
                let target = into.as_mut_ptr().add(at);
                core::ptr::copy_nonoverlapping(memory.as_ptr(), target, memory.len());
            }
            true
        })
    }

    /// Copies bytes of a response to their place.
    fn place(&self, qp: &Qp, offset: u32, bytes: &[u8]) -> bool {
        self.walk(offset, bytes.len(), |at, piece| {
            let Some(memory) = qp.pin_local(&piece, true) else {
                return false;
            };
            // SAFETY: as above, for writing; `bytes` is the packet, in memory of our own.
            unsafe { copy::ascending(memory.as_ptr(), bytes.as_ptr().add(at), memory.len()) };
            true
        })
    }
}

/// The protocol's name for what a request wants; None for what never leaves the engine.
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

/// What was posted and has not come to the queue pair's machine. Whoever posts must not wait for
/// the machine, so this has a lock of its own.
#[derive(Debug, Default)]
#[expect(
    clippy::vec_box,
    reason = "slots change hands three times, and are large"
)]
pub struct Outbox {
    slots: VecDeque<Box<Slot>>,
    spare: Vec<Box<Slot>>,
}

impl Outbox {
    /// Takes a request of the engine's.
    pub fn push(&mut self, wqe: &Wqe<'_>, operation: Operation, to: Option<To>, xrc: bool) {
        let mut slot = self.spare.pop().unwrap_or_default();
        slot.fill(wqe, operation, to, xrc);
        self.slots.push_back(slot);
    }

    /// All are flushed.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}

/// The requests of a queue pair that are not complete, in the order of posting.
#[derive(Debug, Default)]
#[expect(
    clippy::vec_box,
    reason = "slots change hands three times, and are large"
)]
pub struct Requests {
    slots: VecDeque<Box<Slot>>,
    /// Emptied ones, on their way back to the outbox.
    spare: Vec<Box<Slot>>,
    /// As many, from the front, are with the protocol.
    handed: usize,
}

impl Requests {
    /// Takes over what was posted.
    pub fn absorb(&mut self, outbox: &mut Outbox) {
        self.slots.append(&mut outbox.slots);
        let room = SPARE_MAX.saturating_sub(outbox.spare.len());
        let keep = self.spare.len().min(room);
        outbox.spare.extend(self.spare.drain(..keep));
        self.spare.clear();
    }

    /// The next one that the protocol has not got.
    pub fn next(&self) -> Option<&Slot> {
        self.slots.get(self.handed).map(Box::as_ref)
    }

    /// The protocol has got it.
    pub fn handed(&mut self) {
        self.handed += 1;
    }

    fn find(&self, seq: u64) -> Option<&Slot> {
        let first = self.slots.front()?.request.seq;
        // Numbers have gaps only where the engine did something by itself.
        if let Some(slot) = self.slots.get(seq.checked_sub(first)? as usize)
            && slot.request.seq == seq
        {
            return Some(slot);
        }
        let at = self.slots.partition_point(|slot| slot.request.seq < seq);
        let slot = self.slots.get(at)?;
        (slot.request.seq == seq).then_some(slot)
    }

    /// Where a datagram goes.
    pub fn to(&self, seq: u64) -> Option<To> {
        self.find(seq)?.to
    }

    /// Copies `into.len()` bytes of a request, from `offset` on.
    pub fn gather(&self, qp: &Qp, seq: u64, offset: u32, into: &mut [u8]) -> bool {
        self.find(seq)
            .is_some_and(|slot| slot.gather(qp, offset, into))
    }

    /// Copies bytes of a response to the request's memory.
    pub fn place(&self, qp: &Qp, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let slot = self.find(seq).ok_or(Refusal::Operation)?;
        if slot.place(qp, offset, bytes) {
            Ok(())
        } else {
            Err(Refusal::Access)
        }
    }

    /// Whether it is the only one.
    pub fn is_only(&self, seq: u64) -> bool {
        self.slots.len() == 1
            && self
                .slots
                .front()
                .is_some_and(|slot| slot.request.seq == seq)
    }

    /// The request has ended, and so have all before it.
    pub fn end(&mut self, seq: u64) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.request.seq <= seq)
        {
            self.spare.extend(self.slots.pop_front());
            self.handed = self.handed.saturating_sub(1);
        }
    }

    /// All are flushed.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.handed = 0;
    }
}
