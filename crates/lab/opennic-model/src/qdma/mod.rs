//! The queue DMA engine (PG302): its registers, its queues' contexts, and moving packets.

pub mod errors;
mod receive;
mod send;

use std::collections::BTreeMap;

use crate::bits::{Field, bit, field};
use crate::context::{Completion, FunctionMap, Hardware, Prefetch, Software, WORDS, Words};
use crate::doorbell::QUEUES_MAX;
use crate::faults::{Every, Faults};
use errors::{Errors, Leaf};

pub use receive::Refusal;
pub use send::PACKET_LEN_MAX;

/// BAR 0, bytes.
pub const BAR_LEN: u64 = 0x4_0000;
/// Where a function's doorbells are in it.
pub const DOORBELLS: u64 = 0x1_8000;

const BLOCK_ID: u32 = 0x000;
const BARLITE_INT: u32 = 0x104;
const BARLITE_EXT: u32 = 0x10C;
const CHANNEL_INST: u32 = 0x114;
const CHANNEL_MDMA: u32 = 0x118;
const CHANNEL_STRM: u32 = 0x11C;
const QUEUE_CAPACITY: u32 = 0x120;
const FUNCTION_RETURN: u32 = 0x12C;
const MISC_CAPABILITY: u32 = 0x134;
const RING_SIZES: u32 = 0x204;
const INDIRECT_DATA: u32 = 0x804;
const INDIRECT_MASK: u32 = 0x824;
const INDIRECT_COMMAND: u32 = 0x844;
const TIMERS: u32 = 0xA00;
const COUNTERS: u32 = 0xA40;
const PACKETS_ACCEPTED: u32 = 0xA88;
const COMPLETIONS_ACCEPTED: u32 = 0xA8C;
const PACKETS_DROPPED: u32 = 0xB10;
const BUFFER_SIZES: u32 = 0xAB0;
const TIMER_TICK: u32 = 0xB0C;
const PREFETCH_DEPTH: u32 = 0xBE0;
const COALESCE_DEPTH: u32 = 0xBE4;

/// `IND_CTXT_CMD`.
const SELECT: Field = field(4, 1);
const OPERATION: Field = field(6, 5);
const QUEUE: Field = field(17, 7);
/// A user clock of 250 MHz.
const TICK_NS: u64 = 4;
/// Sizes, timers and the like are tables of 16.
const TABLE: usize = 16;
/// A ring of more cannot be said in 16 bits.
const RING_ENTRIES_MAX: u32 = 0x1_0000;

/// One of the card's queues.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub h2c: Software,
    h2c_hardware: Hardware,
    pub c2h: Software,
    c2h_hardware: Hardware,
    prefetch: Prefetch,
    pub completion: Completion,
    /// Descriptors were taken and the host was not interrupted for it.
    h2c_event: bool,
    /// Rounds until the write-back of the descriptors that were taken.
    write_back_in: Option<u32>,
    /// Completions were written and their status was not.
    status_due: bool,
    /// When the completion timer fires, ns.
    timer: Option<u64>,
    packets: u16,
}

/// The engine.
pub struct Qdma {
    pub queues: Vec<Queue>,
    pub maps: Vec<FunctionMap>,
    pub errors: Errors,
    pub faults: Faults,
    ring_sizes: [u32; TABLE],
    buffer_sizes: [u32; TABLE],
    timers: [u32; TABLE],
    counters: [u32; TABLE],
    tick: u32,
    data: Words,
    mask: Words,
    accepted: u32,
    dropped: u32,
    bad_completion: Every,
    lost_interrupt: Every,
    /// Interrupts that a fault swallowed.
    pub interrupts_lost: u64,
    others: BTreeMap<u32, u32>,
}

/// What a context command did to a queue, for its doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    HostToCard(usize),
    CardToHost(usize),
    Completion(usize),
}

impl Qdma {
    pub fn new(functions: usize) -> Self {
        Self {
            queues: vec![Queue::default(); QUEUES_MAX],
            maps: vec![FunctionMap::default(); functions],
            errors: Errors::default(),
            faults: Faults::default(),
            ring_sizes: [0; TABLE],
            buffer_sizes: [0; TABLE],
            timers: [0; TABLE],
            counters: [0; TABLE],
            tick: 0,
            data: Words::default(),
            mask: Words::default(),
            accepted: 0,
            dropped: 0,
            bad_completion: Every::default(),
            lost_interrupt: Every::default(),
            interrupts_lost: 0,
            others: BTreeMap::new(),
        }
    }

    /// The card's number of a function's queue, if it has it.
    pub fn queue_of(&self, function: usize, queue: usize) -> Option<usize> {
        let map = self.maps.get(function)?;
        let absolute = usize::from(map.base) + queue;
        (queue < usize::from(map.count) && absolute < QUEUES_MAX).then_some(absolute)
    }

    /// Entries of a ring that software uses; the last one is the status. None for no ring.
    fn usable(&self, index: u8) -> Option<u16> {
        let size = *self.ring_sizes.get(usize::from(index))?;
        if !(2..=RING_ENTRIES_MAX).contains(&size) {
            return None;
        }
        u16::try_from(size - 1).ok()
    }

    /// Function-level reset: nothing of it goes on.
    pub fn reset_function(&mut self, function: usize) {
        if let Some(map) = self.maps.get_mut(function) {
            let map = std::mem::take(map);
            let start = usize::from(map.base).min(QUEUES_MAX);
            let end = (start + usize::from(map.count)).min(QUEUES_MAX);
            self.queues[start..end].fill(Queue::default());
        }
    }

    pub fn read(&self, function: usize, offset: u32) -> u32 {
        if let Some(value) = self.errors.read(offset) {
            return value;
        }
        match offset {
            BLOCK_ID => 0x1FD3_0000,
            // BAR 0 is the engine's, BAR 2 the user's, for each of four functions.
            BARLITE_INT => (0..4).fold(0, |word, at| word | 0b00_0001 << (6 * at)),
            BARLITE_EXT => (0..4).fold(0, |word, at| word | 0b00_0100 << (6 * at)),
            CHANNEL_INST | CHANNEL_MDMA => 0x0003_0000,
            CHANNEL_STRM => 0x0003_0000,
            QUEUE_CAPACITY => QUEUES_MAX as u32,
            FUNCTION_RETURN => function as u32,
            MISC_CAPABILITY => 0x0000_0002,
            // Commands are done when the write is.
            INDIRECT_COMMAND => 0,
            PACKETS_ACCEPTED | COMPLETIONS_ACCEPTED => self.accepted,
            PACKETS_DROPPED => self.dropped,
            PREFETCH_DEPTH => 16,
            COALESCE_DEPTH => 16,
            TIMER_TICK => self.tick,
            _ => self
                .table(offset)
                .or_else(|| self.others.get(&offset).copied())
                .unwrap_or(0),
        }
    }

    fn table(&self, offset: u32) -> Option<u32> {
        let word = |start: u32, words: &[u32]| {
            let index = offset.checked_sub(start)? / 4;
            words.get(index as usize).copied()
        };
        word(RING_SIZES, &self.ring_sizes)
            .or_else(|| word(INDIRECT_DATA, &self.data))
            .or_else(|| word(INDIRECT_MASK, &self.mask))
            .or_else(|| word(TIMERS, &self.timers))
            .or_else(|| word(COUNTERS, &self.counters))
            .or_else(|| word(BUFFER_SIZES, &self.buffer_sizes))
    }

    /// A register write; says which queue's doorbells are to be forgotten.
    pub fn write(&mut self, offset: u32, value: u32) -> Option<Renewed> {
        if self.errors.write(offset, value) {
            return None;
        }
        if offset == INDIRECT_COMMAND {
            return self.command(value);
        }
        let tables: [(u32, &mut [u32]); 6] = [
            (RING_SIZES, &mut self.ring_sizes),
            (INDIRECT_DATA, &mut self.data),
            (INDIRECT_MASK, &mut self.mask),
            (TIMERS, &mut self.timers),
            (COUNTERS, &mut self.counters),
            (BUFFER_SIZES, &mut self.buffer_sizes),
        ];
        for (start, words) in tables {
            let index = offset.checked_sub(start).map(|bytes| bytes as usize / 4);
            if let Some(word) = index.and_then(|index| words.get_mut(index)) {
                *word = value;
                return None;
            }
        }
        match offset {
            TIMER_TICK => self.tick = value,
            // Fetching, coalescing and throttling have no meaning here; what is written is kept.
            0x200..0x2800 => {
                self.others.insert(offset & !3, value);
            }
            _ => self.errors.raise(Leaf::Request, errors::UNMAPPED),
        }
        None
    }

    /// `IND_CTXT_CMD`.
    fn command(&mut self, command: u32) -> Option<Renewed> {
        const CLEAR: u32 = 0;
        const WRITE: u32 = 1;
        const READ: u32 = 2;
        const INVALIDATE: u32 = 3;
        let queue = QUEUE.get(command) as usize;
        let select = SELECT.get(command);
        let Some(old) = self.context(select, queue) else {
            self.errors.raise(Leaf::Request, errors::QUEUE_RANGE);
            return None;
        };
        let new = match OPERATION.get(command) {
            CLEAR => Words::default(),
            WRITE => {
                let mut words = old;
                for at in 0..WORDS {
                    words[at] = old[at] & !self.mask[at] | self.data[at] & self.mask[at];
                }
                words
            }
            READ => {
                self.data = old;
                return None;
            }
            INVALIDATE => invalidated(select, old),
            _ => return None,
        };
        self.set_context(select, queue, &new)
    }

    fn context(&self, select: u32, queue: usize) -> Option<Words> {
        let q = self.queues.get(queue)?;
        Some(match select {
            0 => q.c2h.encode(),
            1 => q.h2c.encode(),
            2 => q.c2h_hardware.encode(),
            3 => q.h2c_hardware.encode(),
            6 => q.completion.encode(),
            7 => q.prefetch.encode(),
            12 => self.maps.get(queue)?.encode(),
            // Credits, interrupt aggregation, PASIDs, timers: nothing that this device has.
            4 | 5 | 8..=11 => Words::default(),
            _ => return None,
        })
    }

    fn set_context(&mut self, select: u32, queue: usize, words: &Words) -> Option<Renewed> {
        if select == 12 {
            *self.maps.get_mut(queue)? = FunctionMap::decode(words);
            return None;
        }
        let q = self.queues.get_mut(queue)?;
        match select {
            0 => {
                q.c2h = Software::decode(words);
                return Some(Renewed::CardToHost(queue));
            }
            1 => {
                q.h2c = Software::decode(words);
                q.h2c_event = false;
                q.write_back_in = None;
                return Some(Renewed::HostToCard(queue));
            }
            2 => q.c2h_hardware = Hardware::decode(words),
            3 => q.h2c_hardware = Hardware::decode(words),
            6 => {
                q.completion = Completion::decode(words);
                q.status_due = false;
                q.timer = None;
                return Some(Renewed::Completion(queue));
            }
            7 => q.prefetch = Prefetch::decode(words),
            _ => {}
        }
        None
    }

    /// The interrupt of a queue, unless a fault swallows it.
    fn send_interrupt(&mut self, host: &mut dyn crate::memory::Host, function: u8, vector: u16) {
        if self.lost_interrupt.strikes(self.faults.lost_interrupt) {
            self.interrupts_lost += 1;
            return;
        }
        host.interrupt(function.into(), vector);
    }
}

/// The context with the bit cleared that says it is in use.
fn invalidated(select: u32, mut words: Words) -> Words {
    match select {
        0 | 1 => words[1] &= !bit(0).mask(),
        6 => words[3] &= !bit(28).mask(),
        7 => words[1] &= !bit(13).mask(),
        _ => words = Words::default(),
    }
    words
}
