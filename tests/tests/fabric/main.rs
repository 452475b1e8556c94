//! Sockets between two hosts, each with a `sluiced` of its own: unmodified programs, bytes by RDMA,
//! and daemons and links that end in the middle.

mod hosts;
mod programs;
mod troubles;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(programs::trials());
    trials.extend(troubles::trials());
    // One at a time: programs and daemons poll.
    suite::run(trials, 1).exit_code()
}
