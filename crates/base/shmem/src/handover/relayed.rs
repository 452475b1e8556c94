//! All states of a direction between two hosts that a few bytes can reach: a program's `Sender`, the
//! daemons' `RelayReader` and `RelayWriter` with messages on their way between them, and the far program's
//! `Receiver`, with the kernel's connection beside all of them. As in `exhaustive.rs`.
//!
//! What a daemon says when is the least that will do; `sluice-fabric`, which also knows time and links that
//! fail, has a random search of its own (`tests/model.rs` there).
#![allow(unsafe_code)]

use super::search::{self, CAPACITY, Memory, Shared};
use super::{Begun, Gate, Grant, Next, Receiver, RelayReader, RelayWriter, Route, Sender};
use crate::direction::Direction;
use core::convert::Infallible;
use std::collections::VecDeque;

const BYTES: u8 = 3;
const ROUNDS_TO_END: u32 = 32;
/// What is on its way between daemons; broken ones could go on for ever.
const NOTES_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The program begins a write of one byte, or ends it.
    Write,
    /// It has to go by TCP.
    WriteTcp,
    /// A byte arrives at the far socket.
    Deliver,
    /// The near daemon looks, and passes on.
    Push,
    /// A daemon hears the next that the other one has said.
    HearFar,
    HearNear,
    /// The far daemon grants its ring, and takes the grant back.
    Grant,
    Revoke,
    /// It says what was consumed.
    Report,
    /// The far program reads all that is next, or one byte.
    Read,
    ReadOne,
    /// It goes to sleep by poll, or wakes.
    Sleep,
    /// It is about to be told that the kernel has bytes.
    Tell,
}

const ALL: [Step; 13] = [
    Step::Write,
    Step::WriteTcp,
    Step::Deliver,
    Step::Push,
    Step::HearFar,
    Step::HearNear,
    Step::Grant,
    Step::Revoke,
    Step::Report,
    Step::Read,
    Step::ReadOne,
    Step::Sleep,
    Step::Tell,
];

/// A rule that a broken daemon does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The near daemon takes its ring for relinquished while the program may be in a write.
    Waiting,
    /// It does not say where a segment begins.
    Segment,
    /// It lets the program use the ring again before the other one has granted it.
    Grant,
    /// The far daemon ends its grant when it takes it back, and does not wait for what may still come.
    Relinquishing,
}

/// What daemons say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Note {
    Segment(u64),
    Byte(u8),
    Left,
    Tcp(u64),
    Relinquished,
    Grant,
    Revoke,
    Consumed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reading {
    No,
    Unbounded,
    Asleep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ends {
    sender: Sender,
    is_writing: bool,
    reader: RelayReader,
    posted: u64,
    segment: Option<u64>,
    tcp_said: u64,
    to_far: VecDeque<Note>,
    to_near: VecDeque<Note>,
    writer: RelayWriter,
    placed: u64,
    reported: u64,
    receiver: Receiver,
    reading: Reading,
    tcp_written: u64,
    on_its_way: VecDeque<u8>,
    arrived: VecDeque<u8>,
    sent: u8,
    received: u8,
}

type State = (Ends, [Shared; 2]);

struct World {
    without: Without,
    ends: Ends,
    near: Direction,
    far: Direction,
    memory: [Memory; 2],
    is_ending: bool,
}

impl World {
    fn new(without: Without) -> Self {
        let memory = [Memory::new(), Memory::new()];
        let [near, far] = memory.each_ref().map(|it| it.direction);
        let mut receiver = Receiver::default();
        receiver.enable(&far, 0, 0);
        let ends = Ends {
            sender: Sender::default(),
            is_writing: false,
            reader: RelayReader::start(&near),
            posted: 0,
            segment: None,
            tcp_said: 0,
            to_far: VecDeque::new(),
            to_near: VecDeque::new(),
            writer: RelayWriter::default(),
            placed: 0,
            reported: 0,
            receiver,
            reading: Reading::No,
            tcp_written: 0,
            on_its_way: VecDeque::new(),
            arrived: VecDeque::new(),
            sent: 0,
            received: 0,
        };
        Self {
            without,
            ends,
            near,
            far,
            memory,
            is_ending: false,
        }
    }

    // The program that writes.

    fn next_byte(&mut self) -> u8 {
        self.ends.sent += 1;
        self.ends.sent
    }

    fn write_tcp(&mut self) {
        self.ends.sender.leave(&self.near);
        self.ends.sender.note_tcp();
        let byte = self.next_byte();
        let ends = &mut self.ends;
        ends.on_its_way.push_back(byte);
        ends.tcp_written += 1;
        ends.sender.say_tcp_sent(&self.near, ends.tcp_written);
    }

    fn begin_write(&mut self) {
        let route = self.ends.sender.route(&self.near, false).unwrap();
        if route != Route::Ring {
            return self.write_tcp();
        }
        let written = self.ends.tcp_written;
        let written = || Ok::<_, Infallible>(written);
        match self.ends.sender.begin(&self.near, None, written) {
            Ok(Begun::Ring { .. }) => self.ends.is_writing = true,
            Ok(Begun::Tcp { .. }) => self.write_tcp(),
        }
    }

    fn finish_write(&mut self) {
        self.ends.is_writing = false;
        let room = self.ends.sender.producer().room(&self.near, 1).unwrap();
        if room == 0 {
            self.ends.sender.end(&self.near);
            return self.write_tcp();
        }
        let byte = self.next_byte();
        let sender = &mut self.ends.sender;
        // SAFETY: there is room for one byte.
        unsafe { sender.producer().store(&self.near, 0, &raw const byte, 1) };
        sender.producer().publish(&self.near, 1);
        sender.end(&self.near);
    }

    // The near daemon.

    fn push(&mut self) {
        let ends = &mut self.ends;
        let writes = self.near.is_write_in_flight() && self.without != Without::Waiting;
        let tcp_sent = self.near.tcp_sent();
        loop {
            let seen = ends.reader.look(&self.near).unwrap();
            if seen.available == ends.posted {
                if seen.has_left && ends.segment.take().is_some() {
                    ends.to_far.push_back(Note::Left);
                }
                break;
            }
            if ends.posted == CAPACITY as u64 {
                return;
            }
            if ends.segment != Some(seen.switch_offset) {
                if ends.segment.is_some() {
                    ends.to_far.push_back(Note::Left);
                }
                if self.without != Without::Segment {
                    ends.to_far.push_back(Note::Segment(seen.switch_offset));
                }
                ends.segment = Some(seen.switch_offset);
            }
            let [(address, _), _] = ends.reader.pieces(&self.near, ends.posted as usize, 1);
            // SAFETY: the byte was seen.
            let byte = unsafe { address.read() };
            ends.to_far.push_back(Note::Byte(byte));
            ends.posted += 1;
        }
        let is_empty = ends.segment.is_none() && ends.posted == 0;
        if ends.reader.gate() == Gate::Open && is_empty && tcp_sent > ends.tcp_said {
            ends.tcp_said = tcp_sent;
            ends.to_far.push_back(Note::Tcp(tcp_sent));
        }
        if !writes && ends.reader.finish_closing() {
            ends.segment = None;
            ends.to_far.push_back(Note::Relinquished);
            if self.without == Without::Grant {
                ends.reader.open(&self.near);
            }
        }
    }

    fn hear_near(&mut self) {
        let ends = &mut self.ends;
        match ends.to_near.pop_front() {
            Some(Note::Grant) => {
                let opened = ends.reader.open(&self.near);
                if opened {
                    ends.tcp_said = 0;
                }
            }
            Some(Note::Revoke) => ends.reader.close_gate(&self.near),
            Some(Note::Consumed) => {
                ends.reader.consume(&self.near, 1);
                ends.posted -= 1;
            }
            _ => {}
        }
    }

    // The far daemon.

    fn hear_far(&mut self) {
        let ends = &mut self.ends;
        match ends.to_far.pop_front() {
            Some(Note::Segment(switch_offset)) => {
                ends.writer.set_switch_offset(&self.far, switch_offset)
            }
            Some(Note::Byte(byte)) => {
                let place = ends.placed as usize % CAPACITY;
                self.memory[1].put(place, byte);
                ends.placed += 1;
                ends.writer.arrive(&self.far, 1);
            }
            Some(Note::Left) => ends.writer.leave(&self.far),
            Some(Note::Tcp(bytes)) => ends.writer.set_switch_offset(&self.far, bytes),
            Some(Note::Relinquished) => {
                ends.writer.leave(&self.far);
                ends.writer.end(&self.far);
            }
            _ => {}
        }
    }

    // The program that reads.

    fn read(&mut self, max: usize) {
        let far = self.far;
        match self.ends.reading {
            Reading::Asleep => return,
            Reading::Unbounded => {
                let bytes = self.take_arrived(max);
                let receiver = &mut self.ends.receiver;
                receiver.count_said(&far, bytes as u64);
                receiver.withdraw(&far);
                receiver.redeem_promise(&far);
                self.ends.reading = Reading::No;
                return;
            }
            Reading::No => {}
        }
        match self.ends.receiver.next(&far).unwrap() {
            Next::Owed(owed) => {
                let mut receiver = self.ends.receiver;
                let limit = max.min(owed as usize);
                let read = || Ok::<_, Infallible>(self.take_arrived(limit));
                assert!(receiver.count_read(&far, read).is_ok());
                self.ends.receiver = receiver;
            }
            Next::Ring(available) => {
                for _ in 0..available.min(max) {
                    let mut byte = 0;
                    let consumer = self.ends.receiver.consumer();
                    // SAFETY: at least one byte is available.
                    unsafe { consumer.load(&far, 0, &raw mut byte, 1) };
                    consumer.consume(&far, 1);
                    self.take(byte);
                }
            }
            Next::Empty if self.is_ending => {}
            Next::Tcp | Next::Empty => {
                if self.ends.receiver.announce(&far, true) {
                    self.ends.reading = Reading::Unbounded;
                }
            }
        }
    }

    fn take_arrived(&mut self, max: usize) -> usize {
        let count = self.ends.arrived.len().min(max);
        for _ in 0..count {
            let byte = self.ends.arrived.pop_front().unwrap();
            self.take(byte);
        }
        count
    }

    fn take(&mut self, byte: u8) {
        assert_eq!(byte, self.ends.received + 1, "bytes out of order");
        self.ends.received = byte;
    }

    fn sleep(&mut self) {
        let ends = &mut self.ends;
        match ends.reading {
            Reading::Unbounded => {}
            Reading::Asleep if ends.arrived.is_empty() => {}
            Reading::Asleep => {
                ends.receiver.withdraw(&self.far);
                ends.reading = Reading::No;
            }
            Reading::No => {
                if ends.receiver.announce_wait(&self.far, true) {
                    ends.reading = Reading::Asleep;
                }
            }
        }
    }
}

impl search::World for World {
    type Step = Step;
    type State = State;

    fn save(&self) -> State {
        let [near, far] = &self.memory;
        (self.ends.clone(), [near.save(), far.save()])
    }

    fn load(&mut self, (ends, shared): &State) {
        self.ends.clone_from(ends);
        for (memory, shared) in self.memory.iter_mut().zip(shared) {
            memory.load(shared);
        }
        self.is_ending = false;
    }

    fn step(&mut self, step: Step) {
        let ends = &mut self.ends;
        match step {
            Step::Write if ends.is_writing => self.finish_write(),
            Step::Write if ends.sent < BYTES => self.begin_write(),
            Step::WriteTcp if !ends.is_writing && ends.sent < BYTES => self.write_tcp(),
            Step::Deliver => ends.arrived.extend(ends.on_its_way.pop_front()),
            Step::Push if ends.to_far.len() < NOTES_MAX => self.push(),
            Step::HearFar => self.hear_far(),
            Step::HearNear => self.hear_near(),
            Step::Grant if ends.writer.grant() == Grant::None => {
                let is_full = ends.to_near.len() >= NOTES_MAX;
                if !is_full && ends.writer.try_to_grant(&self.far, None) {
                    ends.to_near.push_back(Note::Grant);
                }
            }
            Step::Revoke if ends.writer.grant() == Grant::Standing => {
                ends.writer.revoke();
                ends.to_near.push_back(Note::Revoke);
                if self.without == Without::Relinquishing {
                    ends.writer.end(&self.far);
                }
            }
            Step::Report => {
                let consumed = ends.placed - ends.writer.in_flight(&self.far).unwrap();
                if consumed > ends.reported {
                    ends.reported += 1;
                    ends.to_near.push_back(Note::Consumed);
                }
            }
            Step::Read => self.read(usize::MAX),
            Step::ReadOne => self.read(1),
            Step::Sleep => self.sleep(),
            Step::Tell if ends.reading == Reading::No && !ends.arrived.is_empty() => {
                ends.receiver.promise(&self.far, true);
            }
            _ => {}
        }
    }

    /// Both daemons go on, the far one takes its grant back, and everything that was sent arrives. Who is
    /// in the kernel comes back with bytes only.
    fn end(&mut self) {
        self.is_ending = true;
        if self.ends.is_writing {
            self.step(Step::Write);
        }
        self.step(Step::Revoke);
        for _ in 0..ROUNDS_TO_END {
            if self.ends.received == self.ends.sent {
                return;
            }
            for step in [Step::HearNear, Step::Push, Step::HearFar, Step::Report] {
                self.step(step);
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

fn search(without: Without) -> usize {
    search::search(World::new(without), &ALL, |_, _, _| {})
}

#[test]
fn every_byte_comes_once_and_in_order() {
    let states = search(Without::Nothing);
    assert!(states > 10_000, "{states} states are few");
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_daemon_that_does_not_wait_for_a_write() {
    search(Without::Waiting);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_daemon_that_does_not_say_where_a_segment_begins() {
    search(Without::Segment);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_daemon_that_opens_its_gate_without_a_grant() {
    search(Without::Grant);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_daemon_that_ends_its_grant_before_it_is_relinquished() {
    search(Without::Relinquishing);
}
