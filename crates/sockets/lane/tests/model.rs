//! Random programs of operations on both ends of a connection with a lane. A queue says which
//! bytes must come; a plain TCP connection that does the same says how each stream must end.
#![allow(unsafe_code)]

mod common;
#[path = "model/machine.rs"]
mod machine;
#[path = "model/plain.rs"]
mod plain;

use common::process::bounded;
use machine::Machine;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::atomic::{AtomicU64, Ordering};

/// What one end does next. Ends are numbered 0 and 1.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// A write that does not block.
    Write { bytes: usize },
    /// A read that does not block; of nothing if nothing is due.
    Read { bytes: usize },
    /// A look at what is next.
    Peek { bytes: usize },
    /// A blocking write, while the other end reads.
    Push { bytes: usize, waitall: bool },
    /// A blocking read, begun before the other end writes.
    Pull { bytes: usize, waitall: bool },
    /// A thread begins to sleep in poll, as far as the lane knows.
    FallAsleep,
    /// All of them wake.
    WakeUp,
    /// Gets its lane.
    Attach,
    /// Asks whether it is ready, as poll does.
    Look,
    /// Something only the kernel can do: both directions stay on TCP.
    Pin,
    /// What this end sends stays on TCP.
    PinTx,
    /// `shutdown(SHUT_WR)`.
    Shutdown,
    /// Closes; with unread bytes, that resets.
    Close,
    /// Closes with a reset.
    Reset,
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 1..200usize,
        3 => 200..5_000usize,
        1 => 5_000..40_000usize,
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => sizes().prop_map(|bytes| Op::Write { bytes }),
        24 => sizes().prop_map(|bytes| Op::Read { bytes }),
        6 => sizes().prop_map(|bytes| Op::Peek { bytes }),
        3 => (sizes(), any::<bool>())
            .prop_map(|(bytes, waitall)| Op::Push { bytes: 3 * bytes, waitall }),
        3 => (sizes(), any::<bool>()).prop_map(|(bytes, waitall)| Op::Pull { bytes, waitall }),
        4 => Just(Op::FallAsleep),
        5 => Just(Op::WakeUp),
        4 => Just(Op::Attach),
        4 => Just(Op::Look),
    ]
}

/// Ops after which a connection is not what it was; a program has few of them.
fn last_ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Pin),
        3 => Just(Op::PinTx),
        3 => Just(Op::Shutdown),
        2 => Just(Op::Close),
        1 => Just(Op::Reset),
        4 => sizes().prop_map(|bytes| Op::Write { bytes }),
        4 => sizes().prop_map(|bytes| Op::Read { bytes }),
    ]
}

type Program = Vec<(usize, Op)>;

fn programs() -> impl Strategy<Value = (bool, Program, Program)> {
    (
        any::<bool>(),
        prop::collection::vec((0..2usize, ops()), 0..50),
        prop::collection::vec((0..2usize, last_ops()), 0..10),
    )
}

static RING_BYTES: AtomicU64 = AtomicU64::new(0);
static TCP_BYTES: AtomicU64 = AtomicU64::new(0);
static SWITCHES: AtomicU64 = AtomicU64::new(0);

fn run(is_attached: bool, first: &[(usize, Op)], last: &[(usize, Op)]) {
    let mut machine = Machine::new(is_attached);
    for (end, op) in first.iter().chain(last) {
        machine.step(*end, *op);
    }
    let counts = machine.finish();
    RING_BYTES.fetch_add(counts.ring, Ordering::Relaxed);
    TCP_BYTES.fetch_add(counts.tcp, Ordering::Relaxed);
    SWITCHES.fetch_add(counts.switches, Ordering::Relaxed);
}

#[test]
fn random_programs() {
    let config = Config {
        cases: 1500,
        max_shrink_iters: 50,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&programs(), |(is_attached, first, last)| {
            bounded("a program", move || run(is_attached, &first, &last));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let [ring, tcp, switches] =
        [&RING_BYTES, &TCP_BYTES, &SWITCHES].map(|count| count.load(Ordering::Relaxed));
    println!("{ring} bytes by ring, {tcp} by TCP, {switches} switches");
    assert!(ring > 5 << 20 && tcp > 5 << 20 && switches > 500);
}
