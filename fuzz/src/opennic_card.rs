//! The model of the OpenNIC card under a guest that writes anything anywhere: registers, contexts,
//! doorbells, descriptors. The guest begins with a queue that works, so that what it breaks is
//! near something.

use opennic_model::card::{Card, Wire};
use opennic_model::faults::Faults;
use opennic_model::generator::{Generator, Plan};
use opennic_model::memory::{Memory, testing::TestHost};

use crate::input::Input;

const BASE: u64 = 0x10_0000;
const MEMORY_LEN: usize = 0x2_0000;
const OPERATIONS_MAX: usize = 400;

/// Registers that do something.
const ENGINE: [u32; 16] = [
    0x204, 0x208, 0x244, 0x24C, 0x258, 0xA00, 0xA40, 0xAB0, 0xB04, 0xB0C, 0x1_8004, 0x1_8008,
    0x1_800C, 0x1_8014, 0x1_801C, 0x2_0000,
];
const SHELL: [u32; 10] = [
    0x04, 0x0C, 0x1000, 0x1400, 0x1600, 0x2000, 0x8000, 0x800C, 0x8014, 0x8090,
];

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let plan = Plan {
        len: 60 + usize::from(input.u8()) * 32,
        flows: 2,
        count: 0,
    };
    let wires = vec![Wire::Other, Wire::Generator(Generator::new(plan, 1))];
    let faults = Faults {
        bad_completion: u32::from(input.u8() % 4),
        lost_interrupt: u32::from(input.u8() % 4),
        late_completion: u32::from(input.u8() % 4),
        lost_packet: u32::from(input.u8() % 4),
    };
    let Ok((mut card, _doorbells)) = Card::new(wires, faults) else {
        return;
    };
    let mut host = TestHost::new(BASE, MEMORY_LEN);
    set_up(&mut card);
    let mut now_ns = 0;
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let function = usize::from(input.u8() % 2);
        match input.u8() % 8 {
            0 => {
                let register = ENGINE[input.below(ENGINE.len())];
                let value = input.number(BASE) as u32;
                card.write_engine(function, register, value);
            }
            1 => card.write_engine(function, input.u32() % 0x4_0000, input.u32()),
            2 => {
                let register = SHELL[input.below(SHELL.len())];
                card.shell.write(register, input.number(4) as u32);
            }
            3 => command(&mut card, &mut input),
            4 => {
                let address = BASE + u64::from(input.u16());
                let value = input.number(BASE).to_le_bytes();
                let _ = host.memory.write(address, &value);
            }
            5 => {
                card.read_engine(function, input.u32());
                card.shell.read(input.u32());
            }
            6 => card.reset_function(function),
            _ => {
                now_ns += u64::from(input.u16());
                card.round(&mut host, now_ns);
            }
        }
    }
    card.round(&mut host, u64::MAX);
    for (function, _) in host.interrupts {
        assert!(function < 2, "an interrupt of a function that is not there");
    }
}

fn command(card: &mut Card, input: &mut Input<'_>) {
    for at in 0..5 {
        card.write_engine(0, 0x804 + at * 4, input.number(BASE) as u32);
        card.write_engine(0, 0x824 + at * 4, u32::MAX);
    }
    let word = u32::from(input.u8() % 3) << 7
        | u32::from(input.u8() % 4) << 5
        | u32::from(input.u8() % 16) << 1;
    card.write_engine(0, 0x844, word);
}

/// A function with a queue, everything in its place.
fn set_up(card: &mut Card) {
    let contexts: [(u32, [u32; 5]); 5] = [
        (12, [0, 2, 0, 0, 0]),
        (1, [0, 0x0031_0001, BASE as u32, 0, 0]),
        (0, [0, 0x0010_0001, BASE as u32 + 0x1000, 0, 0]),
        (7, [1 << 27, 1 << 13, 0, 0, 0]),
        (
            6,
            [
                0x0800_0007,
                (BASE as u32 + 0x2000) >> 12 << 6,
                0,
                1 << 28,
                0,
            ],
        ),
    ];
    card.write_engine(0, 0x204, 64);
    card.write_engine(0, 0xAB0, 2048);
    card.shell.write(0x1000, 2);
    card.shell.write(0x8014, 1);
    card.shell.write(0x800C, 1);
    card.shell.write(0xC014, 1);
    card.shell.write(0xC00C, 1);
    for (select, words) in contexts {
        for (at, word) in (0..).zip(words) {
            card.write_engine(0, 0x804 + at * 4, word);
            card.write_engine(0, 0x824 + at * 4, u32::MAX);
        }
        card.write_engine(0, 0x844, 1 << 5 | select << 1);
    }
}
