//! Real verbs programs, unmodified, under `sluice verbs`; and the symbols that let them start.

mod apps;
mod devices;
mod faults;
mod mpi;
mod others;
mod perftest;
mod pingpong;
mod rdmacm;
mod stage;
mod status;
mod symbols;
mod table;
mod trace;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(symbols::trials());
    trials.extend(table::trials());
    trials.extend(devices::trials());
    trials.extend(apps::trials());
    trials.extend(pingpong::trials());
    trials.extend(perftest::trials());
    trials.extend(rdmacm::trials());
    trials.extend(others::trials());
    trials.extend(mpi::trials());
    trials.extend(trace::trials());
    trials.extend(faults::trials());
    trials.extend(status::trials());
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
