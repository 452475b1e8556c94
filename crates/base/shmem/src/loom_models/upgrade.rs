//! The switch between TCP and ring: the receiver gets every byte once and in order, and no
//! receiver reads TCP without a switch offset after the sender has gone to the ring.

use super::{Stream, World, check, pop, push};
use crate::direction::{Direction, Mode, Words};
use crate::handover::{Next, Receiver};
use loom::sync::Mutex;
use loom::thread;

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
                    receiver.count_said(direction, more.len() as u64);
                    receiver.withdraw(direction);
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
        let (world, sender) = World::with_sender(move |stream, sender| {
            stream.send_tcp(sender, 0);
            stream.send(sender, 1);
            stream.send_tcp(sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_two_upgrades() {
    check(2, || {
        let (world, sender) = World::with_sender(move |stream, sender| {
            stream.send(sender, 0);
            stream.send_tcp(sender, 1);
            stream.send(sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn bytes_stay_in_order_over_an_upgrade_that_is_taken_back() {
    check(3, || {
        let (world, sender) = World::with_sender(move |stream, sender| {
            stream.send_tcp(sender, 0);
            stream.abort_upgrade(sender);
            stream.send_tcp(sender, 1);
            stream.send(sender, 2);
        });
        let bytes = receive(&world, 3);
        assert_eq!(bytes, [0, 1, 2]);
        sender.join().unwrap();
    });
}

/// What both ends believe, to compare.
#[derive(Default)]
struct Belief {
    reads_unbounded: bool,
    upgraded: bool,
}

impl Belief {
    fn check(&self) {
        assert!(
            !(self.reads_unbounded && self.upgraded),
            "an unbounded read after a committed upgrade"
        );
    }
}

/// A sender upgrades once while a receiver reads TCP without a bound, if `announce` lets it.
fn exclusion_model(announce: Announce) -> impl Fn() {
    move || {
        let world = World::new();
        world.direction.enable();
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
            belief.lock().unwrap().reads_unbounded = true;
            belief.lock().unwrap().check();
            belief.lock().unwrap().reads_unbounded = false;
            direction.withdraw_sleep();
        }
        sender.join().unwrap();
    }
}

#[test]
fn an_unbounded_read_and_a_committed_upgrade_exclude_each_other() {
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

fn announce_and_look_at_busy_flag_last(receiver: &mut Receiver, direction: &Direction) -> bool {
    announce_if(direction, || {
        is_tcp_next(receiver, direction) && !direction.is_write_in_flight()
    })
}

fn announce_and_ignore_busy_flag(receiver: &mut Receiver, direction: &Direction) -> bool {
    announce_if(direction, || is_tcp_next(receiver, direction))
}

#[test]
#[should_panic(expected = "an unbounded read after a committed upgrade")]
fn broken_receiver_that_looks_at_the_busy_flag_last() {
    check(3, exclusion_model(announce_and_look_at_busy_flag_last));
}

#[test]
#[should_panic(expected = "an unbounded read after a committed upgrade")]
fn broken_receiver_that_ignores_the_busy_flag() {
    check(3, exclusion_model(announce_and_ignore_busy_flag));
}

#[test]
#[should_panic(expected = "bytes out of order")]
fn broken_receiver_that_reads_without_announcing() {
    check(3, || {
        let (world, sender) = World::with_sender(move |stream, sender| {
            stream.send(sender, 0);
            stream.send_tcp(sender, 1);
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
