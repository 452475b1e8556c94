//! The transport as the engine sees it: what a device is told of itself and of what it has.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_rendezvous as rendezvous;
use sluice_sys::errno::Errno;
use sluice_transport::fault::Faults;
use sluice_transport::tap::{Management, Traced};
use sluice_verbs::keys::KeyInfo;
use sluice_verbs::report::TransportReport;
use sluice_verbs::transport::{ManagementTrace, NewQp, QpParams, TransportCaps};
use sluice_verbs::{CqTransport, Result, Transport};

use crate::cq::ShmCq;
use crate::engine;
use crate::node::Node;
use crate::part::Part;
use crate::qp::ShmQp;

/// Bytes of inline data that a queue pair can ask for.
const INLINE_MAX: u32 = 1024;

/// The transport: one per device. Dropping it ends all its links.
pub struct ShmTransport {
    node: Arc<Node>,
}

impl ShmTransport {
    /// A transport that meets others of this user in the usual directory
    /// ([`rendezvous::default_path`]). `faults` are for what it sends.
    pub fn new(faults: Option<Faults>) -> core::result::Result<Arc<Self>, Errno> {
        Self::with_faults(&rendezvous::default_path(), faults)
    }

    /// One that meets others in `path`, a directory that is made if it is not there.
    pub fn at(path: &Path) -> core::result::Result<Arc<Self>, Errno> {
        Self::with_faults(path, None)
    }

    /// The same with faults on purpose: datagrams and messages of unreliable connections that get
    /// lost, and datagrams that come twice or late.
    pub fn with_faults(
        path: &Path,
        faults: Option<Faults>,
    ) -> core::result::Result<Arc<Self>, Errno> {
        let node = Node::new(path, faults)?;
        engine::start(&node)?;
        Ok(Arc::new(Self { node }))
    }

    /// How long unreliable messages wait here for a receive, from now on: 250 ms at first.
    pub fn set_hold(&self, hold: Duration) {
        let hold_ns = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX);
        self.node.hold_ns.store(hold_ns, Ordering::Relaxed);
    }

    /// Where it meets others.
    pub fn directory(&self) -> PathBuf {
        self.node.names.rendezvous().path().to_path_buf()
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.node.control.stop();
        self.node.wake_engine();
    }
}

impl Transport for ShmTransport {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            max_inline: INLINE_MAX,
            // Atomics are the processor's own operations, on its own memory.
            ..TransportCaps::EVERYTHING
        }
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        let qpn = self.node.take_number()?;
        let slot = self.node.directory.qp_slot(qpn).ok_or(Errno::INVAL)? as u32;
        let kind = params.qp_type;
        let part = Part::new(qpn, slot, kind, params.pd, self.node.faults.give(kind));
        let tap = part.tap.clone();
        let qp = Box::new(ShmQp::new(self.node.clone(), Arc::new(part)));
        Ok(NewQp {
            qpn,
            transport: Traced::around(qp, tap.as_ref()),
        })
    }

    fn create_cq(&self, _id: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(ShmCq::new(self.node.clone())))
    }

    fn key_published(&self, key: &KeyInfo) -> Result<()> {
        self.node.publish_key(key);
        Ok(())
    }

    fn key_withdrawn(&self, key: &KeyInfo) {
        self.node.withdraw_key(key);
    }

    fn management_trace(&self) -> Option<&dyn ManagementTrace> {
        Some(&Management)
    }

    fn report(&self) -> TransportReport {
        TransportReport {
            kind: "shm",
            peers: self.node.peers(),
            ..TransportReport::default()
        }
    }

    fn create_srq(&self, _xrc: bool) -> Result<u32> {
        Ok(self.node.take_number()?)
    }

    fn destroy_srq(&self, srqn: u32) {
        self.node.names.give(srqn);
    }
}
