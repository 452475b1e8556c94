//! The ends that sluiced is for a program whose peer is on another host (docs/decisions/0016): a reader
//! that never reads TCP, and a writer whose write lasts as long as its grant.

use crate::direction::{Direction, Mode, Words};
use crate::parking::ParkingTable;
use crate::{Broken, Consumer, Producer};
use core::ptr::NonNull;

/// Whether a program may use the ring that a [`RelayReader`] reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Gate {
    /// No: its reader counts as asleep.
    #[default]
    Shut,
    /// Yes.
    Open,
    /// No, but it may still be in a write that it began before.
    Closing,
}

/// Reads the ring for somebody on another host. TCP goes past it.
///
/// One announcement of a sleep stands whenever the gate is not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RelayReader {
    consumer: Consumer,
    gate: Gate,
    is_enabled: bool,
}

/// One look at a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes in the ring.
    pub available: u64,
    /// The switch offset of their segment.
    pub switch_offset: u64,
    /// The sender has left the ring: its next bytes go by TCP, behind those that were seen.
    pub has_left: bool,
}

impl RelayReader {
    /// Becomes the reader of `into`. The program stays on TCP.
    pub fn start(into: &Direction) -> Self {
        into.announce_sleep();
        Self::default()
    }

    /// Whether the program may use the ring.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// Whether the gate was ever open.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Lets the program use the ring. Whether it could not before.
    pub fn open(&mut self, into: &Direction) -> bool {
        if self.gate == Gate::Open {
            return false;
        }
        if !self.is_enabled {
            self.is_enabled = true;
            into.enable();
        }
        self.gate = Gate::Open;
        into.withdraw_sleep();
        true
    }

    /// From here on the program finds its reader asleep. What it is about to write has to be waited for
    /// ([`RelayReader::finish_closing`]).
    pub fn close_gate(&mut self, into: &Direction) {
        self.leave_gate(into, Gate::Closing);
    }

    /// The same, and nobody waits.
    pub fn shut(&mut self, into: &Direction) {
        self.leave_gate(into, Gate::Shut);
    }

    fn leave_gate(&mut self, into: &Direction, gate: Gate) {
        if self.gate == Gate::Open {
            into.announce_sleep();
        }
        self.gate = gate;
    }

    /// Behind a look that found the sender in no write, and everything before it passed on: whether a
    /// gate was closing, which is shut now.
    pub fn finish_closing(&mut self) -> bool {
        let closing = self.gate == Gate::Closing;
        if closing {
            self.gate = Gate::Shut;
        }
        closing
    }

    /// What the ring has. While bytes of a segment are in it the program cannot begin another one, so
    /// the switch offset is theirs.
    pub fn look(&mut self, into: &Direction) -> Result<Seen, Broken> {
        // In this order: what the mode says comes behind all that was published before.
        let has_left = into.mode() == Mode::Tcp;
        let available = self.consumer.available(into)? as u64;
        Ok(Seen {
            available,
            switch_offset: into.switch_offset(),
            has_left,
        })
    }

    /// Where bytes lie that were seen, as [`Consumer::pieces`].
    pub fn pieces(&self, into: &Direction, offset: usize, len: usize) -> [(NonNull<u8>, usize); 2] {
        self.consumer.pieces(into, offset, len)
    }

    /// The far program has consumed so many bytes.
    pub fn consume(&mut self, into: &Direction, bytes: usize) {
        self.consumer.consume(into, bytes);
    }

    /// The far program reads no more.
    pub fn close(&self, into: &Direction) {
        into.close();
    }

    /// Bytes of the ring cannot be delivered: the program's connection breaks.
    pub fn break_sender(&self, into: &Direction) {
        into.break_sender();
    }
}

/// Whether the ring that a [`RelayWriter`] fills is granted to a program on another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Grant {
    #[default]
    None,
    Standing,
    /// Taken back, and not relinquished yet: bytes may still come.
    Revoked,
}

/// Writes to the ring for somebody on another host, in one write for as long as it is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RelayWriter {
    producer: Producer,
    grant: Grant,
}

impl RelayWriter {
    /// Whether the ring is granted.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// Begins a grant if the reader is awake; it cannot sleep from then on. `parking` as in
    /// [`Words::begin_write`].
    pub fn try_to_grant(&mut self, out: &Direction, parking: Option<ParkingTable>) -> bool {
        let awake = out.begin_write(parking);
        if awake {
            self.grant = Grant::Standing;
        } else {
            out.end_write();
        }
        awake
    }

    /// Takes a grant back. Whether there was one.
    pub fn revoke(&mut self) -> bool {
        let stands = self.grant != Grant::None;
        if stands {
            self.grant = Grant::Revoked;
        }
        stands
    }

    /// A segment begins behind `switch_offset` bytes by TCP; or it may begin there, and up to there the kernel's bytes
    /// are next. Nothing is said without a grant.
    pub fn set_switch_offset(&self, out: &Direction, switch_offset: u64) {
        if self.grant != Grant::None {
            out.publish_mode(Mode::Ring, switch_offset);
        }
    }

    /// The segment is over: later bytes come by TCP. They can be read when the grant is over.
    pub fn leave(&self, out: &Direction) {
        out.publish_mode(Mode::Tcp, 0);
    }

    /// So many bytes were put behind the last ones.
    pub fn arrive(&mut self, out: &Direction, bytes: usize) {
        self.producer.publish(out, bytes);
    }

    /// Sets the ready bits of the reader's epoll instances: there is something new within the write that
    /// is in flight.
    pub fn ring(&self, out: &Direction, parking: Option<ParkingTable>) {
        out.begin_write(parking);
    }

    /// Bytes that the reader has not consumed.
    pub fn in_flight(&mut self, out: &Direction) -> Result<u64, Broken> {
        self.producer.in_flight(out)
    }

    /// Nothing comes any more by this grant.
    pub fn end(&mut self, out: &Direction) {
        if self.grant != Grant::None {
            self.grant = Grant::None;
            out.end_write();
        }
    }

    /// Bytes do not go back: the program that wrote them may be asleep, and is on another host.
    pub fn refuse_back(&self, out: &Direction) {
        out.answer_reclaim(false);
    }

    /// Bytes are missing: the program's connection breaks.
    pub fn break_reader(&self, out: &Direction) {
        out.break_reader();
    }
}
