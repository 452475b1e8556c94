//! What a device is doing, for whoever asks while the program is at work. It costs the data path
//! nothing: the counts are those that queue pairs keep anyway, and are added up when asked for.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};

use sluice_verbs_model::types::QpState;

use crate::locks::lock;

pub use sluice_verbs_model::report::{DeviceReport, QpCounters, TransportReport, state_name};

/// A queue pair, as far as it is counted.
pub(crate) trait Counted: Send + Sync {
    fn num(&self) -> u32;
    fn state(&self) -> QpState;
    /// All but the receives posted, which are counted where the program holds a lock.
    fn counters(&self) -> QpCounters;
}

/// The queue pairs of a device.
#[derive(Default)]
pub(crate) struct Census {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    living: HashMap<u32, Weak<dyn Counted>>,
    /// What the others have done.
    gone: QpCounters,
}

impl Census {
    pub fn add(&self, num: u32, qp: Weak<dyn Counted>) {
        let mut state = lock(&self.state);
        state.living.insert(num, qp);
    }

    /// It is being destroyed. Waits for who is looking at it, which is not long.
    pub fn remove(&self, qp: &dyn Counted) {
        let counters = qp.counters();
        let mut state = lock(&self.state);
        if state.living.remove(&qp.num()).is_some() {
            state.gone += &counters;
        }
    }

    /// Adds everything up. The lock is held all the time, so that no queue pair ends in the hands
    /// of the calling thread.
    pub fn look(&self, report: &mut DeviceReport) {
        let state = lock(&self.state);
        report.counters = state.gone;
        for qp in state.living.values().filter_map(Weak::upgrade) {
            if let Some(count) = report.states.get_mut(qp.state() as usize) {
                *count += 1;
            }
            report.counters += &qp.counters();
        }
    }
}
