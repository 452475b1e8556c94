//! Verbs between two hosts, by RoCEv2 over UDP and over AF_XDP: unmodified programs, bad paths,
//! peers that vanish, and strangers that send what they like.
//!
//! Programs that meet through librdmacm are not here: the connection manager does not speak over
//! the wire yet.

mod hostile;
mod link;
mod paths;
mod programs;
mod vanish;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(programs::trials());
    trials.extend(paths::trials());
    trials.extend(vanish::trials());
    trials.extend(hostile::trials());
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
