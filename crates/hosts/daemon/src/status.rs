//! The document that `sluice status` shows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::Path;

use serde::{Serialize, Serializer};
use sluice_lane::end::{EndSnapshot, State};
use sluice_lane::reason::Reason;
use sluice_lane::totals::Totals;

use crate::counters::Counters;
use crate::end_table::{self, RECORDS_MAX};
use crate::fabric::Fabric;
use crate::fabric::report::FabricReport;
use crate::lanes::Lanes;
use crate::matching::{ClientId, EndKey, Entry, Matcher, Waiting};
use crate::options::Options;
use crate::program::Program;

/// Goes up when a field changes its meaning or goes away (docs/json.md).
pub const FORMAT: u32 = 1;

/// Everything that `sluice status --json` prints of one sluiced.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// [`FORMAT`].
    pub format: u32,
    pub version: &'static str,
    pub pid: u32,
    pub uptime_s: u64,
    pub ring_bytes: u32,
    pub lanes: LaneCounts,
    /// Why no connection gets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_lanes: Option<&'a str>,
    /// Ends that were announced and not released.
    pub ends_announced: usize,
    /// For root and its own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<&'a Options>,
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
    pub shrunk: usize,
}

/// One program.
#[derive(Debug, Serialize)]
pub struct Process<'a> {
    pub client: ClientId,
    pub pid: u32,
    pub program: &'a str,
    pub uid: u32,
    /// The client with whose process this one, its fork, shares its connections, where it has
    /// none of its own. They are listed there.
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
    /// `-` before the connection had enough traffic to be announced.
    pub local: Address,
    pub peer: Address,
    /// Whether it has a lane: `lane` or `tcp`.
    pub state: &'static str,
    /// What carries its bytes now: `lane`, `fabric` for a lane to another host, or `tcp`. A
    /// connection that has a lane uses TCP while its readers sleep.
    pub path: &'static str,
    /// Why the path is TCP; empty if it is not.
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
    /// The window that its lane lies in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<&'a Path>,
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

/// What [`Sources::listing`] finds.
#[derive(Debug, Default)]
pub struct Listing<'a> {
    pub processes: Vec<Process<'a>>,
    /// What each table counts, of ended connections and present ones.
    pub tables: Vec<((u64, u64), Totals)>,
    /// There are more connections than were looked at.
    pub is_partial: bool,
}

impl<'a> Sources<'a> {
    /// All processes with their connections. Looks at [`RECORDS_MAX`] records of tables, and lets
    /// each user have the same share of them: who fills tables hides rows of nobody else.
    pub fn listing(&self) -> Listing<'a> {
        let mut listing = Listing {
            processes: self.shown.iter().map(Listed::process).collect(),
            ..Listing::default()
        };
        // The places in `shown` of the programs that use a table, which are one user's or, where
        // a server gives its children to others, are counted as the first one's.
        let mut tables: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for (place, listed) in self.shown.iter().enumerate() {
            tables.entry(listed.table()).or_default().push(place);
        }
        let mut tables: Vec<_> = tables.into_iter().collect();
        tables.sort_by_key(|(_, places)| places[0]);
        let users: BTreeSet<u32> = self.shown.iter().map(|listed| listed.uid).collect();
        let share = RECORDS_MAX / users.len().max(1);
        let mut left: BTreeMap<u32, usize> = users.into_iter().map(|uid| (uid, share)).collect();
        for (table, places) in tables {
            let Some(left) = left.get_mut(&self.shown[places[0]].uid) else {
                continue;
            };
            let (totals, is_partial) = self.list_table(&places, left, &mut listing.processes);
            listing.tables.push((table, totals));
            listing.is_partial |= is_partial;
        }
        listing
    }

    /// Lists the ends of one table, each at the process that works with it, and those that its
    /// programs announced without having them in the table (any more). What the table counts, and
    /// whether something was left out.
    fn list_table(
        &self,
        places: &[usize],
        left: &mut usize,
        processes: &mut [Process<'a>],
    ) -> (Totals, bool) {
        let sharers = || places.iter().map(|place| (*place, &self.shown[*place]));
        let mut announced: BTreeMap<(u32, u32), (usize, &Entry)> = BTreeMap::new();
        for (place, listed) in sharers() {
            for entry in self.matcher.entries_of(listed.client) {
                let name = (entry.announced.key.end, entry.announced.generation);
                announced.insert(name, (place, entry));
            }
        }
        let first = places[0];
        let table = end_table::read(self.shown[first].program.end_table.raw(), *left);
        *left -= table.records;
        let mut totals = table.closed;
        let mut has_own = BTreeSet::new();
        for (end, snapshot) in table.ends {
            totals = totals.plus(snapshot.totals());
            let entry = announced.remove(&(end, snapshot.generation));
            // Who announced it works with it; who else has it alone is known by its number.
            let owner = || {
                let mut all = sharers();
                let is_owner = |listed: &Listed<'_>| listed.program.pid == snapshot.owner;
                all.find(|(_, listed)| snapshot.owner != 0 && is_owner(listed))
            };
            let place = entry
                .map(|(place, _)| place)
                .or_else(|| owner().map(|(place, _)| place))
                .unwrap_or(first);
            has_own.insert(place);
            let connection = self.describe_record(&snapshot, entry.map(|(_, entry)| entry));
            processes[place].connections.push(connection);
        }
        let rest = (*left).min(announced.len());
        let is_partial = table.is_partial || rest < announced.len();
        *left -= rest;
        for (place, entry) in announced.into_values().take(rest) {
            has_own.insert(place);
            processes[place]
                .connections
                .push(self.describe_entry(entry));
        }
        for place in places[1..].iter().filter(|place| !has_own.contains(place)) {
            processes[*place].shares_with = Some(self.shown[first].client);
        }
        (totals, is_partial)
    }

    fn describe_record(&self, end: &EndSnapshot, entry: Option<&Entry>) -> Connection<'a> {
        let on_lane = end.state == State::Attached && end.reason == Reason::None;
        let host = entry.and_then(|entry| self.host(entry));
        let window = entry.and_then(|entry| self.window(entry));
        let by_lane = on_lane && self.moves_by_lane(end, entry);
        let reason = match (end.reason, entry) {
            _ if by_lane => "",
            _ if on_lane && end.is_pinned => Reason::HalfClosed.text(),
            _ if on_lane && end.is_patient => "its lane waits for quicker traffic",
            _ if on_lane => "its readers sleep, and TCP wakes them",
            // sluiced knows more than the program about an end that waits.
            (Reason::NoPeer | Reason::None, Some(entry)) => waiting_text(entry),
            (Reason::None, None) => "starting",
            (reason, _) => reason.text(),
        };
        let peer = entry.and_then(|entry| entry.partner);
        let peer = peer.and_then(|key| self.program(key));
        Connection {
            local: Address(end.local),
            peer: Address(end.peer),
            state: if on_lane { "lane" } else { "tcp" },
            path: path(by_lane, host, window),
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
            peer_host: host,
            window,
        }
    }

    fn describe_entry(&self, entry: &Entry) -> Connection<'a> {
        let peer = entry.partner.and_then(|key| self.program(key));
        let on_lane = entry.partner.is_some();
        let host = self.host(entry);
        let window = self.window(entry);
        Connection {
            local: Address(entry.announced.tuple.local),
            peer: Address(entry.announced.tuple.peer),
            state: if on_lane { "lane" } else { "tcp" },
            path: path(on_lane, host, window),
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
            peer_host: host,
            window,
        }
    }

    /// Whether bytes go by the lane now, in one direction at least. Of a lane to another host
    /// only this end's direction is known, and whether anything ever came by the other one.
    fn moves_by_lane(&self, end: &EndSnapshot, entry: Option<&Entry>) -> bool {
        if end.sends_by_ring
            || (end.is_remote || end.is_direct) && end.ring_rx_bytes > 0 && !end.is_patient
        {
            return true;
        }
        let Some(partner) = entry.and_then(|entry| entry.partner) else {
            return false;
        };
        let Some(generation) = self.matcher.generation_of(partner) else {
            return false;
        };
        self.program(partner).is_some_and(|program| {
            let table = program.end_table.raw();
            end_table::sends_by_ring(table, partner.end, generation) == Some(true)
        })
    }

    fn host(&self, entry: &Entry) -> Option<&'a str> {
        self.fabric?.peer_of_end(entry.announced.key)
    }

    fn window(&self, entry: &Entry) -> Option<&'a Path> {
        self.fabric?.window_of_end(entry.announced.key)
    }

    fn program(&self, key: EndKey) -> Option<&'a Program> {
        self.programs.get(&key.client).copied()
    }
}

impl<'a> Listed<'a> {
    fn table(&self) -> (u64, u64) {
        self.program.end_table.id()
    }

    /// Without connections.
    fn process(&self) -> Process<'a> {
        Process {
            client: self.client,
            pid: self.program.pid,
            program: &self.program.name,
            uid: self.uid,
            shares_with: None,
            earlier: self.program.is_earlier,
            connections: Vec::new(),
        }
    }
}

fn path(by_lane: bool, host: Option<&str>, window: Option<&Path>) -> &'static str {
    match (by_lane, host) {
        (true, _) if window.is_some() => "window",
        (true, None) => "lane",
        (true, Some(_)) => "fabric",
        (false, _) => "tcp",
    }
}

fn waiting_text(entry: &Entry) -> &'static str {
    match entry.waiting {
        _ if entry.partner.is_some() => "starting",
        _ if entry.laned => "other end has gone",
        Waiting::Peer => Reason::NoPeer.text(),
        Waiting::Proof => "nothing proves the connection: sluiced cannot read its sequence numbers",
        Waiting::Other => "what has its peer's addresses is another connection's end",
        Waiting::Full => "all lanes are in use",
        Waiting::Memory => "no memory or descriptor for a lane",
        Waiting::Unread => "a program has not read sluiced's messages",
        Waiting::Share => "this user's share of lanes is used up",
        Waiting::Limit => "a control group is near its limit of memory",
    }
}
