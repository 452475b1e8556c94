//! What the engine has of a device: the transport, queue pairs and completion queues.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Weak};

use sluice_sys::wake::ring;
use sluice_transport::polls::VainPolls;
use sluice_transport::tap::Traced;
use sluice_verbs::locks::lock;
use sluice_verbs::report::TransportReport;
use sluice_verbs::transport::{ArmedQueues, Gsi, NewQp, QpChange, QpParams, TransportCaps};
use sluice_verbs::with_aftermath;
use sluice_verbs::{
    Aftermath, Cq, CqTransport, Gid, Posted, Qp, QpTransport, Result, Transport, Wqe,
};
use sluice_window::claim::SILENCE_NS;
use sluice_window::ring::NEWS_DELAY;

use crate::OpenError;
use crate::counts::Counts;
use crate::node::Node;
use crate::part::Part;
use crate::worker;

/// Bytes of inline data that a queue pair can ask for.
const INLINE_MAX: u32 = 1024;
/// For measurements: how much later this host sees what others write, in nanoseconds. Of `sluice bench windows` alone.
const DELAY_VARIABLE: &str = "SLUICE_WINDOW_DELAY_NS";
/// How often a queue pair of datagrams that is about to be destroyed looks whether they can leave.
const LINGER_LOOKS: u32 = 1000;

/// The transport: one per device, which takes a slot of the window for as long as it lives.
pub struct WindowTransport {
    node: Arc<Node>,
}

impl WindowTransport {
    /// Over the window in this file.
    pub fn open(path: &Path) -> core::result::Result<Arc<Self>, OpenError> {
        Self::with_silence(path, Duration::from_nanos(SILENCE_NS))
    }

    /// The same; a host is dead to this one after so long without a sign of life.
    pub fn with_silence(
        path: &Path,
        silence: Duration,
    ) -> core::result::Result<Arc<Self>, OpenError> {
        let silence_ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX / 4);
        let node = Node::open(path, silence_ns)?;
        let delay = std::env::var(DELAY_VARIABLE).ok();
        if let Some(ns) = delay.and_then(|text| text.trim().parse().ok()) {
            NEWS_DELAY.set_ns(ns);
        }
        let duty: Weak<Node> = Arc::downgrade(&node);
        let started = worker::start(&node);
        let transport = Arc::new(Self { node });
        started.map_err(OpenError::System)?;
        sluice_sys::at_exit::remember(duty);
        Ok(transport)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sum = Counts::default().all();
        for peer in self.node.peers.iter() {
            for ((_, sum), (_, more)) in sum.iter_mut().zip(peer.counts.all()) {
                *sum = sum.wrapping_add(more);
            }
        }
        sum.to_vec()
    }

    /// Which slot it has.
    pub fn slot(&self) -> u32 {
        self.node.host.slot
    }
}

impl Drop for WindowTransport {
    fn drop(&mut self) {
        self.node.stop();
    }
}

impl Transport for WindowTransport {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            max_inline: INLINE_MAX,
            ..TransportCaps::EVERYTHING
        }
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        let part = self.node.new_part(params.qp_type);
        let (qpn, tap) = (part.turn.qpn, part.turn.tap.clone());
        let node = self.node.clone();
        let qp = Box::new(WindowQp { part, node });
        Ok(NewQp {
            qpn,
            transport: Traced::around(qp, tap.as_ref()),
        })
    }

    fn create_cq(&self, _id: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(WindowCq {
            node: self.node.clone(),
            vain: VainPolls::default(),
        }))
    }

    fn create_srq(&self, _xrc: bool) -> Result<u32> {
        Ok(self.node.number())
    }

    fn gsi(&self) -> Option<&dyn Gsi> {
        Some(&*self.node)
    }

    fn report(&self) -> TransportReport {
        let up = self.node.peers.others().filter(|peer| peer.is_up());
        TransportReport {
            kind: "window",
            ways: vec![self.node.host.path.display().to_string()],
            peers: up.map(|peer| peer.slot).collect(),
            counters: self.counters(),
            ..TransportReport::default()
        }
    }
}

struct WindowQp {
    part: Arc<Part>,
    node: Arc<Node>,
}

impl QpTransport for WindowQp {
    fn bind(&self, qp: &Arc<Qp>) {
        lock(&self.part.state).qp = Some(qp.clone());
    }

    fn post(&self, _: &Qp, wqe: &Wqe<'_>) -> Posted {
        self.part.post(wqe)
    }

    fn modify(&self, qp: &Qp, change: &QpChange<'_>, after: &mut Aftermath) -> Result<()> {
        self.part.changed(qp, change, after);
        Ok(())
    }

    fn receives_posted(&self, _: &mut Aftermath) {
        self.part.receives_posted();
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        lock(&self.part.groups).push(*gid);
        Ok(())
    }

    fn detach_multicast(&self, gid: &Gid) {
        lock(&self.part.groups).retain(|group| group != gid);
    }

    fn linger(&self) {
        for _ in 0..LINGER_LOOKS {
            with_aftermath(|after| self.node.progress(false, after));
            std::thread::yield_now();
        }
    }

    fn destroy(&self, after: &mut Aftermath) {
        self.node.remove(self.part.turn.qpn);
        self.part.destroyed(after);
    }
}

struct WindowCq {
    node: Arc<Node>,
    vain: VainPolls,
}

impl CqTransport for WindowCq {
    fn progress(&self, _: &Cq, after: &mut Aftermath) {
        if self.node.progress(false, after) > 0 {
            self.node.host.polled.fetch_add(1, Ordering::Relaxed);
            self.vain.end();
            return;
        }
        for peer in self.node.peers.iter() {
            peer.polled_in_vain();
        }
        self.vain.add();
    }

    fn armed_queues(&self) -> Option<&Arc<ArmedQueues>> {
        Some(self.node.host.control.armed_queues())
    }

    fn armed(&self) {
        // From now on peers must ring for everything, which they do while the thread sleeps.
        if !self.node.host.asleep.load(Ordering::SeqCst) {
            ring(self.node.host.kick.raw());
        }
    }
}
