//! A host that joins guests' kernels in verbs as it should, and then says what cannot be.

use std::path::Path;
use std::time::{Duration, Instant};

use sluice_tests::suite::{Verdict, fail};
use sluice_transport_window::frame::{Frame, HEADER_BYTES, What, flag, padded};
use sluice_window::{In, Out, View};

use crate::host::{Heard, Host};
use crate::sure;

const LEND: u32 = 0x5600_0001;
const READY: u32 = 0x5600_0002;
const BELL: u32 = 0x5700_0004;
const CONTROL_BYTES: u64 = 4096;
/// Of the ring that it lends.
const RING_BYTES: u64 = 64 * 1024;
/// For one lie to be noticed.
const LIMIT: Duration = Duration::from_secs(60);
/// Statuses as in `ibv_wc_status`.
const RETRY_EXCEEDED: u16 = 12;

/// One that was not made, `number` of `CHANNEL_LIES` behind a channel that was, or one of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Message(usize),
    Channel(usize),
    /// Says what is no lie, to nobody who is there, and has to be answered.
    Nobody,
}

const MESSAGE_LIES: usize = 15;
const CHANNEL_LIES: usize = 11;

pub struct Liar {
    host: Host,
    lies: Vec<Lie>,
    at: usize,
    since: Instant,
    /// Whose link it lies in.
    target: Option<u32>,
    bell: Option<u16>,
    /// What the kernel has lent: where, and the ring's bytes.
    borrowed: Option<(u64, u64)>,
    joined: bool,
    ready: bool,
    told: bool,
    tail: u64,
}

impl Liar {
    pub fn new(socket: &Path) -> Verdict<Liar> {
        let messages = (0..MESSAGE_LIES).map(Lie::Message);
        let channels = (0..CHANNEL_LIES).map(Lie::Channel);
        Ok(Liar {
            host: Host::join(socket)?,
            lies: messages.chain(channels).chain([Lie::Nobody]).collect(),
            at: 0,
            since: Instant::now(),
            target: None,
            bell: None,
            borrowed: None,
            joined: false,
            ready: false,
            told: false,
            tail: 0,
        })
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?} of {}, target {:?}, lent {:?}, joined {}, ready {}, told {}",
            self.lies.get(self.at),
            self.lies.len(),
            self.target,
            self.borrowed,
            self.joined,
            self.ready,
            self.told
        )
    }

    fn forget(&mut self) {
        self.target = None;
        self.borrowed = None;
        (self.joined, self.ready, self.told) = (false, false, false);
        self.tail = 0;
    }

    fn next(&mut self) {
        self.at += 1;
        self.since = Instant::now();
    }

    /// Whether there is more to say.
    pub fn step(&mut self) -> Verdict<bool> {
        for heard in self.host.step()? {
            match heard {
                Heard::Up(peer) if self.target.is_none() => {
                    self.forget();
                    self.target = Some(peer);
                }
                Heard::Down(peer, _) if self.target == Some(peer) => {
                    let waits = self.lies.get(self.at) == Some(&Lie::Nobody);
                    if self.told && !waits {
                        self.next();
                    }
                    self.forget();
                }
                Heard::Message(peer, kind, bytes) if self.target == Some(peer) => {
                    self.hear(kind, &bytes);
                }
                _ => {}
            }
        }
        let Some(lie) = self.lies.get(self.at).copied() else {
            return Ok(false);
        };
        if let Some(peer) = self.target
            && let Some((at, ring)) = self.borrowed
        {
            self.say(peer, at, ring, lie)?;
        }
        if self.target.is_some() && self.since.elapsed() > LIMIT {
            return fail("it is believed");
        }
        if self.target.is_none() {
            self.since = Instant::now();
        }
        Ok(true)
    }

    fn hear(&mut self, kind: u32, bytes: &[u8]) {
        let word = |at: usize| {
            let mut word = [0; 8];
            if let Some(there) = bytes.get(at..at + 8) {
                word.copy_from_slice(there);
            }
            u64::from_le_bytes(word)
        };
        match kind {
            BELL => self.bell = Some(word(0) as u16),
            LEND => self.borrowed = Some((word(0), word(8))),
            READY => self.ready = true,
            _ => {}
        }
    }

    fn say(&mut self, peer: u32, at: u64, ring: u64, lie: Lie) -> Verdict {
        let lent = self.lent();
        if let Lie::Message(number) = lie {
            if !self.told {
                self.told = true;
                self.message_lie(peer, at, number)?;
            }
            return Ok(());
        }
        if !self.joined {
            self.joined = true;
            for line in [0, 64, 128] {
                self.host.view().say(
                    Out {
                        slot: peer,
                        at: at + line,
                    },
                    0,
                );
            }
            self.tell(peer, LEND, &[lent, RING_BYTES])?;
            return self.tell(peer, READY, &[at, 0]);
        }
        if !self.ready {
            return Ok(());
        }
        match lie {
            Lie::Channel(number) => self.channel_lie(peer, at, ring, number),
            _ => self.nobody(peer, at, ring),
        }
    }

    /// Where its own piece begins.
    fn lent(&self) -> u64 {
        self.host.region().header().geometry.heap().0
    }

    fn tell(&mut self, peer: u32, kind: u32, words: &[u64]) -> Verdict {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        sure(self.host.send(peer, kind, &bytes)?, "no room")?;
        self.ring(peer);
        Ok(())
    }

    fn ring(&mut self, _peer: u32) {
        let Some(number) = self.bell else { return };
        for vector in [0, 1] {
            if let Some(bell) = self.host.client().bell(number, vector) {
                // A full counter rings as well.
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
        }
    }

    fn message_lie(&mut self, peer: u32, theirs: u64, number: usize) -> Verdict {
        let (lent, end) = (
            self.lent(),
            self.host.region().header().geometry.slot_bytes(),
        );
        let lies: [(u32, &[u64]); MESSAGE_LIES - 2] = [
            (LEND, &[0, RING_BYTES]),
            (LEND, &[lent + 8, RING_BYTES]),
            (LEND, &[lent, RING_BYTES - 8]),
            (LEND, &[lent, 64]),
            (LEND, &[lent, 0]),
            (LEND, &[lent, 1 << 63]),
            (LEND, &[end - 4096, RING_BYTES]),
            (LEND, &[u64::MAX - 4095, RING_BYTES]),
            (LEND, &[lent]),
            (READY, &[theirs + 4096, 1]),
            (READY, &[0, 1]),
            (READY, &[]),
            (0x5600_0003, &[0, 0]),
        ];
        match number.checked_sub(lies.len()) {
            None => {
                let (kind, words) = lies[number];
                self.tell(peer, kind, words)
            }
            // Twice.
            Some(0) => {
                self.tell(peer, LEND, &[lent, RING_BYTES])?;
                self.tell(peer, LEND, &[lent, RING_BYTES])
            }
            Some(_) => {
                self.tell(peer, READY, &[theirs, 1])?;
                self.tell(peer, READY, &[theirs, 1])
            }
        }
    }

    fn put(&mut self, peer: u32, at: u64, ring: u64, bytes: &[u8]) {
        for (index, word) in bytes.chunks(8).enumerate() {
            let place = CONTROL_BYTES + (self.tail + 8 * index as u64) % ring;
            self.host.view().write(
                Out {
                    slot: peer,
                    at: at + place,
                },
                word,
            );
        }
        self.tail += bytes.len() as u64;
    }

    fn tail(&mut self, peer: u32, at: u64, tail: u64) {
        self.host.view().say(Out { slot: peer, at }, tail);
        self.ring(peer);
    }

    /// A request to a number that nobody has, in this host's name.
    fn request(&self, peer: u32) -> Frame {
        Frame {
            flags: flag::RELIABLE,
            code: 2,
            to: peer << 19 | 5,
            from: self.host.slot() << 19 | 77,
            seq: 9,
            psn: 3,
            ..Frame::new(What::Request)
        }
    }

    fn channel_lie(&mut self, peer: u32, at: u64, ring: u64, number: usize) -> Verdict {
        // This one goes on until the kernel has had enough.
        if number == 0 {
            return self.never_reads(peer, at, ring);
        }
        if self.told {
            return Ok(());
        }
        self.told = true;
        let good = self.request(peer);
        let mut other = good;
        // In the name of the other device.
        other.from = peer << 19 | 77;
        let mut long = good;
        long.len = ring as u32 / 4;
        let mut none = good.emit();
        none[4] = 9;
        let mut part = good;
        part.len = 8;
        match number {
            1 => self.tail(peer, at, 8),
            2 => self.tail(peer, at, ring + 8),
            3 => self.tail(peer, at, u64::MAX),
            4 => {
                self.host.view().say(
                    Out {
                        slot: peer,
                        at: at + 64,
                    },
                    1 << 20,
                );
                // It looks how far this host has read when it has no room.
                self.put(peer, at, ring, &good.emit());
                let tail = self.tail;
                self.tail(peer, at, tail);
                self.told = false;
                return self.never_reads(peer, at, ring);
            }
            5 => self.frame(peer, at, ring, &other.emit()),
            6 => self.frame(peer, at, ring, &long.emit()),
            7 => self.frame(peer, at, ring, &none),
            8 => self.frame(peer, at, ring, &part.emit()),
            9 => {
                other.what = What::More;
                self.frame(peer, at, ring, &other.emit());
            }
            _ => {
                self.frame(peer, at, ring, &good.emit());
                self.tail(peer, at, 0);
                self.frame(peer, at, ring, &none);
            }
        }
        Ok(())
    }

    fn frame(&mut self, peer: u32, at: u64, ring: u64, bytes: &[u8]) {
        self.put(peer, at, ring, bytes);
        let tail = self.tail;
        self.tail(peer, at, tail);
    }

    /// Asks without an end and takes no answer.
    fn never_reads(&mut self, peer: u32, at: u64, ring: u64) -> Verdict {
        self.told = true;
        let read = self.host.view().look(In(self.lent() + 64));
        let mut frame = self.request(peer);
        while self.tail.wrapping_sub(read) + padded(0) <= ring {
            // Not the one before: answers to one that are the same are said once.
            frame.from = self.host.slot() << 19 | (self.tail / 64 % 0x7ffff) as u32;
            self.put(peer, at, ring, &frame.emit());
        }
        let tail = self.tail;
        self.tail(peer, at, tail);
        Ok(())
    }

    /// Frames about nothing are ignored, and a request to nobody is answered.
    fn nobody(&mut self, peer: u32, at: u64, ring: u64) -> Verdict {
        let request = self.request(peer);
        if !self.told {
            self.told = true;
            for what in [
                What::More,
                What::Answer,
                What::Data,
                What::NotYet,
                What::Ready,
                What::Request,
            ] {
                self.frame(peer, at, ring, &Frame { what, ..request }.emit());
            }
        }
        let lent = self.lent();
        if self.host.view().look(In(lent)) < HEADER_BYTES as u64 {
            return Ok(());
        }
        let mut header = [0; HEADER_BYTES];
        self.host.view().read(In(lent + CONTROL_BYTES), &mut header);
        let answer = Frame::parse(&header);
        let right = answer.is_some_and(|answer| {
            answer.what == What::Answer
                && answer.code == RETRY_EXCEEDED
                && (answer.to, answer.seq, answer.psn) == (request.from, 9, 3)
        });
        sure(right, format!("{answer:?}"))?;
        self.next();
        Ok(())
    }
}
