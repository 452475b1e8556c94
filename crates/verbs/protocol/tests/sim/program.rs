//! What the ends ask of each other.

use std::rc::Rc;

use sluice_protocol::{Operation, Remote, Request};
use sluice_wire::Mtu;
use sluice_wire::extended::ImmDt;

use super::random::Random;

/// Memory that the peer writes, reads, and counts in.
pub const WRITTEN: Remote = Remote {
    address: 0x7f00_0000_1000,
    rkey: 0x1111_0001,
};
pub const WRITTEN_BYTES: usize = 1 << 17;
pub const READ: Remote = Remote {
    address: 0x10_0003,
    rkey: 0x2222_0002,
};
pub const READ_BYTES: usize = 1 << 16;
pub const COUNTED: Remote = Remote {
    address: 0x4000,
    rkey: 0x3333_0003,
};
pub const COUNTERS: usize = 4;

/// One request, with its bytes.
#[derive(Clone, Debug)]
pub struct Op {
    pub request: Request,
    /// What is sent or written.
    pub data: Rc<[u8]>,
    /// Posted when all before it is complete, and all behind it when it is: it reads what was
    /// written.
    pub alone: bool,
}

fn within(remote: Remote, offset: usize) -> Remote {
    Remote {
        address: remote.address + offset as u64,
        ..remote
    }
}

/// A length that is often at an edge.
fn length(random: &mut Random, mtu: usize, packets_max: u64) -> usize {
    let whole = random.below(packets_max + 1) as usize * mtu;
    match random.below(6) {
        0 => 0,
        1 => whole + 1,
        2 => whole.saturating_sub(1),
        3 => whole,
        _ => random.below(packets_max * mtu as u64) as usize,
    }
}

/// Requests of all kinds in random order.
pub fn random(random: &mut Random, mtu: Mtu, count: u64, packets_max: u64) -> Vec<Op> {
    (0..count)
        .map(|seq| random_op(random, seq, mtu, packets_max))
        .collect()
}

fn random_op(random: &mut Random, seq: u64, mtu: Mtu, packets_max: u64) -> Op {
    let mut len = length(random, mtu.bytes(), packets_max);
    let immediate = ImmDt([seq as u8, 1, 2, 3]);
    let write = |random: &mut Random, len| {
        within(
            WRITTEN,
            random.below((WRITTEN_BYTES - len) as u64 + 1) as usize,
        )
    };
    let counter = within(COUNTED, random.below(COUNTERS as u64) as usize * 8);
    let mut alone = false;
    let operation = match random.below(13) {
        0 => Operation::SendImmediate(immediate),
        1 => Operation::SendInvalidate(random.next() as u32),
        2 | 3 => Operation::Send,
        4..=6 => Operation::Write(write(random, len)),
        7 => Operation::WriteImmediate(write(random, len), immediate),
        8 | 9 => {
            len = len.min(READ_BYTES);
            let offset = random.below((READ_BYTES - len) as u64 + 1) as usize;
            Operation::Read(within(READ, offset))
        }
        10 => {
            alone = random.below(4) == 0;
            let remote = if alone { write(random, len) } else { READ };
            Operation::Read(remote)
        }
        11 => {
            len = 8;
            Operation::FetchAdd {
                remote: counter,
                add: 1 + random.below(5),
            }
        }
        _ => {
            len = 8;
            Operation::CompareSwap {
                remote: counter,
                compare: random.below(20),
                swap: random.below(20),
            }
        }
    };
    let sends = !operation.has_response_data();
    Op {
        request: Request {
            seq,
            operation,
            length: len as u32,
            solicited: random.below(2) == 0,
            srq: None,
        },
        data: random.bytes(if sends { len } else { 0 }).into(),
        alone,
    }
}

/// The same WRITE again and again.
pub fn writes(count: u64, len: usize) -> Vec<Op> {
    let data: Rc<[u8]> = Random::new(1).bytes(len).into();
    (0..count)
        .map(|seq| Op {
            request: Request {
                seq,
                operation: Operation::Write(WRITTEN),
                length: len as u32,
                solicited: false,
                srq: None,
            },
            data: data.clone(),
            alone: false,
        })
        .collect()
}

/// The same SEND again and again.
pub fn sends(count: u64, len: usize) -> Vec<Op> {
    let mut ops = writes(count, len);
    for op in &mut ops {
        op.request.operation = Operation::Send;
    }
    ops
}

/// The same READ again and again.
pub fn reads(count: u64, len: usize) -> Vec<Op> {
    let mut ops = writes(count, len);
    for op in &mut ops {
        op.request.operation = Operation::Read(READ);
        op.data = Rc::default();
    }
    ops
}
