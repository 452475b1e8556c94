//! Verbs between the processes of one host, through shared memory and without a daemon.
//!
//! | file | its part |
//! |---|---|
//! | [`route`], [`link`], [`hello`] | what two processes share, and how they come to it |
//! | [`node`], [`engine`], [`work`] | a process's keys, numbers and links; its thread; who works |
//! | [`qp`], [`requester`], [`responder`] | connected queue pairs |
//! | [`datagram`], [`multicast`] | the others |
//! | [`reach`], [`foreign`] | one-sided operations without the responder |
//! | [`pieces`] | copies from and to pieces of memory |
//! | [`impair`] | faults on purpose |
//! | [`tap`] | what a trace is told |
//! | [`arena`] | memory of the program that peers can map |

mod accept;
mod area;
pub mod arena;
mod connect;
mod datagram;
mod ended;
mod engine;
mod foreign;
mod hello;
mod impair;
mod link;
mod lock;
mod multicast;
mod node;
mod os;
mod part;
mod pieces;
mod qp;
mod reach;
mod requester;
mod responder;
mod route;
mod tap;
mod watched;
mod wire;
mod work;

use core::sync::atomic::Ordering;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sluice_rendezvous as rendezvous;
use sluice_shmem::verbs::directory::ENGINE_ASLEEP;
use sluice_sys::errno::Errno;
use sluice_verbs::fault::Faults;
use sluice_verbs::keys::KeyInfo;
use sluice_verbs::report::TransportReport;
use sluice_verbs::transport::{ManagementTrace, NewQp, QpParams, TransportCaps};
use sluice_verbs::{Cq, CqTransport, Result, Transport};

use crate::node::{Links, Node};
use crate::part::Part;
use crate::qp::ShmQp;

/// Bytes of inline data that a queue pair can ask for.
const INLINE_MAX: u32 = 1024;

/// Polls in a row that find nothing before the processor is offered to others, and how often it
/// is offered from then on. The one that the program waits for may be waiting for this very
/// processor, where a device would not. About 50 and 10 microseconds; an offer that nobody
/// takes costs 0.3.
const PATIENT_POLLS: u32 = 1024;
const YIELD_POLLS: u32 = 256;

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

    /// Where it meets others.
    pub fn directory(&self) -> PathBuf {
        self.node.rendezvous.path().to_path_buf()
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.node.stop.store(true, Ordering::Release);
        self.node.wake_engine();
    }
}

impl Transport for ShmTransport {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            max_msg_sz: 1 << 31,
            mtu: 5,
            max_inline: INLINE_MAX,
            max_rd_atomic: 128,
            // The processor's own operations, on its own memory.
            atomic_cap: 2,
            uc: true,
            ud: true,
            xrc: true,
            by_address: false,
        }
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        let qpn = self.node.take_number()?;
        let slot = self.node.directory.qp_slot(qpn).ok_or(Errno::INVAL)? as u32;
        let kind = params.qp_type;
        let part = Part::new(qpn, slot, kind, params.pd, self.node.impair(kind));
        Ok(NewQp {
            qpn,
            transport: Box::new(ShmQp::new(self.node.clone(), Arc::new(part))),
        })
    }

    fn create_cq(&self, _id: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(ShmCq {
            node: self.node.clone(),
            seen: Mutex::new(Seen {
                generation: u64::MAX,
                links: Arc::default(),
                idle_polls: 0,
            }),
        }))
    }

    fn key_published(&self, key: &KeyInfo) -> Result<()> {
        self.node.publish_key(key);
        Ok(())
    }

    fn key_withdrawn(&self, key: &KeyInfo) {
        self.node.withdraw_key(key);
    }

    fn management_trace(&self) -> Option<&dyn ManagementTrace> {
        Some(&tap::Management)
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
        self.node.give_number(srqn);
    }
}

/// A completion queue's part: the links as it saw them last, so that a poll takes no lock that
/// other queues take.
struct ShmCq {
    node: Arc<Node>,
    seen: Mutex<Seen>,
}

struct Seen {
    generation: u64,
    links: Arc<Links>,
    /// Polls in a row that found nothing to do.
    idle_polls: u32,
}

impl CqTransport for ShmCq {
    fn progress(&self, _cq: &Cq) {
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
        let answered = self.node.progress_outgoing(&seen.links);
        if answered > 0 {
            self.node.polled_outgoing.fetch_add(1, Ordering::Relaxed);
        }
        let asked = self.node.progress_incoming(&seen.links);
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
