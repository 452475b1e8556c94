//! The requests of a queue pair that are not complete: the engine's records of them, which it has lent.

use sluice_protocol::Request;
use sluice_transport::pieces;
use sluice_transport::request::request;
use sluice_verbs::{Aftermath, LentRecords, Qp, SendDone, Wqe};

use crate::pins::{Pinned, Pins};
use crate::socket::piece;

/// The records, once the queue pair is bound.
#[derive(Default)]
pub struct Requests(Option<LentRecords>);

impl Requests {
    /// The queue pair's records, or nobody's.
    pub fn bind(&mut self, records: Option<LentRecords>) {
        self.0 = records;
    }

    /// The next one that the protocol has not got.
    pub fn next(&self) -> Option<Request> {
        let records = self.0.as_ref()?;
        records.look(records.next()?, |wqe| request(wqe, false))?
    }

    /// The protocol has got it.
    pub fn handed(&mut self) {
        if let Some(records) = &mut self.0 {
            records.take();
        }
    }

    /// Pins memory of a request, to be read or written. False when it is not that long, not
    /// registered any more, or in more pieces than there is room for.
    pub fn pin<'a>(
        &'a self,
        qp: &'a Qp,
        seq: u64,
        range: (u32, u32),
        write: bool,
        into: &mut Pins<'a>,
    ) -> bool {
        let records = self.0.as_ref();
        let pinned =
            records.and_then(|records| records.look(seq, |wqe| pin(qp, wqe, range, write, into)));
        pinned == Some(true)
    }

    /// The request has ended, and so have all before it: tells the engine.
    pub fn complete(&mut self, qp: &Qp, seq: u64, done: SendDone, after: &mut Aftermath) {
        if let Some(records) = &mut self.0 {
            qp.complete_lent(records, seq, done, after);
        }
    }

    /// All are flushed, also those that nobody has looked at.
    pub fn clear(&mut self) {
        if let Some(records) = &mut self.0 {
            records.all_ended();
        }
    }
}

/// Pins `len` bytes, from `offset` on.
fn pin<'a>(
    qp: &'a Qp,
    wqe: &Wqe<'_>,
    (offset, len): (u32, u32),
    write: bool,
    into: &mut Pins<'a>,
) -> bool {
    let inline = wqe.wr.is_inline();
    // What is sent from a copy is nobody's to write.
    if inline && write {
        return false;
    }
    let mut left = len;
    for part in pieces::parts(wqe.wr.sges, u64::from(offset), len as usize) {
        let pinned = match inline {
            // Of the record, which is there until the request has ended.
            true => Some(Pinned::Kept(piece(
                part.addr as *mut u8,
                part.length as usize,
            ))),
            false => qp.pin_local(&part, write).map(Pinned::Local),
        };
        let Some(pinned) = pinned else { return false };
        if into.try_push(pinned).is_err() {
            return false;
        }
        left -= part.length;
    }
    left == 0
}
