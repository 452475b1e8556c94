//! The workloads, in the order in which they run.

mod beside;
pub mod busy;
mod connect;
pub mod fabric;
pub mod idle;
mod iperf;
pub mod iwarp;
mod nginx;
mod one_end;
mod postgres;
pub mod redis;
pub mod roce;
pub mod rxe;
mod sockperf;
pub mod stall;
pub mod verbs;
pub mod windows;

use super::error::Result;
use super::model::{PointSpec, Sample, Variant};
use super::session::Session;

/// What the command line asks of workloads.
#[derive(Debug, Clone)]
pub struct Options {
    pub variants: Vec<Variant>,
    /// Leaves out what is not compared.
    pub brief: bool,
    /// Measures what takes long, too.
    pub full: bool,
    pub repetitions: usize,
    pub seconds: u32,
    pub redis_clients: Vec<u32>,
    pub redis_tests: Vec<String>,
    /// For the busy workload, if they were asked for.
    pub busy_connections: Vec<u32>,
    /// How many connections the idle workload opens, and for how long it watches them.
    pub idle_connections: u32,
    pub idle_seconds: u32,
    /// For how long the reader of the stall workload sleeps.
    pub stall_seconds: u32,
    /// How much later what is written to a window is seen where it is delayed, nanoseconds; 0: not
    /// measured.
    pub window_delay_ns: u32,
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

/// Every workload of sockets.
pub const ALL: [Workload; 9] = [
    redis::WORKLOAD,
    sockperf::WORKLOAD,
    iperf::WORKLOAD,
    nginx::WORKLOAD,
    connect::WORKLOAD,
    one_end::WORKLOAD,
    idle::WORKLOAD,
    stall::WORKLOAD,
    busy::WORKLOAD,
];

impl Options {
    /// The variants that were asked for, among those that a workload has.
    fn variants_of(&self, possible: &[Variant]) -> Vec<Variant> {
        let mut variants = self.variants.clone();
        variants.retain(|variant| possible.contains(variant));
        variants
    }
}
