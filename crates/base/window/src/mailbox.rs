//! Messages between two hosts: a ring of frames.
//!
//! A frame is a word, the message's length and kind, and the message, padded to eight bytes.
#![allow(unsafe_code)]

use crate::Broken;
use crate::layout::{MAILBOX_BYTES, Pair};
use crate::ring::{Consumer, Producer};
use crate::view::View;

/// Bytes of a message at most: several fit into a mailbox.
pub const MESSAGE_BYTES_MAX: usize = 1024;

const WORD_BYTES: u64 = 8;

const _: () = assert!(4 * (MESSAGE_BYTES_MAX as u64 + WORD_BYTES) <= MAILBOX_BYTES);

/// Sends messages to one peer.
#[derive(Debug)]
pub struct Sender {
    ring: Producer,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Yes,
    /// The peer has not taken enough of what it was sent. Try again later.
    Full,
}

impl Sender {
    pub fn new(pair: Pair) -> Sender {
        Sender {
            ring: Producer::new(pair.mailbox_out()),
        }
    }

    pub(crate) fn reset(&self, view: &impl View) {
        self.ring.reset(view);
    }

    /// Sends a message of at most [`MESSAGE_BYTES_MAX`] bytes.
    pub fn send(&mut self, view: &impl View, kind: u32, message: &[u8]) -> Result<Sent, Broken> {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let padded = (message.len() as u64).next_multiple_of(WORD_BYTES);
        if self.ring.room(view, WORD_BYTES + padded)? < WORD_BYTES + padded {
            return Ok(Sent::Full);
        }
        let head = (message.len() as u64 | u64::from(kind) << 32).to_le_bytes();
        let rest = [0; WORD_BYTES as usize];
        for piece in [&head, message, &rest[..padded as usize - message.len()]] {
            // SAFETY: a slice is readable, and the sum of the three was checked above.
            unsafe { self.ring.put(view, piece.as_ptr(), piece.len()) };
        }
        self.ring.publish(view);
        Ok(Sent::Yes)
    }
}

/// Receives messages from one peer.
#[derive(Debug)]
pub struct Receiver {
    ring: Consumer,
}

impl Receiver {
    pub fn new(pair: Pair) -> Receiver {
        Receiver {
            ring: Consumer::new(pair.mailbox_in()),
        }
    }

    pub(crate) fn reset(&self, view: &impl View) {
        self.ring.reset(view);
    }

    /// The next message's kind and bytes, if one is there; `buffer` is where the bytes go.
    pub fn receive<'a>(
        &mut self,
        view: &impl View,
        buffer: &'a mut [u8; MESSAGE_BYTES_MAX],
    ) -> Result<Option<(u32, &'a [u8])>, Broken> {
        let there = self.ring.available(view, WORD_BYTES)?;
        if there == 0 {
            return Ok(None);
        }
        if there < WORD_BYTES {
            return Err(Broken("has sent a piece of a message"));
        }
        let mut head = [0; WORD_BYTES as usize];
        // SAFETY: an array is writable, and the word is there.
        unsafe { self.ring.copy(view, 0, head.as_mut_ptr(), head.len()) };
        let head = u64::from_le_bytes(head);
        let (len, kind) = (head as u32 as usize, (head >> 32) as u32);
        if len > MESSAGE_BYTES_MAX {
            return Err(Broken("has sent a message that is too long"));
        }
        let frame = WORD_BYTES + (len as u64).next_multiple_of(WORD_BYTES);
        if self.ring.available(view, frame)? < frame {
            return Err(Broken("has sent a piece of a message"));
        }
        // SAFETY: the buffer has room for the longest message, and the frame is there.
        unsafe { self.ring.copy(view, WORD_BYTES, buffer.as_mut_ptr(), len) };
        self.ring.take(frame);
        self.ring.give_back(view);
        Ok(Some((kind, &buffer[..len])))
    }
}
