//! What `sluice top` shows: rates from two looks, in the chosen order, filtered.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use super::verbs::Devices;
use crate::document::Connection;
use crate::status::Answer;

/// A connection's end across looks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    socket: PathBuf,
    client: u32,
    local: String,
    peer: String,
}

/// Counters of one look.
#[derive(Debug, Clone, Copy, Default)]
struct Counters([u64; 7]);

impl From<&Connection> for Counters {
    fn from(connection: &Connection) -> Self {
        Self([
            connection.lane_rx_bytes,
            connection.lane_tx_bytes,
            connection.tcp_rx_bytes,
            connection.tcp_tx_bytes,
            connection.switches,
            connection.sleeps,
            connection.spins,
        ])
    }
}

/// Events and bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub lane_in: f64,
    pub lane_out: f64,
    pub tcp_in: f64,
    pub tcp_out: f64,
    pub switches: f64,
    pub sleeps: f64,
    pub spins: f64,
}

impl Rates {
    fn between(before: Counters, now: Counters, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return Self::default();
        }
        // A counter that went back belongs to another connection with the same addresses.
        let mut rates = [0.0; 7];
        for ((rate, before), now) in rates.iter_mut().zip(before.0).zip(now.0) {
            *rate = now.saturating_sub(before) as f64 / seconds;
        }
        let [lane_in, lane_out, tcp_in, tcp_out, switches, sleeps, spins] = rates;
        Self {
            lane_in,
            lane_out,
            tcp_in,
            tcp_out,
            switches,
            sleeps,
            spins,
        }
    }

    /// Bytes per second, both ways, by either path.
    pub fn bytes(&self) -> f64 {
        self.lane_in + self.lane_out + self.tcp_in + self.tcp_out
    }

    fn add(&mut self, other: &Self) {
        self.lane_in += other.lane_in;
        self.lane_out += other.lane_out;
        self.tcp_in += other.tcp_in;
        self.tcp_out += other.tcp_out;
        self.switches += other.switches;
        self.sleeps += other.sleeps;
        self.spins += other.spins;
    }
}

/// One end of a connection.
#[derive(Debug, Clone)]
pub struct Row {
    pub program: String,
    pub pid: u32,
    pub connection: Connection,
    pub rates: Rates,
}

/// Another host, and what went over the fabric, bytes per second.
#[derive(Debug, Clone)]
pub struct Host {
    pub name: String,
    pub link: String,
    pub lanes: u64,
    pub received: f64,
    pub sent: f64,
}

/// What rows are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Bytes,
    Lane,
    Tcp,
    Switches,
    Sleeps,
    Spins,
    Program,
    Path,
}

impl Sort {
    const ALL: [Self; 8] = [
        Self::Bytes,
        Self::Lane,
        Self::Tcp,
        Self::Switches,
        Self::Sleeps,
        Self::Spins,
        Self::Program,
        Self::Path,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes/s",
            Self::Lane => "lane bytes/s",
            Self::Tcp => "tcp bytes/s",
            Self::Switches => "switches/s",
            Self::Sleeps => "sleeps/s",
            Self::Spins => "spins/s",
            Self::Program => "program",
            Self::Path => "path",
        }
    }

    pub fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }

    /// The order in which a reader wants them: most first, names from A.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let most = |value: fn(&Rates) -> f64| value(&b.rates).total_cmp(&value(&a.rates));
        match self {
            Self::Bytes => most(Rates::bytes),
            Self::Lane => most(|rates| rates.lane_in + rates.lane_out),
            Self::Tcp => most(|rates| rates.tcp_in + rates.tcp_out),
            Self::Switches => most(|rates| rates.switches),
            Self::Sleeps => most(|rates| rates.sleeps),
            Self::Spins => most(|rates| rates.spins),
            Self::Program => (&a.program, a.pid).cmp(&(&b.program, b.pid)),
            // TCP first: those are the ones that have something to explain.
            Self::Path => (a.connection.on_lane(), a.connection.why_tcp())
                .cmp(&(b.connection.on_lane(), b.connection.why_tcp())),
        }
    }
}

/// Everything that is shown, and how the user wants it.
pub struct Model {
    rows: Vec<Row>,
    before: HashMap<Key, Counters>,
    errors: Vec<String>,
    /// Bytes received from and sent to each host, by the daemon's socket and the host's name.
    hosts_before: HashMap<(PathBuf, String), [u64; 2]>,
    /// The busiest first.
    pub hosts: Vec<Host>,
    /// Of verbs processes.
    pub verbs: Devices,
    pub daemons: Vec<String>,
    pub sort: Sort,
    pub reverse: bool,
    pub paused: bool,
    pub filter: String,
    /// The text being typed after '/', while it is.
    pub typing: bool,
    /// The selected row among those shown.
    pub selected: usize,
}

impl Model {
    pub fn new() -> Self {
        Self {
            rows: Vec::new(),
            before: HashMap::new(),
            errors: Vec::new(),
            hosts_before: HashMap::new(),
            hosts: Vec::new(),
            verbs: Devices::default(),
            daemons: Vec::new(),
            sort: Sort::Bytes,
            reverse: false,
            paused: false,
            filter: String::new(),
            typing: false,
            selected: 0,
        }
    }

    /// Takes a new look in. `elapsed`: time since the one before.
    pub fn update(&mut self, answers: Vec<Answer>, elapsed: Duration) {
        let mut counters = HashMap::new();
        self.rows.clear();
        self.errors.clear();
        self.daemons.clear();
        self.hosts.clear();
        let mut hosts_now = HashMap::new();
        for answer in answers {
            self.errors.extend(answer.error);
            let Some(document) = answer.document else {
                continue;
            };
            self.daemons
                .push(crate::status::table::daemon_line(&document));
            for peer in document.fabric.iter().flat_map(|fabric| &fabric.peers) {
                let key = (answer.socket.clone(), peer.name.clone());
                let now = [peer.received_bytes, peer.sent_bytes];
                let before = self.hosts_before.get(&key).copied().unwrap_or(now);
                let seconds = elapsed.as_secs_f64().max(f64::EPSILON);
                let rate = |way: usize| now[way].saturating_sub(before[way]) as f64 / seconds;
                self.hosts.push(Host {
                    name: peer.name.clone(),
                    link: peer.link.clone(),
                    lanes: peer.lanes,
                    received: rate(0),
                    sent: rate(1),
                });
                hosts_now.insert(key, now);
            }
            for process in document.processes {
                for connection in process.connections {
                    let key = Key {
                        socket: answer.socket.clone(),
                        client: process.client,
                        local: connection.local.clone(),
                        peer: connection.peer.clone(),
                    };
                    let now = Counters::from(&connection);
                    let before = self.before.get(&key).copied().unwrap_or(now);
                    counters.insert(key, now);
                    self.rows.push(Row {
                        program: process.program.clone(),
                        pid: process.pid,
                        rates: Rates::between(before, now, elapsed),
                        connection,
                    });
                }
            }
        }
        self.before = counters;
        self.hosts_before = hosts_now;
        let busy = |host: &Host| host.received + host.sent;
        self.hosts.sort_by(|a, b| {
            let most = busy(b).total_cmp(&busy(a));
            most.then_with(|| a.name.cmp(&b.name))
        });
        self.selected = self.selected.min(self.shown().len().saturating_sub(1));
    }

    /// What went wrong in the last look, if anything.
    pub fn error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }

    /// The rows that match the filter, in order.
    pub fn shown(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let mut rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| filter.is_empty() || row.matches(&filter))
            .collect();
        rows.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            let order = if self.reverse { order.reverse() } else { order };
            // Rows with equal rates must not jump about.
            order
                .then_with(|| a.pid.cmp(&b.pid))
                .then_with(|| a.connection.local.cmp(&b.connection.local))
                .then_with(|| a.connection.peer.cmp(&b.connection.peer))
        });
        rows
    }

    /// Connections' ends, how many of them are on a lane, and the sum of all rates.
    pub fn totals(&self) -> (usize, usize, Rates) {
        let mut sum = Rates::default();
        for row in &self.rows {
            sum.add(&row.rates);
        }
        let laned = self.rows.iter().filter(|r| r.connection.on_lane()).count();
        (self.rows.len(), laned, sum)
    }

    /// Moves the selection by `rows`, within what is shown.
    pub fn select(&mut self, rows: isize) {
        let last = self.shown().len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }
}

impl Row {
    /// True if a part of what is shown contains `filter`, which is lower case.
    fn matches(&self, filter: &str) -> bool {
        let connection = &self.connection;
        let path = connection.path();
        [
            self.program.as_str(),
            &self.pid.to_string(),
            &connection.local,
            &connection.peer,
            &connection.peer_name(),
            path,
            connection.why_tcp(),
        ]
        .iter()
        .any(|part| part.to_lowercase().contains(filter))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::document::{Document, Process};

    /// A program: its name, its pid, and the state and bytes of each connection.
    type Sketch<'a> = (&'a str, u32, &'a [(&'a str, u64)]);

    pub fn look(processes: &[Sketch<'_>]) -> Vec<Answer> {
        let processes = processes
            .iter()
            .map(|(program, pid, connections)| Process {
                client: *pid,
                pid: *pid,
                program: (*program).to_owned(),
                connections: connections
                    .iter()
                    .map(|(state, bytes)| Connection {
                        local: format!("127.0.0.1:{pid}"),
                        peer: format!("127.0.0.1:9{}", bytes % 10),
                        state: (*state).to_owned(),
                        lane_rx_bytes: *bytes,
                        ..Connection::default()
                    })
                    .collect(),
                ..Process::default()
            })
            .collect();
        vec![Answer {
            socket: PathBuf::from("/s"),
            uid: None,
            status: None,
            document: Some(Document {
                processes,
                ..Document::default()
            }),
            error: None,
            absent: false,
        }]
    }

    fn programs(model: &Model) -> Vec<&str> {
        model
            .shown()
            .iter()
            .map(|row| row.program.as_str())
            .collect()
    }

    #[test]
    fn rates_need_two_looks() {
        let mut model = Model::new();
        model.update(look(&[("a", 1, &[("lane", 1000)])]), Duration::ZERO);
        assert_eq!(model.totals().2, Rates::default());
        model.update(look(&[("a", 1, &[("lane", 3000)])]), Duration::from_secs(2));
        assert_eq!(model.totals().2.lane_in, 1000.0);
        // The addresses were used again by a new connection.
        model.update(look(&[("a", 1, &[("lane", 10)])]), Duration::from_secs(1));
        assert_eq!(model.totals().2.lane_in, 0.0);
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let mut model = Model::new();
        let first = [
            ("slow", 1, &[("lane", 0)][..]),
            ("fast", 2, &[("tcp", 0)][..]),
        ];
        let second = [
            ("slow", 1, &[("lane", 10)][..]),
            ("fast", 2, &[("tcp", 90)][..]),
        ];
        model.update(look(&first), Duration::ZERO);
        model.update(look(&second), Duration::from_secs(1));
        assert_eq!(programs(&model), ["fast", "slow"]);
        model.reverse = true;
        assert_eq!(programs(&model), ["slow", "fast"]);
        model.reverse = false;
        model.sort = Sort::Path;
        assert_eq!(programs(&model), ["fast", "slow"]);
        model.filter = "LANE".to_owned();
        assert_eq!(programs(&model), ["slow"]);
        assert_eq!((model.totals().0, model.totals().1), (2, 1));
    }

    #[test]
    fn the_selection_stays_inside_what_is_shown() {
        let mut model = Model::new();
        model.update(
            look(&[("a", 1, &[("lane", 1), ("lane", 2), ("lane", 3)])]),
            Duration::ZERO,
        );
        model.select(10);
        assert_eq!(model.selected, 2);
        model.select(-1);
        assert_eq!(model.selected, 1);
        model.select(isize::MIN);
        assert_eq!(model.selected, 0);
        model.select(2);
        model.update(look(&[("a", 1, &[("lane", 1)])]), Duration::ZERO);
        assert_eq!(model.selected, 0);
    }

    #[test]
    fn every_sort_is_reached() {
        let mut sort = Sort::Bytes;
        let mut names = vec![sort.name()];
        loop {
            sort = sort.next();
            if sort == Sort::Bytes {
                break;
            }
            names.push(sort.name());
        }
        assert_eq!(names.len(), Sort::ALL.len());
    }
}
