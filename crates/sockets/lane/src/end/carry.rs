//! Unread ring bytes on their way from one program to the next that a process executes.
//!
//! The next program cannot see the memory shared with the peer. So the bytes are copied out, and
//! over there they lie in a lane of its own that nobody writes: after the TCP bytes before its
//! switch offset and before all others, as the ordinary rules of reading have it.
#![allow(unsafe_code)]

use super::flags::Flags;
use super::{Assignment, End};
use super::{Locked, Rx, State};
use crate::counts::tcp_bytes_read;
use crate::reason::Reason;
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::Sender;
use sluice_sys::errno::Errno;

/// Bytes that are copied at a time, on the stack.
const PIECE_BYTES: usize = 4096;
/// How often a socket is counted whose bytes arrive faster than that can be done.
const COUNTS_MAX: u32 = 64;

/// Unread ring bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// TCP bytes of the stream that come before them.
    pub switch_offset: u64,
    /// How many they are.
    pub bytes: usize,
    /// Others have copies of them.
    pub copied: bool,
}

/// Takes the next piece; false if it cannot.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> bool;
/// Fills the next piece; false if it cannot.
pub type Filler<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

impl End {
    /// Copies the unread ring bytes of a pinned end to `sink`. From then on this process reads
    /// the kernel's bytes only. `None`, and nothing has changed, if there are none or `sink` does
    /// not take them.
    pub fn take_out(&self, generation: u32, sink: Sink) -> Option<Carried> {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return None;
        };
        let into = self.incoming().filter(|_| self.is_enabled())?;
        let bytes = self.load_unread(&mut rx, &into, sink)?;
        self.flags.clear(Flags::ENABLED);
        // Nobody will empty the ring, and yet what is in it is not lost.
        rx.stream.close(&into);
        Some(Carried {
            switch_offset: into.switch_offset(),
            bytes,
            copied: false,
        })
    }

    /// Copies the unread ring bytes to `sink`: how many there are. `None` if there are none, or it
    /// does not take them.
    pub(super) fn load_unread(&self, rx: &mut Rx, into: &Direction, sink: Sink) -> Option<usize> {
        let unread = rx
            .stream
            .consumer()
            .available(into)
            .ok()
            .filter(|bytes| *bytes > 0)?;
        let mut piece = [0; PIECE_BYTES];
        let mut done = 0;
        while done < unread {
            let len = (unread - done).min(PIECE_BYTES);
            // SAFETY: the piece has room for `len` bytes, and `done + len` is at most what is
            // available.
            unsafe {
                rx.stream
                    .consumer()
                    .load(into, done, piece.as_mut_ptr(), len)
            };
            if !sink(piece.get(..len)?) {
                return None;
            }
            done += len;
        }
        Some(unread)
    }

    /// Undoes [`End::take_out`]: the other program was not executed.
    pub fn put_back(&self, generation: u32) {
        if let Locked::Held(mut rx) = self.lock_rx(generation) {
            // Whoever read meanwhile read from the kernel, uncounted.
            rx.stream.doubt_count();
            self.flags.set(Flags::ENABLED);
        }
    }

    /// Gives a connection that is new to this process the unread bytes that came with it. `a`
    /// names an unused lane in memory of this process alone, with room for the bytes, which `fill`
    /// supplies.
    ///
    /// False if they cannot be put in order any more: more TCP bytes were read already, or the
    /// socket cannot be counted (`fd` is closed, reset, or somebody reads it).
    pub fn resume(
        &self,
        generation: u32,
        fd: i32,
        a: &Assignment,
        carried: Carried,
        fill: Filler,
    ) -> bool {
        let Carried {
            switch_offset,
            bytes,
            copied,
        } = carried;
        let Ok(read) = count(fd) else {
            return false;
        };
        let into = a.chunk.direction(a.lane, 1 - (a.side & 1));
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return false;
        };
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return false;
        };
        if self.state() != State::Tracked
            || read > switch_offset
            || bytes > into.capacity() as usize
        {
            return false;
        }
        // The peer's part, played here once and never again.
        let mut peer = Sender::default();
        let mut piece = [0; PIECE_BYTES];
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(PIECE_BYTES);
            let Some(piece) = piece.get_mut(..len) else {
                return false;
            };
            if !fill(piece) {
                return false;
            }
            // SAFETY: the piece has `len` bytes, and the empty ring has room for all of them.
            unsafe { peer.producer().store(&into, done, piece.as_ptr(), len) };
            done += len;
        }
        peer.play_segment(&into, switch_offset, bytes);
        self.take_lane(&mut tx, &mut rx, a);
        rx.stream.enable(&into, read, 0);
        if copied {
            self.set_copied();
        }
        self.attach_pinned(Flags::SENDER_GONE);
        true
    }

    /// Makes reads of a connection that is new to this process fail with `ECONNRESET`: bytes
    /// that are next in the stream are with another process. `a` as in [`End::resume`].
    pub fn refuse_reading(&self, generation: u32, a: &Assignment) {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return;
        };
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return;
        };
        if self.state() == State::Tracked {
            self.take_lane(&mut tx, &mut rx, a);
            self.attach_pinned(Flags::SENDER_GONE | Flags::GAP);
        }
    }

    /// From here on the end is read by the rules of its lane, and both directions stay on TCP.
    fn attach_pinned(&self, flags: Flags) {
        self.flags.set(flags | Flags::ENABLED | Flags::PINNED);
        self.set_reason(Reason::Shared);
        self.life.attach();
    }
}

fn count(fd: i32) -> Result<u64, Errno> {
    for _ in 0..COUNTS_MAX {
        match tcp_bytes_read(fd) {
            Err(Errno::AGAIN) => {}
            counted => return counted,
        }
    }
    Err(Errno::AGAIN)
}
