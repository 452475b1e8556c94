//! A completion queue as the engine sees it: polls do the transport's work.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use sluice_shmem::verbs::directory::ENGINE_ASLEEP;
use sluice_transport::polls::VainPolls;
use sluice_verbs::transport::ArmedQueues;
use sluice_verbs::{Aftermath, Cq, CqTransport};

use sluice_verbs::locks::try_lock;

use crate::node::{ANSWERS, Links, Node, REQUESTS};
use crate::progress;

/// A completion queue's part: the links as it saw them last, so that a poll takes no lock that
/// other queues take.
pub struct ShmCq {
    node: Arc<Node>,
    seen: Mutex<Seen>,
    vain: VainPolls,
}

struct Seen {
    generation: u64,
    links: Arc<Links>,
}

impl ShmCq {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            seen: Mutex::new(Seen {
                generation: u64::MAX,
                links: Arc::default(),
            }),
            vain: VainPolls::default(),
        }
    }
}

impl CqTransport for ShmCq {
    fn progress(&self, _cq: &Cq, after: &mut Aftermath) {
        // Another thread polls this very queue: it does the work.
        let Some(mut seen) = try_lock(&self.seen) else {
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
            self.node.polled[ANSWERS].fetch_add(1, Ordering::Relaxed);
        }
        let asked = progress::incoming(&self.node, &seen.links, after);
        if asked > 0 {
            self.node.polled[REQUESTS].fetch_add(1, Ordering::Relaxed);
        }
        drop(seen);
        if answered + asked > 0 {
            self.vain.end();
        } else {
            self.vain.add();
        }
    }

    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        Some(self.node.control.armed_queues())
    }

    fn armed(&self) {
        // From now on peers must ring for everything, which they do while the thread sleeps.
        if self.node.directory.engine_state() & 3 != ENGINE_ASLEEP {
            self.node.wake_engine();
        }
    }
}
