//! The switch between TCP and ring: the receiver gets every byte once and in order, and no
//! receiver reads TCP without a mark after the sender has gone to the ring.

use super::{World, check, pop, push};
use crate::direction::{Direction, Mode};
use crate::{Consumer, Producer};
use loom::sync::Mutex;
use loom::thread;

/// The sending end of a stream that may switch.
struct Sender {
    producer: Producer,
    by_tcp: u64,
    mode: Mode,
}

impl Sender {
    fn new() -> Self {
        Self {
            producer: Producer::default(),
            by_tcp: 0,
            mode: Mode::Tcp,
        }
    }

    fn send_tcp(&mut self, world: &World, byte: u8) {
        if self.mode == Mode::Ring {
            world.direction.publish_mode(Mode::Tcp, 0);
            self.mode = Mode::Tcp;
        }
        world.kernel.send(byte);
        self.by_tcp += 1;
    }

    /// By the ring if the receiver is awake and the segment before is drained, else by TCP.
    fn send(&mut self, world: &World, byte: u8) {
        let direction = &world.direction;
        let mut awake = direction.begin_write(Some(world.board));
        if awake && self.mode == Mode::Tcp {
            awake = self.producer.is_drained(direction).unwrap();
            if awake {
                direction.publish_mode(Mode::Ring, self.by_tcp);
                self.mode = Mode::Ring;
            }
        }
        if awake {
            push(direction, &mut self.producer, &[byte]);
        }
        direction.end_write();
        if !awake {
            self.send_tcp(world, byte);
        }
    }

    /// Begins an upgrade and thinks better of it.
    fn abort_upgrade(&mut self, world: &World) {
        let direction = &world.direction;
        if direction.begin_write(Some(world.board)) {
            direction.publish_mode(Mode::Ring, self.by_tcp);
            direction.publish_mode(Mode::Tcp, 0);
        }
        direction.end_write();
    }
}

type SettledMode = fn(&Direction) -> Option<Mode>;

/// Receives `count` bytes. `free_read` is told when a read of TCP without a mark starts and ends.
fn receive(
    world: &World,
    count: usize,
    settled_mode: SettledMode,
    free_read: impl Fn(bool),
) -> Vec<u8> {
    let direction = &world.direction;
    let mut consumer = Consumer::default();
    let mut bytes = Vec::new();
    let mut by_tcp = 0;
    while bytes.len() < count {
        direction.announce_sleep();
        let mode = settled_mode(direction);
        if mode == Some(Mode::Tcp) && consumer.may_sleep(direction).unwrap() {
            free_read(true);
            let more = world.kernel.receive(usize::MAX);
            free_read(false);
            direction.withdraw_sleep();
            by_tcp += more.len() as u64;
            bytes.extend(more);
            continue;
        }
        direction.withdraw_sleep();
        // The ring's bytes come behind those up to the mark, and one who sees any of them sees
        // their mark.
        if consumer.available(direction).unwrap() != 0 {
            let before = direction.mark() - by_tcp;
            if before != 0 {
                let more = world.kernel.receive(before as usize);
                by_tcp += more.len() as u64;
                bytes.extend(more);
            } else {
                bytes.extend(pop(direction, &mut consumer));
            }
        } else {
            thread::yield_now();
        }
    }
    bytes
}

#[test]
fn bytes_stay_in_order_over_upgrade_and_downgrade() {
    check(3, || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Sender::new();
            stream.send_tcp(&sender, 0);
            stream.send(&sender, 1);
            stream.send_tcp(&sender, 2);
        });
        let bytes = receive(&world, 3, Direction::settled_mode, |_| ());
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_two_upgrades() {
    check(2, || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Sender::new();
            stream.send(&sender, 0);
            stream.send_tcp(&sender, 1);
            stream.send(&sender, 2);
        });
        let bytes = receive(&world, 3, Direction::settled_mode, |_| ());
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_an_upgrade_that_is_taken_back() {
    check(3, || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Sender::new();
            stream.send_tcp(&sender, 0);
            stream.abort_upgrade(&sender);
            stream.send_tcp(&sender, 1);
            stream.send(&sender, 2);
        });
        let bytes = receive(&world, 3, Direction::settled_mode, |_| ());
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

/// A sender upgrades once while a receiver reads TCP without a mark, if `settled_mode` lets it.
fn exclusion_model(settled_mode: SettledMode) -> impl Fn() {
    move || {
        let world = World::new();
        let belief = std::sync::Arc::new(Mutex::new(Belief::default()));
        let (sender, sender_belief) = (world.clone(), belief.clone());
        let sender = thread::spawn(move || {
            let direction = &sender.direction;
            let awake = direction.begin_write(Some(sender.board));
            if awake {
                direction.publish_mode(Mode::Ring, 0);
                push(direction, &mut Producer::default(), b"x");
            }
            direction.end_write();
            if awake {
                let mut belief = sender_belief.lock().unwrap();
                belief.upgraded = true;
                belief.check();
            } else {
                sender.kernel.send(b'x');
            }
        });
        let direction = &world.direction;
        direction.announce_sleep();
        if settled_mode(direction) == Some(Mode::Tcp) {
            belief.lock().unwrap().reads_freely = true;
            belief.lock().unwrap().check();
            belief.lock().unwrap().reads_freely = false;
        }
        direction.withdraw_sleep();
        sender.join().unwrap();
    }
}

#[test]
fn a_free_read_and_a_committed_upgrade_exclude_each_other() {
    check(3, exclusion_model(Direction::settled_mode));
}

// Broken variants.

fn mode_then_intent(direction: &Direction) -> Option<Mode> {
    let mode = direction.mode();
    if direction.is_write_in_flight() {
        return None;
    }
    Some(mode)
}

#[test]
#[should_panic(expected = "a free read after a committed upgrade")]
fn broken_receiver_that_looks_at_the_intent_last() {
    check(3, exclusion_model(mode_then_intent));
}

#[test]
#[should_panic(expected = "a free read after a committed upgrade")]
fn broken_receiver_that_ignores_the_intent() {
    check(3, exclusion_model(|direction| Some(direction.mode())));
}

#[test]
#[should_panic(expected = "bytes out of order")]
fn broken_receiver_that_reads_without_announcing() {
    check(3, || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            let mut stream = Sender::new();
            stream.send(&sender, 0);
            stream.send_tcp(&sender, 1);
        });
        let direction = &world.direction;
        let mut consumer = Consumer::default();
        let mut bytes = Vec::new();
        while bytes.len() < 2 {
            bytes.extend(pop(direction, &mut consumer));
            if direction.settled_mode() == Some(Mode::Tcp) && world.kernel.is_readable() {
                bytes.extend(world.kernel.receive(usize::MAX));
            }
            thread::yield_now();
        }
        assert!(bytes == [0, 1], "bytes out of order");
        sender.join().unwrap();
    });
}
