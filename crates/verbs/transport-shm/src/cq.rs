//! A completion queue as the engine sees it: polls do the transport's work.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use sluice_shmem::verbs::directory::ENGINE_ASLEEP;
use sluice_verbs::{Aftermath, Cq, CqTransport};

use crate::node::{Links, Node};
use crate::progress;

/// Polls in a row that find nothing before the processor is offered to others, and how often it
/// is offered from then on. The one that the program waits for may be waiting for this very
/// processor, where a device would not. About 50 and 10 microseconds; an offer that nobody
/// takes costs 0.3.
const PATIENT_POLLS: u32 = 1024;
const YIELD_POLLS: u32 = 256;

/// A completion queue's part: the links as it saw them last, so that a poll takes no lock that
/// other queues take.
pub struct ShmCq {
    node: Arc<Node>,
    seen: Mutex<Seen>,
}

struct Seen {
    generation: u64,
    links: Arc<Links>,
    /// Polls in a row that found nothing to do.
    idle_polls: u32,
}

impl ShmCq {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            seen: Mutex::new(Seen {
                generation: u64::MAX,
                links: Arc::default(),
                idle_polls: 0,
            }),
        }
    }
}

impl CqTransport for ShmCq {
    fn progress(&self, _cq: &Cq, after: &mut Aftermath) {
        // Another thread polls this very queue: it does the work.
        let Ok(mut seen) = self.seen.try_lock() else {
            return;
        };
        let generation = self.node.generation.load(Ordering::Acquire);
        if seen.generation != generation {
            seen.generation = generation;
            seen.links = self.node.links();
        }
        // Acknowledgements first: what a peer says next comes after them.
        let answered = progress::outgoing(&self.node, &seen.links, after);
        if answered > 0 {
            self.node.polled_outgoing.fetch_add(1, Ordering::Relaxed);
        }
        let asked = progress::incoming(&self.node, &seen.links, after);
        if asked > 0 {
            self.node.polled_incoming.fetch_add(1, Ordering::Relaxed);
        }
        if answered + asked > 0 {
            seen.idle_polls = 0;
            return;
        }
        seen.idle_polls = seen.idle_polls.wrapping_add(1);
        let yields =
            seen.idle_polls >= PATIENT_POLLS && seen.idle_polls.is_multiple_of(YIELD_POLLS);
        drop(seen);
        if yields {
            std::thread::yield_now();
        }
    }

    fn armed(&self) {
        let before = self.node.armed.fetch_add(1, Ordering::SeqCst);
        // From now on peers must ring for everything, which they do while the thread sleeps.
        if before == 0 && self.node.directory.engine_state() & 3 != ENGINE_ASLEEP {
            self.node.wake_engine();
        }
    }

    fn disarmed(&self) {
        self.node.armed.fetch_sub(1, Ordering::SeqCst);
    }
}
