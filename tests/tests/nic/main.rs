//! The driver of `kernel/opennic` in a guest, on the card of `opennic-model`.

mod driver;
mod leaks;
mod others;
mod queues;
mod sleep;
mod sluice;
mod strangers;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = driver::trials();
    trials.extend(leaks::trials());
    trials.extend(queues::trials());
    trials.extend(sleep::trials());
    trials.extend(strangers::trials());
    trials.extend(sluice::trials());
    trials.extend(others::trials());
    // One at a time: an emulated machine can use every core.
    suite::run(trials, 1).exit_code()
}
