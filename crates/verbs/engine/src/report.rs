//! What a device is doing, for whoever asks while the program is at work. It costs the data path
//! nothing: the counts are those that queue pairs keep anyway, and are added up when asked for.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Device, Qp};
pub use sluice_verbs_model::report::{DeviceReport, QpCounters, TransportReport, state_name};

/// The queue pairs of a device.
#[derive(Default)]
pub(crate) struct Census {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    living: HashMap<u32, Weak<Qp>>,
    /// What the others have done.
    gone: QpCounters,
}

impl Census {
    pub fn add(&self, qp: &Arc<Qp>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.living.insert(qp.num(), Arc::downgrade(qp));
    }

    /// It is being destroyed. Waits for who is looking at it, which is not long.
    pub fn remove(&self, qp: &Qp) {
        let counters = qp.counters_without_lock();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.living.remove(&qp.num()).is_some() {
            state.gone += &counters;
        }
    }

    /// Adds everything up. The lock is held all the time, so that no queue pair ends in the hands
    /// of the calling thread.
    fn look(&self, report: &mut DeviceReport) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        report.counters = state.gone;
        for qp in state.living.values().filter_map(Weak::upgrade) {
            if let Some(count) = report.states.get_mut(qp.state() as usize) {
                *count += 1;
            }
            report.counters += &qp.counters_without_lock();
        }
    }
}

impl Device {
    /// May be called by any thread without a lock of the engine's. It waits for none for long.
    pub fn report(&self) -> DeviceReport {
        let mut report = DeviceReport {
            contexts: self.contexts.load(Ordering::Relaxed),
            ..DeviceReport::default()
        };
        self.census.look(&mut report);
        report
    }
}
