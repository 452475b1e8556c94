//! The sleep handshake of docs/decisions/0001: no reader stays in the kernel while the ring has
//! bytes, the sender is done and nothing comes by TCP.

use super::{CAPACITY, LANE, World, check, pop, push};
use crate::Producer;
use crate::direction::{Direction, Words};
use crate::handover::{Next, Receiver};
use crate::parking::ParkingTable;
use crate::sync::Ordering;
use loom::thread;

type BeginWrite = fn(&Direction, Option<ParkingTable>) -> bool;
/// Behind an announcement: whether the reader may sleep on the socket.
type MaySleep = fn(&mut Receiver, &Direction) -> bool;

fn may_sleep(receiver: &mut Receiver, direction: &Direction) -> bool {
    receiver.may_read_free(direction, true)
}

/// Whether the ring is empty and nobody is about to change that, for one who watches it.
fn is_quiet(receiver: &mut Receiver, direction: &Direction) -> bool {
    let look = receiver.look(direction, true);
    !look.in_flight && !matches!(look.next.unwrap(), Next::Ring(_))
}

/// Writes `count` bytes, each to the ring if the reader is awake and else to TCP.
fn send(world: &World, producer: &mut Producer, count: u32, begin_write: BeginWrite) {
    let direction = &world.direction;
    for _ in 0..count {
        let awake = begin_write(direction, Some(world.parking));
        if awake {
            push(direction, producer, b"x");
        }
        direction.end_write();
        if !awake {
            world.kernel.send(b'x');
        }
    }
}

/// Reads `count` bytes as a thread that blocks in the kernel on the socket itself.
fn receive_direct(world: &World, count: u32, may_sleep: MaySleep) {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    let mut got = 0;
    while got < count {
        got += pop(direction, receiver.consumer()).len() as u32;
        if got == count {
            break;
        }
        direction.announce_sleep();
        if may_sleep(&mut receiver, direction) {
            got += world.kernel.receive(1).len() as u32;
            direction.withdraw_sleep();
        } else {
            direction.withdraw_sleep();
            thread::yield_now();
        }
    }
}

/// Waits by epoll instance `slot` until ring or socket has bytes, and leaves them there.
fn wait_epoll(world: &World, slot: u32, watch_first: bool) {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    let mut pending = false;
    if watch_first {
        direction.watch(slot);
        pending = !is_quiet(&mut receiver, direction);
    }
    loop {
        world.ready[slot as usize].take(|lane| {
            assert_eq!(lane, LANE);
            pending = true;
        });
        if pending {
            pending = !is_quiet(&mut receiver, direction);
        }
        if receiver.consumer().available(direction).unwrap() != 0 || world.kernel.is_readable() {
            return;
        }
        if !pending {
            world.parking.announce_sleep(slot);
            let quiet = !world.ready[slot as usize].any();
            if quiet {
                world.kernel.wait_readable();
            }
            world.parking.withdraw_sleep(slot);
            if quiet {
                return;
            }
        }
        thread::yield_now();
    }
}

/// Reads `count` bytes by epoll instance 0, sleeping between them.
fn receive_epoll(world: &World, count: u32) {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    let mut pending = false;
    let mut got = 0;
    while got < count {
        world.ready[0].take(|_| pending = true);
        if pending {
            got += pop(direction, receiver.consumer()).len() as u32;
            pending = !is_quiet(&mut receiver, direction);
        }
        if got == count {
            break;
        }
        if pending {
            thread::yield_now();
            continue;
        }
        world.parking.announce_sleep(0);
        if !world.ready[0].any() {
            got += world.kernel.receive(1).len() as u32;
        }
        world.parking.withdraw_sleep(0);
    }
}

fn direct_model(writes: u32, begin_write: BeginWrite, may_sleep: MaySleep) -> impl Fn() {
    assert!(writes <= CAPACITY);
    move || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), writes, begin_write);
        });
        receive_direct(&world, writes, may_sleep);
        sender.join().unwrap();
    }
}

fn epoll_model(writes: u32, begin_write: BeginWrite) -> impl Fn() {
    move || {
        let world = World::new();
        world.direction.watch(0);
        let sender = world.clone();
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), writes, begin_write);
        });
        receive_epoll(&world, writes);
        sender.join().unwrap();
    }
}

#[test]
fn reader_sleeps_on_the_socket() {
    check(3, direct_model(2, Direction::begin_write, may_sleep));
}

#[test]
fn reader_sleeps_in_epoll() {
    check(3, epoll_model(2, Direction::begin_write));
}

#[test]
fn reader_starts_to_watch_during_a_write() {
    check(3, || {
        let world = World::new();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), 2, Direction::begin_write);
        });
        wait_epoll(&world, 0, true);
        sender.join().unwrap();
    });
}

#[test]
fn two_epoll_instances_both_hear_of_a_write() {
    check(2, || {
        let world = World::new();
        world.direction.watch(0);
        let (sender, second) = (world.clone(), world.clone());
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), 1, Direction::begin_write);
        });
        let second = thread::spawn(move || wait_epoll(&second, 1, true));
        wait_epoll(&world, 0, false);
        sender.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn one_reader_in_epoll_and_one_on_the_socket() {
    check(2, || {
        let world = World::new();
        world.direction.watch(0);
        let (sender, second) = (world.clone(), world.clone());
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), 1, Direction::begin_write);
        });
        let second = thread::spawn(move || wait_epoll(&second, 0, false));
        let direction = &world.direction;
        let mut receiver = Receiver::default();
        loop {
            direction.announce_sleep();
            let sleeps = may_sleep(&mut receiver, direction);
            if sleeps {
                world.kernel.wait_readable();
            }
            direction.withdraw_sleep();
            if sleeps || receiver.consumer().available(direction).unwrap() != 0 {
                break;
            }
            thread::yield_now();
        }
        sender.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn a_reader_that_sleeps_gets_everything_by_tcp() {
    check(3, || {
        let world = World::new();
        let direction = &world.direction;
        direction.announce_sleep();
        let sender = world.clone();
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), 2, Direction::begin_write);
        });
        let mut got = 0;
        while got < 2 {
            got += world.kernel.receive(2).len();
        }
        assert_eq!(crate::Consumer::default().available(direction), Ok(0));
        sender.join().unwrap();
    });
}

#[test]
fn a_receiver_without_a_parking_counts_as_asleep() {
    check(2, || {
        let world = World::new();
        world.direction.watch(1);
        assert!(!world.direction.begin_write(None));
        world.direction.end_write();
    });
}

// Whole streams, whose sender is the shipped one and goes by the ring or by TCP as it finds its reader.

/// Reads what is next without blocking: how many bytes.
fn read_some(world: &World, receiver: &mut Receiver) -> usize {
    let direction = &world.direction;
    let by_kernel = |max| match world.kernel.is_readable() {
        true => world.kernel.receive(max).len(),
        false => 0,
    };
    match receiver.next(direction).unwrap() {
        Next::Ring(_) => pop(direction, receiver.consumer()).len(),
        Next::Owed(owed) => {
            let bytes = by_kernel(owed as usize);
            receiver.count_said(direction, bytes as u64);
            bytes
        }
        Next::Tcp | Next::Empty => {
            if !receiver.announce(direction, true) {
                return 0;
            }
            let bytes = by_kernel(usize::MAX);
            receiver.count_said(direction, bytes as u64);
            receiver.withdraw(direction);
            bytes
        }
    }
}

/// Sleeps by poll: until the socket is readable.
fn receive_by_poll(world: &World, count: usize) {
    let direction = &world.direction;
    let mut receiver = Receiver::default();
    let mut got = 0;
    while got < count {
        let bytes = read_some(world, &mut receiver);
        got += bytes;
        if bytes > 0 || got == count {
            continue;
        }
        if receiver.announce_wait(direction, true) {
            world.kernel.wait_readable();
            receiver.withdraw(direction);
        } else {
            thread::yield_now();
        }
    }
}

fn stream_model(bytes: u8, receive: impl Fn(&World, usize) + Copy) -> impl Fn() {
    move || {
        let (world, sender) = World::with_sender(move |stream, sender| {
            for byte in 0..bytes {
                stream.send(sender, byte);
            }
        });
        receive(&world, bytes.into());
        sender.join().unwrap();
    }
}

#[test]
fn reader_of_a_stream_sleeps_by_poll() {
    check(2, stream_model(2, receive_by_poll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_reader_of_a_stream_that_sleeps_unannounced() {
    check(
        2,
        stream_model(2, |world, count| {
            let mut receiver = Receiver::default();
            let mut got = 0;
            while got < count {
                let bytes = read_some(world, &mut receiver);
                got += bytes;
                if bytes == 0 {
                    if receiver.may_read_free(&world.direction, true) {
                        world.kernel.wait_readable();
                    } else {
                        thread::yield_now();
                    }
                }
            }
        }),
    );
}

// Broken variants.

fn begin_without_fence(direction: &Direction, _: Option<ParkingTable>) -> bool {
    direction.sender().busy.store(1, Ordering::SeqCst);
    direction.receiver().sleepers.load(Ordering::SeqCst) == 0
}

fn begin_without_busy_flag(direction: &Direction, parking: Option<ParkingTable>) -> bool {
    let awake = direction.begin_write(parking);
    direction.end_write();
    awake
}

fn begin_without_bits(direction: &Direction, parking: Option<ParkingTable>) -> bool {
    direction.sender().busy.swap(1, Ordering::SeqCst);
    crate::sync::fence_after_rmw();
    let watchers = direction.receiver().watchers.load(Ordering::Acquire);
    !parking.is_some_and(|parking| parking.any_asleep(watchers))
}

/// Sets the bit by a `SeqCst` operation, which orders nothing but itself.
fn begin_without_fence_behind_bits(direction: &Direction, parking: Option<ParkingTable>) -> bool {
    direction.sender().busy.store(1, Ordering::SeqCst);
    let watchers = direction.receiver().watchers.load(Ordering::SeqCst);
    direction.ready(0).set(LANE);
    !parking.is_some_and(|parking| parking.any_asleep(watchers))
}

fn look_at_ring_then_busy_flag(receiver: &mut Receiver, direction: &Direction) -> bool {
    look_at_ring_only(receiver, direction) && !direction.is_write_in_flight()
}

fn look_at_ring_only(receiver: &mut Receiver, direction: &Direction) -> bool {
    receiver.consumer().available(direction) == Ok(0)
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_sender_without_fence() {
    check(3, direct_model(1, begin_without_fence, may_sleep));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_sender_without_busy_flag() {
    check(3, direct_model(1, begin_without_busy_flag, may_sleep));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_reader_that_looks_at_the_busy_flag_last() {
    check(
        3,
        direct_model(1, Direction::begin_write, look_at_ring_then_busy_flag),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_reader_that_ignores_the_busy_flag() {
    check(
        3,
        direct_model(1, Direction::begin_write, look_at_ring_only),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_sender_that_sets_no_ready_bit() {
    check(3, epoll_model(1, begin_without_bits));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_sender_without_fence_behind_the_ready_bits() {
    check(3, epoll_model(1, begin_without_fence_behind_bits));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_reader_that_trusts_one_ready_bit() {
    check(3, || {
        let world = World::new();
        world.direction.watch(0);
        let sender = world.clone();
        let sender = thread::spawn(move || {
            send(&sender, &mut Producer::default(), 1, Direction::begin_write);
        });
        let mut receiver = Receiver::default();
        let mut got = 0;
        while got == 0 {
            // Takes the bit, finds the ring empty and forgets that a write is in flight.
            world.ready[0].take(|_| got += pop(&world.direction, receiver.consumer()).len());
            if got == 0 {
                got += sleep_in_epoll(&world);
            }
        }
        sender.join().unwrap();
    });
}

fn sleep_in_epoll(world: &World) -> usize {
    world.parking.announce_sleep(0);
    let quiet = !world.ready[0].any();
    let got = if quiet {
        world.kernel.receive(1).len()
    } else {
        0
    };
    world.parking.withdraw_sleep(0);
    got
}
