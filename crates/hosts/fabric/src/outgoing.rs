//! What goes out on one link: messages in the order in which they were said, and writes between them.

use crate::message::{LaneNumber, MESSAGE_BYTES_MAX, Note, Record};
use crate::wire::{Full, LinkId, Local, Remote, Wire};

/// What waits to be said on a link.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub bytes: Vec<u8>,
}

/// One link, for those who have something to send on it.
#[derive(Debug)]
pub struct Outgoing<'a, W> {
    pub(crate) wire: &'a mut W,
    pub(crate) link: LinkId,
    pub(crate) outbox: &'a mut Outbox,
}

impl Outbox {
    pub fn note(&mut self, lane: LaneNumber, note: Note) {
        self.bytes.extend(Record { lane, note }.encode());
    }
}

impl<W: Wire> Outgoing<'_, W> {
    /// Says something, behind everything that was said or written before.
    pub fn note(&mut self, lane: LaneNumber, note: Note) {
        self.outbox.note(lane, note);
    }

    /// Writes to the far host's memory, behind everything that was said or written before.
    pub fn write(&mut self, local: Local, remote: Remote, lane: LaneNumber) -> Result<(), Full> {
        self.flush()?;
        self.wire.write(self.link, local, remote, lane.0)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Full> {
        while !self.outbox.bytes.is_empty() {
            let bytes = self.outbox.bytes.len().min(MESSAGE_BYTES_MAX);
            self.wire.send(self.link, &self.outbox.bytes[..bytes])?;
            self.outbox.bytes.drain(..bytes);
        }
        Ok(())
    }
}
