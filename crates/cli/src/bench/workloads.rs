//! The workloads, in the order in which they run.

mod connect;
pub mod fabric;
pub mod idle;
mod iperf;
mod nginx;
mod one_end;
pub mod redis;
pub mod roce;
pub mod rxe;
mod sockperf;
pub mod stall;
pub mod verbs;

use super::error::Result;
use super::model::{PointSpec, Sample, Variant, WorkloadReport};
use super::network::{self, twins};
use super::session::Session;
use super::verdict::{self, Verdict};

/// What the command line asks of workloads.
#[derive(Debug, Clone)]
pub struct Options {
    pub variants: Vec<Variant>,
    /// Leaves out what is not compared.
    pub brief: bool,
    pub repetitions: usize,
    pub seconds: u32,
    pub redis_clients: Vec<u32>,
    pub redis_tests: Vec<String>,
    /// How many connections the idle workload opens, and for how long it watches them.
    pub idle_connections: u32,
    pub idle_seconds: u32,
    /// For how long the reader of the stall workload sleeps.
    pub stall_seconds: u32,
    /// How many disturbed repetitions of a cell are measured again.
    pub repeats_max: usize,
}

/// Some points that one start of the servers measures together.
///
/// The runner goes through the variants in turn, as often as there are repetitions, so that a
/// machine that grows slower or faster meanwhile does so for all of them.
pub struct Cell {
    /// What the progress line says: `redis, 10 clients`.
    pub title: String,
    pub variants: Vec<Variant>,
    pub repetitions: usize,
    pub points: Vec<PointSpec>,
    pub run: CellRun,
}

/// Starts servers, warms them up, measures: one sample for each point, in their order.
pub type CellRun = Box<dyn Fn(&Session, Variant) -> Result<Vec<Sample>>>;

/// A kind of measurement that can be asked for by name.
pub struct Workload {
    pub name: &'static str,
    pub title: &'static str,
    pub about: &'static str,
    /// Programs that must be installed.
    pub programs: &'static [&'static str],
    /// Programs without which only a comparison is missing.
    pub compared_with: &'static [&'static str],
    /// Why it cannot be run on this machine or by this build, apart from missing programs.
    pub obstacle: Option<fn() -> Option<String>>,
    pub cells: fn(&Options) -> Vec<Cell>,
}

/// Workloads that are run, judged and reported together.
pub struct Suite {
    /// What the JSON file says.
    pub name: &'static str,
    pub title: &'static str,
    /// What the page says of CPU costs, if there are any: a sentence and a space.
    pub about_costs: &'static str,
    /// What the floors are, behind "The floors, ".
    pub floors: &'static str,
    /// The folder of the report, unless another is named.
    pub folder: &'static str,
    pub workloads: &'static [Workload],
    /// Why none of them can be run here.
    pub obstacle: Option<fn() -> Option<String>>,
    pub verdicts: fn(&[WorkloadReport]) -> Vec<Verdict>,
}

/// What a plain `sluice bench` runs.
pub static SOCKETS: Suite = Suite {
    name: "sockets",
    title: "sluice bench",
    about_costs: "CPU costs are user and system time of server, client and sluiced together. ",
    floors: "as ratios to kernel TCP in this run unless a unit is given",
    folder: "sluice-bench",
    workloads: &ALL,
    obstacle: None,
    verdicts: verdict::verdicts,
};

/// What `sluice bench verbs` runs.
pub static VERBS: Suite = Suite {
    name: "verbs",
    title: "sluice bench verbs",
    about_costs: "",
    floors: "all of them within one host",
    folder: "sluice-bench-verbs",
    workloads: &verbs::ALL,
    obstacle: None,
    verdicts: verdict::verbs::within_host,
};

/// What `sluice bench roce` runs.
pub static ROCE: Suite = Suite {
    name: "roce",
    title: "sluice bench roce",
    about_costs: "CPU costs are user and system time of both programs and of the kernel's threads \
                  that carry frames. ",
    floors: "between two network namespaces joined by a veth pair",
    folder: "sluice-bench-roce",
    workloads: &roce::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::verbs::between_hosts,
};

/// What `sluice bench fabric` runs.
pub static FABRIC: Suite = Suite {
    name: "fabric",
    title: "sluice bench fabric",
    about_costs: "CPU costs are user and system time of both programs, both sluiced and the \
                  kernel's threads that carry frames. ",
    floors: "between two network namespaces joined by a veth pair, as ratios to kernel TCP there",
    folder: "sluice-bench-fabric",
    workloads: &fabric::ALL,
    obstacle: Some(network::obstacle),
    verdicts: verdict::fabric::across_hosts,
};

/// What `sluice bench rxe` runs.
pub static RXE: Suite = Suite {
    name: "rxe",
    title: "sluice bench rxe",
    about_costs: "",
    floors: "each better than the kernel's own RoCEv2 in this run",
    folder: "sluice-bench-rxe",
    workloads: &rxe::ALL,
    obstacle: Some(twins::obstacle),
    verdicts: verdict::verbs::against_kernel,
};

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl serde::Serialize for Suite {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// Every workload of sockets.
const ALL: [Workload; 8] = [
    redis::WORKLOAD,
    sockperf::WORKLOAD,
    iperf::WORKLOAD,
    nginx::WORKLOAD,
    connect::WORKLOAD,
    one_end::WORKLOAD,
    idle::WORKLOAD,
    stall::WORKLOAD,
];

/// `1 client`, `2 clients`.
pub fn counted(number: u32, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

impl Options {
    /// The variants that were asked for, among those that a workload has.
    fn variants_of(&self, possible: &[Variant]) -> Vec<Variant> {
        let mut variants = self.variants.clone();
        variants.retain(|variant| possible.contains(variant));
        variants
    }
}
