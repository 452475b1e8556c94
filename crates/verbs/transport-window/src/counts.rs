//! What is counted, for `sluice verbs --stats` and `sluice status`.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counted by one thread at a time, under the lock of what is counted; read at any time.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(more), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of one peer, over all channels that there were.
#[derive(Debug, Default)]
pub struct Counts {
    pub frames_sent: Count,
    pub frames_received: Count,
    /// Bytes of messages, without headers.
    pub bytes_sent: Count,
    pub bytes_received: Count,
    /// Attempts to put a frame for which the peer's ring had no room.
    pub no_room: Count,
    /// Requests of the peer that came too early and are sent again.
    pub not_yet: Count,
    /// Channels that began, and how they ended.
    pub joined: Count,
    pub left: Count,
    pub lost: Count,
    pub broken: Count,
}

impl Counts {
    pub fn all(&self) -> [(&'static str, u64); 10] {
        [
            ("frames_sent", self.frames_sent.get()),
            ("frames_received", self.frames_received.get()),
            ("bytes_sent", self.bytes_sent.get()),
            ("bytes_received", self.bytes_received.get()),
            ("no_room", self.no_room.get()),
            ("not_yet", self.not_yet.get()),
            ("hosts_joined", self.joined.get()),
            ("hosts_left", self.left.get()),
            ("hosts_lost", self.lost.get()),
            ("hosts_broken", self.broken.get()),
        ]
    }
}
