//! What the engine has of a completion queue.

use std::sync::Arc;

use sluice_transport::polls::VainPolls;
use sluice_verbs::transport::ArmedQueues;
use sluice_verbs::{Aftermath, Cq, CqTransport};

use crate::completions::Sources;
use crate::node::Node;

/// The transport's part of a completion queue.
pub struct RoceCq {
    node: Arc<Node>,
    id: u32,
    /// The shards that its completions come from.
    sources: Arc<Sources>,
    vain: VainPolls,
}

impl RoceCq {
    /// A completion queue of that number is there from now on.
    pub fn new(node: Arc<Node>, id: u32) -> Self {
        Self {
            sources: node.completions.add(id),
            node,
            id,
            vain: VainPolls::default(),
        }
    }
}

impl CqTransport for RoceCq {
    fn progress(&self, _cq: &Cq, after: &mut Aftermath) {
        if self.node.poll(&self.sources, after) > 0 {
            self.vain.end();
        } else {
            self.vain.add();
        }
    }

    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        Some(self.node.control.armed_queues())
    }

    fn armed(&self) {
        self.node.armed(&self.sources);
    }

    fn destroy(&self) {
        self.node.completions.remove(self.id, &self.sources);
    }
}
