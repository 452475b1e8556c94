//! Programs that cannot be preloaded, on two hosts, each with a `sluiced` that captures their
//! connections: what they see, and what becomes of connections when something ends.

mod hosts;
mod identity;
mod looks;
mod processes;
mod sleepers;
mod troubles;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(identity::trials());
    trials.extend(looks::trials());
    trials.extend(processes::trials());
    trials.extend(sleepers::trials());
    trials.extend(troubles::trials());
    // One at a time: programs and daemons poll.
    suite::run(trials, 1).exit_code()
}
