//! Socket programs on two hosts with a `sluiced` each, beside kernel TCP between the same hosts.

mod capture;
pub mod idle;
pub mod iperf;
pub mod latency;
mod proxies;
pub mod redis;
pub mod stall;

use super::{Cell, Options, Workload};
use crate::model::Variant;

/// Every workload of sockets between two hosts.
pub const ALL: [Workload; 5] = [
    latency::WORKLOAD,
    redis::WORKLOAD,
    iperf::WORKLOAD,
    idle::WORKLOAD,
    stall::WORKLOAD,
];

/// What is compared: with `--quick` without what has no floor.
fn variants(options: &Options, more: &[Variant]) -> Vec<Variant> {
    let mut variants = vec![Variant::Tcp];
    variants.extend_from_slice(more);
    variants.push(Variant::Sluice);
    if !options.brief {
        variants.push(Variant::SluiceRings);
    }
    variants
}
