//! Programs on two hosts that are served to clients by a third one, `sluice gateway`.

mod flow;
mod lab;
mod outward;
mod programs;
mod rules;
mod scale;
mod troubles;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(programs::trials());
    trials.extend(flow::trials());
    trials.extend(outward::trials());
    trials.extend(rules::trials());
    trials.extend(scale::trials());
    trials.extend(troubles::trials());
    // One at a time: programs and daemons poll.
    suite::run(trials, 1).exit_code()
}
