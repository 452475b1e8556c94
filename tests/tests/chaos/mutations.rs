//! The checker is checked: what its programs do wrong themselves it must report, as what it is.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::lab::Mode;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::plan::{Faults, Mutation, Plan, Programs};
use crate::round;
use crate::stages::OneHost;

/// What is done, and how the report of it begins.
const ALL: [(Mutation, &str, &[&str]); 9] = [
    (Mutation::LoseByte, "byte-lost", &["BYTES"]),
    (Mutation::DoubleByte, "byte-doubled", &["BYTES"]),
    (Mutation::SwapBytes, "bytes-swapped", &["BYTES"]),
    (Mutation::FlipBit, "bit-flipped", &["BYTES"]),
    (Mutation::LoseTail, "tail-lost", &["EOF"]),
    // The sender may hear of it first.
    (Mutation::EarlyEnd, "early-end", &["EOF", "ERROR"]),
    (Mutation::HangReader, "hang", &["HANG"]),
    (Mutation::ResetOne, "reset", &["ERROR", "EOF"]),
    (Mutation::Crash, "crash", &["CRASH", "ERROR", "EOF"]),
];

/// It is to hang, so that patience is no matter.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn trials(programs: &Arc<Programs>) -> Vec<Trial> {
    let all = ALL.into_iter().map(|(mutation, name, kinds)| {
        let programs = Arc::clone(programs);
        trial(format!("mutation/{name}"), move || {
            check(&programs, mutation, kinds)
        })
    });
    all.collect()
}

fn check(programs: &Programs, mutation: Mutation, kinds: &[&str]) -> Verdict {
    // On plain TCP, which makes no fault of its own.
    let mut stage = OneHost::new(Mode::Plain, false)?;
    let program = programs.get(false)?;
    let plan = Plan {
        mutation,
        patience: PATIENCE,
        ..Plan::new(5, Faults::NONE, 1 << 16)
    };
    let report = round::run(&mut stage, program, &plan, 0)?;
    ensure(report.is_mutated, || {
        format!("nothing was hurt: {}", report.text())
    })?;
    let is_found = |kind: &&str| report.found.iter().any(|it| it.starts_with(kind));
    ensure(kinds.iter().any(is_found), || {
        format!("no {kinds:?} was reported: {}", report.text())
    })
}
