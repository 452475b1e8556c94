//! The byte ring: order and completeness over wraps and returns to the start, and no byte read
//! while it is written.

use super::{CAPACITY, World, check};
use crate::direction::Direction;
use crate::sync::Ordering;
use crate::{Consumer, Producer};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A shadow of the ring's bytes by which loom sees accesses that nothing orders.
struct Shadow([UnsafeCell<()>; CAPACITY as usize]);

// SAFETY: the cells hold nothing; loom checks the accesses.
unsafe impl Sync for Shadow {}
// SAFETY: the cells hold nothing that could belong to a thread.
unsafe impl Send for Shadow {}

impl Shadow {
    fn new() -> Arc<Self> {
        Arc::new(Self(core::array::from_fn(|_| UnsafeCell::new(()))))
    }

    fn cells(&self, from: u64, len: usize) -> impl Iterator<Item = &UnsafeCell<()>> {
        (from..from + len as u64).map(|position| &self.0[(position % u64::from(CAPACITY)) as usize])
    }
}

type Publish = fn(&mut Producer, &Direction, usize);

/// Pushes pieces of the given lengths, in as many steps as room makes necessary, while another
/// thread pops what there is; the bytes are 0, 1, 2, …
fn ring_model(lengths: &'static [usize], publish: Publish) -> impl Fn() {
    move || {
        let world = World::new();
        let shadow = Shadow::new();
        let (sender, sender_shadow) = (world.clone(), shadow.clone());
        let sender = thread::spawn(move || {
            let direction = &sender.direction;
            let mut producer = Producer::default();
            let mut next = 0u8;
            for len in lengths {
                let end = next + *len as u8;
                while next < end {
                    let wanted = usize::from(end - next);
                    let len = producer.room(direction, wanted).unwrap().min(wanted);
                    if len == 0 {
                        thread::yield_now();
                        continue;
                    }
                    for cell in sender_shadow.cells(producer.tail(), len) {
                        cell.with_mut(|_| ());
                    }
                    let bytes: Vec<u8> = (next..next + len as u8).collect();
                    // SAFETY: there is room for `len` bytes, and the vector has them.
                    unsafe { producer.store(direction, 0, bytes.as_ptr(), len) };
                    publish(&mut producer, direction, len);
                    next += len as u8;
                }
            }
        });
        let direction = &world.direction;
        let total = lengths.iter().sum();
        let mut consumer = Consumer::default();
        let mut received = Vec::new();
        while received.len() < total {
            let len = consumer.available(direction).unwrap();
            if len == 0 {
                thread::yield_now();
                continue;
            }
            for cell in shadow.cells(consumer.head(), len) {
                cell.with(|_| ());
            }
            let mut bytes = vec![0; len];
            // SAFETY: `available` said `len`, and the vector is as long.
            unsafe { consumer.load(direction, 0, bytes.as_mut_ptr(), len) };
            consumer.consume(direction, len);
            received.extend(bytes);
        }
        assert!(
            received.iter().copied().eq(0..total as u8),
            "wrong bytes: {received:?}"
        );
        sender.join().unwrap();
    }
}

#[test]
fn single_bytes_return_to_the_start() {
    check(2, ring_model(&[1, 1, 1, 1], Producer::publish));
}

#[test]
fn pieces_wrap_and_return_to_the_start() {
    check(2, ring_model(&[3, 2, 3], Producer::publish));
}

#[test]
fn a_piece_larger_than_the_ring() {
    check(2, ring_model(&[1, 6], Producer::publish));
}

// Broken variants.

fn publish_without_order(producer: &mut Producer, direction: &Direction, len: usize) {
    // Publishes into a line of its own first, to move the private positions.
    let elsewhere = World::new();
    producer.publish(&elsewhere.direction, len);
    let line = direction.sender();
    let base = elsewhere.direction.sender().base.load(Ordering::Relaxed);
    line.base.store(base, Ordering::Relaxed);
    line.tail.store(producer.tail(), Ordering::Relaxed);
}

fn publish_without_base(producer: &mut Producer, direction: &Direction, len: usize) {
    let elsewhere = World::new();
    producer.publish(&elsewhere.direction, len);
    direction
        .sender()
        .tail
        .store(producer.tail(), Ordering::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_sender_that_publishes_without_order() {
    check(3, ring_model(&[1, 1], publish_without_order));
}

#[test]
#[should_panic(expected = "wrong bytes")]
fn broken_sender_that_skips_without_saying_so() {
    check(3, ring_model(&[2, 1], publish_without_base));
}
