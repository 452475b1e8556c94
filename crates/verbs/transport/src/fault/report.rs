//! What is said of faults on standard error.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::sync::OnceLock;

use super::{Fate, counts, from_environment};

/// A program whose standard error is closed must not fail for that.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "sluice: fault: {text}");
}

/// Has the end of the process say what happened to its packets, so that nobody takes a program
/// with faults for one without. Called by whoever makes a device that has them.
pub fn at_exit() {
    OWNER.get_or_init(|| {
        // SAFETY: the handler takes nothing and uses statics only.
        unsafe { libc::atexit(sum_up) };
        std::process::id()
    });
}

/// The process whose packets are counted: a forked child has its parent's counts, and ends too.
static OWNER: OnceLock<u32> = OnceLock::new();

extern "C" fn sum_up() {
    let Ok(Some(faults)) = from_environment() else {
        return;
    };
    if OWNER.get() != Some(&std::process::id()) {
        return;
    }
    let counts = counts();
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    // Programs that a shell starts on the way have none, and should not be heard of.
    if all == 0 {
        return;
    }
    let of = |wanted: Fate| {
        let found = counts.iter().find(|(fate, _)| *fate == wanted);
        found.map_or(0, |(_, count)| *count)
    };
    say(&format!(
        "of {all} packets {} were lost, {} doubled, {} late, {} damaged (seed {})",
        of(Fate::Drop),
        of(Fate::Duplicate),
        of(Fate::Late),
        of(Fate::Corrupt),
        faults.seed().unwrap_or_default(),
    ));
}
