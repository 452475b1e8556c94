//! Links of `sluice-rdma` between two processes: on one host, on two, and with the kernel's device in
//! a guest. This program is both ends as well (`side`): each runs one case of `cases`.

mod cases;
mod exchange;
mod side;
mod stage;

use std::process::ExitCode;

use sluice_tests::{guest, suite};

fn main() -> ExitCode {
    if let Some(words) = side::asked_for() {
        return side::run(&words);
    }
    // One at a time: each pair polls and can use every core.
    let conclusion = suite::run(stage::trials(), 1);
    guest::stranger::dismiss();
    conclusion.exit_code()
}
