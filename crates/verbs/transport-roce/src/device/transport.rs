//! What the engine has of a device: the transport, and how it is opened.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Weak};

use sluice_packet::Port;
use sluice_packet::routes::RouteError;
use sluice_packet::udp::{self, UdpPort};
use sluice_rendezvous::Rendezvous;
use sluice_sys::errno::Errno;
use sluice_transport::counting::{PATIENCE_AT_END_NS, PATIENCE_AT_WORK_NS};
use sluice_verbs::report::TransportReport;
use sluice_verbs::transport::{NewQp, QpParams, TransportCaps};
use sluice_verbs::{CqTransport, Result, Transport};

use crate::counters::ShardCounters;
use crate::device::cq::RoceCq;
use crate::device::port1::Port1;
use crate::device::qp::RoceQp;
use crate::engine;
use crate::engines::Engines;
use crate::network::Network;
use crate::node::report;
use crate::node::{self, Node};
use crate::ports;
use crate::ports::tap::Below;

/// Bytes of inline data that a queue pair can ask for.
const INLINE_MAX: u32 = 1024;

/// Why there is no transport.
#[derive(Debug)]
pub enum OpenError {
    /// The directory where the processes of a user meet.
    Rendezvous(std::io::Error),
    /// The UDP port of RoCEv2.
    Port(udp::OpenError),
    /// The kernel's routing tables.
    Routes(RouteError),
    /// Another system call.
    System(Errno),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rendezvous(error) => write!(f, "no place to meet other processes: {error}"),
            Self::Port(error) => write!(f, "{error}"),
            Self::Routes(error) => write!(f, "{error}"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// The transport: one per device.
pub struct RoceTransport {
    node: Arc<Node>,
    port1: Port1,
}

impl RoceTransport {
    /// A transport over UDP, which needs no privileges. It serves the network namespace of the
    /// calling thread.
    pub fn over_udp(engines: Engines) -> core::result::Result<Arc<Self>, OpenError> {
        Self::open(false, engines)
    }

    /// A transport that takes its packets past the kernel's stack, by AF_XDP, on each interface
    /// where that is possible and allowed, and over UDP on the others.
    pub fn over_xdp(engines: Engines) -> core::result::Result<Arc<Self>, OpenError> {
        Self::open(true, engines)
    }

    fn open(xdp: bool, engines: Engines) -> core::result::Result<Arc<Self>, OpenError> {
        let (ports, group) = UdpPort::open_group(&udp::Config::default(), engines.count() as u32)
            .map_err(OpenError::Port)?;
        let namespace = namespace().map_err(OpenError::System)?;
        let rendezvous = meet_in(namespace).map_err(OpenError::Rendezvous)?;
        let network = Network::open(xdp).map_err(OpenError::Routes)?;
        let members = ports.first().map(UdpPort::members).transpose();
        if let Some(members) = members.map_err(OpenError::System)? {
            network.steer(group, members);
        }
        let shards = ports
            .into_iter()
            .map(|port| vec![ports::dressed(port, Below::Socket)])
            .collect();
        Self::of(rendezvous, network, shards)
    }

    /// A transport over ports of somebody's own, of which the first reaches every address, in IP
    /// packets of `ip_bytes` at most. Processes that share its address meet in `directory`. The
    /// kernel's network is not looked at. For tests, and for networks that the kernel does not
    /// know.
    #[doc(hidden)]
    pub fn with_ports(
        ports: Vec<Box<dyn Port>>,
        directory: &Path,
        ip_bytes: u32,
    ) -> core::result::Result<Arc<Self>, OpenError> {
        Self::with_shards(vec![ports], directory, ip_bytes)
    }

    /// The same with several engine threads, each with the ports of its shard: 1 to [`crate::SHARDS_MAX`].
    #[doc(hidden)]
    pub fn with_shards(
        shards: Vec<Vec<Box<dyn Port>>>,
        directory: &Path,
        ip_bytes: u32,
    ) -> core::result::Result<Arc<Self>, OpenError> {
        let rendezvous = Rendezvous::open(directory).map_err(OpenError::Rendezvous)?;
        Self::of(rendezvous, Network::everywhere(ip_bytes), shards)
    }

    fn of(
        rendezvous: Rendezvous,
        network: Network,
        shards: Vec<Vec<Box<dyn Port>>>,
    ) -> core::result::Result<Arc<Self>, OpenError> {
        let node = Node::new(node::Parts {
            rendezvous,
            network,
            shards,
        })
        .map_err(OpenError::System)?;
        engine::start(&node).map_err(OpenError::System)?;
        let duty: Weak<Node> = Arc::downgrade(&node);
        sluice_sys::at_exit::remember(duty);
        Ok(Arc::new(Self {
            port1: Port1(node.clone()),
            node,
        }))
    }
}

/// Packets that came and were dropped, or could not leave.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Not a legal packet.
    pub malformed: u64,
    /// For a queue pair that nobody has.
    pub unknown_qp: u64,
    /// Not from the peer, or not in a state that receives.
    pub not_taken: u64,
    /// There was no way to the destination.
    pub unreachable: u64,
    /// Came by another shard's ports, or to another process, when too many of these waited.
    pub crowded: u64,
}

impl RoceTransport {
    /// What was dropped so far.
    #[doc(hidden)]
    pub fn dropped(&self) -> Dropped {
        let sum = |of: fn(&ShardCounters) -> &AtomicU64| {
            let each = self
                .node
                .shards
                .iter()
                .map(|shard| of(&shard.gate.counters));
            each.map(|counter| counter.load(Ordering::Relaxed)).sum()
        };
        Dropped {
            malformed: sum(|shard| &shard.malformed),
            unknown_qp: sum(|shard| &shard.unknown_qp),
            not_taken: sum(|shard| &shard.not_taken),
            unreachable: sum(|shard| &shard.unreachable),
            crowded: sum(|shard| &shard.crowded),
        }
    }
}

impl RoceTransport {
    /// The engine threads end, as when the process is about to.
    #[doc(hidden)]
    pub fn stop_engines(&self) {
        self.node.stop();
    }

    /// Does what is done when the process ends in the ordinary way.
    #[doc(hidden)]
    pub fn leave(&self) {
        sluice_sys::at_exit::AtExit::leave(&*self.node);
    }
}

/// The number of this thread's network namespace: addresses mean the same host only within one.
fn namespace() -> core::result::Result<u64, Errno> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net")
        .map(|metadata| metadata.ino())
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// The directory of a network namespace: beside the one of all processes, with a longer name.
fn meet_in(namespace: u64) -> std::io::Result<Rendezvous> {
    let path = sluice_rendezvous::default_path();
    let mut family = path.file_name().unwrap_or_default().to_os_string();
    family.push(sluice_rendezvous::FAMILY);
    let family = family.to_string_lossy();
    let own = path.with_file_name(format!("{family}{namespace}"));
    Rendezvous::open_passing(&own, &family)
}

impl Drop for RoceTransport {
    fn drop(&mut self) {
        self.node.stop();
    }
}

impl Transport for RoceTransport {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            mtu: u32::from(self.node.common().network.mtu().code()),
            max_inline: INLINE_MAX,
            by_address: true,
            // Atomics are the processor's own operations, on its own memory.
            ..TransportCaps::EVERYTHING
        }
    }

    fn create_qp(&self, params: &QpParams) -> Result<NewQp> {
        let part = self.node.new_part(params)?;
        Ok(NewQp {
            qpn: part.qpn,
            transport: Box::new(RoceQp {
                node: self.node.clone(),
                part,
            }),
        })
    }

    fn create_cq(&self, id: u32) -> Result<Box<dyn CqTransport>> {
        Ok(Box::new(RoceCq::new(self.node.clone(), id)))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        report::all(&self.node, PATIENCE_AT_END_NS).0
    }

    fn report(&self) -> TransportReport {
        let name = |index: &u32| match sluice_xdp::Interface::by_index(*index) {
            Ok(interface) => format!("AF_XDP {}", interface.name()),
            Err(_) => format!("AF_XDP interface {index}"),
        };
        let mut ways: Vec<String> = self
            .node
            .common()
            .network
            .served()
            .iter()
            .map(name)
            .collect();
        // Whatever is not for a served interface.
        ways.push("UDP".to_owned());
        let (counters, is_partial) = report::all(&self.node, PATIENCE_AT_WORK_NS);
        TransportReport {
            kind: "roce",
            ways,
            peers: Vec::new(),
            has_addresses: true,
            counters,
            is_partial,
        }
    }

    fn create_srq(&self, _xrc: bool) -> Result<u32> {
        Ok(self.node.take_number()?)
    }

    fn destroy_srq(&self, srqn: u32) {
        self.node.common().names.give(srqn);
    }

    fn gsi(&self) -> Option<&dyn sluice_verbs::transport::Gsi> {
        Some(&self.port1)
    }
}
