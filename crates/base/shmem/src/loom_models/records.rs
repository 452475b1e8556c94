//! The record ring of a verbs link: every record once, in order, whole, and its space not used
//! again before the reader has left it.

use super::check;
use crate::loom_area::Area;
use crate::sync::Ordering;
use crate::verbs::record::{HEADER_BYTES, Header, Reader, Record, Ring, UNIT_BYTES, Writer};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

/// Four units, of which a writer may fill three.
const BYTES: usize = 4 * UNIT_BYTES;
/// A payload that makes a record of two units, the second of which looks like a header.
const LONG: usize = UNIT_BYTES;
const SHORT: usize = 8;

/// One direction of a link: the writer's records and the reader's position.
pub(super) struct Wire {
    area: Box<Area>,
    /// Where the reader is, as it has published it.
    pub position: AtomicU64,
    /// A shadow of each unit, by which loom sees accesses that nothing orders.
    shadow: [UnsafeCell<()>; BYTES / UNIT_BYTES],
}

// SAFETY: the cells hold nothing, and loom checks their accesses; the rest is atomics.
unsafe impl Send for Wire {}
// SAFETY: threads share atomics, and cells that hold nothing and whose accesses loom checks.
unsafe impl Sync for Wire {}

impl Wire {
    pub fn new() -> Self {
        let words = (0..BYTES / UNIT_BYTES)
            .flat_map(|unit| (0..4).map(move |at| unit * UNIT_BYTES + at * 8));
        Self {
            area: Area::new(words, []),
            position: AtomicU64::new(0),
            shadow: core::array::from_fn(|_| UnsafeCell::new(())),
        }
    }

    pub fn ring(&self) -> Ring {
        // SAFETY: the area lives as long as the wire, which every user of the ring holds.
        unsafe { Ring::from_raw(self.area.base(), BYTES) }
    }

    fn units(&self, from: u64, to: u64) -> impl Iterator<Item = &UnsafeCell<()>> {
        (from / UNIT_BYTES as u64..to / UNIT_BYTES as u64)
            .map(|unit| &self.shadow[unit as usize % self.shadow.len()])
    }

    /// The record that waits, if one does.
    pub fn take(&self, reader: &mut Reader) -> Option<Record> {
        let record = reader.peek().expect("the writer is honest")?;
        for cell in self.units(reader.head(), record.end) {
            cell.with(|_| ());
        }
        reader.advance(&record);
        Some(record)
    }
}

type Push = fn(&mut Writer, &Header, usize) -> Option<u64>;

fn push(writer: &mut Writer, header: &Header, payload: usize) -> Option<u64> {
    let bytes = [0u8; LONG];
    // SAFETY: one part of at most LONG bytes, an array.
    unsafe { writer.push(header, payload, std::iter::once((bytes.as_ptr(), payload))) }
}

fn header(number: u32) -> Header {
    Header {
        kind: 1,
        target: number,
        sequence: number,
        argument: u64::from(number),
        ..Header::default()
    }
}

type Load = fn(&AtomicU64) -> u64;
type Store = fn(&AtomicU64, u64);

fn load_position(position: &AtomicU64) -> u64 {
    position.load(Ordering::Acquire)
}

fn store_position(position: &AtomicU64, value: u64) {
    position.store(value, Ordering::Release);
}

/// Writes records of the given payloads while another thread reads them.
fn model(payloads: &'static [usize], push: Push, load: Load, store: Store) -> impl Fn() {
    move || {
        let wire = Arc::new(Wire::new());
        let sender = wire.clone();
        let sender = thread::spawn(move || {
            let mut writer = Writer::new(sender.ring());
            for (number, payload) in payloads.iter().enumerate() {
                while !writer.fits(*payload) {
                    thread::yield_now();
                    writer.accept_head(load(&sender.position)).unwrap();
                }
                // The longest that this can touch: a pad, the record and the zero behind it.
                let (tail, size) = (writer.tail(), record_bytes(*payload));
                let left = BYTES as u64 - tail % BYTES as u64;
                let start = if left < size { tail + left } else { tail };
                for cell in sender.units(start, start + size) {
                    cell.with_mut(|_| ());
                }
                push(&mut writer, &header(number as u32), *payload).unwrap();
            }
        });
        let mut reader = Reader::new(wire.ring());
        let mut got = 0;
        while got < payloads.len() {
            let Some(record) = wire.take(&mut reader) else {
                thread::yield_now();
                continue;
            };
            assert_eq!(record.header, header(got as u32), "wrong record");
            assert_eq!(record.payload_bytes, payloads[got], "wrong record");
            got += 1;
            store(&wire.position, reader.head());
        }
        sender.join().unwrap();
    }
}

fn record_bytes(payload: usize) -> u64 {
    crate::verbs::record::record_bytes(payload) as u64
}

#[test]
fn records_of_a_verbs_ring_arrive_whole_and_in_order() {
    check(
        3,
        model(&[LONG, SHORT], push, load_position, store_position),
    );
}

#[test]
fn records_of_a_verbs_ring_pass_its_end() {
    let payloads = &[LONG, SHORT, LONG, SHORT];
    check(2, model(payloads, push, load_position, store_position));
}

/// What a requester may conclude: it reads the responder's position, then the answers, and then
/// believes the position. A request that was refused before the position moved is never taken
/// for one that was carried out.
fn refusal_model(position_first: bool) -> impl Fn() {
    move || {
        let answers = Arc::new(Wire::new());
        let responder = answers.clone();
        let responder = thread::spawn(move || {
            let mut writer = Writer::new(responder.ring());
            push(&mut writer, &header(0), 0).unwrap();
            store_position(&responder.position, UNIT_BYTES as u64);
        });
        let mut reader = Reader::new(answers.ring());
        loop {
            let (position, refused);
            if position_first {
                position = load_position(&answers.position);
                refused = answers.take(&mut reader).is_some();
            } else {
                refused = answers.take(&mut reader).is_some();
                position = load_position(&answers.position);
            }
            if refused {
                break;
            }
            assert_eq!(position, 0, "a refused request counts as done");
            thread::yield_now();
        }
        responder.join().unwrap();
    }
}

#[test]
fn a_refused_verbs_request_is_never_taken_for_done() {
    check(3, refusal_model(true));
}

// Broken variants.

/// Stores what [`Writer::push`] stores, by the given orders of the first word and of the zero
/// behind the record; no zero for None.
fn push_by(
    writer: &mut Writer,
    header: &Header,
    payload: usize,
    first: Ordering,
    ends: bool,
) -> Option<u64> {
    // A ring of its own gives the words and moves the positions.
    let elsewhere = Wire::new();
    let (start, ring) = (writer.tail(), writer.ring());
    writer.set_ring(elsewhere.ring());
    let end = push(writer, header, payload)?;
    let copy = writer.ring();
    writer.set_ring(ring);
    let at = if end - start > record_bytes(payload) {
        end - record_bytes(payload)
    } else {
        start
    };
    assert_eq!(at, start, "these variants do not pass the ring's end");
    if ends {
        ring.word(end, 0).store(0, Ordering::Relaxed);
    }
    for unit in 0..(end - start) / UNIT_BYTES as u64 {
        for index in usize::from(unit == 0)..4 {
            let place = start + unit * UNIT_BYTES as u64;
            let value = copy.word(place, index).load(Ordering::Relaxed);
            ring.word(place, index).store(value, Ordering::Relaxed);
        }
    }
    let value = copy.word(start, 0).load(Ordering::Relaxed);
    ring.word(start, 0).store(value, first);
    Some(end)
}

fn push_without_order(writer: &mut Writer, header: &Header, payload: usize) -> Option<u64> {
    push_by(writer, header, payload, Ordering::Relaxed, true)
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_verbs_writer_that_publishes_without_order() {
    check(
        3,
        model(&[SHORT], push_without_order, load_position, store_position),
    );
}

fn push_without_zero(writer: &mut Writer, header: &Header, payload: usize) -> Option<u64> {
    push_by(writer, header, payload, Ordering::Release, false)
}

/// The second lap takes for a header what a payload of the first one left, and reads what is being
/// written behind it.
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_verbs_writer_that_leaves_old_payload_behind_a_record() {
    fn push_twice(writer: &mut Writer, header: &Header, payload: usize) -> Option<u64> {
        if writer.tail() < BYTES as u64 {
            push(writer, header, payload)
        } else {
            push_without_zero(writer, header, payload)
        }
    }
    let payloads = &[LONG, LONG, SHORT, SHORT];
    check(
        2,
        model(payloads, push_twice, load_position, store_position),
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_verbs_reader_that_gives_space_back_without_order() {
    fn store(position: &AtomicU64, value: u64) {
        position.store(value, Ordering::Relaxed);
    }
    let payloads = &[LONG, SHORT, LONG];
    check(2, model(payloads, push, load_position, store));
}

#[test]
#[should_panic(expected = "counts as done")]
fn broken_requester_that_looks_at_the_position_last() {
    check(3, refusal_model(false));
}

const _: () = assert!(HEADER_BYTES + SHORT <= UNIT_BYTES);
