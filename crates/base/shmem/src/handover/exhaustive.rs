//! All orders of the steps of a sender with two threads, a network and a receiver, up to a length:
//! every byte comes once and in order, and what was sent comes in the end.
//!
//! Steps are whole calls, so this says nothing of memory order (the models under loom do); it finds
//! holes in the rules. Each rule that is left out must be caught, else the search shows nothing.
#![allow(unsafe_code)]

use super::{Begun, Next, Receiver, Route, Sender};
use crate::direction::{Direction, ReceiverLine, SenderLine};
use crate::ready::ReadyLine;
use core::convert::Infallible;
use core::ptr::NonNull;
use std::collections::VecDeque;

/// So small that it is full at times.
const CAPACITY: u32 = 2;
/// Steps of each run before everything is let come to its end.
const STEPS: u32 = 8;
/// More than enough steps for that.
const STEPS_TO_END: u32 = 64;

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A thread of the sender begins a write of one byte, or puts it into the ring and ends.
    Write,
    /// The same thread has to go by TCP, as for sendfile.
    WriteTcp,
    /// Another thread of the sender enters the kernel with a byte, or leaves it there.
    Other,
    /// A byte arrives at the receiver's socket.
    Deliver,
    /// The receiver reads all that is next.
    Read,
    /// The receiver reads one byte.
    ReadOne,
}

const ALL: [Step; 6] = [
    Step::Write,
    Step::WriteTcp,
    Step::Other,
    Step::Deliver,
    Step::Read,
    Step::ReadOne,
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
    /// The receiver reads TCP without a bound and without an announcement.
    Announcement,
    /// The receiver reads the ring although TCP bytes are owed.
    Mark,
    /// The receiver does not count what it reads.
    Count,
}

struct World {
    direction: Direction,
    without: Without,
    sender: Sender,
    is_writing: bool,
    other_is_writing: bool,
    receiver: Receiver,
    is_reading_free: bool,
    is_ending: bool,
    /// What the sender's kernel has taken, ever, and what of it is on its way, and has arrived.
    tcp_written: u64,
    on_its_way: VecDeque<u8>,
    arrived: VecDeque<u8>,
    sent: u8,
    received: u8,
    memory: *mut Memory,
}

#[derive(Default)]
struct Memory {
    sender: SenderLine,
    receiver: ReceiverLine,
    ready: ReadyLine,
    data: [u8; CAPACITY as usize],
}

impl World {
    fn new(without: Without) -> Self {
        let memory = Box::into_raw(Box::<Memory>::default());
        // SAFETY: the fields of a box are not null, and they live until the world is dropped. No
        // bit of a watcher is set but that of slot 0.
        let direction = unsafe {
            Direction::from_raw(
                NonNull::new_unchecked(&raw mut (*memory).sender),
                NonNull::new_unchecked(&raw mut (*memory).receiver),
                NonNull::new_unchecked(&raw mut (*memory).data).cast(),
                CAPACITY,
                0,
                NonNull::new_unchecked(&raw mut (*memory).ready).cast(),
            )
        };
        let mut receiver = Receiver::default();
        receiver.adopt(0, 0);
        direction.adopt();
        Self {
            direction,
            without,
            sender: Sender::default(),
            is_writing: false,
            other_is_writing: false,
            receiver,
            is_reading_free: false,
            is_ending: false,
            tcp_written: 0,
            on_its_way: VecDeque::new(),
            arrived: VecDeque::new(),
            sent: 0,
            received: 0,
            memory,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write if self.is_writing => self.finish_write(),
            Step::Write => self.begin_write(),
            Step::WriteTcp if self.is_writing => self.finish_write(),
            Step::WriteTcp => self.write_tcp(),
            Step::Other if self.is_writing => {}
            Step::Other if self.other_is_writing => {
                self.other_is_writing = false;
                self.put_tcp();
            }
            Step::Other => {
                self.leave();
                self.sender.note_tcp();
                self.other_is_writing = true;
            }
            Step::Deliver => self.arrived.extend(self.on_its_way.pop_front()),
            Step::Read => self.read(usize::MAX),
            Step::ReadOne => self.read(1),
        }
    }

    fn next_byte(&mut self) -> u8 {
        self.sent += 1;
        self.sent
    }

    fn put_tcp(&mut self) {
        let byte = self.next_byte();
        self.on_its_way.push_back(byte);
        self.tcp_written += 1;
    }

    fn leave(&mut self) {
        if self.without == Without::Leaving {
            self.sender.leave_unsaid();
        } else {
            self.sender.leave(&self.direction);
        }
    }

    fn write_tcp(&mut self) {
        self.leave();
        self.sender.note_tcp();
        self.put_tcp();
    }

    fn begin_write(&mut self) {
        let others = self.other_is_writing && self.without != Without::Others;
        let route = self.sender.route(&self.direction, others).unwrap();
        let ignores = self.without == Without::Drained && !self.other_is_writing;
        if route != Route::Ring && !ignores {
            return self.write_tcp();
        }
        let written = self.tcp_written;
        match self
            .sender
            .begin(&self.direction, None, || Ok::<_, Infallible>(written))
        {
            Ok(Begun::Ring { .. }) => self.is_writing = true,
            Ok(Begun::Tcp { .. }) => self.write_tcp(),
        }
    }

    fn finish_write(&mut self) {
        self.is_writing = false;
        let room = self.sender.producer().room(&self.direction, 1).unwrap();
        if room == 0 {
            self.sender.end(&self.direction);
            return self.write_tcp();
        }
        let byte = self.next_byte();
        // SAFETY: there is room for one byte.
        unsafe {
            self.sender
                .producer()
                .store(&self.direction, 0, &raw const byte, 1);
        }
        self.sender.producer().publish(&self.direction, 1);
        self.sender.end(&self.direction);
    }

    fn read(&mut self, max: usize) {
        if self.is_reading_free {
            let bytes = self.take_arrived(max);
            if self.without != Without::Count {
                self.receiver.count(bytes as u64);
            }
            if self.without != Without::Announcement {
                self.direction.withdraw_sleep();
            }
            self.is_reading_free = false;
            return;
        }
        let mut next = self.receiver.next(&self.direction).unwrap();
        if self.without == Without::Mark
            && let Ok(available @ 1..) = self.receiver.consumer().available(&self.direction)
        {
            next = Next::Ring(available);
        }
        match next {
            Next::Owed(owed) => {
                let direction = self.direction;
                let mut receiver = self.receiver;
                let bytes = receiver.count_read(&direction, || {
                    Ok::<_, Infallible>(self.take_arrived(max.min(owed as usize)))
                });
                assert!(bytes.is_ok());
                self.receiver = receiver;
            }
            Next::Ring(available) => {
                for _ in 0..available.min(max) {
                    let mut byte = 0;
                    // SAFETY: at least one byte is available.
                    unsafe {
                        let consumer = self.receiver.consumer();
                        consumer.load(&self.direction, 0, &raw mut byte, 1);
                    }
                    self.receiver.consumer().consume(&self.direction, 1);
                    self.take(byte);
                }
            }
            // Who polls looks at the ring alone then: nobody has said that TCP is next.
            Next::Empty if self.is_ending => {}
            Next::Tcp | Next::Empty => {
                self.is_reading_free = self.without == Without::Announcement
                    || self.receiver.announce(&self.direction, true);
            }
        }
    }

    fn take_arrived(&mut self, max: usize) -> usize {
        let count = self.arrived.len().min(max);
        for _ in 0..count {
            let byte = self.arrived.pop_front().unwrap();
            self.take(byte);
        }
        count
    }

    fn take(&mut self, byte: u8) {
        assert_eq!(byte, self.received + 1, "bytes out of order");
        self.received = byte;
    }

    /// Everything that has begun ends, and everything that was sent arrives.
    fn end(&mut self) {
        self.is_ending = true;
        if self.is_writing {
            self.step(Step::Write);
        }
        if self.other_is_writing {
            self.step(Step::Other);
        }
        for _ in 0..STEPS_TO_END {
            if self.received == self.sent {
                return;
            }
            self.step(Step::Deliver);
            self.step(Step::Read);
        }
        panic!("{} bytes of {} came", self.received, self.sent);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and the direction is not used any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// Runs all orders of `STEPS` steps.
fn search(without: Without) {
    let orders = (ALL.len() as u32).pow(STEPS);
    for order in 0..orders {
        let mut world = World::new(without);
        let mut rest = order as usize;
        for _ in 0..STEPS {
            world.step(ALL[rest % ALL.len()]);
            rest /= ALL.len();
        }
        world.end();
    }
}

#[test]
fn every_byte_comes_once_and_in_order() {
    search(Without::Nothing);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_begins_a_segment_behind_unread_bytes() {
    search(Without::Drained);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_does_not_mind_its_other_threads() {
    search(Without::Others);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_sender_that_leaves_without_a_word() {
    search(Without::Leaving);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_reads_without_announcing() {
    search(Without::Announcement);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_reads_the_ring_before_the_mark() {
    search(Without::Mark);
}

#[test]
#[should_panic(expected = "bytes")]
fn broken_receiver_that_does_not_count() {
    search(Without::Count);
}
