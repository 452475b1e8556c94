//! What the engine has of a completion queue.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use sluice_verbs::{Aftermath, Cq, CqTransport};

use crate::completions::Sources;
use crate::node::Node;

/// Polls in a row that find nothing before the processor is offered to others, and how often it
/// is offered from then on.
const PATIENT_POLLS: u32 = 1024;
const YIELD_POLLS: u32 = 256;

/// The transport's part of a completion queue.
pub struct RoceCq {
    node: Arc<Node>,
    id: u32,
    /// The lanes that its completions come from.
    sources: Arc<Sources>,
    /// Polls in a row that found nothing to do.
    idle_polls: AtomicU32,
}

impl RoceCq {
    /// A completion queue of that number is there from now on.
    pub fn new(node: Arc<Node>, id: u32) -> Self {
        Self {
            sources: node.completions.add(id),
            node,
            id,
            idle_polls: AtomicU32::new(0),
        }
    }
}

impl CqTransport for RoceCq {
    fn progress(&self, _cq: &Cq, after: &mut Aftermath) {
        if self.node.poll(&self.sources, after) > 0 {
            self.idle_polls.store(0, Ordering::Relaxed);
            return;
        }
        // Threads that poll the same queue may lose some, which does no harm.
        let idle = self.idle_polls.load(Ordering::Relaxed);
        self.idle_polls
            .store(idle.wrapping_add(1), Ordering::Relaxed);
        if idle >= PATIENT_POLLS && idle.is_multiple_of(YIELD_POLLS) {
            std::thread::yield_now();
        }
    }

    fn armed(&self) {
        self.node.arm(&self.sources);
    }

    fn disarmed(&self) {
        self.node.disarm();
    }

    fn destroy(&self) {
        self.node.completions.remove(self.id, &self.sources);
    }
}
