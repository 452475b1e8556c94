//! Real programs, unmodified, under `sluice run`: correct results, and lanes in use.

mod managed;
mod pgbouncer;
mod redis;
mod ssh;
mod statics;
mod streams;
mod tools;
mod waits;
mod web;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(redis::trials());
    trials.extend(web::trials());
    trials.extend(streams::trials());
    trials.extend(ssh::trials());
    trials.extend(managed::trials());
    trials.extend(statics::trials());
    trials.extend(waits::trials());
    trials.extend(pgbouncer::trials());
    // One at a time: each of them can use every core.
    suite::run(trials, 1).exit_code()
}
