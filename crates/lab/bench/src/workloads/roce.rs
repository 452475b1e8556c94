//! Verbs programs on two hosts, beside kernel TCP between the same hosts and bare AF_XDP.

pub mod bandwidth;
pub mod latency;
pub mod loss;
pub mod messages;
pub mod programs;

use super::{Cell, Options, Workload};

/// Every workload between two hosts.
pub const ALL: [Workload; 4] = [
    latency::WORKLOAD,
    bandwidth::WORKLOAD,
    messages::WORKLOAD,
    loss::WORKLOAD,
];
