//! Verbs between two hosts, by RoCEv2 over UDP and over AF_XDP: unmodified programs, bad paths,
//! peers that vanish, and strangers that send what they like.
//!
//! A run has the rows that `USUAL` names; `SLUICE_ROWS=all` has all of them, which takes long, and not
//! all are known to pass (docs/roce.md). Programs that meet through librdmacm have no rows yet.

mod devices;
mod hostile;
mod kill;
mod link;
mod paths;
mod programs;
mod rdmacm;
mod vanish;

use std::process::ExitCode;

use sluice_tests::suite;

/// What the names of the usual rows begin with.
const USUAL: &[&str] = &[
    "traffic/",
    "datagrams/",
    "ibv_rc_pingpong/plain/",
    "ibv_ud_pingpong/plain/",
    "ib_send_lat/rc/",
    "ib_send_bw/rc/",
    "ib_write_bw/rc/",
    "ib_read_bw/rc/",
    "ib_atomic_bw/rc/",
    "paths/loss-1%/",
    "paths/corruption/",
    "vanish/",
];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(devices::trials());
    trials.extend(programs::trials());
    trials.extend(rdmacm::trials());
    trials.extend(paths::trials());
    trials.extend(vanish::trials());
    trials.extend(kill::trials());
    trials.extend(hostile::trials());
    let trials = suite::usual(trials, |name| {
        USUAL.iter().any(|usual| name.starts_with(usual))
    });
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
