//! A way to a peer and back: a ring of frames in each direction, and who sleeps.
//!
//! Each host lends the other a piece of its heap. In front of the ring's bytes that piece has three
//! lines that the borrower writes: how far it has written, how far it has read what comes to it, and
//! whether it sleeps.
#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, fence};

use sluice_shmem::verbs::copy;
use sluice_window::layout::PAGE_BYTES;
use sluice_window::ring::{Consumer, InRing, OutRing, Producer};
use sluice_window::view::LINE_BYTES;
use sluice_window::{Broken, In, Out, View};

use crate::bell::Bell;
use crate::frame::{Frame, HEADER_BYTES, PIECE_BYTES_MAX, padded};

/// Bytes in front of a ring.
pub const CONTROL_BYTES: u64 = PAGE_BYTES;
/// A ring has at least this many bytes.
/// So that a datagram of the device's MTU is one frame.
pub const RING_BYTES_MIN: u64 = 32 * 1024;
/// And a peer's at most this many.
pub const RING_BYTES_MAX: u64 = 1 << 30;

const TAIL: u64 = 0;
const HEAD: u64 = LINE_BYTES;
const SLEEP: u64 = 2 * LINE_BYTES;

/// In the word that says whether a host sleeps; above these bits a number, another one for each sleep.
pub mod sleep {
    /// Frames are to ring.
    pub const ASLEEP: u64 = 1;
    /// Room is to ring as well.
    pub const WANTS_ROOM: u64 = 2;
    pub const TURN: u64 = 4;
}

/// Both pieces: the one that this host has lent, and the one that the peer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    pub lent: In,
    pub lent_ring: u64,
    pub borrowed: Out,
    pub borrowed_ring: u64,
}

impl Pieces {
    fn out_ring(&self) -> OutRing {
        OutRing {
            data: self.borrowed.add(CONTROL_BYTES),
            tail: self.borrowed.add(TAIL),
            head: self.lent.add(HEAD),
            capacity: self.borrowed_ring,
        }
    }

    fn in_ring(&self) -> InRing {
        InRing {
            data: self.lent.add(CONTROL_BYTES),
            tail: self.lent.add(TAIL),
            head: self.borrowed.add(HEAD),
            capacity: self.lent_ring,
        }
    }

    /// Where this host says that it sleeps.
    pub fn sleep(&self) -> Out {
        self.borrowed.add(SLEEP)
    }
}

/// Makes what this host writes of a channel empty; the peer may be told that it is afterwards.
pub fn reset(pieces: &Pieces, view: &impl View) {
    Producer::new(pieces.out_ring()).reset(view);
    Consumer::new(pieces.in_ring()).reset(view);
    view.say(pieces.sleep(), 0);
}

/// Whoever sleeps is rung for once.
#[derive(Debug)]
struct Ringer {
    sleep: In,
    bell: Option<Bell>,
    rung: u64,
}

impl Ringer {
    /// Something that the peer looks for has been said: rings if it sleeps so.
    fn said(&mut self, view: &impl View, so: u64) {
        let Some(bell) = &self.bell else { return };
        // Said first, looked then. A sleeper says that it sleeps and looks then.
        fence(Ordering::SeqCst);
        let word = view.look(self.sleep);
        if word & so != 0 && word != self.rung {
            self.rung = word;
            bell.ring();
        }
    }
}

/// The half to the peer.
#[derive(Debug)]
pub struct Sending {
    ring: Producer,
    ringer: Ringer,
    piece_bytes: u64,
}

impl Sending {
    /// Both sides have made it empty.
    pub fn new(pieces: &Pieces, bell: Option<Bell>) -> Sending {
        Sending {
            ring: Producer::new(pieces.out_ring()),
            ringer: Ringer {
                sleep: pieces.lent.add(SLEEP),
                bell,
                rung: 0,
            },
            piece_bytes: piece_bytes(pieces.borrowed_ring),
        }
    }

    /// What one frame may carry.
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Puts a frame; the peer learns of it by [`Sending::publish`]. False: there is no room.
    ///
    /// # Safety
    /// Each of `bytes` is readable, and together they have `frame.len` bytes, at most
    /// [`Sending::piece_bytes`].
    pub unsafe fn put(
        &mut self,
        view: &impl View,
        frame: &Frame,
        bytes: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<bool, Broken> {
        let wanted = padded(u64::from(frame.len));
        // The caller may have cut it for another channel that ended meanwhile.
        let is_long = u64::from(frame.len) > self.piece_bytes;
        if is_long || self.ring.room(view, wanted)? < wanted {
            return Ok(false);
        }
        let header = frame.emit();
        let rest = (wanted - HEADER_BYTES as u64 - u64::from(frame.len)) as usize;
        // SAFETY: arrays are readable for their lengths, `bytes` by the caller's promise, and there
        // is room for all of them.
        unsafe {
            self.ring.put(view, header.as_ptr(), header.len());
            for (start, len) in bytes {
                self.ring.put(view, start, len);
            }
            self.ring.put(view, [0; 8].as_ptr(), rest);
        }
        Ok(true)
    }

    /// The peer learns of all frames that were put, and is woken for them.
    pub fn publish(&mut self, view: &impl View) {
        self.ring.publish(view);
        self.ringer.said(view, sleep::ASLEEP);
    }
}

fn piece_bytes(ring: u64) -> u64 {
    (ring / 4 - HEADER_BYTES as u64).min(PIECE_BYTES_MAX)
}

/// The half from the peer.
#[derive(Debug)]
pub struct Receiving {
    ring: Consumer,
    ringer: Ringer,
    piece_bytes: u64,
}

/// Bytes of the frame that was taken last.
pub struct Payload<'a, V: View> {
    ring: &'a Consumer,
    view: &'a V,
    len: usize,
}

impl<V: View> Payload<'_, V> {
    /// Copies `len` bytes from `offset` on; they may be others each time. The last of them are stored last and once
    /// each: programs look at them until a WRITE has come, and may then use the place for something else.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub unsafe fn copy(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        let offset = HEADER_BYTES + offset;
        let mut end = [0; size_of::<u64>()];
        let end_bytes = len.min(end.len());
        let front_bytes = len - end_bytes;
        // SAFETY: the whole frame is there, and `to` is the caller's promise; `end` has as many bytes.
        unsafe {
            self.ring.copy(self.view, offset as u64, to, front_bytes);
            let from = (offset + front_bytes) as u64;
            self.ring.copy(self.view, from, end.as_mut_ptr(), end_bytes);
            copy::ascending(to.add(front_bytes), end.as_ptr(), end_bytes);
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Receiving {
    /// Both sides have made it empty.
    pub fn new(pieces: &Pieces, bell: Option<Bell>) -> Receiving {
        Receiving {
            ring: Consumer::new(pieces.in_ring()),
            ringer: Ringer {
                sleep: pieces.lent.add(SLEEP),
                bell,
                rung: 0,
            },
            piece_bytes: piece_bytes(pieces.lent_ring),
        }
    }

    /// Takes the next frame, if one is there, and has `work` look at it.
    pub fn next<V: View, R>(
        &mut self,
        view: &V,
        work: impl FnOnce(&Frame, &Payload<'_, V>) -> Result<R, Broken>,
    ) -> Result<Option<R>, Broken> {
        let there = self.ring.available(view, HEADER_BYTES as u64)?;
        if there == 0 {
            return Ok(None);
        }
        if there < HEADER_BYTES as u64 {
            return Err(Broken("has sent a piece of a frame"));
        }
        let mut header = [0; HEADER_BYTES];
        // SAFETY: an array is writable, and the bytes are there.
        unsafe {
            self.ring.copy(view, 0, header.as_mut_ptr(), header.len());
        }
        let frame = Frame::parse(&header).ok_or(Broken("has sent what is no frame"))?;
        if u64::from(frame.len) > self.piece_bytes {
            return Err(Broken("has sent a frame that is too long"));
        }
        let whole = padded(u64::from(frame.len));
        if self.ring.available(view, whole)? < whole {
            return Err(Broken("has sent a piece of a frame"));
        }
        let payload = Payload {
            ring: &self.ring,
            view,
            len: frame.len as usize,
        };
        let done = work(&frame, &payload)?;
        self.ring.take(whole);
        if self.ring.owed() >= self.ring.capacity() / 8 {
            self.ring.give_back(view);
            self.ringer.said(view, sleep::WANTS_ROOM);
        }
        Ok(Some(done))
    }
}
