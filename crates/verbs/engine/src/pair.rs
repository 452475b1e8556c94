//! What a send queue has of its queue pair, and says to it.

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_verbs_model::transport::Posted;

use crate::adapter::Adapter;
use crate::cq::{Completion, Overrun};
use crate::wr::Wqe;

/// The queue pair, as its send queue knows it.
pub(crate) trait Pair {
    fn num(&self) -> u32;
    fn pd_id(&self) -> u32;
    fn qkey(&self) -> u32;
    fn adapter(&self) -> &Adapter;
    fn sent(&self) -> &SendTally;

    /// Hands a request to the transport.
    fn hand(&self, wqe: &Wqe<'_>) -> Posted;

    /// Puts a completion to the CQ of sends.
    fn push_send(&self, completion: &Completion) -> Result<(), Overrun>;
}

/// What the QP must do once the queue's lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct After {
    /// A request failed.
    pub broken: bool,
    /// A completion was lost.
    pub overrun: bool,
    /// SQD and nothing is under way any more.
    pub drained: bool,
}

impl After {
    pub fn and(&mut self, other: After) {
        self.broken |= other.broken;
        self.overrun |= other.overrun;
        self.drained |= other.drained;
    }

    pub fn is_nothing(self) -> bool {
        self == After::default()
    }
}

/// What went through a send queue. Written by whoever has the queue, one at a time, so that a count
/// needs no locked instruction; read without it, as a program that posts much hardly lets go of it.
#[derive(Default)]
#[repr(align(64))]
pub struct SendTally {
    pub posted: AtomicU64,
    /// Of successful requests.
    pub bytes: AtomicU64,
    /// The same of those that ended without the queue's lock, one at a time too.
    pub lent_bytes: AtomicU64,
    pub failed: AtomicU64,
}

/// See [`SendTally`].
#[inline]
pub fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
