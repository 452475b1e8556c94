//! The ring against a queue that is right by construction, and the states in which the death of
//! a process may leave the private half.
#![allow(unsafe_code)]

use super::WINDOW_BYTES;
use super::{Consumer, Producer};
use crate::Broken;
use crate::chunk::Chunk;
use crate::direction::Direction;
use crate::geometry::Geometry;
use crate::sync::Ordering;
use core::ptr::NonNull;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;

const CAPACITY: u32 = 16 * 1024;

/// The memory of a chunk with one lane.
struct Memory {
    base: NonNull<u8>,
    geometry: Geometry,
}

impl Memory {
    fn new() -> Self {
        let geometry = Geometry::new(1, CAPACITY).unwrap();
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(geometry)) });
        Self {
            base: base.expect("out of memory"),
            geometry,
        }
    }

    fn layout(geometry: Geometry) -> Layout {
        Layout::from_size_align(geometry.chunk_bytes() as usize, 4096).unwrap()
    }

    fn direction(&self) -> Direction {
        // SAFETY: the memory has the geometry's size, and no test uses a direction after it.
        unsafe { Chunk::from_raw(self.base, self.geometry).direction(0, 0) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.geometry)) }
    }
}

/// Both ends with the oracle of what is between them.
struct Pair {
    /// Freed with the pair.
    _memory: Memory,
    direction: Direction,
    producer: Producer,
    consumer: Consumer,
    between: VecDeque<u8>,
    next: u8,
    skips: u64,
}

impl Pair {
    fn new() -> Self {
        let memory = Memory::new();
        Self {
            direction: memory.direction(),
            _memory: memory,
            producer: Producer::default(),
            consumer: Consumer::default(),
            between: VecDeque::new(),
            next: 0,
            skips: 0,
        }
    }

    /// Stores what fits of `wanted` bytes in two pieces; returns how many.
    fn store(&mut self, wanted: usize) -> usize {
        let before = self.producer.tail();
        let room = self.producer.room(&self.direction, wanted).unwrap();
        self.skips += u64::from(self.producer.tail() != before);
        let len = wanted.min(room);
        let bytes: Vec<u8> = (0..len).map(|_| self.next_byte()).collect();
        let (first, second) = bytes.split_at(len / 3);
        // SAFETY: both pieces lie in the room, one behind the other.
        unsafe {
            let producer = &self.producer;
            producer.store(&self.direction, 0, first.as_ptr(), first.len());
            producer.store(&self.direction, first.len(), second.as_ptr(), second.len());
        }
        self.between.extend(bytes);
        len
    }

    fn next_byte(&mut self) -> u8 {
        // A period that shares no factor with the ring's size: a byte of another lap is wrong.
        self.next = (self.next + 1) % 251;
        self.next
    }

    fn push(&mut self, wanted: usize) {
        let len = self.store(wanted);
        self.producer.publish(&self.direction, len);
    }

    /// A process that dies between the private and the shared store; a fork takes over.
    fn push_and_die(&mut self, wanted: usize) {
        let len = self.store(wanted);
        self.producer.tail = self.producer.tail() + len as u64;
        self.producer.republish(&self.direction);
    }

    fn peek(&mut self, offset: usize, wanted: usize) -> usize {
        let available = self.consumer.available(&self.direction).unwrap();
        assert_eq!(available, self.between.len());
        let offset = offset.min(available);
        let len = wanted.min(available - offset);
        let mut bytes = vec![0; len];
        // SAFETY: `offset + len` is at most what is available.
        unsafe {
            self.consumer
                .load(&self.direction, offset, bytes.as_mut_ptr(), len);
        }
        let expected = self.between.iter().skip(offset).take(len);
        assert!(bytes.iter().eq(expected), "wrong bytes at offset {offset}");
        len
    }

    fn pop(&mut self, wanted: usize) {
        let len = self.peek(0, wanted);
        self.consumer.consume(&self.direction, len);
        self.between.drain(..len);
    }

    fn pop_and_die(&mut self, wanted: usize) {
        let len = self.peek(0, wanted);
        self.consumer.head += len as u64;
        self.between.drain(..len);
        self.consumer.republish(&self.direction);
    }

    fn check(&mut self) {
        let drained = self.producer.is_drained(&self.direction).unwrap();
        assert_eq!(drained, self.between.is_empty());
        let in_flight = self.producer.in_flight(&self.direction).unwrap();
        assert_eq!(in_flight, self.between.len() as u64);
        let available = self.consumer.available(&self.direction).unwrap();
        assert_eq!(available, self.between.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    PushAndDie(usize),
    Pop(usize),
    PopAndDie(usize),
    PopAll,
    Peek(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0..200usize;
    let any = 0..CAPACITY as usize * 5 / 4;
    let len = prop_oneof![3 => small, 2 => any];
    prop_oneof![
        4 => len.clone().prop_map(Step::Push),
        1 => len.clone().prop_map(Step::PushAndDie),
        2 => len.clone().prop_map(Step::Pop),
        1 => len.clone().prop_map(Step::PopAndDie),
        2 => Just(Step::PopAll),
        1 => (len.clone(), len).prop_map(|(offset, len)| Step::Peek(offset, len)),
    ]
}

fn run(pair: &mut Pair, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Push(len) => pair.push(len),
            Step::PushAndDie(len) => pair.push_and_die(len),
            Step::Pop(len) => pair.pop(len),
            Step::PopAndDie(len) => pair.pop_and_die(len),
            Step::PopAll => pair.pop(CAPACITY as usize),
            Step::Peek(offset, len) => drop(pair.peek(offset, len)),
        }
        pair.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_like_a_queue(
        steps in proptest::collection::vec(step(), if cfg!(miri) { 1..12 } else { 1..200 })
    ) {
        run(&mut Pair::new(), &steps);
    }
}

#[test]
fn wraps_and_returns_to_the_start_both_happen() {
    let mut pair = Pair::new();
    let window = WINDOW_BYTES as usize;
    pair.push(window + 1);
    pair.pop(window + 1);
    pair.push(10);
    assert_eq!(pair.producer.tail(), u64::from(CAPACITY) + 10);
    assert_eq!(pair.skips, 1);
    pair.push(CAPACITY as usize);
    pair.pop(20);
    pair.push(20);
    pair.pop(CAPACITY as usize);
    pair.check();
}

#[test]
fn small_messages_stay_in_the_window() {
    let mut pair = Pair::new();
    let mut reach = 0;
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        pair.push(700);
        reach = reach.max((pair.producer.tail() - 1) % u64::from(CAPACITY));
        pair.pop(700);
    }
    assert!(pair.skips > 0);
    assert!(reach < WINDOW_BYTES + 700, "reached byte {reach}");
}

#[test]
fn consumer_dies_between_the_two_stores_of_a_skip() {
    let mut pair = Pair::new();
    pair.push(WINDOW_BYTES as usize);
    pair.pop(WINDOW_BYTES as usize);
    pair.push(5);
    let tail_seen = pair.consumer.tail;
    pair.consumer.available(&pair.direction).unwrap();
    pair.consumer.tail = tail_seen;
    pair.check();
    pair.pop(5);
    pair.check();
}

#[test]
fn tail_set_back_while_the_head_is_beyond_it() {
    let mut pair = Pair::new();
    pair.push(WINDOW_BYTES as usize);
    pair.pop(WINDOW_BYTES as usize);
    pair.push(5);
    let tail_seen = pair.consumer.tail;
    pair.consumer.available(&pair.direction).unwrap();
    pair.consumer.tail = tail_seen;
    let line = pair.direction.sender();
    line.tail.store(tail_seen, Ordering::Relaxed);
    assert_eq!(pair.consumer.available(&pair.direction), Err(Broken));
}

#[test]
fn a_skip_without_publication_is_found_by_the_next_owner() {
    let mut pair = Pair::new();
    pair.push(WINDOW_BYTES as usize);
    pair.pop(WINDOW_BYTES as usize);
    pair.producer.room(&pair.direction, 1).unwrap();
    assert_eq!(pair.producer.tail(), u64::from(CAPACITY));
    // The owner dies before it publishes anything; what it left is complete.
    pair.check();
    pair.producer.republish(&pair.direction);
    pair.check();
    pair.push(3);
    pair.pop(3);
    pair.check();
}

/// Each impossible number alone, as seen by an end in the middle of its ring.
#[test]
fn impossible_numbers_are_refused() {
    const SENT: u64 = 100;
    const READ: u64 = 40;
    let capacity = u64::from(CAPACITY);
    let consumer_after = |tail: u64, base: u64| {
        let mut pair = Pair::new();
        pair.push(SENT as usize);
        pair.pop(READ as usize);
        let line = pair.direction.sender();
        line.tail.store(tail, Ordering::Relaxed);
        line.base.store(base, Ordering::Relaxed);
        pair.consumer.available(&pair.direction)
    };
    assert_eq!(consumer_after(SENT + 1, 0), Ok((SENT - READ) as usize + 1));
    assert_eq!(consumer_after(READ + capacity, 0), Ok(CAPACITY as usize));
    for (tail, base) in [
        (0, 0),
        (READ - 1, 0),
        (READ, 0),
        (SENT - 1, 0),
        (READ + capacity + 1, 0),
        (u64::MAX, 0),
        (SENT + 1, READ + 1),
        (capacity + 1, capacity),
        (u64::MAX, u64::MAX),
        (u64::MAX, u64::MAX - capacity + 1),
    ] {
        assert_eq!(consumer_after(tail, base), Err(Broken), "{tail} {base}");
    }

    let skip_after_all_is_read = |tail: u64, base: u64| {
        let mut pair = Pair::new();
        pair.push(SENT as usize);
        pair.pop(SENT as usize);
        let line = pair.direction.sender();
        line.tail.store(tail, Ordering::Relaxed);
        line.base.store(base, Ordering::Relaxed);
        pair.consumer.available(&pair.direction)
    };
    assert_eq!(skip_after_all_is_read(capacity + 7, capacity), Ok(7));
    for (tail, base) in [
        (capacity - 1, capacity),
        (capacity + 7, capacity + 1),
        (capacity + 7, SENT + 1),
        (2 * capacity + 7, 2 * capacity),
        (2 * capacity + 1, capacity),
        (SENT - 1, 0),
    ] {
        assert_eq!(
            skip_after_all_is_read(tail, base),
            Err(Broken),
            "{tail} {base}"
        );
    }

    let producer_after = |head: u64| {
        let mut pair = Pair::new();
        pair.push(SENT as usize);
        pair.pop(READ as usize);
        pair.producer.in_flight(&pair.direction).unwrap();
        let line = pair.direction.receiver();
        line.head.store(head, Ordering::Relaxed);
        let room = pair.producer.room(&pair.direction, CAPACITY as usize);
        assert_eq!(
            room.is_err(),
            pair.producer.is_drained(&pair.direction).is_err()
        );
        room
    };
    assert_eq!(producer_after(SENT), Ok(CAPACITY as usize));
    for head in [0, READ - 1, SENT + 1, capacity, u64::MAX] {
        assert_eq!(producer_after(head), Err(Broken), "{head}");
    }
}

/// Real threads, for Miri's and the sanitizers' view of the copies themselves.
#[test]
fn threads_exchange_a_long_stream() {
    let total = if cfg!(miri) { 20_000 } else { 8 << 20 };
    let memory = Memory::new();
    let direction = memory.direction();
    let byte_at = |position: usize| (position % 251) as u8;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut producer = Producer::default();
            let mut sent = 0;
            while sent < total {
                let wanted = (sent % 3001 + 1).min(total - sent);
                let len = producer.room(&direction, wanted).unwrap().min(wanted);
                let bytes: Vec<u8> = (sent..sent + len).map(byte_at).collect();
                // SAFETY: there is room for `len` bytes, and the vector has them.
                unsafe { producer.store(&direction, 0, bytes.as_ptr(), len) };
                producer.publish(&direction, len);
                sent += len;
                if len == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::default();
        let mut received = 0;
        while received < total {
            let len = consumer.available(&direction).unwrap();
            let mut bytes = vec![0; len];
            // SAFETY: `available` said `len`, and the vector is as long.
            unsafe { consumer.load(&direction, 0, bytes.as_mut_ptr(), len) };
            consumer.consume(&direction, len);
            assert!(
                bytes
                    .into_iter()
                    .eq((received..received + len).map(byte_at))
            );
            received += len;
            if len == 0 {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_delayed_reader_takes_what_it_had_found_when_the_delay_is_over() {
    const DELAY: std::time::Duration = std::time::Duration::from_millis(2);
    let memory = Memory::new();
    let direction = memory.direction();
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    // SAFETY: three bytes, and the ring has room for them.
    unsafe { producer.store(&direction, 0, b"abc".as_ptr(), 3) };
    producer.publish(&direction, 3);
    super::NEWS_DELAY.set_ns(DELAY.as_nanos() as u32);
    let begun = std::time::Instant::now();
    assert_eq!(consumer.available(&direction), Ok(3));
    assert!(begun.elapsed() >= DELAY);
    super::NEWS_DELAY.set_ns(0);
    let mut bytes = [0; 3];
    // SAFETY: the bytes are available, and there is room for them.
    unsafe { consumer.load(&direction, 0, bytes.as_mut_ptr(), 3) };
    assert_eq!(&bytes, b"abc");
}
