//! The far end of connections of a program in the guest (`kernel/rdma/test/victim.c`), which lies in each of
//! them, in the order of that program's `trials`.

use std::path::Path;

use sluice_tests::suite::Verdict;
use sluice_transport_window::frame::{Frame, What, flag};

use crate::outsider::{Change, Outsider};

/// How many it knows.
const LIES: u32 = 28;
/// Both ends' first packet numbers.
const PSN: u32 = 0xff_fff0;
/// Of what the victim asks for.
const LENGTH: u64 = 100;
/// Of the memory that its key opens.
const MEMORY_BYTES: u64 = 4 << 20;
/// `ibv_wr_opcode`
mod opcode {
    pub const WRITE: u16 = 0;
    pub const SEND: u16 = 2;
    pub const READ: u16 = 4;
    pub const FETCH_AND_ADD: u16 = 6;
    pub const SEND_WITH_INVALIDATE: u16 = 9;
}

/// What a victim says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    pub number: u32,
    pub qpn: u32,
    pub addr: u64,
    pub rkey: u32,
}

impl Victim {
    /// Behind the name of its program.
    pub fn parse(line: &str, name: &str) -> Option<Victim> {
        let mut words = line.strip_prefix(name)?.split(' ');
        let victim = Victim {
            number: words.next()?.parse().ok()?,
            qpn: words.next()?.parse().ok()?,
            addr: words.next()?.parse().ok()?,
            rkey: words.next()?.parse().ok()?,
        };
        Some(victim)
    }
}

pub struct FarEnd {
    host: Outsider,
    /// The next that it waits for.
    next: u32,
    current: Option<Victim>,
    /// Requests of that one.
    heard: u32,
    /// What was heard and not answered.
    requests: Vec<Frame>,
    /// How often the link has ended, and whether more was said then.
    downs: u32,
    ended_early: bool,
}

impl FarEnd {
    pub fn new(socket: &Path) -> Verdict<FarEnd> {
        Ok(FarEnd {
            host: Outsider::new(socket)?,
            next: 0,
            current: None,
            heard: 0,
            requests: Vec::new(),
            downs: 0,
            ended_early: false,
        })
    }

    pub fn slot(&self) -> u32 {
        self.host.slot()
    }

    /// Whether all was said, in one link.
    pub fn is_through(&self) -> bool {
        self.next == LIES && !self.ended_early
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?}, {} links ended, early: {}; {}",
            self.current,
            self.downs,
            self.ended_early,
            self.host.describe()
        )
    }

    /// `console`: what the guest has said.
    pub fn step(&mut self, console: &str) -> Verdict {
        // The module begins links anew when it comes, and ends them when it goes.
        let is_down = self.host.step()? == Change::Down;
        self.downs += u32::from(is_down && self.next > 0);
        if !self.host.join()? {
            return Ok(());
        }
        let whole = console.rfind('\n').map_or("", |end| &console[..end]);
        let found = whole
            .lines()
            .filter_map(|line| Victim::parse(line.trim_end(), "victim "))
            .find(|victim| victim.number == self.next);
        if let Some(victim) = found {
            self.next += 1;
            self.ended_early |= self.downs > 0;
            self.current = Some(victim);
            self.heard = 0;
            self.ask(victim);
        }
        while let Some(frame) = self.host.receive() {
            self.requests.push(frame);
        }
        if let Some(victim) = self.current {
            let mine = self.request(victim).from;
            // What is for the next may come before the console says that there is one.
            let (now, later): (Vec<_>, Vec<_>) = self
                .requests
                .drain(..)
                .filter(|frame| frame.what == What::Request && frame.to >= mine)
                .partition(|frame| frame.to == mine);
            self.requests = later;
            for frame in now {
                self.heard += 1;
                self.answer(victim, &frame);
            }
        }
        Ok(())
    }

    /// One of the right form, with the first packet number.
    fn request(&self, victim: Victim) -> Frame {
        Frame {
            flags: flag::RELIABLE,
            code: opcode::SEND,
            to: victim.qpn,
            from: self.host.slot() << 19 | (100 + victim.number),
            psn: PSN,
            ..Frame::new(What::Request)
        }
    }

    fn send(&mut self, frame: Frame, len: u32) {
        let payload = vec![0x11; len as usize];
        self.host.send(&Frame { len, ..frame }, &payload);
    }

    /// As a requester.
    fn ask(&mut self, victim: Victim) {
        let good = self.request(victim);
        let of = |code: u16, bytes: u64| Frame {
            code,
            words: [bytes, 0],
            addr: victim.addr,
            rkey: victim.rkey,
            ..good
        };
        let more = |frame: Frame| Frame {
            what: What::More,
            ..frame
        };
        match victim.number {
            0 => self.send(of(opcode::SEND, 10), 11),
            1 => {
                self.send(of(opcode::SEND, 100), 50);
                self.send(more(of(opcode::SEND, 100)), 51);
            }
            2 => {
                self.send(of(opcode::SEND, 100), 50);
                self.send(of(opcode::SEND, 10), 10);
            }
            3 => {
                self.send(of(opcode::SEND, 100), 50);
                self.send(more(of(opcode::SEND, 100)), 0);
            }
            4 => self.send(of(opcode::FETCH_AND_ADD, 1), 8),
            5 => self.send(of(opcode::SEND_WITH_INVALIDATE, 0), 0),
            6 => self.send(of(0xffff, 0), 0),
            7 => self.send(of(opcode::READ, 8), 8),
            8 => self.send(of(opcode::SEND, (1 << 31) + 1), 50),
            9 => {
                // More than it can have answered: this host has not taken the first bytes.
                for psn in 0..200 {
                    let read = of(opcode::READ, MEMORY_BYTES);
                    let psn = (PSN + psn) & 0xff_ffff;
                    self.send(Frame { psn, ..read }, 0);
                }
            }
            10 => {
                let write = of(opcode::WRITE, 100);
                let addr = victim.addr + MEMORY_BYTES - 99;
                self.send(Frame { addr, ..write }, 50);
            }
            11 => {
                let write = of(opcode::WRITE, 100);
                let addr = u64::MAX - 49;
                self.send(Frame { addr, ..write }, 50);
            }
            12 => {
                let good = of(opcode::SEND, LENGTH);
                let early = (PSN + 1) & 0xff_ffff;
                self.send(Frame { psn: early, ..good }, 100);
                self.send(
                    Frame {
                        psn: PSN - 1,
                        ..good
                    },
                    100,
                );
                let from = good.from ^ 1;
                self.send(Frame { from, ..good }, 100);
                self.send(Frame { flags: 0, ..good }, 100);
                self.send(more(good), 100);
                self.send(good, 100);
            }
            21 => {
                for _ in 0..3 {
                    self.send(of(opcode::FETCH_AND_ADD, 1), 0);
                }
                let psn = (PSN + 1) & 0xff_ffff;
                let good = of(opcode::SEND, LENGTH);
                self.send(Frame { psn, ..good }, 100);
            }
            22 => {
                let addr = victim.addr + 4;
                let add = of(opcode::FETCH_AND_ADD, 1);
                self.send(Frame { addr, ..add }, 0);
            }
            23 => {
                let addr = victim.addr + MEMORY_BYTES;
                let add = of(opcode::FETCH_AND_ADD, 1);
                self.send(Frame { addr, ..add }, 0);
            }
            24 => {
                // Behind bytes that this host does not take, so none of them is answered.
                let read = of(opcode::READ, MEMORY_BYTES);
                self.send(read, 0);
                for psn in 1..200 {
                    let add = of(opcode::FETCH_AND_ADD, 1);
                    let psn = (PSN + psn) & 0xff_ffff;
                    self.send(Frame { psn, ..add }, 0);
                }
            }
            _ => {}
        }
    }

    /// As a responder, to what the victim asks for.
    fn answer(&mut self, victim: Victim, request: &Frame) {
        let data = |addr: u64| Frame {
            addr,
            ..Frame::about(What::Data, request)
        };
        let well = Frame::about(What::Answer, request);
        match victim.number {
            13 => self.send(well, 0),
            14 => self.send(data(8), 8),
            15 => {
                self.send(data(0), 50);
                self.send(data(50), 51);
            }
            16 => self.send(data(0), 0),
            17 => self.send(data(0), 8),
            18 => self.send(Frame { code: 255, ..well }, 0),
            19 => {
                for (to, seq, psn) in [
                    (well.to ^ 1 << 24, well.seq, well.psn),
                    (well.to, well.seq + 1, well.psn),
                    (well.to, well.seq, well.psn + 1),
                    (well.to, well.seq + 1, well.psn + 1),
                    (well.to, well.seq.wrapping_sub(1), well.psn - 1),
                ] {
                    for code in [0, 12] {
                        self.send(
                            Frame {
                                to,
                                seq,
                                psn,
                                code,
                                ..well
                            },
                            0,
                        );
                    }
                }
                self.send(well, 0);
            }
            // The request comes a second time behind this, and all of it is brought anew.
            20 if self.heard == 1 => {
                self.send(data(0), 50);
                let what = What::NotYet;
                let flags = flag::NO_RECEIVE;
                self.send(
                    Frame {
                        what,
                        flags,
                        ..well
                    },
                    0,
                );
                self.send(
                    Frame {
                        what: What::Ready,
                        ..well
                    },
                    0,
                );
            }
            20 => self.send(data(0), 100),
            25 => self.send(well, 0),
            26 => self.send(data(0), 16),
            27 => self.send(data(0), 0),
            _ => {}
        }
    }
}
