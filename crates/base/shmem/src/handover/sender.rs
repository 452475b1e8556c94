//! The sending end of a direction.

use crate::direction::{Direction, Mode, Reclaim, Words};
use crate::parking::ParkingTable;
use crate::{Broken, Producer};

/// The sending end's private half. It lives where [`Producer`] does, and what is said there of a
/// process that dies holds for it, too ([`Sender::republish`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Sender {
    producer: Producer,
    way: Way,
}

/// Which way a stream goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Way {
    /// By TCP next, and nothing went by TCP behind the last ring segment: what of the ring was not
    /// read is the last of the stream.
    #[default]
    Left = 0,
    /// By the ring.
    Ring = 1,
    /// By TCP, and behind the last ring segment as well.
    Tcp = 0x100,
}

/// Which way the next bytes of a stream may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Tcp,
    Ring,
    /// The ring, if nobody were writing to the socket.
    RingWithoutOthers,
}

/// What became of a write that was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The ring may be filled; [`Sender::end`] follows. Whether the stream has changed its way.
    Ring { switched: bool },
    /// The bytes go by TCP, and the write is over as far as the ring goes. Whether the stream has
    /// changed its way.
    Tcp { switched: bool },
}

impl Sender {
    /// Where a byte lies that is zero unless [`Sender::is_on_ring`], for who reads it from outside the
    /// process.
    pub const IS_ON_RING_OFFSET: usize = core::mem::offset_of!(Sender, way);

    /// The ring's end.
    #[inline]
    pub fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Which way the stream goes.
    #[inline]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether the next bytes go to the ring, if nothing stands in the way.
    #[inline]
    pub fn is_on_ring(&self) -> bool {
        self.way == Way::Ring
    }

    /// Whether nothing was ever put into the ring, or is about to be.
    pub fn is_untouched(&self) -> bool {
        !self.is_on_ring() && self.producer == Producer::default()
    }

    /// Whether a stream on TCP may try the ring: the peer reads by the lane's rules, has read all
    /// of the last ring segment, and nobody (`others`) is in the kernel with a write to the socket,
    /// whose bytes no count holds yet.
    pub fn route(&mut self, out: &Direction, others: bool) -> Result<Route, Broken> {
        if self.is_on_ring() {
            return Ok(Route::Ring);
        }
        if !out.is_enabled() || out.is_closed() {
            return Ok(Route::Tcp);
        }
        Ok(match (self.producer.is_drained(out)?, others) {
            (false, _) => Route::Tcp,
            (true, false) => Route::Ring,
            (true, true) => Route::RingWithoutOthers,
        })
    }

    /// Announces a write to a stream whose route is [`Route::Ring`], and goes to the ring if the
    /// reader is awake, to TCP if it is not. `written`: how many bytes of this direction went by
    /// TCP, ever; asked only when the stream returns to the ring. `parking` as in
    /// [`Words::begin_write`].
    ///
    /// Errors: `written`'s. The stream stays on TCP then.
    #[inline]
    pub fn begin<E>(
        &mut self,
        out: &Direction,
        parking: Option<ParkingTable>,
        written: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Begun, E> {
        if !out.begin_write(parking) {
            let switched = self.leave(out);
            out.end_write();
            return Ok(Begun::Tcp { switched });
        }
        if self.is_on_ring() {
            return Ok(Begun::Ring { switched: false });
        }
        // The reader is awake and sees the busy flag before it would read TCP without a bound.
        match written() {
            Ok(switch_offset) => {
                out.publish_mode(Mode::Ring, switch_offset);
                self.way = Way::Ring;
                Ok(Begun::Ring { switched: true })
            }
            Err(error) => {
                out.end_write();
                Err(error)
            }
        }
    }

    /// Ends a write that has [begun](Begun::Ring).
    #[inline]
    pub fn end(&self, out: &Direction) {
        out.end_write();
    }

    /// A write of nothing: whether the reader is awake. The only way to ask that cannot be wrong a
    /// moment later; it may wake a reader's attention for nothing.
    pub fn probe(&self, out: &Direction, parking: Option<ParkingTable>) -> bool {
        let awake = out.begin_write(parking);
        out.end_write();
        awake
    }

    /// Goes to TCP for what comes next. Whether it was on the ring.
    pub fn leave(&mut self, out: &Direction) -> bool {
        let switched = self.is_on_ring();
        if switched {
            out.publish_mode(Mode::Tcp, 0);
            self.way = Way::Left;
        }
        switched
    }

    /// The same for a lane that is there no more.
    pub fn leave_unsaid(&mut self) -> bool {
        let switched = self.is_on_ring();
        if switched {
            self.way = Way::Left;
        }
        switched
    }

    /// Bytes are about to go by TCP. A stream on the ring [leaves](Sender::leave) it before that; there only
    /// a write of no bytes gets here, and changes nothing.
    #[inline]
    pub fn note_tcp(&mut self) {
        if self.way == Way::Left {
            self.way = Way::Tcp;
        }
    }

    /// Says how many bytes went by TCP, ever, to a reader that is sluiced.
    pub fn say_tcp_sent(&self, out: &Direction, bytes: u64) {
        out.publish_tcp_sent(bytes);
    }

    /// Says again what a process that died may not have said, and ends its write.
    pub fn republish(&self, out: &Direction) {
        self.producer.republish(out);
        let mode = if self.is_on_ring() {
            Mode::Ring
        } else {
            Mode::Tcp
        };
        out.publish_mode(mode, out.switch_offset());
        out.end_write();
    }

    /// Plays the peer of a lane that nobody else has yet: publishes `bytes` stored bytes as a segment
    /// behind `switch_offset` bytes by TCP, and leaves the ring.
    pub fn play_segment(&mut self, out: &Direction, switch_offset: u64, bytes: usize) {
        self.producer.publish(out, bytes);
        out.publish_mode(Mode::Ring, switch_offset);
        out.publish_mode(Mode::Tcp, 0);
    }

    // Ring bytes on their way back.

    /// Whether the reader wishes that this end takes back what it has not read.
    #[inline]
    pub fn is_asked_back(out: &Direction) -> bool {
        out.reclaim() == Reclaim::Asked
    }

    /// Answers that wish, for a stream that has left the ring. The bytes are the sender's again if they are
    /// the last of the stream and `fits` says that so many can go by TCP at once: then they have to go
    /// before any other, and where they lie is returned. `None`: they stay the reader's.
    pub fn take_back(
        &mut self,
        out: &Direction,
        fits: impl FnOnce(u64) -> bool,
    ) -> Option<[(*const u8, usize); 2]> {
        let takes = self.way == Way::Left && self.producer.in_flight(out).is_ok_and(fits);
        if !(out.answer_reclaim(takes) && takes) {
            return None;
        }
        self.way = Way::Tcp;
        Some(self.producer.unread(out))
    }
}
