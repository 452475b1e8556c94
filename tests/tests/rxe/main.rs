//! Sluice and the Linux kernel's own software RDMA (rxe), which runs in an emulated machine: each
//! is the other's server and client.
//!
//! A run has our own program, which checks every byte, both ways over both devices;
//! `SLUICE_ROWS=all` has those of Debian too (docs/roce.md). Programs that meet through librdmacm have
//! no rows yet.

mod rdmacm;
mod stranger;

use std::process::ExitCode;

use sluice_tests::guest;
use sluice_tests::suite;

fn main() -> ExitCode {
    // One at a time: the emulated machine can use every core.
    let mut trials = stranger::trials();
    trials.extend(rdmacm::trials());
    let trials = suite::usual(trials, |name| name.starts_with("Traffic/"));
    let conclusion = suite::run(trials, 1);
    guest::stranger::dismiss();
    conclusion.exit_code()
}
