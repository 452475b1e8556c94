//! The driver of `kernel/opennic` in a guest, on the card of `opennic-model`.

mod driver;

use std::process::ExitCode;

use sluice_tests::suite;

fn main() -> ExitCode {
    // One at a time: an emulated machine can use every core.
    suite::run(driver::trials(), 1).exit_code()
}
