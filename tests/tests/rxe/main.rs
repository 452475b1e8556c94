//! Sluice and the Linux kernel's own software RDMA (rxe), which runs in an emulated machine: each
//! is the other's server and client.
//!
//! Programs that meet through librdmacm are not here: the connection manager does not speak over
//! the wire yet.

mod stranger;

use std::process::ExitCode;

use sluice_tests::guest;
use sluice_tests::suite;

fn main() -> ExitCode {
    // One at a time: the emulated machine can use every core.
    let conclusion = suite::run(stranger::trials(), 1);
    guest::stranger::dismiss();
    conclusion.exit_code()
}
