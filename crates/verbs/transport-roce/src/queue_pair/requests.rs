//! The requester's memory: what a queue pair was asked to send, and where its bytes are.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use sluice_protocol::{Datagram, Refusal, Request};
use sluice_shmem::verbs::copy;
use sluice_transport::pieces;
use sluice_transport::request::request;
use sluice_verbs::{Aftermath, LentRecords, Qp, QpCap, QpType, SendDone, Sge, Wqe};

use crate::locks::lock;
use crate::network::path::Way;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct To {
    pub way: Way,
    pub datagram: Datagram,
}

/// Where a queue pair's datagrams go: what is kept of each besides the engine's record.
#[derive(Debug, Default)]
pub struct Targets(Box<[Mutex<Option<To>>]>);

impl Targets {
    /// Of a queue pair of that kind.
    pub fn new(kind: QpType, cap: &QpCap) -> Arc<Self> {
        let places = match (kind, cap.max_send_wr) {
            (QpType::Ud, wanted @ 1..) => wanted.next_power_of_two(),
            _ => 0,
        };
        Arc::new(Self((0..places).map(|_| Mutex::default()).collect()))
    }

    fn place(&self, seq: u64) -> Option<&Mutex<Option<To>>> {
        self.0.get(seq as usize & self.0.len().wrapping_sub(1))
    }

    /// In front of the request. As many requests as there are places are on their way at most.
    pub fn set(&self, seq: u64, to: To) {
        if let Some(place) = self.place(seq) {
            *lock(place) = Some(to);
        }
    }

    fn get(&self, seq: u64) -> Option<To> {
        *lock(self.place(seq)?)
    }
}

/// The part of a list that begins at `offset`, piece by piece. False when it is not that long, or
/// `each` gives false.
fn walk(pieces: &[Sge], offset: u32, len: usize, mut each: impl FnMut(usize, Sge) -> bool) -> bool {
    let mut at = 0;
    for part in pieces::parts(pieces, u64::from(offset), len) {
        if !each(at, part) {
            return false;
        }
        at += part.length as usize;
    }
    at == len
}

/// Copies bytes that leave. False: they cannot be had.
fn gather(qp: &Qp, wqe: &Wqe<'_>, offset: u32, into: &mut [u8]) -> bool {
    let inline = wqe.wr.is_inline();
    walk(wqe.wr.sges, offset, into.len(), |at, piece| {
        let pinned = match inline {
            true => None,
            false => match qp.pin_local(&piece, false) {
                pinned @ Some(_) => pinned,
                None => return false,
            },
        };
        let source = match &pinned {
            Some(memory) => memory.as_ptr().cast_const(),
            // Of the record.
            None => piece.addr as *const u8,
        };
        // SAFETY: pinned, so registered and mapped, or part of the engine's record, which is this
        // transport's while it is looked at; `walk` gives pieces that add up to `into.len()` bytes.
        // `into` is ours alone.
        unsafe {
            let target = into.as_mut_ptr().add(at);
            core::ptr::copy_nonoverlapping(source, target, piece.length as usize);
        }
        true
    })
}

/// Copies bytes of a response to their place.
fn place(qp: &Qp, wqe: &Wqe<'_>, offset: u32, bytes: &[u8]) -> bool {
    walk(wqe.wr.sges, offset, bytes.len(), |at, piece| {
        let Some(memory) = qp.pin_local(&piece, true) else {
            return false;
        };
        // SAFETY: pinned for writing, so registered and mapped; `walk` gives pieces that add up to
        // `bytes.len()`. `bytes` is the packet, in memory of our own.
        unsafe { copy::ascending(memory.as_ptr(), bytes.as_ptr().add(at), memory.len()) };
        true
    })
}

/// The requests of a queue pair that are not complete: the engine's records of them, which it has lent.
pub struct Requests {
    /// Once the queue pair is bound.
    records: Option<LentRecords>,
    targets: Arc<Targets>,
    xrc: bool,
}

impl Requests {
    pub fn new(kind: QpType, targets: Arc<Targets>) -> Self {
        Self {
            records: None,
            targets,
            xrc: kind == QpType::XrcSend,
        }
    }

    /// The queue pair's records, or nobody's.
    pub fn bind(&mut self, records: Option<LentRecords>) {
        self.records = records;
    }

    /// The number of the next one that the protocol has not got.
    pub fn next(&self) -> Option<u64> {
        self.records.as_ref()?.next()
    }

    /// The same, in the protocol's words.
    pub fn next_request(&self) -> Option<Request> {
        let records = self.records.as_ref()?;
        records.look(records.next()?, |wqe| request(wqe, self.xrc))?
    }

    /// The protocol has got it.
    pub fn handed(&mut self) {
        if let Some(records) = &mut self.records {
            records.take();
        }
    }

    /// Where a datagram goes.
    pub fn to(&self, seq: u64) -> Option<To> {
        self.targets.get(seq)
    }

    /// Copies `into.len()` bytes of a request, from `offset` on.
    pub fn gather(&self, qp: &Qp, seq: u64, offset: u32, into: &mut [u8]) -> bool {
        let records = self.records.as_ref();
        records.and_then(|records| records.look(seq, |wqe| gather(qp, wqe, offset, into)))
            == Some(true)
    }

    /// Copies bytes of a response to the request's memory.
    pub fn place(&self, qp: &Qp, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let records = self.records.as_ref().ok_or(Refusal::Operation)?;
        match records.look(seq, |wqe| place(qp, wqe, offset, bytes)) {
            Some(true) => Ok(()),
            Some(false) => Err(Refusal::Access),
            None => Err(Refusal::Operation),
        }
    }

    /// Whether the protocol has it and no other.
    pub fn is_only(&self, seq: u64) -> bool {
        let records = self.records.as_ref();
        records.is_some_and(|records| records.held() == 1 && records.first() == Some(seq))
    }

    /// The request has ended, and so have all before it, which the engine is told.
    pub fn complete(&mut self, qp: &Qp, seq: u64, done: SendDone, after: &mut Aftermath) {
        if let Some(records) = &mut self.records {
            qp.complete_lent(records, seq, done, after);
        }
    }

    /// The same, where somebody else tells the engine.
    pub fn end(&mut self, seq: u64) {
        if let Some(records) = &mut self.records {
            records.ended(seq);
        }
    }

    /// All are flushed, also those that nobody has looked at.
    pub fn clear(&mut self) {
        if let Some(records) = &mut self.records {
            records.all_ended();
        }
    }
}
