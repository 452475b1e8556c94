//! The record ring between two verbs processes, whose memory and positions a peer writes.
#![allow(unsafe_code)]

use crate::guarded::Guarded;
use crate::input::Input;
use sluice_shmem::verbs::record::{Header, Reader, Ring, Writer};
use std::sync::OnceLock;

const BYTES: usize = 4096;
/// Longer than a ring, so that the ring's own check is what limits a copy.
const PAYLOAD_MAX: usize = 2 * BYTES;

pub fn run(data: &[u8]) {
    static MEMORY: OnceLock<(Guarded, Guarded)> = OnceLock::new();
    let (memory, source) = MEMORY.get_or_init(|| (Guarded::new(BYTES), Guarded::new(PAYLOAD_MAX)));
    memory.clear();
    // SAFETY: the memory stays mapped for good.
    let ring = unsafe { Ring::from_raw(memory.base(), BYTES) };
    let (mut writer, mut reader) = (Writer::new(ring), Reader::new(ring));
    let mut input = Input::new(data);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => memory.store(input.below(BYTES), input.u64()),
            // A first word that looks right.
            1 | 2 => {
                let len = input.number(64) & 0xFFFF;
                let kind = if input.bool() { 0xFF } else { input.u8() };
                let word = len | u64::from(kind) << 32 | u64::from(input.u8()) << 40;
                memory.store(input.below(BYTES / 64) * 64, word);
            }
            3 => {
                let payload = usize::from(input.u16()) % PAYLOAD_MAX;
                let header = Header {
                    kind: input.u8() & 0x7F,
                    sequence: input.u32(),
                    ..Header::default()
                };
                let part = (source.end(payload).cast_const(), payload);
                let before = writer.tail();
                // SAFETY: one part of `payload` readable bytes.
                let end = unsafe { writer.push(&header, payload, std::iter::once(part)) };
                assert!(end.is_none_or(|end| end - writer.head() <= BYTES as u64));
                assert!(writer.tail() >= before);
            }
            4 | 5 => {
                let Ok(Some(record)) = reader.peek() else {
                    continue;
                };
                assert!(memory.contains(record.payload, record.payload_bytes));
                assert!(record.end > reader.head() && record.end % 64 == 0);
                for at in 0..record.payload_bytes {
                    // SAFETY: within the memory, as was just checked.
                    unsafe { record.payload.add(at).read_volatile() };
                }
                reader.advance(&record);
            }
            6 => {
                let head = input.number(reader.head());
                let before = writer.head();
                if writer.accept_head(head).is_ok() {
                    assert!((before..=writer.tail()).contains(&head));
                }
            }
            _ => {
                Reader::is_waiting(&ring, input.number(reader.head()));
                writer.fits(usize::from(input.u16()));
            }
        }
    }
}
