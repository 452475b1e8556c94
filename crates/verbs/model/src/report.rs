//! What is said of devices, transports and queue pairs to whoever asks.

use crate::types::QpState;

/// What a transport says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportReport {
    /// `shm`, `roce`, `iwarp`, `window`.
    pub kind: &'static str,
    /// What carries packets, in the words of users: `UDP`, `AF_XDP eth0`. None within a host.
    pub ways: Vec<String>,
    /// The processes that memory is shared with, as this one numbers them.
    pub peers: Vec<u32>,
    /// Packets arrive by this host's addresses.
    pub has_addresses: bool,
    /// As the transport's counters, from the beginning on.
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

/// What a QP has done, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    pub sends_posted: u64,
    /// Of successful requests.
    pub send_bytes: u64,
    pub sends_failed: u64,
    pub receives_posted: u64,
    pub receives_done: u64,
    pub receive_bytes: u64,
    /// A message found no receive.
    pub rnr: u64,
    /// Requests of the peer that were refused.
    pub refused: u64,
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
