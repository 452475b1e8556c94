//! Verbs between two hosts, by RoCEv2 over UDP and over AF_XDP: unmodified programs, bad paths,
//! peers that vanish, and strangers that send what they like.
//!
//! A run has the rows that [`is_usual`] chooses: each kind of program with both devices and both
//! versions of IP. `SLUICE_ROWS=all` has all of them, which takes most of an hour (docs/roce.md).

mod attacks;
mod devices;
mod engines;
mod hostile;
mod kill;
mod paths;
mod programs;
mod rdmacm;
mod steering;
mod vanish;

use std::process::ExitCode;

use sluice_tests::suite;

/// What the names of the usual rows begin with.
const USUAL: &[&str] = &[
    "ibv_devinfo/",
    "ibv_asyncwatch/",
    "packets-pass-the-kernel-by/RC/",
    "refused/",
    "traffic/",
    "events-of-bulk/",
    "datagrams/",
    "ibv_rc_pingpong/plain/",
    "ibv_ud_pingpong/plain/",
    "ibv_srq_pingpong/plain/",
    "ib_send_lat/events/",
    "ib_send_bw/rc/",
    "ib_write_bw/rc/",
    "ib_read_bw/rc/",
    "ib_atomic_bw/rc/",
    "rping/plain/",
    "ucmatose/plain/",
    "udaddy/plain/",
    "mckey/plain/",
    "rdma_client/plain/",
    "rstream/plain/",
    "udpong/echo/",
    "rcopy/plain/",
    "ib_send_bw/cm/",
    "qperf/",
    "fi_pingpong/",
    "paths/loss-1%/",
    "paths/corruption/",
    "steering/",
    "vanish/",
    "engines/",
    "kill/send-both-ways/",
    "kill/write-cm/",
];

/// Of rows that there are for every version of IP and MTU, each version of IP with one MTU.
const UNUSUAL: &[&str] = &[
    "/roce/ipv4/mtu-9000",
    "/roce/ipv6/mtu-1500",
    "/roce-udp/ipv4/mtu-1500",
    "/roce-udp/ipv6/mtu-9000",
];

fn is_usual(name: &str) -> bool {
    USUAL.iter().any(|usual| name.starts_with(usual))
        // Each bad path is there once for a device.
        && (name.starts_with("paths/") || !UNUSUAL.iter().any(|way| name.ends_with(way)))
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    trials.extend(devices::trials());
    trials.extend(programs::trials());
    trials.extend(rdmacm::trials());
    trials.extend(paths::trials());
    trials.extend(steering::trials());
    trials.extend(vanish::trials());
    trials.extend(kill::trials());
    trials.extend(hostile::trials());
    trials.extend(engines::trials());
    let trials = suite::usual(trials, is_usual);
    // One at a time: each pair polls and can use every core.
    suite::run(trials, 1).exit_code()
}
