//! All states that a sender with two threads, a network and a receiver can reach with a few bytes: in each,
//! every byte came at most once and in order, and from each what was sent comes in the end.
//!
//! Steps are whole calls of the shipped types, so this says nothing of memory order (the models under
//! loom do); it finds holes in the rules. Each rule that is left out must be caught, else the search
//! shows nothing. What it has seen is the picture in docs/handover.md.
#![allow(unsafe_code)]

mod picture;

use super::search::{self, Memory, Shared};
use super::{Back, Begun, Next, Receiver, Route, Sender};
use crate::direction::Direction;
use core::convert::Infallible;
use std::collections::VecDeque;

/// Bytes that are sent.
const BYTES: u8 = 4;
/// The same where a rule is left out: as many as it takes.
const BYTES_WITHOUT: u8 = 3;
/// More than enough rounds for everything to come to its end.
const ROUNDS_TO_END: u32 = 16;

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A thread of the sender begins a write of one byte, or puts it into the ring and ends.
    Write,
    /// The process dies in a write, and another one goes on with its half.
    Die,
    /// The thread has to go by TCP, as for sendfile.
    WriteTcp,
    /// Another thread of the sender enters the kernel with a byte, or leaves it there.
    Other,
    /// The sender looks whether it is asked for bytes, and has room for them by TCP.
    Answer,
    /// The same without room.
    Refuse,
    /// A byte arrives at the receiver's socket.
    Deliver,
    /// The receiver reads all that is next, or begins or ends a read of TCP without a bound.
    Read,
    /// The same for one byte.
    ReadOne,
    /// A process of the receiver dies when it has read a byte that is owed, and before it counts it.
    Lose,
    /// The receiver goes to sleep until its socket is readable, or wakes.
    Sleep,
    /// The receiver's socket is given away: it takes no more ring bytes, asks for those that are there, and
    /// hears what became of them.
    GiveAway,
    /// It asks no longer.
    Expire,
}

const ALL: [Step; 13] = [
    Step::Write,
    Step::Die,
    Step::WriteTcp,
    Step::Other,
    Step::Answer,
    Step::Refuse,
    Step::Deliver,
    Step::Read,
    Step::ReadOne,
    Step::Lose,
    Step::Sleep,
    Step::GiveAway,
    Step::Expire,
];

/// A rule that a broken end does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The sender begins a segment while the last one is not drained.
    Drained,
    /// The sender begins a segment while another thread is in the kernel.
    Others,
    /// The sender goes by TCP and says nothing.
    Leaving,
    /// Whoever goes on with a dead sender's half says nothing.
    Republishing,
    /// The receiver reads TCP without a bound and without an announcement.
    Announcement,
    /// The receiver sleeps without one.
    AnnouncedSleep,
    /// The receiver reads the ring although TCP bytes are owed.
    SwitchOffset,
    /// The receiver does not count what it reads.
    Count,
    /// The receiver does not count anew when a reader died.
    Recount,
    /// The receiver reads the ring while it asks for the bytes to go back.
    Asking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reading {
    No,
    /// TCP without a bound, announced.
    Unbounded,
    /// In the kernel until the socket is readable.
    Asleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Away {
    No,
    Pinned,
    Asks,
    /// It knows what became of the ring's bytes.
    Over,
}

/// Everything but the shared lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ends {
    sender: Sender,
    is_writing: bool,
    other_is_writing: bool,
    receiver: Receiver,
    reading: Reading,
    away: Away,
    /// What the sender's kernel has taken, ever, what of it is on its way, and has arrived; what was
    /// read there.
    tcp_written: u64,
    on_its_way: VecDeque<u8>,
    arrived: VecDeque<u8>,
    tcp_read: u64,
    sent: u8,
    received: u8,
}

/// A state of the world.
type State = (Ends, Shared);

struct World {
    direction: Direction,
    without: Without,
    bytes: u8,
    ends: Ends,
    is_ending: bool,
    /// What the step did, for the picture.
    deed: &'static str,
    memory: Memory,
}

impl World {
    fn new(without: Without, bytes: u8) -> Self {
        let memory = Memory::new();
        let direction = memory.direction;
        let mut receiver = Receiver::default();
        receiver.enable(&direction, 0, 0);
        let ends = Ends {
            sender: Sender::default(),
            is_writing: false,
            other_is_writing: false,
            receiver,
            reading: Reading::No,
            away: Away::No,
            tcp_written: 0,
            on_its_way: VecDeque::new(),
            arrived: VecDeque::new(),
            tcp_read: 0,
            sent: 0,
            received: 0,
        };
        Self {
            direction,
            without,
            bytes,
            ends,
            is_ending: false,
            deed: "",
            memory,
        }
    }

    // The sender.

    /// A byte has its number from when it is certain which way it goes: until then another thread may be
    /// faster.
    fn next_byte(&mut self) -> u8 {
        self.ends.sent += 1;
        self.ends.sent
    }

    fn put_tcp(&mut self) {
        let byte = self.next_byte();
        self.ends.on_its_way.push_back(byte);
        self.ends.tcp_written += 1;
    }

    fn leave(&mut self, deed: &'static str) {
        self.deed = deed;
        if self.without == Without::Leaving {
            self.ends.sender.leave_unsaid();
        } else {
            self.ends.sender.leave(&self.direction);
        }
    }

    fn write_tcp(&mut self, deed: &'static str) {
        self.answer(true);
        self.leave(deed);
        self.ends.sender.note_tcp();
        self.put_tcp();
    }

    fn begin_write(&mut self) {
        self.answer(true);
        let others = self.ends.other_is_writing && self.without != Without::Others;
        let route = self.ends.sender.route(&self.direction, others).unwrap();
        let ignores = self.without == Without::Drained && !self.ends.other_is_writing;
        if route != Route::Ring && !ignores {
            return self.write_tcp("writes by TCP");
        }
        let written = self.ends.tcp_written;
        let begun = self
            .ends
            .sender
            .begin(&self.direction, None, || Ok::<_, Infallible>(written));
        match begun {
            Ok(Begun::Ring { switched }) => {
                self.deed = if switched {
                    "begins a segment"
                } else {
                    "begins to write"
                };
                self.ends.is_writing = true;
            }
            Ok(Begun::Tcp { .. }) => self.write_tcp("finds the reader asleep"),
        }
    }

    fn finish_write(&mut self) {
        self.ends.is_writing = false;
        let sender = &mut self.ends.sender;
        if sender.producer().room(&self.direction, 1).unwrap() == 0 {
            sender.end(&self.direction);
            return self.write_tcp("finds the ring full");
        }
        let byte = self.next_byte();
        let sender = &mut self.ends.sender;
        // SAFETY: there is room for one byte.
        unsafe {
            sender
                .producer()
                .store(&self.direction, 0, &raw const byte, 1);
        }
        sender.producer().publish(&self.direction, 1);
        sender.end(&self.direction);
        self.deed = "publishes";
    }

    fn die(&mut self) {
        self.ends.is_writing = false;
        if self.without != Without::Republishing {
            self.ends.sender.republish(&self.direction);
        }
        self.deed = "dies in a write";
    }

    /// What a sender does before anything else.
    fn answer(&mut self, fits: bool) {
        if !Sender::is_asked_back(&self.direction) {
            return;
        }
        self.ends.sender.leave(&self.direction);
        let pieces = self.ends.sender.take_back(&self.direction, |_| fits);
        self.deed = if pieces.is_some() {
            "takes bytes back"
        } else {
            "takes nothing back"
        };
        for (address, len) in pieces.into_iter().flatten() {
            // SAFETY: the piece lies in the ring.
            let bytes = unsafe { core::slice::from_raw_parts(address, len) };
            self.ends.on_its_way.extend(bytes);
            self.ends.tcp_written += len as u64;
        }
    }

    // The receiver.

    fn is_ring_empty(&mut self) -> bool {
        let consumer = self.ends.receiver.consumer();
        matches!(consumer.available(&self.direction), Ok(0))
    }

    /// A pinned end whose ring is empty is read by the program's own calls.
    fn is_kernels(&mut self) -> bool {
        self.ends.away != Away::No && !self.direction.is_write_in_flight() && self.is_ring_empty()
    }

    fn read(&mut self, max: usize) {
        if self.ends.reading == Reading::Unbounded {
            let bytes = self.take_arrived(max);
            if self.without != Without::Count {
                self.ends.receiver.count_said(&self.direction, bytes as u64);
            }
            if self.without != Without::Announcement {
                self.ends.receiver.withdraw(&self.direction);
            }
            self.deed = "ends its read";
            self.ends.reading = Reading::No;
            return;
        }
        let is_asking = self.ends.away == Away::Asks && self.without != Without::Asking;
        if self.ends.reading == Reading::Asleep || is_asking {
            return;
        }
        self.deed = "reads";
        if self.is_kernels() {
            self.take_arrived(max);
            return;
        }
        if self.ends.receiver.is_uncounted() {
            let read = if self.without == Without::Recount {
                None
            } else {
                Some(self.ends.tcp_read)
            };
            self.ends.receiver.recount(read);
            self.deed = "counts anew";
        }
        let mut next = self.ends.receiver.next(&self.direction).unwrap();
        if self.without == Without::SwitchOffset
            && let Ok(available @ 1..) = self.ends.receiver.consumer().available(&self.direction)
        {
            next = Next::Ring(available);
        }
        match next {
            Next::Owed(owed) => {
                let direction = self.direction;
                let mut receiver = self.ends.receiver;
                let bytes = receiver.count_read(&direction, || {
                    Ok::<_, Infallible>(self.take_arrived(max.min(owed as usize)))
                });
                assert!(bytes.is_ok());
                self.ends.receiver = receiver;
            }
            Next::Ring(available) => self.take_ring(available.min(max)),
            // Who polls looks at the ring alone then: nobody has said that TCP is next.
            Next::Empty if self.is_ending => {}
            Next::Tcp | Next::Empty => {
                let may = self.without == Without::Announcement
                    || self.ends.receiver.announce(&self.direction, true);
                if may {
                    self.deed = "announces a read";
                    self.ends.reading = Reading::Unbounded;
                }
            }
        }
    }

    fn take_ring(&mut self, bytes: usize) {
        for _ in 0..bytes {
            let mut byte = 0;
            let consumer = self.ends.receiver.consumer();
            // SAFETY: at least one byte is available.
            unsafe { consumer.load(&self.direction, 0, &raw mut byte, 1) };
            consumer.consume(&self.direction, 1);
            self.take(byte);
        }
    }

    fn take_arrived(&mut self, max: usize) -> usize {
        let count = self.ends.arrived.len().min(max);
        for _ in 0..count {
            let byte = self.ends.arrived.pop_front().unwrap();
            self.take(byte);
        }
        self.ends.tcp_read += count as u64;
        count
    }

    fn take(&mut self, byte: u8) {
        assert_eq!(byte, self.ends.received + 1, "bytes out of order");
        self.ends.received = byte;
    }

    fn lose(&mut self) {
        self.deed = "looks";
        if self.ends.reading == Reading::No
            && self.ends.away != Away::Asks
            && !self.is_kernels()
            && !self.ends.receiver.is_uncounted()
            && let Ok(Next::Owed(_)) = self.ends.receiver.next(&self.direction)
            && self.take_arrived(1) > 0
        {
            self.ends.receiver.doubt_count();
            self.deed = "dies in a read";
        }
    }

    fn sleep(&mut self) {
        let is_no_sleep = self.ends.away == Away::Asks || self.is_kernels();
        match self.ends.reading {
            Reading::Unbounded => {}
            Reading::Asleep => {
                if !self.ends.arrived.is_empty() {
                    if self.without != Without::AnnouncedSleep {
                        self.ends.receiver.withdraw(&self.direction);
                    }
                    self.ends.reading = Reading::No;
                    self.deed = "wakes";
                }
            }
            Reading::No if is_no_sleep => {}
            Reading::No => {
                self.deed = "looks";
                let may = if self.without == Without::AnnouncedSleep {
                    self.ends.receiver.may_read_free(&self.direction, true)
                } else {
                    self.ends.receiver.announce_wait(&self.direction, true)
                };
                if may {
                    self.ends.reading = Reading::Asleep;
                    self.deed = "announces a sleep";
                }
            }
        }
    }

    fn give_away(&mut self) {
        match self.ends.away {
            Away::No => {
                self.ends.receiver.retire(&self.direction);
                self.ends.away = Away::Pinned;
                self.deed = "is given away";
            }
            Away::Pinned => {
                if !self.direction.is_write_in_flight() && !self.is_ring_empty() {
                    self.ends.receiver.ask_back(&self.direction);
                    self.ends.away = Away::Asks;
                    self.deed = "asks for bytes to go back";
                }
            }
            Away::Asks => self.hear(false),
            Away::Over => {}
        }
    }

    fn hear(&mut self, is_over: bool) {
        match self.ends.receiver.hear_back(&self.direction, is_over) {
            Back::Asked => {}
            Back::Taken | Back::Kept => {
                self.ends.away = Away::Over;
                self.deed = "hears what became of them";
            }
        }
    }
}

impl search::World for World {
    type Step = Step;
    type State = State;

    fn save(&self) -> State {
        (self.ends.clone(), self.memory.save())
    }

    fn load(&mut self, (ends, shared): &State) {
        self.ends.clone_from(ends);
        self.memory.load(shared);
        self.is_ending = false;
        self.deed = "";
    }

    fn step(&mut self, step: Step) {
        let ends = &mut self.ends;
        match step {
            Step::Write | Step::WriteTcp if ends.is_writing => self.finish_write(),
            Step::Die if ends.is_writing => self.die(),
            Step::Write if ends.sent < self.bytes => self.begin_write(),
            Step::WriteTcp if ends.sent < self.bytes => self.write_tcp("has to go by TCP"),
            Step::Other if ends.other_is_writing => {
                self.deed = "ends a write by TCP";
                ends.other_is_writing = false;
                self.put_tcp();
            }
            Step::Other if !ends.is_writing && ends.sent < self.bytes => {
                self.answer(true);
                self.leave("has to go by TCP");
                self.ends.sender.note_tcp();
                self.ends.other_is_writing = true;
            }
            Step::Answer if !ends.is_writing => self.answer(true),
            Step::Refuse if !ends.is_writing => self.answer(false),
            Step::Deliver => {
                self.deed = "bytes arrive";
                ends.arrived.extend(ends.on_its_way.pop_front());
            }
            Step::Read => self.read(usize::MAX),
            Step::ReadOne => self.read(1),
            Step::Lose => self.lose(),
            Step::Sleep => self.sleep(),
            Step::GiveAway => self.give_away(),
            Step::Expire if ends.away == Away::Asks => self.hear(true),
            _ => {}
        }
    }

    /// Everything that has begun ends, and everything that was sent arrives. Who is in the kernel
    /// comes back with bytes only.
    fn end(&mut self) {
        self.is_ending = true;
        if self.ends.is_writing {
            self.step(Step::Write);
        }
        if self.ends.other_is_writing {
            self.step(Step::Other);
        }
        self.step(Step::Expire);
        for _ in 0..ROUNDS_TO_END {
            if self.ends.received == self.ends.sent {
                return;
            }
            self.step(Step::Deliver);
            let has_bytes = !self.ends.arrived.is_empty();
            if self.ends.reading == Reading::Asleep {
                self.step(Step::Sleep);
            }
            if self.ends.reading != Reading::Unbounded || has_bytes {
                self.step(Step::Read);
            }
        }
        let (received, sent) = (self.ends.received, self.ends.sent);
        panic!("{received} bytes of {sent} came");
    }
}

fn search(without: Without, bytes: u8, seen: impl FnMut(&mut World, &State, &State)) -> usize {
    search::search(World::new(without, bytes), &ALL, seen)
}

#[test]
fn every_byte_comes_once_and_in_order() {
    let states = search(Without::Nothing, BYTES, |_, _, _| {});
    assert!(states > 10_000, "{states} states are few");
}

fn search_without(rule: Without) {
    search(rule, BYTES_WITHOUT, |_, _, _| {});
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_begins_a_segment_behind_unread_bytes() {
    search_without(Without::Drained);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_does_not_mind_its_other_threads() {
    search_without(Without::Others);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_leaves_without_a_word() {
    search_without(Without::Leaving);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_heir_of_a_sender_that_says_nothing() {
    search_without(Without::Republishing);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_reads_without_announcing() {
    search_without(Without::Announcement);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_sleeps_without_announcing() {
    search_without(Without::AnnouncedSleep);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_reads_the_ring_before_the_switch() {
    search_without(Without::SwitchOffset);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_does_not_count() {
    search_without(Without::Count);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_does_not_count_anew() {
    search_without(Without::Recount);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_reads_what_it_asks_to_go_back() {
    search_without(Without::Asking);
}
