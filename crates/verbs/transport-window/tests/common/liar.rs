//! A host of a window that says what it likes: it finds others as it should, and then lies.
#![allow(dead_code)]

use std::path::Path;
use std::time::Duration;

use crate::common::FOR_EVER;
use sluice_sys::clock::now_ns;
use sluice_transport_window::frame::{Frame, HEADER_BYTES};
use sluice_verbs_testing::until;
use sluice_window::claim::{Claim, Claimed, Hold, Table as _, Word};
use sluice_window::heap::Heap;
use sluice_window::layout::Pair;
use sluice_window::link::{Event, Link};
use sluice_window::mailbox::MESSAGE_BYTES_MAX;
use sluice_window::region::{Region, RegionView};
use sluice_window::{In, Out, View};

pub const LEND: u32 = 0x5600_0001;
pub const READY: u32 = 0x5600_0002;
/// Of the ring that it lends.
pub const RING_BYTES: u64 = 64 * 1024;
const CONTROL_BYTES: u64 = 4096;

/// One host, and its link with one other.
pub struct Liar {
    pub region: Region,
    hold: Hold,
    peer: u32,
    link: Link,
    pub lent: In,
    /// What the honest host has lent: where, and the ring's bytes.
    pub borrowed: Option<(Out, u64)>,
    /// It has heard that the other host writes to what it has lent.
    is_ready: bool,
    tail: u64,
    head: u64,
}

impl Liar {
    /// Finds the host with slot `peer`, and hears what it lends.
    pub fn meet(path: &Path, peer: u32) -> Liar {
        let mut region = Region::open(path).unwrap();
        region.set_silence(FOR_EVER.as_nanos() as u64);
        let mut claim = Claim::new(now_ns() | 1, "liar", None);
        let hold = loop {
            match claim.poll(&region, now_ns()) {
                Claimed::Held(hold) => break hold,
                Claimed::Wait { .. } => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (start, bytes) = region.header().geometry.heap();
        let mut heap = Heap::new(start, bytes);
        let lent = heap.lend(peer, CONTROL_BYTES + RING_BYTES).unwrap();
        let pair = Pair::new(hold.slot(), peer);
        let link = Link::new(pair, now_ns() | 1, &region.view(hold.slot()));
        let mut liar = Liar {
            region,
            hold,
            peer,
            link,
            lent,
            borrowed: None,
            is_ready: false,
            tail: 0,
            head: 0,
        };
        until("a link", || liar.poll() == Some(true));
        until("a lend", || {
            liar.poll();
            liar.borrowed.is_some()
        });
        liar
    }

    pub fn slot(&self) -> u32 {
        self.hold.slot()
    }

    fn view(&self) -> RegionView<'_> {
        self.region.view(self.hold.slot())
    }

    /// Beats and listens. Whether the link came up, or went down.
    pub fn poll(&mut self) -> Option<bool> {
        let _ = self.hold.beat(&self.region);
        let view = self.region.view(self.hold.slot());
        self.link.beat(&view);
        let event = self.link.poll(&view, now_ns());
        if self.link.is_up() {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            while let Ok(Some((kind, bytes))) = self.link.receiver.receive(&view, &mut buffer) {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                self.is_ready |= kind == READY;
                if kind == LEND {
                    let at = word(0);
                    let slot = self.peer;
                    self.borrowed = Some((Out { slot, at }, word(8)));
                }
            }
        }
        match event {
            Some(Event::Up { .. }) => Some(true),
            Some(Event::Down(_)) => Some(false),
            _ => None,
        }
    }

    pub fn tell(&mut self, kind: u32, message: &[u8]) {
        let view = self.region.view(self.hold.slot());
        let _ = self.link.sender.send(&view, kind, message);
    }

    pub fn tell_numbers(&mut self, kind: u32, numbers: [u64; 2]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.tell(kind, &bytes);
    }

    /// Does what an honest host would, until there is a channel.
    pub fn join(&mut self) {
        let (piece, _) = self.borrowed.unwrap();
        for line in 0..3 {
            self.view().say(piece.add(64 * line), 0);
        }
        self.tell_numbers(LEND, [self.lent.0, RING_BYTES]);
        self.tell_numbers(READY, [piece.at, 0]);
    }

    /// The word that says how far it has written.
    pub fn say_tail(&self, tail: u64) {
        self.view().say(self.borrowed.unwrap().0, tail);
    }

    /// The word that says how far it has read.
    pub fn say_head(&self, head: u64) {
        self.view().say(self.borrowed.unwrap().0.add(64), head);
    }

    /// Puts bytes into the ring, whatever they are.
    pub fn put(&mut self, bytes: &[u8]) {
        let (piece, ring) = self.borrowed.unwrap();
        for (index, byte) in bytes.chunks(8).enumerate() {
            let at = (self.tail + 8 * index as u64) % ring;
            self.view().write(piece.add(CONTROL_BYTES + at), byte);
        }
        self.tail += bytes.len() as u64;
        self.say_tail(self.tail);
    }

    /// A frame with these bytes, as it should be.
    pub fn send(&mut self, frame: Frame, bytes: &[u8]) {
        let mut whole = frame.emit().to_vec();
        whole.extend_from_slice(bytes);
        whole.resize(HEADER_BYTES + bytes.len().next_multiple_of(8), 0);
        self.put(&whole);
    }

    /// The next frame that came, and its bytes.
    pub fn next(&mut self) -> Option<(Frame, Vec<u8>)> {
        if self.view().look(self.lent) == self.head {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        self.copy(0, &mut header);
        let frame = Frame::parse(&header).unwrap();
        let mut bytes = vec![0; frame.len as usize];
        self.copy(HEADER_BYTES as u64, &mut bytes);
        self.head += HEADER_BYTES as u64 + u64::from(frame.len).next_multiple_of(8);
        self.say_head(self.head);
        Some((frame, bytes))
    }

    fn copy(&self, offset: u64, to: &mut [u8]) {
        for (index, byte) in to.iter_mut().enumerate() {
            let at = (self.head + offset + index as u64) % RING_BYTES;
            let place = self.lent.add(CONTROL_BYTES + at);
            self.view().read(place, core::slice::from_mut(byte));
        }
    }

    /// Whether the other host has ended the link.
    pub fn is_cut_off(&mut self) -> bool {
        self.poll() == Some(false)
    }

    /// Whether the other host has made the channel: it has said whether it sleeps, or its pages are
    /// written to.
    pub fn is_heard(&self) -> bool {
        self.is_ready
    }

    /// Writes a generation of its own over another host's claim.
    pub fn take_slot(&self, slot: u32) {
        self.region.say(slot, Word::Generation, 4711);
    }
}
