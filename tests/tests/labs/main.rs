//! The laboratories that other tests trust: two hosts, the bad path between them, and the guest.

mod children;
mod faults;
mod guest;
mod hosts;
mod twins;

use std::process::ExitCode;

use sluice_tests::guest::stranger;
use sluice_tests::suite;

fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(children::ROLE) {
        return children::be(&role);
    }
    let mut trials = hosts::trials();
    trials.extend(faults::trials());
    trials.extend(guest::trials());
    trials.extend(twins::trials());
    trials.push(guest::last());
    trials.extend(children::trials());
    // One at a time: an emulated machine can use every core.
    let conclusion = suite::run(trials, 1);
    stranger::dismiss();
    conclusion.exit_code()
}
