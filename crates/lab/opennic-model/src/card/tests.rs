//! The card under a driver of a few lines, which does what the register document says and, where a
//! test wants it, something else.

use super::*;
use crate::context::{Completion, FunctionMap, Prefetch, Software, Words};
use crate::generator::Plan;
use crate::memory::{Memory, testing::TestHost};

const BASE: u64 = 0x10_0000;
const H2C_RING: u64 = BASE;
const C2H_RING: u64 = BASE + 0x1000;
const COMPLETIONS: u64 = BASE + 0x2000;
const BUFFERS: u64 = BASE + 0x4000;
const BUFFER_LEN: u64 = 2048;
const SOURCE: u64 = BASE + 0x3_0000;
/// Entries of the rings, with the status.
const RING: u64 = 16;
const VECTOR: u16 = 3;

struct Bench {
    card: Card,
    host: TestHost,
}

impl Bench {
    fn new(wires: Vec<Wire>) -> Self {
        let (card, _) = Card::new(wires, Faults::default()).expect("a card");
        let mut bench = Self {
            card,
            host: TestHost::new(BASE, 0x8_0000),
        };
        for function in 0..bench.card.functions() {
            bench.start(function);
        }
        bench
    }

    fn command(&mut self, select: u32, operation: u32, queue: u32, words: Words) {
        for (at, word) in (0..).zip(words) {
            self.card.write_engine(0, 0x804 + at * 4, word);
            self.card.write_engine(0, 0x824 + at * 4, u32::MAX);
        }
        let command = queue << 7 | operation << 5 | select << 1;
        self.card.write_engine(0, 0x844, command);
        assert_eq!(self.card.read_engine(0, 0x844) & 1, 0, "not busy");
    }

    /// One queue for the function, its port up, every ring ready.
    fn start(&mut self, function: usize) {
        let queue = function as u32 * 64;
        self.card.write_engine(0, 0x204, RING as u32);
        self.card.write_engine(0, 0xAB0, BUFFER_LEN as u32);
        self.card.write_engine(0, 0xA40, 1);
        let map = FunctionMap {
            base: queue as u16,
            count: 1,
        };
        self.command(12, 1, function as u32, map.encode());
        let shell = &mut self.card.shell;
        shell.write(0x1000 * (function as u32 + 1), queue << 16 | 1);
        let port = 0x8000 + 0x4000 * function as u32;
        shell.write(port + 0x14, 1);
        shell.write(port + 0xC, 1);
        let far = function as u64 * 0x4_0000;
        let software = Software {
            function: function as u8,
            enabled: true,
            write_back: true,
            irq_enabled: true,
            vector: VECTOR,
            ..Software::default()
        };
        let h2c = Software {
            base: H2C_RING + far,
            descriptor_size: 1,
            ..software
        };
        let c2h = Software {
            base: C2H_RING + far,
            ..software
        };
        self.command(1, 1, queue, h2c.encode());
        self.command(3, 0, queue, Words::default());
        self.command(0, 1, queue, c2h.encode());
        self.command(2, 0, queue, Words::default());
        let prefetch = Prefetch {
            enabled: true,
            valid: true,
            ..Prefetch::default()
        };
        self.command(7, 1, queue, prefetch.encode());
        let completion = Completion {
            status: true,
            interrupt: true,
            trigger: 1,
            function: function as u8,
            colour: true,
            base: COMPLETIONS + far,
            valid: true,
            vector: VECTOR,
            ..Completion::default()
        };
        self.command(6, 1, queue, completion.encode());
        for at in 0..RING - 1 {
            let buffer = BUFFERS + far + at * BUFFER_LEN;
            self.put(C2H_RING + far + at * 8, &buffer.to_le_bytes());
        }
        self.ring(function, 8, RING as u32 - 2);
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.host.memory.write(address, bytes).expect("memory");
    }

    fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.host.memory.read(address, &mut bytes).expect("memory");
        u64::from_le_bytes(bytes)
    }

    fn ring(&mut self, function: usize, bell: u32, value: u32) {
        self.card.write_engine(function, 0x1_8000 + bell, value);
    }

    fn descriptor(&mut self, function: usize, at: u64, said: u16, len: u16, source: u64) {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&said.to_le_bytes());
        bytes[4..6].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&source.to_le_bytes());
        self.put(H2C_RING + function as u64 * 0x4_0000 + at * 16, &bytes);
    }

    fn round(&mut self) {
        self.card.round(&mut self.host, 0);
    }
}

const STATUS: u32 = 1 << 27;
const ARM: u32 = 1 << 28;
const EVERY: u32 = 1 << 24;

#[test]
fn a_packet_goes_out_and_comes_back_by_the_loop() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.put(SOURCE, &[0xAB; 100]);
    bench.descriptor(0, 0, 100, 100, SOURCE);
    bench.ring(0, 12, STATUS | ARM | EVERY);
    bench.ring(0, 4, 1);
    bench.round();
    // H2C write-back: pidx and cidx.
    assert_eq!(bench.word(H2C_RING + (RING - 1) * 16), 0x0001_0001);
    let entry = bench.word(COMPLETIONS);
    assert_eq!(entry >> 1 & 1, 1, "the colour of the first lap");
    assert_eq!(entry >> 2 & 1, 0, "no error");
    assert_eq!(entry >> 32 & 0xFFFF, 100);
    assert_eq!(bench.word(COMPLETIONS + (RING - 1) * 8) & 0xFFFF, 1, "pidx");
    assert_eq!(bench.word(BUFFERS), u64::from_le_bytes([0xAB; 8]));
    assert_eq!(bench.host.interrupts, [(0, VECTOR)]);
}

#[test]
fn an_interrupt_comes_once_for_each_time_it_is_armed() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    for at in 0..3 {
        bench.descriptor(0, at, 60, 60, SOURCE);
    }
    bench.ring(0, 12, STATUS | ARM | EVERY);
    for sent in 1..=3 {
        bench.ring(0, 4, sent);
        bench.round();
    }
    assert_eq!(bench.host.interrupts.len(), 1);
    // One was taken, two are there: arming interrupts at once.
    bench.ring(0, 12, STATUS | ARM | EVERY | 1);
    bench.round();
    bench.round();
    assert_eq!(bench.host.interrupts.len(), 2);
    // All taken: arming waits.
    bench.ring(0, 12, STATUS | ARM | EVERY | 3);
    bench.round();
    assert_eq!(bench.host.interrupts.len(), 2);
}

#[test]
fn what_was_sent_interrupts_when_it_is_armed() {
    let mut bench = Bench::new(vec![Wire::Open]);
    bench.descriptor(0, 0, 60, 60, SOURCE);
    bench.ring(0, 4, 1);
    bench.round();
    assert!(bench.host.interrupts.is_empty());
    bench.ring(0, 4, 1 | 1 << 16);
    bench.round();
    bench.round();
    assert_eq!(bench.host.interrupts, [(0, VECTOR)]);
}

#[test]
fn the_colour_turns_with_the_ring() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    let laps = (RING - 1) * 2 + 3;
    for sent in 0..laps {
        let at = sent % (RING - 1);
        bench.descriptor(0, at, 60, 60, SOURCE);
        bench.ring(0, 4, ((sent + 1) % (RING - 1)) as u32);
        bench.round();
        let entry = bench.word(COMPLETIONS + at * 8);
        let lap = sent / (RING - 1);
        assert_eq!(entry >> 1 & 1, 1 - lap % 2, "packet {sent}");
        let next = ((sent + 1) % (RING - 1)) as u32;
        bench.ring(0, 12, STATUS | next);
        bench.ring(0, 8, ((sent + RING - 2 + 1) % (RING - 1)) as u32);
        bench.round();
    }
    assert_eq!(bench.card.qdma.errors.read(0xAF0), Some(0));
}

#[test]
fn a_long_packet_takes_several_buffers() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.put(SOURCE, &[7; 5000]);
    bench.descriptor(0, 0, 5000, 5000, SOURCE);
    bench.descriptor(0, 1, 60, 60, SOURCE);
    bench.ring(0, 4, 2);
    bench.round();
    assert_eq!(bench.word(COMPLETIONS) >> 32 & 0xFFFF, 5000);
    let sevens = u64::from_le_bytes([7; 8]);
    assert_eq!(bench.word(BUFFERS + 2 * BUFFER_LEN), sevens);
    assert_eq!(
        bench.word(BUFFERS + 3 * BUFFER_LEN),
        sevens,
        "the next packet"
    );
    assert_eq!(bench.word(COMPLETIONS + 8) >> 32 & 0xFFFF, 60);
}

#[test]
fn without_buffers_packets_are_dropped_and_counted() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    for sent in 0..20 {
        bench.descriptor(0, sent % (RING - 1), 60, 60, SOURCE);
        bench.ring(0, 4, ((sent + 1) % (RING - 1)) as u32);
        bench.round();
    }
    let dropped = bench.card.shell.read(0x8000 + 0x3030);
    assert_eq!(dropped, 20 - (RING as u32 - 2));
    assert_eq!(bench.card.read_engine(0, 0xB10), dropped);
}

#[test]
fn two_functions_on_the_cards_ports_reach_one_another() {
    let mut bench = Bench::new(vec![Wire::Other, Wire::Other]);
    bench.put(SOURCE, &[5; 64]);
    bench.descriptor(0, 0, 64, 64, SOURCE);
    bench.ring(1, 12, STATUS | ARM | EVERY);
    bench.ring(0, 4, 1);
    bench.round();
    assert_eq!(bench.word(COMPLETIONS), 0);
    assert_eq!(
        bench.word(COMPLETIONS + 0x4_0000) >> 16 & 0x7FF,
        64,
        "the queue"
    );
    assert_eq!(bench.word(BUFFERS + 0x4_0000), u64::from_le_bytes([5; 8]));
    assert_eq!(bench.host.interrupts, [(1, VECTOR)]);
}

#[test]
fn the_generator_fills_what_there_is_and_loses_nothing() {
    let plan = Plan {
        len: 60,
        flows: 1,
        count: 0,
    };
    let mut bench = Bench::new(vec![Wire::Generator(Generator::new(plan, 0))]);
    bench.round();
    bench.round();
    let made = bench.word(COMPLETIONS + (RING - 1) * 8) & 0xFFFF;
    assert_eq!(made, RING - 2);
    assert_eq!(bench.card.shell.read(0x8000 + 0x3030), 0);
}

/// A mistake, and the register and bit that tell of it.
fn mistake(make: impl FnOnce(&mut Bench)) -> (u32, u32, u32) {
    let mut bench = Bench::new(vec![Wire::Loop]);
    make(&mut bench);
    bench.round();
    bench.round();
    let read = |at| bench.card.read_engine(0, at);
    (read(0x254), read(0xAF0), read(0xE00))
}

#[test]
fn mistakes_of_the_host_are_told() {
    const PARAMETER: u32 = 1 << 2;
    const DMA: u32 = 1 << 20;
    let beyond = mistake(|bench| bench.ring(0, 4, RING as u32 - 1));
    assert_eq!(beyond, (PARAMETER, 0, 0));
    let buffers = mistake(|bench| bench.ring(0, 8, 0xFFFF));
    assert_eq!(buffers, (PARAMETER, 0, 0));
    let taken = mistake(|bench| bench.ring(0, 12, STATUS | 5));
    assert_eq!(taken, (0, 1 << 14, 0));
    let empty = mistake(|bench| {
        bench.descriptor(0, 0, 0, 0, SOURCE);
        bench.ring(0, 4, 1);
    });
    assert_eq!(empty, (0, 0, 1));
    let lie = mistake(|bench| {
        bench.descriptor(0, 0, 61, 60, SOURCE);
        bench.ring(0, 4, 1);
    });
    assert_eq!(lie, (PARAMETER, 0, 0));
    for source in [0, u64::MAX, BASE + 0x8_0000 - 10] {
        let nowhere = mistake(|bench| {
            bench.descriptor(0, 0, 60, 60, source);
            bench.ring(0, 4, 1);
        });
        assert_eq!(nowhere, (DMA, 0, 0), "{source:#x}");
    }
    let buffer = mistake(|bench| {
        bench.put(C2H_RING, &u64::MAX.to_le_bytes());
        bench.descriptor(0, 0, 60, 60, SOURCE);
        bench.ring(0, 4, 1);
    });
    assert_eq!(buffer, (DMA, 0, 0));
}

#[test]
fn a_broken_queue_stays_so_until_its_context_is_new() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.descriptor(0, 0, 0, 0, SOURCE);
    bench.ring(0, 4, 1);
    bench.round();
    bench.descriptor(0, 0, 60, 60, SOURCE);
    bench.ring(0, 4, 2);
    bench.round();
    assert_eq!(bench.word(H2C_RING + (RING - 1) * 16), 0);
    bench.start(0);
    bench.ring(0, 4, 1);
    bench.round();
    assert_eq!(bench.word(H2C_RING + (RING - 1) * 16), 0x0001_0001);
}

#[test]
fn a_function_that_is_reset_does_nothing() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.descriptor(0, 0, 60, 60, SOURCE);
    bench.ring(0, 4, 1);
    bench.card.reset_function(0);
    bench.round();
    assert_eq!(bench.word(H2C_RING + (RING - 1) * 16), 0);
    assert_eq!(bench.card.read_engine(0, 0x1_8004), 0);
    bench.start(0);
    bench.ring(0, 4, 1);
    bench.round();
    assert_eq!(bench.word(H2C_RING + (RING - 1) * 16), 0x0001_0001);
}

#[test]
fn faults_strike_as_often_as_asked() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.card.qdma.faults = Faults {
        bad_completion: 2,
        lost_interrupt: 1,
        late_completion: 2,
        lost_packet: 0,
    };
    for at in 0..4 {
        bench.descriptor(0, at, 60, 60, SOURCE);
    }
    bench.ring(0, 12, STATUS | ARM | EVERY);
    bench.ring(0, 4, 4);
    bench.round();
    let bad: Vec<u64> = (0..4)
        .map(|at| bench.word(COMPLETIONS + at * 8) >> 2 & 1)
        .collect();
    assert_eq!(bad, [0, 1, 0, 1]);
    assert!(bench.host.interrupts.is_empty());
    assert_eq!(bench.card.qdma.interrupts_lost, 1);
    let write_back = H2C_RING + (RING - 1) * 16;
    assert_eq!(bench.word(write_back), 0);
    bench.round();
    assert_eq!(bench.word(write_back), 0);
    bench.round();
    assert_eq!(bench.word(write_back), 0x0004_0004);
}

#[test]
fn a_timer_interrupts_when_it_is_over() {
    const TIMER: u32 = 4 << 24;
    let mut bench = Bench::new(vec![Wire::Loop]);
    // 25 ticks of 4 ns, ten times: a microsecond.
    bench.card.write_engine(0, 0xB0C, 25);
    bench.card.write_engine(0, 0xA00, 10);
    bench.descriptor(0, 0, 60, 60, SOURCE);
    bench.ring(0, 12, STATUS | ARM | TIMER);
    bench.ring(0, 4, 1);
    bench.card.round(&mut bench.host, 5000);
    bench.card.round(&mut bench.host, 5999);
    assert!(bench.host.interrupts.is_empty());
    bench.card.round(&mut bench.host, 6000);
    assert_eq!(bench.host.interrupts.len(), 1);
}

#[test]
fn contexts_are_read_back_and_masked() {
    let mut bench = Bench::new(vec![Wire::Loop]);
    bench.command(1, 2, 0, Words::default());
    assert_eq!(bench.card.read_engine(0, 0x80C), H2C_RING as u32);
    // With a mask, the rest of a word stays.
    bench.card.write_engine(0, 0x804, 0xFFFF_FFFF);
    bench.card.write_engine(0, 0x824, 0x0000_000F);
    for at in 1..8 {
        bench.card.write_engine(0, 0x824 + at * 4, 0);
    }
    bench.card.write_engine(0, 0x844, 1 << 5 | 1 << 1);
    bench.command(1, 2, 0, Words::default());
    assert_eq!(bench.card.read_engine(0, 0x804), 0xF);
    // A queue that the card does not have.
    bench.card.write_engine(0, 0x844, 2 << 5 | 14 << 1);
    assert_eq!(bench.card.read_engine(0, 0x264), 1 << 1);
}
