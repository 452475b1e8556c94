//! The switch between TCP and ring: the receiver gets every byte once and in order, and no
//! receiver reads TCP without a mark after the sender has gone to the ring.

use super::{World, check, pop, push};
use crate::direction::{Direction, Mode};
use crate::handover::{Begun, Next, Receiver, Route, Sender};
use core::convert::Infallible;
use loom::sync::Mutex;
use loom::thread;

/// The sending end of a stream that may switch.
#[derive(Default)]
struct Stream {
    sender: Sender,
    by_tcp: u64,
}

impl Stream {
    fn send_tcp(&mut self, world: &World, byte: u8) {
        self.sender.leave(&world.direction);
        self.sender.note_tcp();
        world.kernel.send(byte);
        self.by_tcp += 1;
    }

    /// Announces a write; whether the ring may be filled.
    fn begin(&mut self, world: &World) -> bool {
        let written = || Ok::<_, Infallible>(self.by_tcp);
        let begun = self
            .sender
            .begin(&world.direction, Some(world.board), written);
        matches!(begun, Ok(Begun::Ring { .. }))
    }

    /// By the ring if the receiver is awake and the segment before is drained, else by TCP.
    fn send(&mut self, world: &World, byte: u8) {
        let direction = &world.direction;
        let route = self.sender.route(direction, false).unwrap();
        if route == Route::Ring && self.begin(world) {
            push(direction, self.sender.producer(), &[byte]);
            self.sender.end(direction);
        } else {
            self.send_tcp(world, byte);
        }
    }

    /// Begins an upgrade and thinks better of it.
    fn abort_upgrade(&mut self, world: &World) {
        if self.begin(world) {
            self.sender.leave(&world.direction);
            self.sender.end(&world.direction);
        }
    }
}

/// Announces a read of TCP without a bound; whether it may begin.
type Announce = fn(&mut Receiver, &Direction) -> bool;

fn announce(receiver: &mut Receiver, direction: &Direction) -> bool {
    receiver.announce(direction, true)
}

/// Receives `count` bytes.
fn receive(world: &World, count: usize) -> Vec<u8> {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    let mut bytes = Vec::new();
    while bytes.len() < count {
        match receiver.next(direction).unwrap() {
            Next::Owed(owed) => {
                let more = world.kernel.receive(owed as usize);
                receiver.count(more.len() as u64);
                bytes.extend(more);
            }
            Next::Ring(_) => bytes.extend(pop(direction, receiver.consumer())),
            Next::Tcp | Next::Empty => {
                if receiver.announce(direction, true) {
                    let more = world.kernel.receive(usize::MAX);
                    receiver.count(more.len() as u64);
                    direction.withdraw_sleep();
                    bytes.extend(more);
                } else {
                    thread::yield_now();
                }
            }
        }
    }
    bytes
}

#[test]
fn bytes_stay_in_order_over_upgrade_and_downgrade() {
    check(3, || {
        let world = World::new();
        world.direction.adopt();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Stream::default();
            stream.send_tcp(&sender, 0);
            stream.send(&sender, 1);
            stream.send_tcp(&sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_two_upgrades() {
    check(2, || {
        let world = World::new();
        world.direction.adopt();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Stream::default();
            stream.send(&sender, 0);
            stream.send_tcp(&sender, 1);
            stream.send(&sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_an_upgrade_that_is_taken_back() {
    check(3, || {
        let world = World::new();
        world.direction.adopt();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Stream::default();
            stream.send_tcp(&sender, 0);
            stream.abort_upgrade(&sender);
            stream.send_tcp(&sender, 1);
            stream.send(&sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

/// What both ends believe, to compare.
#[derive(Default)]
struct Belief {
    reads_freely: bool,
    upgraded: bool,
}

impl Belief {
    fn check(&self) {
        assert!(
            !(self.reads_freely && self.upgraded),
            "a free read after a committed upgrade"
        );
    }
}

/// A sender upgrades once while a receiver reads TCP without a bound, if `announce` lets it.
fn exclusion_model(announce: Announce) -> impl Fn() {
    move || {
        let world = World::new();
        world.direction.adopt();
        let belief = std::sync::Arc::new(Mutex::new(Belief::default()));
        let (sender, sender_belief) = (world.clone(), belief.clone());
        let sender = thread::spawn(move || {
            let direction = &sender.direction;
            let mut stream = Stream::default();
            if stream.begin(&sender) {
                push(direction, stream.sender.producer(), b"x");
                stream.sender.end(direction);
                let mut belief = sender_belief.lock().unwrap();
                belief.upgraded = true;
                belief.check();
            } else {
                sender.kernel.send(b'x');
            }
        });
        let direction = &world.direction;
        if announce(&mut Receiver::default(), direction) {
            belief.lock().unwrap().reads_freely = true;
            belief.lock().unwrap().check();
            belief.lock().unwrap().reads_freely = false;
            direction.withdraw_sleep();
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_free_read_and_a_committed_upgrade_exclude_each_other() {
    check(3, exclusion_model(announce));
}

// Broken variants.

fn is_tcp_next(receiver: &mut Receiver, direction: &Direction) -> bool {
    matches!(receiver.consumer().available(direction), Ok(0)) && direction.mode() == Mode::Tcp
}

fn announce_if(direction: &Direction, may: impl FnOnce() -> bool) -> bool {
    direction.announce_sleep();
    let may = may();
    if !may {
        direction.withdraw_sleep();
    }
    may
}

fn announce_and_look_at_intent_last(receiver: &mut Receiver, direction: &Direction) -> bool {
    announce_if(direction, || {
        is_tcp_next(receiver, direction) && !direction.is_write_in_flight()
    })
}

fn announce_and_ignore_intent(receiver: &mut Receiver, direction: &Direction) -> bool {
    announce_if(direction, || is_tcp_next(receiver, direction))
}

#[test]
#[should_panic(expected = "a free read after a committed upgrade")]
fn broken_receiver_that_looks_at_the_intent_last() {
    check(3, exclusion_model(announce_and_look_at_intent_last));
}

#[test]
#[should_panic(expected = "a free read after a committed upgrade")]
fn broken_receiver_that_ignores_the_intent() {
    check(3, exclusion_model(announce_and_ignore_intent));
}

#[test]
#[should_panic(expected = "bytes out of order")]
fn broken_receiver_that_reads_without_announcing() {
    check(3, || {
        let world = World::new();
        world.direction.adopt();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Stream::default();
            stream.send(&sender, 0);
            stream.send_tcp(&sender, 1);
        });
        let direction = &world.direction;
        let mut receiver = Receiver::default();
        let mut bytes = Vec::new();
        while bytes.len() < 2 {
            bytes.extend(pop(direction, receiver.consumer()));
            if receiver.may_read_free(direction, true) && world.kernel.is_readable() {
                bytes.extend(world.kernel.receive(usize::MAX));
            }
            thread::yield_now();
        }
        assert!(bytes == [0, 1], "bytes out of order");
        sender.join().unwrap();
    });
}
