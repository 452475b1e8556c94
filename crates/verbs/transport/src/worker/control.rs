//! What others tell a transport's threads.

use std::sync::Arc;

use sluice_verbs::transport::ArmedQueues;

use crate::sync::{AtomicBool, Ordering};

/// Whether threads are to go on, and whether anybody relies on them.
#[derive(Debug, Default)]
pub struct Control {
    /// Completion queues that wait for an event.
    armed: Arc<ArmedQueues>,
    stop: AtomicBool,
}

impl Control {
    /// Where the engine counts completion queues that wait for an event.
    pub fn armed_queues(&self) -> &Arc<ArmedQueues> {
        &self.armed
    }

    /// Whether somebody waits so: the threads are responsible for events.
    pub fn is_armed(&self) -> bool {
        self.armed.count() != 0
    }

    /// The threads are to end. They have to be woken behind this.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Whether they are.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
