//! What the local program writes, on its way to the far host. The daemon is its reader.

use sluice_shmem::Broken;
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::{Gate, RelayReader};

use crate::Violation;
use crate::halves::Far;
use crate::message::Note;
use crate::outgoing::Outgoing;
use crate::wire::{Full, Local, Remote, Wire};

/// Bytes of one RDMA write. Each costs the far daemon a completion; until it is complete the far
/// program sees nothing of it.
const WRITE_BYTES_MAX: u64 = 128 * 1024;

/// How it goes on after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// There is nothing to do before something happens.
    Idle,
    /// To be pushed again soon.
    Again,
}

/// One direction, from the local program to the far one.
#[derive(Debug)]
pub struct Up {
    direction: Direction,
    reader: RelayReader,
    region: u32,
    /// Bytes behind the head that lie in the far ring.
    posted: u64,
    /// Bytes that were ever placed in the far ring.
    placed: u64,
    /// Bytes that the far program has consumed.
    consumed: u64,
    /// The switch offset of the ring segment that the far daemon knows of.
    segment: Option<u64>,
    /// Whether the far daemon has certainly heard of it.
    is_segment_said: bool,
    /// Bytes that went by TCP, as far as was said.
    tcp_said: u64,
    /// No process is left that could write.
    is_writer_gone: bool,
    /// The far program reads no more, or the ring cannot be trusted any more.
    is_over: bool,
    is_done_sent: bool,
    /// The far daemon has everything, and knows that nothing comes any more.
    is_finished: bool,
    /// The link was lost, and the far daemon has not said yet what has arrived.
    is_suspended: bool,
}

impl Up {
    /// Becomes the reader of `direction`, whose ring is in a region with this key, for the engine with this
    /// slot. The program stays on TCP.
    pub fn new(direction: Direction, region: u32, slot: u32) -> Self {
        let reader = RelayReader::start(&direction);
        direction.watch(slot);
        Self {
            direction,
            reader,
            region,
            posted: 0,
            placed: 0,
            consumed: 0,
            segment: None,
            is_segment_said: true,
            tcp_said: 0,
            is_writer_gone: false,
            is_over: false,
            is_done_sent: false,
            is_finished: false,
            is_suspended: false,
        }
    }

    /// Whether the far end keeps this daemon from sleeping.
    pub fn is_standing(&self) -> bool {
        self.reader.gate() != Gate::Shut || self.is_writer_gone && !self.is_done_sent
    }

    /// Whether the program is in a ring segment, whose end it does not announce.
    pub fn is_in_segment(&self) -> bool {
        self.segment.is_some() && !self.is_over
    }

    /// Whether the far daemon has everything, and knows that nothing comes any more. Until then the
    /// bytes and what was said of them may have to be sent again, on another link.
    pub fn is_done(&self) -> bool {
        self.is_finished
    }

    /// The far daemon says so.
    pub fn finished(&mut self) -> Result<(), Violation> {
        if !self.is_over && !self.is_writer_gone {
            return Err(Violation("takes a stream for finished that is not"));
        }
        self.is_done_sent = true;
        self.is_finished = true;
        Ok(())
    }

    /// Whether the far ring was never granted to the local program.
    pub fn is_unused(&self) -> bool {
        !self.reader.is_enabled()
    }

    /// Bytes that were ever placed in the far ring.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// The far program polls.
    pub fn granted(&mut self) {
        if !self.is_over && self.reader.open(&self.direction) {
            self.tcp_said = 0;
        }
    }

    /// The far program wants to sleep, or the link is gone. Answered by a push.
    pub fn revoked(&mut self) {
        // Who is over has said `Done` or is about to, which is an answer, too.
        if !self.is_over {
            self.reader.close_gate(&self.direction);
        }
    }

    /// The link is gone. Nothing is sent on another one before it is known what has arrived, and
    /// what was granted counts no more.
    pub fn suspend(&mut self) {
        self.reader.shut(&self.direction);
        self.is_suspended = true;
    }

    /// So many bytes have arrived in the far ring since the lane began.
    pub fn resume(&mut self, arrived: u64) -> Result<(), Violation> {
        if !(self.consumed..=self.placed).contains(&arrived) {
            return Err(Violation("says that bytes arrived which were never sent"));
        }
        self.posted = arrived - self.consumed;
        self.placed = arrived;
        self.is_suspended = false;
        // Said again: the segment before its next byte, the end when it is reached.
        self.is_segment_said = false;
        self.is_done_sent = self.is_finished;
        Ok(())
    }

    /// So many bytes were consumed since the lane began.
    pub fn consumed(&mut self, total: u64) -> Result<(), Violation> {
        let Some(more) = total.checked_sub(self.consumed) else {
            // From before a link came back.
            return Ok(());
        };
        if more > self.posted {
            return Err(Violation(
                "says that bytes were consumed which were never sent",
            ));
        }
        self.consumed = total;
        self.posted -= more;
        if !self.is_over {
            self.reader.consume(&self.direction, more as usize);
        }
        Ok(())
    }

    /// The far program reads no more.
    pub fn closed(&mut self) {
        if !self.is_over {
            self.reader.close(&self.direction);
            self.stop();
        }
    }

    /// The local program has closed, or has ended.
    pub fn writer_gone(&mut self) {
        self.is_writer_gone = true;
    }

    /// No link will come any more. What the ring still holds cannot be delivered: then the
    /// program's connection breaks, instead of ending short.
    pub fn abandon(&mut self) {
        // There is nobody to be told any more.
        self.is_done_sent = true;
        self.is_finished = true;
        if self.is_over {
            return;
        }
        let is_empty = self.posted == 0
            && !self.direction.is_write_in_flight()
            && matches!(self.reader.look(&self.direction), Ok(seen) if seen.available == 0);
        if !is_empty {
            self.reader.break_sender(&self.direction);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.reader.shut(&self.direction);
        self.is_over = true;
        self.segment = None;
    }

    /// Sends what is new.
    pub fn push<W: Wire>(&mut self, far: &Far, out: &mut Outgoing<'_, W>) -> After {
        if self.is_suspended {
            return After::Idle;
        }
        if !self.is_over {
            // Behind a shut gate this is exact: no write begins any more that could use the ring.
            let writes = self.direction.is_write_in_flight() && !self.is_writer_gone;
            // Before the ring is looked at: what comes before these bytes is visible then.
            let tcp_sent = self.direction.tcp_sent();
            match self.push_ring(far, out) {
                Ok(After::Idle) => {}
                Ok(After::Again) => return After::Again,
                Err(Broken) => {
                    // The program's own memory is beyond repair.
                    self.reader.break_sender(&self.direction);
                    self.stop();
                    out.note(far.number, Note::Missing);
                }
            }
            // Only with an empty ring: for what lies in it another switch offset holds.
            if self.reader.gate() == Gate::Open
                && self.segment.is_none()
                && self.posted == 0
                && tcp_sent > self.tcp_said
            {
                self.tcp_said = tcp_sent;
                out.note(far.number, Note::Tcp(tcp_sent));
            }
            if writes {
                return After::Again;
            }
            if self.reader.finish_closing() {
                self.segment = None;
                out.note(far.number, Note::Relinquished);
            }
        }
        if (self.is_over || self.is_writer_gone) && !self.is_done_sent {
            self.is_done_sent = true;
            out.note(far.number, Note::Done);
        }
        After::Idle
    }

    /// `Again`: the far ring or the link has no room.
    fn push_ring<W: Wire>(
        &mut self,
        far: &Far,
        out: &mut Outgoing<'_, W>,
    ) -> Result<After, Broken> {
        loop {
            let seen = self.reader.look(&self.direction)?;
            let switch_offset = seen.switch_offset;
            let new = seen.available - self.posted;
            if new == 0 {
                if seen.has_left && self.segment.take().is_some() {
                    out.note(far.number, Note::Left);
                }
                return Ok(After::Idle);
            }
            if self.segment != Some(switch_offset) || !self.is_segment_said {
                if self.segment.is_some_and(|said| said != switch_offset) {
                    out.note(far.number, Note::Left);
                }
                out.note(far.number, Note::Segment(switch_offset));
                self.segment = Some(switch_offset);
                self.is_segment_said = true;
            }
            let ring_bytes = u64::from(far.ring_bytes);
            let room = ring_bytes.saturating_sub(self.posted);
            let place = self.placed & (ring_bytes - 1);
            let bytes = new.min(room).min(WRITE_BYTES_MAX).min(ring_bytes - place);
            if bytes == 0 {
                return Ok(After::Again);
            }
            let [(address, first), _] =
                self.reader
                    .pieces(&self.direction, self.posted as usize, bytes as usize);
            let local = Local {
                address,
                bytes: first as u32,
                region: self.region,
            };
            let remote = Remote {
                address: far.ring.address + place,
                rkey: far.ring.rkey,
            };
            if let Err(Full) = out.write(local, remote, far.number) {
                return Ok(After::Again);
            }
            self.posted += first as u64;
            self.placed += first as u64;
        }
    }
}
