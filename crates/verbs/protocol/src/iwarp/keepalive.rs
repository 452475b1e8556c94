//! When a peer that has not answered is sent a WRITE of nothing.
//!
//! Linux's siw does not look at the stream where something came while it was busy with the
//! connection: right behind its own reply (`siw_accept`), or as its queue pair was locked
//! (`siw_qp_llp_data_ready`). It does when more comes. A program that waits for an answer before it
//! sends more would wait for ever.

use core::time::Duration;

use crate::time::Instant;

/// How often a peer that says nothing is sent something, each time after twice as long.
const TIMES_MAX: u32 = 7;

/// How long the peer has said nothing to what it was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keepalive {
    /// Until the first. Zero: there are none.
    wait: Duration,
    /// When to look. It is not put off with each frame that leaves, as that would cost each time.
    due: Option<Instant>,
    /// The last frame of the program's that left since the peer was heard.
    unanswered: Option<Instant>,
    times: u32,
}

impl Keepalive {
    pub fn new(wait: Duration) -> Self {
        Self {
            wait,
            ..Self::default()
        }
    }

    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Frames left that the program wants an effect of.
    pub fn sent(&mut self, now: Instant) {
        if self.wait.is_zero() {
            return;
        }
        self.unanswered = Some(now);
        self.times = 0;
        self.due.get_or_insert(now.after(self.wait));
    }

    /// The peer sent something.
    pub fn heard(&mut self) {
        self.unanswered = None;
    }

    /// Nothing is sent any more.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Whether something is to be sent now.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        self.due = None;
        let Some(since) = self.unanswered else {
            return false;
        };
        // Each wait is twice the one before: 1 + 2 + 4 of the first are 2 · 4 - 1.
        let next = |times: u32| since.after(self.wait * ((2 << times) - 1));
        if next(self.times) > now {
            self.due = Some(next(self.times));
            return false;
        }
        self.times += 1;
        if self.times < TIMES_MAX {
            // One that comes late puts the next off.
            self.due = Some(next(self.times).max(now.after(self.wait)));
        }
        true
    }
}
