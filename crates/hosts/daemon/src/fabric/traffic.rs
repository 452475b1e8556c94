//! What has gone to one peer and come from it by lanes, counted by the carrier.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start of sluiced. The carrier's thread writes, others look.
#[derive(Debug, Default)]
pub struct Traffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Traffic {
    /// Payload that was handed to the device. What is sent again counts again.
    pub fn note_sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Payload that has arrived.
    pub fn note_received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes sent and received.
    pub fn bytes(&self) -> (u64, u64) {
        let sent = self.sent_bytes.load(Ordering::Relaxed);
        (sent, self.received_bytes.load(Ordering::Relaxed))
    }
}
