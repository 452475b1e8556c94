//! One end of a connection: what it has to send, and what it is owed. Nothing is lost here, so that it
//! never sends anything again.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use sluice_planner::{Begins, Owes, Seen, Ways};

/// Bytes of a full packet's payload.
pub const MTU: u64 = 1024;
/// Packets from which on data stays where bulk was.
const BULK: u64 = 5;

/// What a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// A message of so many packets. `answers`: the peer's request that the program saw before.
    Send { packets: u64, answers: Option<u64> },
    /// So many packets of the peer's memory.
    Read { packets: u64 },
}

/// What a packet is for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Packet of that number of a message. `last`: with what the message answers.
    Part {
        number: u64,
        last: Option<Option<u64>>,
    },
    /// The request of that number, which is answered with so many packets.
    Read { number: u64, packets: u64 },
    /// All requests up to that number are answered.
    Acknowledgement { number: u64 },
    /// A piece of the data that request `number` asked for. `last`: it has all. `is_bulk`: there was much.
    Data {
        number: u64,
        last: bool,
        is_bulk: bool,
    },
}

impl What {
    pub fn is_response(&self) -> bool {
        matches!(self, Self::Acknowledgement { .. } | Self::Data { .. })
    }

    /// A message or an answer is complete with it.
    pub fn ends(&self) -> bool {
        match self {
            Self::Part { last, .. } => last.is_some(),
            Self::Data { last, .. } => *last,
            Self::Read { .. } | Self::Acknowledgement { .. } => true,
        }
    }
}

/// A request whose packets have not all left.
struct Waiting {
    post: Post,
    sent: u64,
}

/// A READ of the peer: its number, its packets and those that are still to be sent.
struct Reading {
    number: u64,
    packets: u64,
    left: u64,
}

#[derive(Default)]
pub struct Flow {
    pub ways: Ways,
    waiting: VecDeque<Waiting>,
    holds: bool,
    /// Request packets that were sent, and those of them that are answered.
    sent: u64,
    pub answered: u64,
    /// Request packets that came.
    pub came: u64,
    /// READs of the peer.
    reads: VecDeque<Reading>,
    owes_acknowledgement: bool,
    /// Up to which request acknowledgements were made.
    acknowledged: u64,
    /// Requests that have none of their own, as the data of a READ behind them answers them, or that have it
    /// behind data.
    answered_by_data: Vec<RangeInclusive<u64>>,
    request_next: bool,
}

impl Flow {
    pub fn post(&mut self, post: Post) {
        self.waiting.push_back(Waiting { post, sent: 0 });
    }

    pub fn seen(&self, flows: bool) -> Seen {
        let begins = self.waiting.front().filter(|first| first.sent == 0);
        let begins = begins.map(|first| match first.post {
            Post::Send { packets, .. } => Begins {
                length: packets * MTU,
                is_sent: true,
            },
            Post::Read { packets } => Begins {
                length: packets * MTU,
                is_sent: false,
            },
        });
        let packets = |waiting: &Waiting| match waiting.post {
            Post::Send { packets, .. } => packets - waiting.sent,
            Post::Read { .. } => 1,
        };
        Seen {
            is_quiet: self.answered == self.sent,
            begins,
            waiting: self.waiting.iter().map(packets).sum(),
            reply_packets: self.reads.front().map_or(0, |read| read.left),
            mtu: MTU,
            flows,
        }
    }

    pub fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    fn has_request(&self) -> bool {
        let first = self.waiting.front();
        first.is_some_and(|first| !(self.holds && first.sent == 0))
    }

    /// What is to be done behind a packet that came, in the order of the protocol.
    pub fn owes(&self) -> Owes {
        if self.has_request() || !self.reads.is_empty() {
            Owes::Turn
        } else if self.owes_acknowledgement {
            Owes::Acknowledgement
        } else {
            Owes::Nothing
        }
    }

    /// Whether an acknowledgement has not been made that is owed.
    pub fn is_owing(&self) -> bool {
        self.owes_acknowledgement
    }

    /// Whether a request's acknowledgement was the next answer. Data and requests leave in turn.
    pub fn acknowledges(&self, number: u64) -> bool {
        let mut by_data = self.answered_by_data.iter();
        !by_data.any(|range| range.contains(&number))
    }

    /// Nothing is to be sent, and nothing is waited for.
    pub fn is_done(&self) -> bool {
        let all = self.waiting.is_empty() && self.reads.is_empty();
        all && self.answered == self.sent && !self.owes_acknowledgement
    }

    /// The next packet. Replies without data are in front.
    pub fn transmit(&mut self) -> Option<What> {
        if self.owes_acknowledgement && self.reads.is_empty() {
            self.owes_acknowledgement = false;
            self.acknowledged = self.came;
            return Some(What::Acknowledgement { number: self.came });
        }
        let request = self.has_request();
        if let Some(read) = self.reads.front_mut()
            && !(request && self.request_next)
        {
            self.request_next = true;
            read.left -= 1;
            let what = What::Data {
                number: read.number,
                last: read.left == 0,
                is_bulk: read.packets >= BULK,
            };
            if read.left == 0 {
                self.reads.pop_front();
            }
            return Some(what);
        }
        if !request {
            return None;
        }
        self.request_next = false;
        let first = self.waiting.front_mut()?;
        first.sent += 1;
        self.sent += 1;
        let number = self.sent;
        let (what, is_over) = match first.post {
            Post::Read { packets } => (What::Read { number, packets }, true),
            Post::Send { packets, answers } => {
                let is_last = first.sent == packets;
                let last = is_last.then_some(answers);
                (What::Part { number, last }, is_last)
            }
        };
        if is_over {
            self.waiting.pop_front();
        }
        Some(what)
    }

    /// A packet came, in its turn.
    pub fn receive(&mut self, what: What) {
        match what {
            What::Part { number, .. } => {
                self.came = number;
                self.owes_acknowledgement = true;
                if !self.reads.is_empty() {
                    self.answered_by_data.push(number..=number);
                }
            }
            What::Read { number, packets } => {
                self.came = number;
                self.owes_acknowledgement = false;
                self.answered_by_data.push(self.acknowledged + 1..=number);
                self.acknowledged = number;
                self.reads.push_back(Reading {
                    number,
                    packets,
                    left: packets,
                });
            }
            What::Acknowledgement { number } => self.answered = self.answered.max(number),
            What::Data { number, last, .. } => {
                let answered = if last { number } else { number - 1 };
                self.answered = self.answered.max(answered);
            }
        }
        self.holds = false;
    }
}
