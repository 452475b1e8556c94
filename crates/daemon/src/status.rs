//! The document that `sluice status` shows.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use serde::{Serialize, Serializer};
use sluice_lane::end::{EndSnapshot, State};
use sluice_lane::reason::Reason;

use crate::counters::Counters;
use crate::end_table;
use crate::fabric::Fabric;
use crate::fabric::report::FabricReport;
use crate::lanes::Lanes;
use crate::matching::{ClientId, EndKey, Entry, Matcher, Waiting};
use crate::program::Program;

/// Connections in one document; more make sluiced too busy with talking about itself.
const CONNECTIONS_MAX: usize = 65_536;

/// Everything that `sluice status --json` prints of one sluiced.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub version: &'static str,
    pub pid: u32,
    pub uptime_s: u64,
    pub ring_bytes: u32,
    pub lanes: LaneCounts,
    /// Ends that were announced and not released.
    pub ends_announced: usize,
    pub counters: &'a Counters,
    /// Of sluiced with a configuration; for root and its own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricReport>,
    /// There are more connections than the document has.
    pub truncated: bool,
    pub processes: Vec<Process<'a>>,
}

/// How many lanes and chunks there are.
#[derive(Debug, Serialize)]
pub struct LaneCounts {
    pub in_use: u32,
    pub max: u32,
    pub chunks: usize,
}

/// One program.
#[derive(Debug, Serialize)]
pub struct Process<'a> {
    pub client: ClientId,
    pub pid: u32,
    pub program: &'a str,
    pub uid: u32,
    /// The client with whose process this one, its fork, shares its connections. They are
    /// listed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares_with: Option<ClientId>,
    /// It had given its end table to an earlier sluiced. Only what it announced to this one is
    /// listed, without counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub earlier: bool,
    pub connections: Vec<Connection<'a>>,
}

/// An address of a connection; the program may not have asked for it yet.
#[derive(Debug)]
pub struct Address(SocketAddr);

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.port() == 0 && self.0.ip().is_unspecified() {
            serializer.serialize_str("-")
        } else {
            serializer.collect_str(&self.0)
        }
    }
}

/// One end of a connection.
#[derive(Debug, Serialize)]
pub struct Connection<'a> {
    /// The number of its record and the life that it is in, if it has one.
    #[serde(skip)]
    pub life: Option<(u32, u32)>,
    /// `-` before the connection had enough traffic to be announced.
    pub local: Address,
    pub peer: Address,
    /// `lane` or `tcp`.
    pub state: &'static str,
    /// Why it is on TCP; empty if it is not.
    pub reason: &'static str,
    pub sends_by_ring: bool,
    pub lane_rx_bytes: u64,
    pub lane_tx_bytes: u64,
    pub tcp_rx_bytes: u64,
    pub tcp_tx_bytes: u64,
    pub switches: u32,
    pub sleeps: u32,
    pub spins: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_program: Option<&'a str>,
    /// The other end is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_host: Option<&'a str>,
}

/// A client of sluiced, as far as the document is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    pub client: ClientId,
    pub uid: u32,
    pub program: &'a Program,
}

/// The programs that may be shown and everything needed to describe their connections.
pub struct Sources<'a> {
    /// Ordered by client number.
    pub shown: Vec<Listed<'a>>,
    /// All, to name peers.
    pub programs: HashMap<ClientId, &'a Program>,
    pub matcher: &'a Matcher,
    pub lanes: &'a Lanes,
    pub fabric: Option<&'a Fabric>,
}

impl<'a> Sources<'a> {
    /// All processes with their connections, and whether some were left out.
    pub fn processes(&self) -> (Vec<Process<'a>>, bool) {
        let mut left = CONNECTIONS_MAX;
        let mut first_with: HashMap<(u64, u64), ClientId> = HashMap::new();
        let mut sharers: HashMap<ClientId, Vec<ClientId>> = HashMap::new();
        for listed in &self.shown {
            let first = *first_with.entry(listed.table()).or_insert(listed.client);
            sharers.entry(first).or_default().push(listed.client);
        }
        let processes = self.shown.iter().map(|listed| {
            let first = first_with[&listed.table()];
            let connections = if first == listed.client {
                self.connections(listed, &sharers[&first], left)
            } else {
                Vec::new()
            };
            left -= connections.len().min(left);
            Process {
                client: listed.client,
                pid: listed.program.pid,
                program: &listed.program.name,
                uid: listed.uid,
                shares_with: (first != listed.client).then_some(first),
                earlier: listed.program.is_earlier,
                connections,
            }
        });
        let processes = processes.collect();
        (processes, left == 0)
    }

    /// The ends in the table of one program, and those that it or its forks announced without
    /// having them in the table (any more).
    fn connections(
        &self,
        listed: &Listed<'a>,
        sharers: &[ClientId],
        max: usize,
    ) -> Vec<Connection<'a>> {
        let mut announced: BTreeMap<(u32, u32), &Entry> = BTreeMap::new();
        for client in sharers {
            for entry in self.matcher.entries_of(*client) {
                let name = (entry.announced.key.end, entry.announced.generation);
                announced.insert(name, entry);
            }
        }
        let table = end_table::read(listed.program.end_table.raw(), max);
        let mut connections = Vec::with_capacity(table.len());
        for (end, snapshot) in table {
            let entry = announced.remove(&(end, snapshot.generation));
            let mut connection = self.describe_record(&snapshot, entry);
            connection.life = Some((end, snapshot.generation));
            connections.push(connection);
        }
        let rest = max - connections.len();
        let untold = announced.values().take(rest);
        connections.extend(untold.map(|entry| self.describe_entry(entry)));
        connections
    }

    fn describe_record(&self, end: &EndSnapshot, entry: Option<&Entry>) -> Connection<'a> {
        let on_lane = end.state == State::Attached && end.reason == Reason::None;
        let reason = match (end.reason, entry) {
            _ if on_lane => "",
            // sluiced knows more than the program about an end that waits.
            (Reason::NoPeer | Reason::None, Some(entry)) => waiting_text(entry),
            (Reason::None, None) => "starting",
            (reason, _) => reason.text(),
        };
        let peer = entry.and_then(|entry| entry.partner);
        let peer = peer.and_then(|key| self.program(key));
        Connection {
            life: None,
            local: Address(end.local),
            peer: Address(end.peer),
            state: if on_lane { "lane" } else { "tcp" },
            reason,
            sends_by_ring: end.sends_by_ring,
            lane_rx_bytes: end.ring_rx_bytes,
            lane_tx_bytes: end.ring_tx_bytes,
            tcp_rx_bytes: end.tcp_rx_bytes,
            tcp_tx_bytes: end.tcp_tx_bytes,
            switches: end.switches,
            sleeps: end.sleeps,
            spins: end.spins,
            ring_bytes: (end.state == State::Attached).then_some(end.ring_bytes),
            peer_pid: peer.map(|program| program.pid),
            peer_program: peer.map(|program| program.name.as_str()),
            peer_host: entry.and_then(|entry| self.host(entry)),
        }
    }

    fn describe_entry(&self, entry: &Entry) -> Connection<'a> {
        let peer = entry.partner.and_then(|key| self.program(key));
        let on_lane = entry.partner.is_some();
        Connection {
            life: None,
            local: Address(entry.announced.tuple.local),
            peer: Address(entry.announced.tuple.peer),
            state: if on_lane { "lane" } else { "tcp" },
            reason: if on_lane { "" } else { waiting_text(entry) },
            sends_by_ring: false,
            lane_rx_bytes: 0,
            lane_tx_bytes: 0,
            tcp_rx_bytes: 0,
            tcp_tx_bytes: 0,
            switches: 0,
            sleeps: 0,
            spins: 0,
            ring_bytes: on_lane.then_some(self.lanes.ring_bytes()),
            peer_pid: peer.map(|program| program.pid),
            peer_program: peer.map(|program| program.name.as_str()),
            peer_host: self.host(entry),
        }
    }

    fn host(&self, entry: &Entry) -> Option<&'a str> {
        self.fabric?.peer_of_end(entry.announced.key)
    }

    fn program(&self, key: EndKey) -> Option<&'a Program> {
        self.programs.get(&key.client).copied()
    }
}

impl Listed<'_> {
    fn table(&self) -> (u64, u64) {
        let stat = self.program.end_table_stat;
        (stat.device, stat.inode)
    }
}

fn waiting_text(entry: &Entry) -> &'static str {
    match entry.waiting {
        _ if entry.partner.is_some() => "starting",
        _ if entry.laned => "other end has gone",
        Waiting::Peer => Reason::NoPeer.text(),
        Waiting::Proof => "other namespace, and nothing proves the connection",
        Waiting::Lane => "no free lane",
        Waiting::Share => "this user's share of lanes is used up",
    }
}
