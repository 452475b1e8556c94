//! What there is to say of lanes to other hosts: for `sluice status` and for metrics.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use serde::Serialize;
use sluice_peering::Counters;

use super::Fabric;
use super::finding::{Finding, FindingReport};
use super::introducer::{KnownPair, LinkState};
use super::window::WindowReport;
use crate::capture::Capture;
use crate::capture::orders::Counts;

/// Lanes to other hosts, and the hosts.
#[derive(Debug, Serialize)]
pub struct FabricReport {
    /// As the configuration names it.
    pub device: String,
    /// From which peers see this host.
    pub address: IpAddr,
    /// That carry the bytes; each can have a queue pair with each peer.
    pub threads: u32,
    pub lanes: FabricLanes,
    /// Those of the configuration and those that were found, by name.
    pub peers: Vec<PeerReport>,
    /// Control connections since the start.
    pub control: Counters,
    /// The option in handshakes, where the configuration wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<FindingReport>,
    /// Connections of programs that cannot be preloaded; nothing where none are captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured: Option<Counts>,
    /// Memory that this host shares with others; nothing without `[[window]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowReport>,
    /// Why none are, where the configuration wants it and the device makes nothing faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_to_tcp: Option<String>,
}

/// How many lanes to other hosts there are.
#[derive(Debug, Serialize)]
pub struct FabricLanes {
    pub in_use: u32,
    pub max: u32,
}

/// One queue pair with another host.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueuePairReport {
    /// As [`PeerReport::link`].
    pub link: &'static str,
    pub losses: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// One other host.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    pub name: String,
    /// There is a control connection.
    pub is_up: bool,
    /// The other end of the control connection; where it is looked for if there is none.
    pub address: Option<SocketAddr>,
    /// Of the control connection.
    pub up_s: Option<u64>,
    pub software: Option<String>,
    /// Of the control connection.
    pub version: Option<u16>,
    /// `up`: a message of the fabric has come through by one of the queue pairs; `trying`: they are connected,
    /// or about to be, and none has; `down`.
    pub link: &'static str,
    /// Several, where both daemons have several threads.
    pub queue_pairs: Vec<QueuePairReport>,
    /// Why the link failed last.
    pub link_failure: Option<String>,
    /// Times that it has failed.
    pub link_losses: u64,
    pub lanes: u32,
    /// Ends that wait for their other ones there.
    pub waiting: u32,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Fabric {
    /// How things are now.
    pub fn report(&self) -> FabricReport {
        let mut peers: BTreeMap<String, PeerReport> = BTreeMap::new();
        for peer in &self.config.peers {
            let report = PeerReport::nobody(&peer.name, Some(peer.control));
            peers.insert(peer.name.clone(), report);
        }
        for known in self.introducer.peers() {
            let report = peers
                .entry(known.name.to_string())
                .or_insert_with(|| PeerReport::nobody(known.name, None));
            report.link = word(known.link);
            report.link_failure = known.failure.map(ToOwned::to_owned);
            report.queue_pairs = known.queue_pairs.iter().map(QueuePairReport::of).collect();
            report.link_losses = report.queue_pairs.iter().map(|it| it.losses).sum();
            report.lanes = known.lanes;
            report.waiting = known.waiting;
            report.sent_bytes = report.queue_pairs.iter().map(|it| it.sent_bytes).sum();
            report.received_bytes = report.queue_pairs.iter().map(|it| it.received_bytes).sum();
        }
        let now = Instant::now();
        for session in self.peering.status() {
            let report = peers
                .entry(session.name.clone())
                .or_insert_with(|| PeerReport::nobody(&session.name, None));
            report.is_up = true;
            report.address = Some(session.address);
            report.up_s = Some(now.saturating_duration_since(session.since).as_secs());
            report.software = Some(session.software);
            report.version = Some(session.version);
        }
        for report in peers.values_mut().filter(|report| !report.is_up) {
            // The last message came through; without the daemons' talk nothing says that the next would.
            report.link = "down";
            for queue_pair in &mut report.queue_pairs {
                queue_pair.link = "down";
            }
        }
        let (in_use, max) = self.introducer.lanes();
        FabricReport {
            device: self.device.clone(),
            address: self.address,
            threads: self.carriers.len() as u32,
            lanes: FabricLanes { in_use, max },
            peers: peers.into_values().collect(),
            option: self.finding.as_ref().map(Finding::report),
            captured: self.capture.as_ref().map(Capture::counts),
            windows: self.parking_tables.windows.report(),
            left_to_tcp: self.left_to_tcp.clone(),
            control: self.peering.counters(),
        }
    }
}

fn word(link: LinkState) -> &'static str {
    match link {
        LinkState::Down => "down",
        LinkState::Trying => "trying",
        LinkState::Up => "up",
    }
}

impl QueuePairReport {
    fn of(known: &KnownPair) -> Self {
        let (sent_bytes, received_bytes) = known.bytes;
        Self {
            link: word(known.link),
            losses: known.losses,
            sent_bytes,
            received_bytes,
        }
    }
}

impl PeerReport {
    fn nobody(name: &str, address: Option<SocketAddr>) -> Self {
        Self {
            name: name.to_owned(),
            is_up: false,
            address,
            up_s: None,
            software: None,
            version: None,
            link: "down",
            queue_pairs: Vec::new(),
            link_failure: None,
            link_losses: 0,
            lanes: 0,
            waiting: 0,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }
}
