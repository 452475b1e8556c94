//! The directory and the hazard words of a verbs peer: whatever it writes there, questions are
//! answered from inside, in bounded time.
#![allow(unsafe_code)]

use crate::guarded::Guarded;
use crate::input::Input;
use sluice_shmem::verbs::directory::{DIRECTORY_BYTES, Directory, KeyEntry, QpEntry, Rung};
use sluice_shmem::verbs::hazard::{HAZARD_BYTES, Hazards, WORDS};
use std::sync::OnceLock;

/// Words that one input changes at most; they are put back afterwards.
const CHANGES_MAX: usize = 256;

pub fn run(data: &[u8]) {
    static MEMORY: OnceLock<(Guarded, Guarded)> = OnceLock::new();
    let (memory, hazard_memory) = MEMORY.get_or_init(|| {
        let bytes = DIRECTORY_BYTES.next_multiple_of(4096);
        (
            Guarded::new(bytes),
            Guarded::new(HAZARD_BYTES.next_multiple_of(4096)),
        )
    });
    hazard_memory.clear();
    // SAFETY: both stay mapped for good.
    let (directory, hazards) = unsafe {
        (
            Directory::from_raw(memory.base()),
            Hazards::from_raw(hazard_memory.base()),
        )
    };
    let rung = Rung::default();
    let mut changed = Vec::new();
    let mut change = |at: usize, value| {
        if changed.len() < CHANGES_MAX {
            memory.store(at, value);
            changed.push(at);
        }
    };
    let mut input = Input::new(data);
    // A few keys and numbers, so that questions meet what was written.
    let numbers: [u32; 4] = core::array::from_fn(|_| input.u32());
    while !input.is_empty() {
        let number = numbers[input.below(4)];
        match input.u8() % 12 {
            0 => change(input.u32() as usize, input.u64()),
            1 => change(
                1024 + input.below(64) * 4,
                input.number(u64::from(number >> 8)),
            ),
            2 => change(64 + input.below(9) * 8, input.u64()),
            3 => hazard_memory.store(input.below(HAZARD_BYTES), input.number(u64::from(number))),
            4 => {
                if let Some(slot) = directory.qp_slot(number) {
                    let entry = QpEntry {
                        qpn: number,
                        peer_qpn: input.u32(),
                        access: input.u32(),
                        receives: input.bool(),
                        ..QpEntry::default()
                    };
                    directory.set_qp(slot, &entry);
                    assert_eq!(directory.qp(slot), Some(entry));
                    directory.clear_qp(slot);
                    assert_eq!(directory.qp(slot), None);
                }
            }
            5 => {
                if let Some(slot) = Directory::choose_key_slot(number, |_| true) {
                    let entry = KeyEntry {
                        key: number,
                        len: input.u64(),
                        iova: input.u64(),
                        ..KeyEntry::default()
                    };
                    directory.set_key(slot, &entry);
                    assert_eq!(directory.find_key(number), Some(slot));
                    assert_eq!(directory.key(slot, number), Some(entry));
                    directory.clear_key(slot);
                    assert_eq!(directory.key(slot, number), None);
                }
            }
            6 => drop(directory.qp(input.number(16_384) as usize)),
            7 => drop(directory.key(input.u32(), number)),
            8 => drop(
                directory
                    .find_key(number)
                    .map(|slot| directory.key(slot, number)),
            ),
            9 => drop(directory.must_ring(&rung)),
            10 => {
                hazards.announce(input.u8().into(), number, input.u32());
                assert!(hazards.users(number).count() <= WORDS);
                hazards.withdraw(input.u8().into());
            }
            _ => drop((
                directory.engine_state(),
                directory.armed(),
                directory.qp_slot(number),
            )),
        }
    }
    for at in changed {
        memory.store(at, 0);
    }
}
