//! A host outside that joins a guest's kernel in verbs as it should, for tests that go on from there.

use std::collections::BTreeMap;
use std::path::Path;

use sluice_tests::suite::Verdict;
use sluice_transport_window::frame::{Frame, HEADER_BYTES, padded};
use sluice_window::{In, Out, View};

use crate::host::{Heard, Host};
use crate::sure;

pub const LEND: u32 = 0x5600_0001;
pub const READY: u32 = 0x5600_0002;
const BELL: u32 = 0x5700_0004;
const CONTROL_BYTES: u64 = 4096;
/// Of the ring that it lends.
pub const RING_BYTES: u64 = 64 * 1024;
/// Lines of a piece.
const TAIL: u64 = 0;
const HEAD: u64 = 64;

/// What another host has said of itself.
#[derive(Clone, Copy, Default)]
struct Known {
    bell: Option<u16>,
    lent: Option<(u64, u64)>,
}

/// It, and its channel with the first kernel that it finds, or another one.
pub struct Outsider {
    host: Host,
    /// All with whom it has links.
    known: BTreeMap<u32, Known>,
    peer: Option<u32>,
    bell: Option<u16>,
    /// What the kernel has lent: where, and the ring's bytes.
    borrowed: Option<(u64, u64)>,
    told: bool,
    ready: bool,
    tail: u64,
    head: u64,
}

/// What became of the link since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    Down,
}

impl Outsider {
    pub fn new(socket: &Path) -> Verdict<Outsider> {
        Ok(Outsider {
            host: Host::join(socket)?,
            known: BTreeMap::new(),
            peer: None,
            bell: None,
            borrowed: None,
            told: false,
            ready: false,
            tail: 0,
            head: 0,
        })
    }

    pub fn slot(&self) -> u32 {
        self.host.slot()
    }

    /// With whom it has a link.
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// Where the kernel's piece begins, and the ring's bytes, once it has lent it.
    pub fn borrowed(&self) -> Option<(u64, u64)> {
        self.borrowed
    }

    pub fn slot_bytes(&self) -> u64 {
        self.host.region().header().geometry.slot_bytes()
    }

    /// Where its own piece begins.
    pub fn lent(&self) -> u64 {
        self.host.region().header().geometry.heap().0
    }

    pub fn describe(&self) -> String {
        format!(
            "peer {:?}, lent {:?}, told {}, ready {}, {} written, {} read",
            self.peer, self.borrowed, self.told, self.ready, self.tail, self.head
        )
    }

    fn forget(&mut self) {
        self.peer = None;
        self.borrowed = None;
        (self.told, self.ready) = (false, false);
        (self.tail, self.head) = (0, 0);
    }

    /// The channel is with this one from now on, if there is a link.
    pub fn turn_to(&mut self, peer: u32) -> bool {
        let Some(known) = self.known.get(&peer).copied() else {
            return false;
        };
        if self.peer != Some(peer) {
            self.forget();
            self.peer = Some(peer);
            (self.bell, self.borrowed) = (known.bell, known.lent);
        }
        true
    }

    /// Whether it takes no message from its mailboxes.
    pub fn be_deaf(&mut self, is_deaf: bool) {
        self.host.is_deaf = is_deaf;
    }

    pub fn step(&mut self) -> Verdict<Change> {
        let mut change = Change::None;
        for heard in self.host.step()? {
            match heard {
                Heard::Up(peer) => {
                    self.known.insert(peer, Known::default());
                    if self.peer.is_none() {
                        self.forget();
                        self.peer = Some(peer);
                    }
                }
                Heard::Down(peer, _) => {
                    self.known.remove(&peer);
                    if self.peer == Some(peer) {
                        change = Change::Down;
                        self.forget();
                    }
                }
                Heard::Message(peer, kind, bytes) => self.heard(peer, kind, &bytes),
            }
        }
        Ok(change)
    }

    fn heard(&mut self, peer: u32, kind: u32, bytes: &[u8]) {
        let word = |at: usize| {
            let mut word = [0; 8];
            if let Some(there) = bytes.get(at..at + 8) {
                word.copy_from_slice(there);
            }
            u64::from_le_bytes(word)
        };
        let known = self.known.entry(peer).or_default();
        match kind {
            BELL => known.bell = Some(word(0) as u16),
            LEND => known.lent = Some((word(0), word(8))),
            _ => {}
        }
        if self.peer == Some(peer) {
            (self.bell, self.borrowed) = (known.bell, known.lent);
            self.ready |= kind == READY;
        }
    }

    /// Says what an honest host does. Whether there is a channel.
    pub fn join(&mut self) -> Verdict<bool> {
        let Some((at, _)) = self.borrowed else {
            return Ok(false);
        };
        if !self.told {
            self.told = true;
            for line in [TAIL, HEAD, 128] {
                self.say(line, 0);
            }
            self.tell(LEND, &[self.lent(), RING_BYTES])?;
            self.tell(READY, &[at, 0])?;
        }
        Ok(self.ready)
    }

    pub fn tell(&mut self, kind: u32, words: &[u64]) -> Verdict {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        sure(self.peer.is_none() || self.mail(kind, &bytes)?, "no room")
    }

    /// False: there is no room.
    pub fn mail(&mut self, kind: u32, bytes: &[u8]) -> Verdict<bool> {
        let Some(peer) = self.peer else {
            return Ok(false);
        };
        let sent = self.host.send(peer, kind, bytes)?;
        self.ring();
        Ok(sent)
    }

    fn ring(&mut self) {
        let Some(number) = self.bell else { return };
        for vector in [0, 1] {
            if let Some(bell) = self.host.client().bell(number, vector) {
                // A full counter rings as well.
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
        }
    }

    fn out(&self, offset: u64) -> Out {
        Out {
            slot: self.peer.unwrap_or_default(),
            at: self.borrowed.unwrap_or_default().0 + offset,
        }
    }

    fn say(&self, line: u64, value: u64) {
        self.host.view().say(self.out(line), value);
    }

    pub fn say_tail(&mut self, tail: u64) {
        self.say(TAIL, tail);
        self.ring();
    }

    pub fn say_head(&self, head: u64) {
        self.say(HEAD, head);
    }

    /// Bytes behind what was written, without a word of them.
    pub fn put(&mut self, bytes: &[u8]) {
        let ring = self.borrowed.unwrap_or((0, 1)).1;
        for (index, word) in bytes.chunks(8).enumerate() {
            let place = CONTROL_BYTES + (self.tail + 8 * index as u64) % ring;
            self.host.view().write(self.out(place), word);
        }
        self.tail += bytes.len() as u64;
    }

    /// The first word, length and kind, of a frame that was written.
    pub fn rewrite(&self, at: u64, header: &[u8; HEADER_BYTES]) {
        let ring = self.borrowed.unwrap_or((0, 1)).1;
        let word = header
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        self.say(CONTROL_BYTES + at % ring, word);
    }

    /// These bytes, and that they are there.
    pub fn write(&mut self, bytes: &[u8]) {
        self.put(bytes);
        let tail = self.tail;
        self.say_tail(tail);
    }

    pub fn send(&mut self, frame: &Frame, payload: &[u8]) {
        let mut bytes = frame.emit().to_vec();
        bytes.extend(payload);
        bytes.resize(padded(payload.len() as u64) as usize, 0);
        self.write(&bytes);
    }

    /// Whether a frame of so many bytes has room.
    pub fn has_room(&self, len: u64) -> bool {
        let read = self.host.view().look(In(self.lent() + HEAD));
        let ring = self.borrowed.unwrap_or_default().1;
        self.tail.wrapping_sub(read) + padded(len) <= ring
    }

    /// How much has been written, for who makes others of it.
    pub fn written(&self) -> u64 {
        self.tail
    }

    /// The next frame's header; its bytes are passed over.
    pub fn receive(&mut self) -> Option<Frame> {
        let lent = self.lent();
        if self.host.view().look(In(lent + TAIL)) < self.head + HEADER_BYTES as u64 {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        // A header is at a multiple of 8, and may go around the end.
        for (index, word) in header.chunks_mut(8).enumerate() {
            let place = CONTROL_BYTES + (self.head + 8 * index as u64) % RING_BYTES;
            self.host.view().read(In(lent + place), word);
        }
        let frame = Frame::parse(&header)?;
        self.head += padded(u64::from(frame.len));
        self.say_head(self.head);
        Some(frame)
    }
}
