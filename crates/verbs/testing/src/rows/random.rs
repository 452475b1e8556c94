//! Random programs, and an oracle that knows what they leave behind.
//!
//! Both programs make the same steps from the same seed. The first carries them out; each compares its
//! memory with what the oracle says, byte for byte, after each batch.

use sluice_verbs::{QpType, SendWr, WrOpcode, send_flags};

use crate::row::{Need, Row};
use crate::side::Side;

pub const fn random_programs_end_as_the_oracle_says() -> Row {
    Row::new(&[], carry_out, be_target)
}

const SEEDS: u64 = 6;
const BATCHES: usize = 25;
const STEPS_MAX: u64 = 16;
/// What requests take their bytes from, and what they are aimed at.
const FIELD: usize = 32 << 10;
/// A place for what each step of a batch brings back, or sends.
const SLOT: usize = 8 << 10;
const LEN: usize = FIELD + STEPS_MAX as usize * SLOT;

/// xorshift64: the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    opcode: WrOpcode,
    /// In the own field; READs and atomics bring their bytes to the step's slot.
    local: usize,
    /// In the peer's field; SENDs go to the step's slot.
    remote: usize,
    len: usize,
    operands: [u64; 2],
}

/// Both memories as they must be.
struct Oracle {
    own: Vec<u8>,
    peer: Vec<u8>,
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

impl Oracle {
    fn new(numbers: &mut Numbers) -> Oracle {
        let mut fill = |len| (0..len).map(|_| numbers.below(256) as u8).collect();
        Oracle {
            own: fill(LEN),
            peer: fill(LEN),
        }
    }

    fn carry_out(&mut self, number: usize, step: &Step) {
        let slot = FIELD + number * SLOT;
        let Step {
            local, remote, len, ..
        } = *step;
        match step.opcode {
            WrOpcode::RdmaWrite => {
                self.peer[remote..remote + len].copy_from_slice(&self.own[local..local + len])
            }
            WrOpcode::RdmaRead => {
                self.own[slot..slot + len].copy_from_slice(&self.peer[remote..remote + len]);
            }
            WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => {
                let old = word(&self.peer[remote..]);
                let new = match step.opcode {
                    WrOpcode::AtomicFetchAndAdd => old.wrapping_add(step.operands[0]),
                    _ if old == step.operands[0] => step.operands[1],
                    _ => old,
                };
                self.own[slot..slot + 8].copy_from_slice(&old.to_ne_bytes());
                self.peer[remote..remote + 8].copy_from_slice(&new.to_ne_bytes());
            }
            _ => self.peer[slot..slot + len].copy_from_slice(&self.own[local..local + len]),
        }
    }
}

fn steps(numbers: &mut Numbers, oracle: &Oracle, atomics: bool) -> Vec<Step> {
    let count = 1 + numbers.below(STEPS_MAX);
    let mut steps = Vec::new();
    for _ in 0..count {
        let kinds = if atomics { 5 } else { 3 };
        let opcode = match numbers.below(kinds) {
            0 => WrOpcode::Send,
            1 => WrOpcode::RdmaWrite,
            2 => WrOpcode::RdmaRead,
            3 => WrOpcode::AtomicFetchAndAdd,
            _ => WrOpcode::AtomicCmpAndSwp,
        };
        let longest = [8, 100, SLOT as u64][numbers.below(3) as usize];
        let mut step = Step {
            opcode,
            local: numbers.below((FIELD - SLOT) as u64) as usize,
            remote: numbers.below((FIELD - SLOT) as u64) as usize,
            len: numbers.below(longest + 1) as usize,
            operands: [numbers.below(1 << 40), numbers.below(1 << 40)],
        };
        if matches!(
            opcode,
            WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp
        ) {
            step.remote &= !7;
            step.len = 8;
            // Every other one finds what it looks for, if nothing in this batch has changed it.
            if numbers.below(2) == 0 {
                step.operands[0] = word(&oracle.peer[step.remote..]);
            }
        }
        steps.push(step);
    }
    steps
}

fn carry_out(side: &mut Side) {
    let atomics = Need::Atomics.is_met(&side.caps());
    for seed in 1..=SEEDS {
        let end = side.connected(QpType::Rc, LEN);
        let mut numbers = Numbers(seed);
        let mut oracle = Oracle::new(&mut numbers);
        end.memory.put(0, &oracle.own);
        for batch in 0..BATCHES {
            let steps = steps(&mut numbers, &oracle, atomics);
            side.meet();
            let mut reads = false;
            for (number, step) in steps.iter().enumerate() {
                let brings = !matches!(step.opcode, WrOpcode::Send | WrOpcode::RdmaWrite);
                let at = if brings {
                    FIELD + number * SLOT
                } else {
                    step.local
                };
                let (front, back) = (step.len / 3, step.len - step.len / 3);
                let one = [end.sge(at, step.len)];
                let two = [end.sge(at, front), end.sge(at + front, back)];
                let pieces = if step.operands[1] & 1 == 0 {
                    &one[..]
                } else {
                    &two[..]
                };
                let wr = SendWr {
                    compare_add: step.operands[0],
                    swap: step.operands[1],
                    // Behind a READ, order is the program's to ask for (IBTA table 79).
                    flags: send_flags::SIGNALED | if reads { send_flags::FENCE } else { 0 },
                    ..end.request(step.opcode, number as u64, pieces, step.remote)
                };
                end.post(&wr);
                reads |= brings;
                oracle.carry_out(number, step);
            }
            for number in 0..steps.len() {
                assert_eq!(
                    end.good().wr_id,
                    number as u64,
                    "seed {seed}, batch {batch}"
                );
            }
            let found = end.memory.bytes(0, LEN);
            assert!(found == oracle.own, "seed {seed}, batch {batch}: {steps:?}");
            end.arrive();
            side.meet();
        }
    }
}

fn be_target(side: &mut Side) {
    let atomics = Need::Atomics.is_met(&side.caps());
    for seed in 1..=SEEDS {
        let mut numbers = Numbers(seed);
        let mut oracle = Oracle::new(&mut numbers);
        let end = side.end(QpType::Rc, LEN, None);
        end.memory.put(0, &oracle.peer);
        let end = side.connect(end);
        for batch in 0..BATCHES {
            let steps = steps(&mut numbers, &oracle, atomics);
            let sent = steps.iter().enumerate();
            let sent: Vec<_> = sent
                .filter(|(_, step)| step.opcode == WrOpcode::Send)
                .collect();
            for (number, _) in &sent {
                end.post_recv(*number as u64, FIELD + number * SLOT, SLOT);
            }
            side.meet();
            for (number, step) in &sent {
                let wc = end.good();
                assert_eq!((wc.wr_id, wc.byte_len), (*number as u64, step.len as u32));
            }
            side.meet();
            for (number, step) in steps.iter().enumerate() {
                oracle.carry_out(number, step);
            }
            let found = end.memory.bytes(0, LEN);
            assert!(
                found == oracle.peer,
                "seed {seed}, batch {batch}: {steps:?}"
            );
        }
    }
}
