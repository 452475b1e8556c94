//! Sluice and the Linux kernel's own software RDMA (rxe), which runs in an emulated machine: each
//! is the other's server and client.
//!
//! A run has the rows that begin as [`USUAL`] says; `SLUICE_ROWS=all` has all of them
//! (docs/roce.md).

mod paths;
mod rdmacm;
mod stranger;

use std::process::ExitCode;

use sluice_tests::guest;
use sluice_tests::suite;

/// Our own program, which checks every byte, and each way to find each other, both ways over both
/// devices.
const USUAL: &[&str] = &[
    "Traffic/rc/kernel-to-sluice/roce/ipv4/mtu-1500",
    "Traffic/rc/kernel-to-sluice/roce-udp/ipv4/mtu-1500",
    "Traffic/rc/sluice-to-kernel/roce/ipv4/mtu-1500",
    "Traffic/rc/sluice-to-kernel/roce-udp/ipv4/mtu-1500",
    "rping/plain/",
    "ucmatose/plain/",
    "ib_send_bw/cm/",
    "paths/loss-1%/traffic/sluice-to-kernel/",
];

fn main() -> ExitCode {
    // One at a time: the emulated machine can use every core.
    let mut trials = stranger::trials();
    trials.extend(rdmacm::trials());
    // Last: they have a guest of their own.
    trials.extend(paths::trials());
    let trials = suite::usual(trials, |name| {
        USUAL.iter().any(|usual| name.starts_with(usual))
    });
    let conclusion = suite::run(trials, 1);
    guest::stranger::dismiss();
    conclusion.exit_code()
}
