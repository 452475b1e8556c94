use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use crate::Kind;
use crate::model::{Chooser, Model, ModelView, exhaust};

const KINDS: [Kind; 3] = [Kind::Coherent, Kind::Flush, Kind::Push];
const CAPACITY: u64 = LINE_BYTES;
/// Data, tail and head, each in lines of their own.
const SLOT_BYTES: u64 = CAPACITY + 2 * LINE_BYTES;
const TAIL: u64 = CAPACITY;
const HEAD: u64 = CAPACITY + LINE_BYTES;

struct Pair {
    writer: ModelView,
    reader: ModelView,
    producer: Producer,
    consumer: Consumer,
    /// Bytes that were put, and not taken.
    oracle: VecDeque<u8>,
    /// Bytes that were published, and not taken.
    published: usize,
    next: u8,
}

fn pair(model: &Model) -> Pair {
    Pair {
        writer: model.view(0),
        reader: model.view(1),
        producer: Producer::new(OutRing {
            data: Out { slot: 1, at: 0 },
            tail: Out { slot: 1, at: TAIL },
            head: In(HEAD),
            capacity: CAPACITY,
        }),
        consumer: Consumer::new(InRing {
            data: In(0),
            tail: In(TAIL),
            head: Out { slot: 0, at: HEAD },
            capacity: CAPACITY,
        }),
        oracle: VecDeque::new(),
        published: 0,
        next: 1,
    }
}

impl Pair {
    /// Puts up to `len` bytes, as many as there is room for.
    fn put(&mut self, len: u64) {
        let room = self.producer.room(&self.writer, len).unwrap();
        let bytes: Vec<u8> = (0..len.min(room))
            .map(|index| self.next.wrapping_add(index as u8))
            .collect();
        self.next = self.next.wrapping_add(bytes.len() as u8);
        // SAFETY: a vector's bytes, as many as there is room for.
        unsafe { self.producer.put(&self.writer, bytes.as_ptr(), bytes.len()) };
        self.oracle.extend(&bytes);
    }

    fn publish(&mut self) {
        self.producer.publish(&self.writer);
        self.published = self.oracle.len();
    }

    /// Takes up to `len` bytes, as many as are there, and checks each.
    fn take(&mut self, len: u64) -> usize {
        let there = self.consumer.available(&self.reader, len).unwrap();
        assert!(there as usize <= self.published, "bytes that were not said");
        let len = len.min(there) as usize;
        let mut bytes = vec![0; len];
        // SAFETY: a vector's bytes, as many as are there.
        unsafe { self.consumer.copy(&self.reader, 0, bytes.as_mut_ptr(), len) };
        let expected: Vec<u8> = self.oracle.drain(..len).collect();
        assert_eq!(bytes, expected);
        self.consumer.take(len as u64);
        self.published -= len;
        len
    }

    fn give_back(&mut self) {
        self.consumer.give_back(&self.reader);
    }
}

/// Every order in which writes of a few steps can be seen, on each kind.
#[test]
fn small_programs_in_every_order_of_visibility() {
    for kind in KINDS {
        let run = |chooser: Rc<RefCell<Chooser>>| {
            let model = Model::new(kind, 2, SLOT_BYTES, chooser.clone());
            let mut pair = pair(&model);
            // From a place near the end, so that the second piece wraps.
            pair.put(CAPACITY - 8);
            pair.publish();
            let mut left = CAPACITY as usize - 8;
            let mut looks = 0;
            let mut second = false;
            while left > 0 && looks < 2 {
                left -= pair.take(CAPACITY);
                pair.give_back();
                looks += 1;
                if !second && pair.producer.room(&pair.writer, 16).unwrap() >= 16 {
                    second = true;
                    pair.put(16);
                    pair.publish();
                    left += 16;
                }
            }
            pair.take(CAPACITY);
        };
        let (runs, _) = exhaust(60_000, run);
        assert!(runs > 10, "{kind}: {runs} runs decide nothing");
    }
}

#[test]
fn long_programs_by_chance() {
    for kind in KINDS {
        for seed in 1..60 {
            let model = Model::random(kind, 2, SLOT_BYTES, seed * 77);
            let mut pair = pair(&model);
            let mut chance = Chooser::Random(seed);
            let mut moved = 0;
            for _ in 0..300 {
                match chance.choose(5) {
                    0 | 1 => pair.put(u64::from(chance.choose(40))),
                    2 => pair.publish(),
                    3 => moved += pair.take(u64::from(chance.choose(70))),
                    _ => pair.give_back(),
                }
            }
            // Nothing is left behind, however long it takes to be seen.
            pair.publish();
            for _ in 0..2_000 {
                moved += pair.take(CAPACITY);
                if pair.oracle.is_empty() {
                    break;
                }
            }
            assert!(pair.oracle.is_empty(), "{kind}, seed {seed}");
            assert!(moved > 200, "{kind}, seed {seed}: {moved} bytes");
        }
    }
}

/// The model finds it if a writer tells of bytes before they are on their way, and if a reader
/// does not refresh: it can fail.
#[test]
fn a_ring_without_barriers_is_caught() {
    struct Careless(ModelView, bool);
    impl View for Careless {
        fn load(&self, at: In) -> u64 {
            self.0.load(at)
        }
        unsafe fn copy_out(&self, at: In, to: *mut u8, len: usize) {
            // SAFETY: the caller's promise.
            unsafe { self.0.copy_out(at, to, len) }
        }
        fn store(&self, at: Out, value: u64) {
            self.0.store(at, value);
        }
        unsafe fn copy_in(&self, at: Out, from: *const u8, len: usize) {
            // SAFETY: the caller's promise.
            unsafe { self.0.copy_in(at, from, len) }
        }
        fn publish(&self, from: Out, bytes: u64) {
            // Words are published, data is not.
            if !self.1 || bytes == 8 && from.at >= CAPACITY {
                self.0.publish(from, bytes);
            }
        }
        fn refresh(&self, from: In, bytes: u64) {
            if self.1 || from.0 >= CAPACITY {
                self.0.refresh(from, bytes);
            }
        }
    }
    let wrong = |kind, careless_writer: bool| {
        (1..400).any(|seed| {
            let model = Model::random(kind, 2, SLOT_BYTES, seed);
            let pair = pair(&model);
            let (mut producer, mut consumer) = (pair.producer, pair.consumer);
            let writer = Careless(pair.writer, careless_writer);
            let reader = Careless(pair.reader, careless_writer);
            for round in 1..20_u8 {
                // SAFETY: room is certain: everything was taken and given back.
                while producer.room(&writer, 32).unwrap() < 32 {}
                let sent = [round; 32];
                // SAFETY: an array, and there is room.
                unsafe { producer.put(&writer, sent.as_ptr(), 32) };
                producer.publish(&writer);
                while consumer.available(&reader, 32).unwrap() < 32 {}
                let mut got = [0; 32];
                // SAFETY: an array, and the bytes are there.
                unsafe { consumer.copy(&reader, 0, got.as_mut_ptr(), 32) };
                if got != sent {
                    return true;
                }
                consumer.take(32);
                consumer.give_back(&reader);
            }
            false
        })
    };
    assert!(wrong(Kind::Flush, true) && wrong(Kind::Flush, false));
    assert!(wrong(Kind::Push, true) && wrong(Kind::Coherent, true));
}

#[test]
fn a_cut_window_breaks_the_ring_and_nothing_else() {
    for kind in [Kind::Coherent, Kind::Flush] {
        let model = Model::random(kind, 2, SLOT_BYTES, 5);
        let mut pair = pair(&model);
        pair.put(8);
        pair.publish();
        model.set_cut(true);
        assert!(pair.consumer.available(&pair.reader, 1).is_err());
        assert!(pair.producer.room(&pair.writer, CAPACITY).is_err());
    }
}

#[test]
fn a_delayed_reader_takes_what_it_had_found_when_the_delay_is_over() {
    const DELAY: std::time::Duration = std::time::Duration::from_millis(2);
    let model = Model::random(Kind::Coherent, 2, SLOT_BYTES, 7);
    let mut pair = pair(&model);
    pair.put(8);
    pair.publish();
    NEWS_DELAY.set_ns(DELAY.as_nanos() as u32);
    let waited = loop {
        let begun = std::time::Instant::now();
        match pair.consumer.available(&pair.reader, 8) {
            Ok(0) => continue,
            Ok(there) => break (there, begun.elapsed()),
            Err(error) => panic!("{error}"),
        }
    };
    NEWS_DELAY.set_ns(0);
    assert!(waited.0 == 8 && waited.1 >= DELAY, "{waited:?}");
}

#[test]
fn a_host_that_lies_gets_a_broken_link() {
    for seed in 1..2_000 {
        let model = Model::random(Kind::Coherent, 2, SLOT_BYTES, seed);
        let mut pair = pair(&model);
        let mut chance = Chooser::Random(seed * 31);
        pair.put(u64::from(chance.choose(64)));
        pair.publish();
        for _ in 0..20 {
            let word = match chance.choose(4) {
                0 => u64::MAX,
                1 => u64::from(chance.choose(200)),
                2 => (1 << 63) + u64::from(chance.choose(3)),
                _ => u64::from(chance.choose(65)),
            };
            let (slot, at) = [(1, TAIL), (0, HEAD)][chance.choose(2) as usize];
            model.scribble(slot, at, &word.to_le_bytes());
            let Ok(there) = pair.consumer.available(&pair.reader, 64) else {
                break;
            };
            assert!(there <= CAPACITY);
            let mut bytes = [0; CAPACITY as usize];
            // SAFETY: an array as long as the ring.
            unsafe {
                pair.consumer
                    .copy(&pair.reader, 0, bytes.as_mut_ptr(), there as usize);
            }
            pair.consumer.take(there);
            pair.consumer.give_back(&pair.reader);
            let Ok(room) = pair.producer.room(&pair.writer, 64) else {
                break;
            };
            assert!(room <= CAPACITY);
        }
    }
}
