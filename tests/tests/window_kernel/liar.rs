//! A host that joins guests' kernels in verbs as it should, and then says what cannot be. Each time
//! it loses its link, and nobody else anything.

use std::path::Path;
use std::time::{Duration, Instant};

use sluice_tests::suite::{Verdict, fail};
use sluice_transport_window::frame::{Frame, HEADER_BYTES, What, flag};

use crate::outsider::{Change, LEND, Outsider, READY, RING_BYTES};
use crate::sure;

/// For one lie to be noticed.
const LIMIT: Duration = Duration::from_secs(60);
/// `IBV_WC_RETRY_EXC_ERR`
const RETRY_EXCEEDED: u16 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Before there is a channel.
    Message(usize),
    /// Over one.
    Channel(usize),
    /// Headers of frames in the ring, again and again.
    Rewrite(usize),
    /// What is no lie, to nobody who is there; it has to be answered.
    Nobody,
}

const MESSAGE_LIES: usize = 18;
const CHANNEL_LIES: usize = 11;
/// How often it changes what it has said while the kernel reads it.
const REWRITES: usize = 20;

pub struct Liar {
    host: Outsider,
    lies: Vec<Lie>,
    at: usize,
    since: Instant,
    told: bool,
}

impl Liar {
    pub fn new(socket: &Path) -> Verdict<Liar> {
        let messages = (0..MESSAGE_LIES).map(Lie::Message);
        let channels = (0..CHANNEL_LIES).map(Lie::Channel);
        let rewrites = (0..REWRITES).map(Lie::Rewrite);
        Ok(Liar {
            host: Outsider::new(socket)?,
            lies: messages
                .chain(channels)
                .chain(rewrites)
                .chain([Lie::Nobody])
                .collect(),
            at: 0,
            since: Instant::now(),
            told: false,
        })
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?} of {}, said {}: {}",
            self.lies.get(self.at),
            self.lies.len(),
            self.told,
            self.host.describe()
        )
    }

    fn next(&mut self) {
        self.at += 1;
        self.since = Instant::now();
    }

    /// Whether there is more to say.
    pub fn step(&mut self) -> Verdict<bool> {
        if self.host.step()? == Change::Down {
            if self.told && self.lies.get(self.at) != Some(&Lie::Nobody) {
                self.next();
            }
            self.told = false;
        }
        let Some(lie) = self.lies.get(self.at).copied() else {
            return Ok(false);
        };
        match self.host.peer() {
            None => self.since = Instant::now(),
            Some(_) if self.since.elapsed() > LIMIT => return fail("it is believed"),
            Some(peer) => self.say(peer, lie)?,
        }
        Ok(true)
    }

    fn say(&mut self, peer: u32, lie: Lie) -> Verdict {
        let Some((at, ring)) = self.host.borrowed() else {
            return Ok(());
        };
        match lie {
            Lie::Message(_) if self.told => Ok(()),
            Lie::Message(number) => {
                self.told = true;
                self.message_lie(at, number)
            }
            _ if !self.host.join()? => Ok(()),
            Lie::Channel(number) => {
                self.channel_lie(peer, ring, number);
                Ok(())
            }
            Lie::Rewrite(number) => {
                self.rewrite(peer, number);
                Ok(())
            }
            Lie::Nobody => self.nobody(peer),
        }
    }

    fn message_lie(&mut self, theirs: u64, number: usize) -> Verdict {
        let (lent, end) = (self.host.lent(), self.host.slot_bytes());
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
            (0x5600_0004, &[0, 0]),
            // Management datagrams of other lengths.
            (0x5600_0003, &[0; 2]),
            (0x5600_0003, &[0; 35]),
            (0x5600_0003, &[0; 37]),
        ];
        match number.checked_sub(lies.len()) {
            None => {
                let (kind, words) = lies[number];
                self.host.tell(kind, words)
            }
            // Twice.
            Some(0) => {
                self.host.tell(LEND, &[lent, RING_BYTES])?;
                self.host.tell(LEND, &[lent, RING_BYTES])
            }
            Some(_) => {
                self.host.tell(READY, &[theirs, 1])?;
                self.host.tell(READY, &[theirs, 1])
            }
        }
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

    fn channel_lie(&mut self, peer: u32, ring: u64, number: usize) {
        // These go on until the kernel has had enough.
        if number == 0 {
            return self.never_reads(peer);
        }
        if number == 4 {
            // It looks how far this host has read when it has no room.
            self.host.say_head(1 << 20);
            return self.never_reads(peer);
        }
        if self.told {
            return;
        }
        if number == 10 {
            // Takes back what was heard, as the answer says.
            if self.host.written() == 0 {
                self.host.write(&self.request(peer).emit());
            } else if self.host.receive().is_some() {
                self.told = true;
                self.host.say_tail(0);
            }
            return;
        }
        self.told = true;
        let good = self.request(peer);
        let in_another_name = Frame {
            from: peer << 19 | 77,
            ..good
        };
        let with = |len: u32| Frame { len, ..good }.emit();
        let mut none = good.emit();
        none[4] = 9;
        match number {
            1 => self.host.say_tail(8),
            2 => self.host.say_tail(ring + 8),
            3 => self.host.say_tail(u64::MAX),
            5 => self.host.write(&in_another_name.emit()),
            6 => self.host.write(&with(ring as u32 / 4)),
            7 => self.host.write(&none),
            8 => self.host.write(&with(8)),
            _ => {
                let what = What::More;
                self.host.write(
                    &Frame {
                        what,
                        ..in_another_name
                    }
                    .emit(),
                );
            }
        }
    }

    /// Requests to nobody, whose lengths and kinds are right and wrong in turn while the kernel reads them.
    fn rewrite(&mut self, peer: u32, number: usize) {
        const TURNS: usize = 200;
        self.told = true;
        let good = self.request(peer);
        let mut wrong = good;
        wrong.len = [8, 1 << 20, u32::MAX][number % 3];
        let mut wrong = wrong.emit();
        // Of no kind, in part.
        wrong[4] = [1, 1, 99, 0][number % 4];
        let begin = self.host.written();
        while self.host.has_room(0) {
            self.host.put(&good.emit());
        }
        let end = self.host.written();
        self.host.say_tail(end);
        for turn in 0..TURNS {
            let header = if turn % 2 == 0 { &wrong } else { &good.emit() };
            for at in (begin..end).step_by(HEADER_BYTES) {
                self.host.rewrite(at, header);
            }
        }
        while self.host.receive().is_some() {}
    }

    /// Asks without an end and takes no answer.
    fn never_reads(&mut self, peer: u32) {
        self.told = true;
        let mut frame = self.request(peer);
        while self.host.has_room(0) {
            // Not the one before: answers to one that are the same are said once.
            let number = self.host.written() / 64 % 0x7ffff;
            frame.from = self.host.slot() << 19 | number as u32;
            self.host.put(&frame.emit());
        }
        let tail = self.host.written();
        self.host.say_tail(tail);
    }

    /// Frames about nothing are ignored, and a request to nobody is answered.
    fn nobody(&mut self, peer: u32) -> Verdict {
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
                self.host.write(&Frame { what, ..request }.emit());
            }
        }
        let Some(answer) = self.host.receive() else {
            return Ok(());
        };
        let right = answer.what == What::Answer
            && answer.code == RETRY_EXCEEDED
            && (answer.to, answer.seq, answer.psn) == (request.from, 9, 3);
        sure(right, format!("{answer:?}"))?;
        self.next();
        Ok(())
    }
}
