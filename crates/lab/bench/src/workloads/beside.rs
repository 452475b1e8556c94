//! What else the machine does while a workload is measured, and what the workload's programs may use of it.

use std::fmt;
use std::time::Duration;

use sluice_lab::cgroup::Cgroup;

use crate::cgroup;
use crate::error::Result;
use crate::figures::counted;
use crate::process::Process;
use crate::session::Session;

/// How long a loop may take to begin, beside all others.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Half of a processor's time, in periods of the length that the kernel has of itself.
const HALF_US: (u32, u32) = (50_000, 100_000);

/// A kind of busy machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// So many endless loops at a nice level, wherever the scheduler puts them.
    Loops { count: u32, nice: u8 },
    /// No loops, but server and client together have half of a processor's time.
    HalfProcessor,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loops { count, nice } => write!(f, "{}, nice {nice}", counted(*count, "loop")),
            Self::HalfProcessor => f.write_str("half a processor"),
        }
    }
}

/// One of them as it is now. Dropping it ends what was started.
#[derive(Debug, Default)]
pub struct Beside {
    loops: Vec<Process>,
    group: Option<Cgroup>,
}

impl Beside {
    /// A machine that does nothing else, and lets programs have it.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Makes the machine busy.
    pub fn start(session: &Session, busy: Busy) -> Result<Self> {
        let mut beside = Self::default();
        match busy {
            Busy::Loops { count, nice } => {
                for _ in 0..count {
                    beside.loops.push(session.endless_loop(nice)?);
                }
                for each in &mut beside.loops {
                    each.wait_output("running", START_PATIENCE)?;
                }
            }
            Busy::HalfProcessor => {
                beside.group = Some(Cgroup::with_processor_time("busy", HALF_US)?);
            }
        }
        Ok(beside)
    }

    /// A command line for the program to run where it belongs.
    pub fn placed(&self, words: Vec<String>) -> Vec<String> {
        match &self.group {
            Some(group) => cgroup::within(group, &words),
            None => words,
        }
    }

    /// The servers of a measurement, and whatever else uses processors and is nobody's disturbance.
    pub fn with<'a>(&'a self, servers: &[&'a Process]) -> Vec<&'a Process> {
        servers.iter().copied().chain(&self.loops).collect()
    }
}
