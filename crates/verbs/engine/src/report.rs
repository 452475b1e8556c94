//! What a device is doing, for whoever asks while the program is at work. It costs the data path
//! nothing: the counts are those that queue pairs keep anyway, and are added up when asked for.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::qp::QpCounters;
use crate::types::QpState;
use crate::{Device, Qp};

/// What a transport says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportReport {
    /// `shm` or `roce`.
    pub kind: &'static str,
    /// What carries packets, in the words of users: `UDP`, `AF_XDP eth0`. None within a host.
    pub ways: Vec<String>,
    /// The processes that memory is shared with, as this one numbers them.
    pub peers: Vec<u32>,
    /// Packets arrive by this host's addresses.
    pub has_addresses: bool,
    /// As [`crate::Transport::counters`].
    pub counters: Vec<(&'static str, u64)>,
    /// Some counts are missing, as threads were at work on what has them.
    pub is_partial: bool,
}

/// What a device is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// How often it is open.
    pub contexts: usize,
    /// Queue pairs by state, in the order of [`QpState`]'s numbers.
    pub states: [u32; 7],
    /// Of all queue pairs, those that are gone too; without receives posted.
    pub counters: QpCounters,
}

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

impl core::ops::AddAssign<&QpCounters> for QpCounters {
    fn add_assign(&mut self, other: &QpCounters) {
        let QpCounters {
            sends_posted,
            send_bytes,
            sends_failed,
            receives_posted,
            receives_done,
            receive_bytes,
            rnr,
            refused,
        } = other;
        self.sends_posted += sends_posted;
        self.send_bytes += send_bytes;
        self.sends_failed += sends_failed;
        self.receives_posted += receives_posted;
        self.receives_done += receives_done;
        self.receive_bytes += receive_bytes;
        self.rnr += rnr;
        self.refused += refused;
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

/// The name of a state, as the manual pages have it.
pub fn state_name(state: usize) -> &'static str {
    match QpState::try_from(u32::try_from(state).unwrap_or(u32::MAX)) {
        Ok(QpState::Reset) => "RESET",
        Ok(QpState::Init) => "INIT",
        Ok(QpState::Rtr) => "RTR",
        Ok(QpState::Rts) => "RTS",
        Ok(QpState::Sqd) => "SQD",
        Ok(QpState::Sqe) => "SQE",
        Ok(QpState::Err) => "ERR",
        Err(_) => "?",
    }
}
