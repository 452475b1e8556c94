//! Verbs between two hosts by RDMA over TCP: unmodified programs that find each other by librdmacm,
//! bad paths, peers that vanish, and what such a device says that it cannot do.

mod programs;
mod traces;
mod troubles;

use std::process::ExitCode;

use sluice_tests::suite;
use sluice_tests::verbs::link::Way;

/// What the names of the usual rows begin with; `SLUICE_ROWS=all` has all of them.
const USUAL: &[&str] = &[
    "rping/",
    "ucmatose/plain/",
    "ucmatose/ten/",
    "cmtime/plain/",
    "rdma_client/plain/",
    "rdma_xclient/plain/",
    "rstream/plain/",
    "riostream/verify/",
    "rcopy/",
    "ib_send_lat/cm/",
    "ib_send_bw/",
    "ib_write_lat/cm/",
    "ib_write_bw/cm-both-ways/",
    "ib_read_bw/cm/",
    "ib_atomic_bw/cm/",
    "qperf/",
    "refused/",
    "engines/",
    "crc/",
    "paths/",
    "cut/",
    "killed/",
    "stranger/",
    "lane/",
    "trace/",
];

/// A way of the device; MTUs come by turns.
fn way(family: u8, number: usize) -> Way {
    Way {
        device: "iwarp",
        family,
        mtu: if number.is_multiple_of(2) { 1500 } else { 9000 },
    }
}

fn main() -> ExitCode {
    let mut trials = programs::trials();
    trials.extend(troubles::trials());
    trials.extend(traces::trials());
    let is_usual = |name: &str| USUAL.iter().any(|usual| name.starts_with(usual));
    let trials = suite::usual(trials, is_usual);
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
