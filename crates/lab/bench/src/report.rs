//! What one `sluice bench` found, as the JSON file has it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::machine::Machine;
use super::model::WorkloadReport;
use super::suites::Suite;
use super::verdict::Verdict;

/// Everything that one `sluice bench` found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Grows when a field changes its meaning or goes away.
    pub format: u32,
    pub suite: &'static Suite,
    pub sluice_version: String,
    /// UTC, ISO 8601.
    pub date: String,
    pub command: String,
    pub repetitions: usize,
    pub seconds_per_run: u32,
    pub machine: Machine,
    /// The first line that each program says about its version.
    pub versions: BTreeMap<&'static str, String>,
    pub workloads: Vec<WorkloadReport>,
    /// Each floor that Sluice promises, and whether this run reached it.
    pub verdicts: Vec<Verdict>,
}
