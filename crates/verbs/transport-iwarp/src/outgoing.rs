//! Frames on their way to the kernel. Small ones are copied, so that many leave by one call; the
//! payload of others is sent from where it is.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use sluice_protocol::iwarp::{Frame, Payload, Refusal};
use sluice_trace::Direction;

use crate::memory::Source;
use crate::pins::Pins;
use crate::socket::{PIECES_MAX, Piece, Socket, piece, would_block};
use crate::trace::Trace;

/// Payload of up to so many bytes is copied: to pin it for the call costs as much.
const COPY_MAX: u32 = 2048;
/// Frames are taken until so many bytes wait.
const BYTES_MAX: usize = 256 << 10;
/// Pieces of memory that are kept free for what one frame may need.
const FRAME_PIECES: usize = 20;

/// A part of the stream.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// So many bytes of [`Outgoing::own`].
    Own(usize),
    /// Payload, of which so many bytes have left.
    Memory(Payload, u32),
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything has left.
    All,
    /// The kernel takes no more now.
    Blocked,
    /// The connection is broken, or bytes of a frame that is half sent are gone.
    Broken,
}

/// Frames that have not left wholly.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Heads, trailers, and payload that was copied.
    own: Vec<u8>,
    /// Of these, as many from the front have left.
    own_sent: usize,
    parts: VecDeque<Part>,
    waiting: usize,
    /// Bytes of the stream that have left.
    sent: u64,
}

impl Outgoing {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether it takes one more frame.
    pub fn has_room(&self) -> bool {
        self.waiting < BYTES_MAX && self.parts.len() + FRAME_PIECES <= PIECES_MAX
    }

    /// Bytes of the stream that have left.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Takes a frame. A refusal says that its payload cannot be had, and nothing of it was taken.
    pub fn push(&mut self, frame: &Frame, source: &Source<'_>) -> Result<(), Refusal> {
        let mut pins = Pins::new();
        source.pin(&frame.payload, 0, &mut pins)?;
        let begin = self.own.len();
        self.own.extend_from_slice(frame.head());
        let mut sum = frame.sum();
        let length = frame.payload.length();
        if length > COPY_MAX && !frame.has_crc() {
            self.own_grew(begin);
            self.parts.push_back(Part::Memory(frame.payload, 0));
            let begin = self.own.len();
            self.own.extend_from_slice(frame.trailer(sum).bytes());
            self.own_grew(begin);
        } else {
            let payload = self.own.len();
            self.own.reserve(length as usize);
            for pinned in &pins {
                let Piece { iov_base, iov_len } = pinned.piece();
                let at = self.own.len();
                // SAFETY: the piece is pinned, for reading at least; there is room for all of
                // them, as they add up to the payload's length, in memory of our own, and the
                // copy initialises it.
                unsafe {
                    let target = self.own.as_mut_ptr().add(at);
                    core::ptr::copy_nonoverlapping(iov_base.cast::<u8>(), target, iov_len);
                    self.own.set_len(at + iov_len);
                }
            }
            if frame.has_crc() {
                // The copy is what is summed: the program may write to its memory meanwhile.
                sum.update(self.own.get(payload..).unwrap_or_default());
            }
            self.own.extend_from_slice(frame.trailer(sum).bytes());
            self.own_grew(begin);
        }
        self.waiting += frame.bytes();
        Ok(())
    }

    fn own_grew(&mut self, from: usize) {
        let bytes = self.own.len() - from;
        match self.parts.back_mut() {
            Some(Part::Own(before)) => *before += bytes,
            _ => self.parts.push_back(Part::Own(bytes)),
        }
    }

    /// Sends as much as the kernel takes.
    pub fn flush(&mut self, socket: &Socket, source: &Source<'_>, trace: &mut Trace) -> Sent {
        while !self.parts.is_empty() {
            match self.send(socket, source, trace) {
                Ok(0) => return Sent::Broken,
                Ok(bytes) => self.left(bytes),
                Err(error) if would_block(&error) => return Sent::Blocked,
                Err(_) => return Sent::Broken,
            }
        }
        Sent::All
    }

    fn send(&self, socket: &Socket, source: &Source<'_>, trace: &mut Trace) -> io::Result<usize> {
        let mut pins = Pins::new();
        let mut pieces = arrayvec::ArrayVec::<Piece, PIECES_MAX>::new();
        let mut own = self.own_sent;
        for part in &self.parts {
            match part {
                Part::Own(bytes) => {
                    let Some(bytes) = self.own.get(own..own + bytes) else {
                        break;
                    };
                    own += bytes.len();
                    let start = bytes.as_ptr().cast_mut();
                    if pieces.try_push(piece(start, bytes.len())).is_err() {
                        break;
                    }
                }
                Part::Memory(payload, skip) => {
                    let first = pins.len();
                    if pieces.remaining_capacity() < FRAME_PIECES
                        || pins.remaining_capacity() < FRAME_PIECES
                    {
                        break;
                    }
                    if source.pin(payload, *skip, &mut pins).is_err() {
                        // What is in front of it may go, but the stream cannot go on.
                        if pieces.is_empty() {
                            return Err(io::ErrorKind::BrokenPipe.into());
                        }
                        break;
                    }
                    let pinned = pins.get(first..).unwrap_or_default();
                    pieces.extend(pinned.iter().map(|pinned| pinned.piece()));
                }
            }
        }
        // SAFETY: pieces of `own` are there while `self` is borrowed, and all others are pinned by
        // `pins`, for reading at least.
        unsafe {
            let sent = socket.send(&pieces)?;
            trace.pieces(Direction::Outbound, &pieces, sent);
            Ok(sent)
        }
    }

    /// So many bytes have left.
    fn left(&mut self, mut bytes: usize) {
        self.sent += bytes as u64;
        self.waiting = self.waiting.saturating_sub(bytes);
        while bytes > 0 {
            let Some(part) = self.parts.front_mut() else {
                break;
            };
            match part {
                Part::Own(left) => {
                    let part = bytes.min(*left);
                    *left -= part;
                    self.own_sent += part;
                    bytes -= part;
                    if *left > 0 {
                        break;
                    }
                }
                Part::Memory(payload, done) => {
                    let left = payload.length() - *done;
                    let part = (left as usize).min(bytes);
                    *done += part as u32; // At most `left`.
                    bytes -= part;
                    if part < left as usize {
                        break;
                    }
                }
            }
            self.parts.pop_front();
        }
        if self.own_sent == self.own.len() {
            self.own.clear();
            self.own_sent = 0;
        } else if self.own_sent > BYTES_MAX {
            self.own.drain(..self.own_sent);
            self.own_sent = 0;
        }
    }
}
