//! The seam of a queue pair that is traced.

use std::sync::Arc;

use sluice_verbs::transport::QpChange;
use sluice_verbs::{Aftermath, Gid, Posted, Qp, QpTransport, Result, Wqe};

use super::Tap;

/// A transport's part of a queue pair, with a tap that is told of requests and of state changes.
pub struct Traced {
    inner: Box<dyn QpTransport>,
    tap: Arc<Tap>,
}

impl Traced {
    /// What the engine is given: the transport's part itself while nobody traces.
    pub fn around(inner: Box<dyn QpTransport>, tap: Option<&Arc<Tap>>) -> Box<dyn QpTransport> {
        match tap {
            None => inner,
            Some(tap) => Box::new(Self {
                inner,
                tap: tap.clone(),
            }),
        }
    }
}

impl QpTransport for Traced {
    fn bind(&self, qp: &Arc<Qp>) {
        self.inner.bind(qp);
    }

    fn post(&self, qp: &Qp, wqe: &Wqe<'_>) -> Posted {
        let posted = self.inner.post(qp, wqe);
        self.tap.posted(qp, wqe, &posted);
        posted
    }

    fn modify(&self, qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()> {
        self.tap.modified(qp, change);
        self.inner.modify(qp, change, after)
    }

    fn receives_posted(&self, after: &mut Aftermath) {
        self.inner.receives_posted(after);
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        self.inner.attach_multicast(gid)
    }

    fn detach_multicast(&self, gid: &Gid) {
        self.inner.detach_multicast(gid);
    }

    fn linger(&self) {
        self.inner.linger();
    }

    fn destroy(&self, after: &mut Aftermath) {
        self.inner.destroy(after);
    }
}
