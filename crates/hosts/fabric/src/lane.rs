//! A connection with one end on this host: its two directions, and the lane's far half.

use crate::Violation;
use crate::down::Down;
use crate::halves::{Far, Near};
use crate::message::{LaneNumber, Note};
use crate::outgoing::Outgoing;
use crate::up::{After, Up};
use crate::wire::{LinkId, Wire};

/// A lane between hosts, as one of the two daemons has it.
#[derive(Debug)]
pub struct Lane {
    /// The link that it goes by.
    pub link: LinkId,
    near: Near,
    /// Known once the far daemon has answered.
    far: Option<Far>,
    pub up: Up,
    pub down: Down,
    is_program_gone: bool,
    /// The link has come back, and the far half was not known then.
    is_resume_owed: bool,
}

impl Lane {
    /// The engine with this slot takes the daemon's side of a lane that was never used.
    pub fn new(link: LinkId, near: Near, slot: u32, is_eager: bool) -> Self {
        let side = near.side & 1;
        Self {
            link,
            near,
            far: None,
            up: Up::new(near.chunk.direction(near.lane, 1 - side), near.region, slot),
            down: Down::new(
                near.chunk.direction(near.lane, side),
                near.parking,
                is_eager,
            ),
            is_program_gone: false,
            is_resume_owed: false,
        }
    }

    /// Where it lies here.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// Where it lies there, once that is known.
    pub fn far(&self) -> Option<&Far> {
        self.far.as_ref()
    }

    /// The far daemon has said where it lies there.
    pub fn set_far(&mut self, far: Far) {
        self.far = Some(far);
    }

    /// The local program has closed the connection, or has ended.
    pub fn program_gone(&mut self) {
        self.is_program_gone = true;
        self.up.writer_gone();
        self.down.reader_gone();
    }

    /// Nothing will ever happen here: nobody uses the memory any more.
    pub fn is_over(&self) -> bool {
        self.is_program_gone && self.up.is_done() && self.down.is_done()
    }

    /// There is no link. If neither ring was ever granted and nobody here uses the lane any more, it
    /// ends: the link may never come. Says whether it did.
    pub fn end_if_unused(&mut self) -> bool {
        let ends = self.is_program_gone && self.up.is_unused() && self.down.is_unused();
        if ends {
            self.abandon();
        }
        ends
    }

    /// Whether it has to be looked at all the time.
    pub fn is_standing(&self) -> bool {
        self.up.is_standing() || self.down.is_standing()
    }

    /// The link has come back, or the far half has become known since it did: says where this half
    /// is. `number` is its own.
    pub fn resume(&mut self, number: LaneNumber, note: &mut dyn FnMut(LaneNumber, Note)) {
        self.is_resume_owed = self.far.is_none();
        if let Some(far) = &self.far {
            let there = far.number;
            note(there, Note::Present(number));
            self.down.resume(&mut |said| note(there, said));
        }
    }

    /// Whether [`Lane::resume`] could not say anything.
    pub fn is_resume_owed(&self) -> bool {
        self.is_resume_owed
    }

    /// There is no far daemon any more, and none that knows of this lane will come.
    pub fn abandon(&mut self) {
        self.up.abandon();
        self.down.abandon();
    }

    /// The far host has never had its half, and no program there was told of it.
    pub fn decline(&mut self) {
        self.up.abandon();
        self.down.decline();
    }

    /// Sends what the local program has written.
    pub fn push<W: Wire>(&mut self, out: &mut Outgoing<'_, W>) -> After {
        match &self.far {
            Some(far) => self.up.push(far, out),
            None => After::Idle,
        }
    }

    /// What the far daemon says of this lane.
    pub fn hear(&mut self, note: Note, now_ns: u64) -> Result<(), Violation> {
        match note {
            // Answered by the engine where there is no such lane.
            Note::Present(_) => {}
            Note::Call => self.down.called(now_ns),
            Note::Finished => self.up.finished()?,
            Note::Gone => self.abandon(),
            Note::Grant => self.up.granted(),
            Note::Revoke => self.up.revoked(),
            Note::Consumed(total) => self.up.consumed(total)?,
            Note::Closed => self.up.closed(),
            Note::Resume(arrived) => self.up.resume(arrived)?,
            Note::Here
            | Note::Segment(_)
            | Note::Tcp(_)
            | Note::Left
            | Note::Relinquished
            | Note::Done
            | Note::Missing => {
                self.down.hear(note, now_ns)?;
            }
        }
        Ok(())
    }
}
