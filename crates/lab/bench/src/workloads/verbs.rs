//! Verbs programs under `sluice verbs`, beside UCX, libfabric and a plain copy.

mod bandwidth;
pub mod idle;
pub mod latency;
pub mod messages;
pub mod programs;
pub mod queue_pairs;

use super::{Cell, Options, Workload};

pub use bandwidth::GROUPS as BANDWIDTHS;

/// Every workload of verbs.
pub const ALL: [Workload; 5] = [
    latency::WORKLOAD,
    bandwidth::WORKLOAD,
    messages::WORKLOAD,
    queue_pairs::WORKLOAD,
    idle::WORKLOAD,
];
