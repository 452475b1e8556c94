//! The daemon's status document, as this program reads it.
//!
//! Every field has a default: a daemon that is a little older or newer is still worth showing,
//! and as root one reads what other users' daemons say, which may be anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one daemon says about itself and the programs that it knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    pub version: String,
    pub pid: u32,
    pub uptime_s: u64,
    /// Bytes of each ring of new lanes.
    pub ring_bytes: u64,
    pub lanes: Lanes,
    /// Why no connection gets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_lanes: Option<String>,
    /// What the daemon was started with, if we may know.
    pub options: Option<serde_json::Map<String, serde_json::Value>>,
    pub counters: BTreeMap<String, serde_json::Value>,
    /// Of a daemon with a configuration.
    pub fabric: Option<Fabric>,
    /// The daemon knows more connections than the document has.
    pub truncated: bool,
    pub processes: Vec<Process>,
}

/// Lanes of one daemon, over all programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lanes {
    pub in_use: u64,
    pub max: u64,
    /// Pieces of memory with smaller rings than usual, because a control group has little memory left.
    #[serde(skip_serializing_if = "is_zero")]
    pub shrunk: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Lanes to other hosts, and the hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fabric {
    /// As the configuration names it.
    pub device: String,
    pub address: String,
    /// That carry the bytes.
    pub threads: u32,
    pub lanes: Lanes,
    pub peers: Vec<Peer>,
    /// The option in handshakes, where the configuration wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<Handshakes>,
    /// Connections of programs that cannot be preloaded, where they are captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured: Option<Captured>,
    /// Why none are, where the configuration wants it and the device makes nothing faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_to_tcp: Option<String>,
}

/// What the option in handshakes has shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Handshakes {
    pub in_use: bool,
    /// Why it is not.
    pub reason: Option<String>,
    /// SYNs and SYN-ACKs with it, and those that had no room for it.
    pub offered: u64,
    pub answered: u64,
    pub no_room: u64,
    /// Connections, by what became of it.
    pub can: u64,
    pub cannot: u64,
    pub echoed: u64,
    pub foreign: u64,
    pub unheard: u64,
    /// Addresses with which it is not used for a while.
    pub left_alone: u64,
    /// Ends whose hosts were not asked for a daemon.
    pub not_asked: u64,
}

/// What became of captured connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Captured {
    /// Of programs here, that are open.
    pub open: u64,
    /// Since the start.
    pub captured: u64,
    /// Reset, as nobody knew where they were to go.
    pub lost: u64,
    /// Of the captured ones, by TCP to where they were to go.
    pub direct: u64,
    /// Open connections of other hosts' programs.
    pub served_open: u64,
    pub served: u64,
    pub refused: u64,
    /// How often what was not captured, went direct or was refused, by reason.
    pub reasons: BTreeMap<String, u64>,
}

/// One queue pair with another host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePair {
    /// `up`, `trying` or `down`.
    pub link: String,
    pub losses: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// Another host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    pub name: String,
    /// There is a control connection.
    pub is_up: bool,
    /// Of its daemon.
    pub address: Option<String>,
    pub up_s: Option<u64>,
    pub software: Option<String>,
    /// `up`, `trying` or `down`.
    pub link: String,
    pub queue_pairs: Vec<QueuePair>,
    pub link_failure: Option<String>,
    pub link_losses: u64,
    pub lanes: u64,
    /// Ends here that wait for their other ones there.
    pub waiting: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// A program that is connected to the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub client: u32,
    pub pid: u32,
    pub program: String,
    pub uid: u32,
    /// The client, a fork of the same program, at which the connections of both are listed.
    pub shares_with: Option<u32>,
    /// It, or the process that it was forked from, knew an earlier daemon. This one knows only of connections announced
    /// since.
    pub earlier: bool,
    pub connections: Vec<Connection>,
}

/// One end of a connection, as its program sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    pub local: String,
    pub peer: String,
    /// Whether it has a lane: `lane`, `tcp`, or a state on the way between them.
    pub state: String,
    /// What carries its bytes now: `lane`, `fabric` or `tcp`. Older daemons do not say.
    pub path: String,
    /// Why it is on TCP; empty for a lane.
    pub reason: String,
    pub lane_rx_bytes: u64,
    pub lane_tx_bytes: u64,
    pub tcp_rx_bytes: u64,
    pub tcp_tx_bytes: u64,
    pub switches: u64,
    pub sleeps: u64,
    pub spins: u64,
    /// Bytes of each of its rings, if the daemon says so; the document's value else.
    pub ring_bytes: Option<u64>,
    pub peer_pid: Option<u32>,
    pub peer_program: Option<String>,
    /// The host of the other end, if its lane goes to another one.
    pub peer_host: Option<String>,
    /// The window that its lane lies in.
    pub window: Option<String>,
}

impl Connection {
    /// True if it has a lane, whatever carries its bytes now.
    pub fn has_lane(&self) -> bool {
        self.state == "lane"
    }

    /// True if its bytes go by a lane now.
    pub fn on_lane(&self) -> bool {
        match self.path.as_str() {
            "" => self.has_lane(),
            path => path != "tcp",
        }
    }

    /// Why its bytes go by TCP, in words; empty if they do not.
    pub fn why_tcp(&self) -> &str {
        if self.on_lane() {
            ""
        } else if !self.reason.is_empty() {
            &self.reason
        } else if self.state == "tcp" || self.state.is_empty() {
            "no reason given"
        } else {
            &self.state
        }
    }

    /// `lane`, `fabric` for one to another host, `window` for one in memory that it shares, or `tcp`.
    pub fn path(&self) -> &'static str {
        match (self.on_lane(), &self.peer_host) {
            (true, Some(_)) if self.window.is_some() => "window",
            (true, None) => "lane",
            (true, Some(_)) => "fabric",
            (false, _) => "tcp",
        }
    }

    /// `redis-server[1234]`, `@host` for a program on another one, or nothing if the peer is not
    /// under Sluice.
    pub fn peer_name(&self) -> String {
        if let Some(host) = &self.peer_host {
            return format!("@{host}");
        }
        match (&self.peer_program, self.peer_pid) {
            (Some(program), Some(pid)) => format!("{program}[{pid}]"),
            (None, Some(pid)) => format!("[{pid}]"),
            (Some(program), None) => program.clone(),
            (None, None) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_unknown_fields_are_no_error() {
        let text = r#"{"pid": 3, "new": 1, "processes": [{"connections": [{"state": "tcp"}]}]}"#;
        let document: Document = serde_json::from_str(text).unwrap();
        assert_eq!(document.pid, 3);
        assert_eq!(
            document.processes[0].connections[0].why_tcp(),
            "no reason given"
        );
    }

    #[test]
    fn a_connection_says_its_path() {
        let mut connection = Connection {
            state: "lane".to_owned(),
            reason: "left over".to_owned(),
            ..Connection::default()
        };
        assert!(connection.on_lane());
        assert_eq!(connection.why_tcp(), "");
        connection.state = "tcp".to_owned();
        assert_eq!(connection.why_tcp(), "left over");
        connection.reason.clear();
        connection.state = "draining".to_owned();
        assert_eq!(connection.why_tcp(), "draining");
        assert_eq!(connection.peer_name(), "");
        connection.peer_pid = Some(7);
        connection.peer_program = Some("nc".to_owned());
        assert_eq!(connection.peer_name(), "nc[7]");
        connection.peer_host = Some("beta".to_owned());
        assert_eq!(connection.peer_name(), "@beta");
        assert_eq!(connection.path(), "tcp");
        connection.state = "lane".to_owned();
        assert_eq!(connection.path(), "fabric");
    }
}
