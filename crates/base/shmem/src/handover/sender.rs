//! The sending end of a direction.

use crate::board::Board;
use crate::direction::{Direction, Mode};
use crate::{Broken, Producer};

/// The sending end's private half. It lives where [`Producer`] does, and what is said there of a
/// process that dies holds for it, too ([`Sender::republish`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sender {
    producer: Producer,
    is_on_ring: bool,
    /// Bytes went by TCP behind the last ring segment.
    has_tcp_behind: bool,
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
    /// Where [`Sender::is_on_ring`] lies, for who reads it from outside the process.
    pub const IS_ON_RING_OFFSET: usize = core::mem::offset_of!(Sender, is_on_ring);

    /// The ring's end.
    #[inline]
    pub fn producer(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Whether the next bytes go to the ring, if nothing stands in the way.
    #[inline]
    pub fn is_on_ring(&self) -> bool {
        self.is_on_ring
    }

    /// Whether nothing was ever put into the ring, or is about to be.
    pub fn is_untouched(&self) -> bool {
        !self.is_on_ring && self.producer == Producer::default()
    }

    /// Whether the ring's unread bytes are the last of the stream, so that they may be sent by TCP
    /// instead ([`Recall`](crate::direction::Recall)).
    pub fn is_ring_last(&self) -> bool {
        !self.has_tcp_behind
    }

    /// Whether a stream on TCP may try the ring: the peer reads by the lane's rules, has read all
    /// of the last ring segment, and nobody (`others`) is in the kernel with a write to the socket,
    /// whose bytes no count holds yet.
    pub fn route(&mut self, out: &Direction, others: bool) -> Result<Route, Broken> {
        if self.is_on_ring {
            return Ok(Route::Ring);
        }
        if !out.is_adopted() || out.is_closed() {
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
    /// TCP, ever; asked only when the stream returns to the ring. `board` as in
    /// [`Direction::begin_write`].
    ///
    /// Errors: `written`'s. The stream stays on TCP then.
    #[inline]
    pub fn begin<E>(
        &mut self,
        out: &Direction,
        board: Option<Board>,
        written: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Begun, E> {
        if !out.begin_write(board) {
            let switched = self.leave(out);
            out.end_write();
            return Ok(Begun::Tcp { switched });
        }
        if self.is_on_ring {
            return Ok(Begun::Ring { switched: false });
        }
        // The reader is awake and sees the intent before it would read TCP without a bound.
        match written() {
            Ok(mark) => {
                out.publish_mode(Mode::Ring, mark);
                self.is_on_ring = true;
                self.has_tcp_behind = false;
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

    /// Goes to TCP for what comes next. Whether it was on the ring.
    pub fn leave(&mut self, out: &Direction) -> bool {
        let switched = self.is_on_ring;
        if switched {
            out.publish_mode(Mode::Tcp, 0);
            self.is_on_ring = false;
        }
        switched
    }

    /// The same for a lane that is there no more.
    pub fn leave_unsaid(&mut self) -> bool {
        core::mem::take(&mut self.is_on_ring)
    }

    /// Bytes are about to go by TCP.
    #[inline]
    pub fn note_tcp(&mut self) {
        self.has_tcp_behind = true;
    }

    /// Says again what a process that died may not have said, and ends its write.
    pub fn republish(&self, out: &Direction) {
        self.producer.republish(out);
        let mode = if self.is_on_ring {
            Mode::Ring
        } else {
            Mode::Tcp
        };
        out.publish_mode(mode, out.mark());
        out.end_write();
    }
}
