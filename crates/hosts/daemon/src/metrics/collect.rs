//! What sluiced has to say, as figures. docs/operations.md explains each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_lane::totals::Totals;

use super::Family;
use crate::capture::orders::Counts;
use crate::counters::Counters;
use crate::end_table;
use crate::fabric::finding::FindingReport;
use crate::fabric::report::{FabricReport, PeerReport};
use crate::lanes::Lanes;
use crate::program::EndTable;
use crate::status::Process;

/// Ticks per second of `/proc/PID/stat` (proc(5)): `USER_HZ`, which is the same on all
/// architectures that Linux has besides Alpha and IA-64.
const TICKS_PER_SECOND: f64 = 100.0;
/// `/proc/self/stat`: user and system time, after the name in parentheses.
const USER_TIME: usize = 11;
/// Resident pages, and their size on x86-64 and, as a rule, elsewhere.
const RESIDENT: usize = 21;
const PAGE_BYTES: f64 = 4096.0;

/// Records of a table that are looked at when its program has gone.
const LAST_LOOK_RECORDS: usize = 4_096;

/// What programs have counted of their connections, added up over all connections that there were.
/// Programs count in tables that are theirs; each is looked at from time to time, and once more when
/// the last program that uses it has gone.
#[derive(Debug, Default)]
pub struct Seen {
    /// As of the last look at each table, by device and inode.
    before: HashMap<(u64, u64), Totals>,
    totals: Totals,
}

/// Where a connection's other end is; the label `path` of what goes by its rings.
const PATHS: [&str; 2] = ["local", "fabric"];

/// Ends that have a lane on this host, to another one, and none.
#[derive(Debug, Default, Clone, Copy)]
struct Ends {
    local: u64,
    fabric: u64,
    tcp: u64,
}

/// Everything that a snapshot is made of.
pub struct Sources<'a> {
    pub started: SystemTime,
    pub programs: usize,
    pub lanes: &'a Lanes,
    pub ends_announced: usize,
    pub counters: &'a Counters,
    pub processes: Vec<Process<'a>>,
    /// What each table counts.
    pub tables: Vec<((u64, u64), Totals)>,
    pub fabric: Option<FabricReport>,
}

impl Seen {
    /// All figures. Takes what connections have moved since the last call into account.
    pub fn figures(&mut self, sources: &Sources<'_>) -> Vec<Family> {
        let ends = self.look(sources);
        let mut all = about_sluiced(sources);
        all.extend(about_connections(ends, &self.totals));
        all.extend(about_lanes(sources));
        all.extend(about_announcements(sources.counters));
        if let Some(fabric) = &sources.fabric {
            all.extend(about_hosts(fabric));
            if let Some(option) = &fabric.option {
                all.extend(about_handshakes(option));
            }
            if let Some(captured) = &fabric.captured {
                all.extend(about_captured(captured));
            }
        }
        all.extend(about_the_process());
        all
    }

    /// A program has gone. What its table says now is the last word on it, unless others use it
    /// still; of the connections that were open, [`LAST_LOOK_RECORDS`] are counted.
    pub fn note_end(&mut self, table: &Arc<EndTable>) {
        if Arc::strong_count(table) > 1 {
            return;
        }
        let found = end_table::read(table.raw(), LAST_LOOK_RECORDS);
        let open = found.ends.iter().map(|(_, end)| end.totals());
        self.note(table.id(), open.fold(found.closed, Totals::plus));
        self.before.remove(&table.id());
    }

    fn note(&mut self, table: (u64, u64), now: Totals) {
        let before = self.before.entry(table).or_default();
        // Programs can write anything there.
        self.totals = self.totals.plus(now.beyond(*before));
        *before = before.max(now);
    }

    fn look(&mut self, sources: &Sources<'_>) -> Ends {
        let mut ends = Ends::default();
        for connection in sources.processes.iter().flat_map(|it| &it.connections) {
            match (connection.state, connection.peer_host) {
                ("lane", None) => ends.local += 1,
                ("lane", Some(_)) => ends.fabric += 1,
                _ => ends.tcp += 1,
            }
        }
        for (table, now) in &sources.tables {
            self.note(*table, *now);
        }
        ends
    }
}

fn label(name: &'static str, value: &str) -> Vec<(&'static str, String)> {
    vec![(name, value.to_owned())]
}

fn about_sluiced(sources: &Sources<'_>) -> Vec<Family> {
    let started = sources.started.duration_since(UNIX_EPOCH);
    vec![
        Family::gauge("sluice_build_info", "The version of sluiced; always 1.")
            .with(label("version", env!("CARGO_PKG_VERSION")), 1.0),
        Family::gauge(
            "sluice_start_time_seconds",
            "When sluiced was started, since the epoch.",
        )
        .value(started.map_or(0.0, |since| since.as_secs_f64())),
        Family::gauge("sluice_programs", "Programs that are connected to sluiced.")
            .value(sources.programs as f64),
    ]
}

fn about_connections(ends: Ends, totals: &Totals) -> Vec<Family> {
    let mut bytes = Family::counter(
        "sluice_connection_bytes",
        "Bytes that programs moved on their connections, by what carried them.",
    );
    let paths = [
        (PATHS[0], totals.local_bytes),
        (PATHS[1], totals.fabric_bytes),
        ("tcp", totals.tcp_bytes),
    ];
    for (path, [received, sent]) in paths {
        for (direction, value) in [("received", received), ("sent", sent)] {
            let mut labels = label("path", path);
            labels.extend(label("direction", direction));
            bytes = bytes.with(labels, value as f64);
        }
    }
    vec![
        Family::gauge(
            "sluice_connections",
            "Ends of connections, by what carries them.",
        )
        .by(
            "path",
            [
                ("local", ends.local),
                ("fabric", ends.fabric),
                ("tcp", ends.tcp),
            ],
        ),
        bytes,
        Family::counter(
            "sluice_handovers",
            "Changes of a sender between ring and TCP, in either direction.",
        )
        .by(
            "path",
            [
                (PATHS[0], totals.switches[0]),
                (PATHS[1], totals.switches[1]),
            ],
        ),
        Family::counter("sluice_sleeps", "Waits for bytes that slept in the kernel.")
            .value(totals.sleeps as f64),
        Family::counter("sluice_polls", "Waits for bytes that polling ended.")
            .value(totals.spins as f64),
    ]
}

fn about_lanes(sources: &Sources<'_>) -> Vec<Family> {
    let lanes = sources.lanes;
    let fabric = sources.fabric.as_ref().map(|fabric| &fabric.lanes);
    let counters = sources.counters;
    let mut in_use = Family::gauge("sluice_lanes_in_use", "Lanes that connections have.")
        .by("kind", [("local", lanes.in_use().into())]);
    let mut max = Family::gauge("sluice_lanes_max", "Lanes that there can be.")
        .by("kind", [("local", lanes.lanes_max().into())]);
    if let Some(fabric) = fabric {
        in_use = in_use.by("kind", [("fabric", fabric.in_use.into())]);
        max = max.by("kind", [("fabric", fabric.max.into())]);
    }
    vec![
        in_use,
        max,
        Family::gauge("sluice_chunks", "Pieces of shared memory with local lanes.")
            .value(lanes.chunk_count() as f64),
        Family::counter("sluice_lanes_given", "Connections that got a lane.").by(
            "kind",
            [
                (
                    "local",
                    counters
                        .matches
                        .saturating_sub(counters.matches_across_namespaces),
                ),
                ("namespaces", counters.matches_across_namespaces),
                ("fabric", counters.matches_across_hosts),
            ],
        ),
        Family::counter(
            "sluice_lanes_refused",
            "Connections whose both ends were there and that stayed on TCP.",
        )
        .by(
            "reason",
            [
                ("full", counters.lanes_refused_full),
                ("share", counters.lanes_refused_share),
                ("memory", counters.lanes_refused_memory),
                ("limit", counters.lanes_refused_limit),
                ("unread", counters.lanes_refused_unread),
            ],
        ),
        Family::gauge(
            "sluice_ends_announced",
            "Ends that programs have announced.",
        )
        .value(sources.ends_announced as f64),
    ]
}

fn about_announcements(counters: &Counters) -> Vec<Family> {
    let good = counters
        .announcements
        .saturating_sub(counters.announcements_rejected)
        .saturating_sub(counters.announcements_duplicate);
    vec![
        Family::counter("sluice_announcements", "Ends that programs have announced.").by(
            "result",
            [
                ("taken", good),
                ("rejected", counters.announcements_rejected),
                ("duplicate", counters.announcements_duplicate),
            ],
        ),
        Family::counter("sluice_ends_over", "Announced ends that are known no more.").by(
            "reason",
            [
                ("released", counters.ends_released),
                ("settled", counters.ends_settled),
                ("replaced", counters.ends_replaced),
                ("forgotten", counters.ends_forgotten),
            ],
        ),
        Family::counter("sluice_clients", "Connections to the control socket.").by(
            "result",
            [
                ("accepted", counters.clients_accepted),
                ("refused", counters.clients_refused),
            ],
        ),
        Family::counter(
            "sluice_malformed_messages",
            "Messages of clients that are none.",
        )
        .value(counters.messages_malformed as f64),
    ]
}

fn about_hosts(fabric: &FabricReport) -> Vec<Family> {
    let gauge = |name, help, value: fn(&PeerReport) -> Option<f64>| {
        of_each(Family::gauge(name, help), fabric, value)
    };
    let counter = |name, help, value: fn(&PeerReport) -> Option<f64>| {
        of_each(Family::counter(name, help), fabric, value)
    };
    let control = &fabric.control;
    vec![
        Family::gauge(
            "sluice_fabric_info",
            "What carries bytes to other hosts; always 1.",
        )
        .with(
            vec![
                ("device", fabric.device.clone()),
                ("address", fabric.address.to_string()),
            ],
            1.0,
        ),
        gauge(
            "sluice_peer_up",
            "Whether there is a control connection with the host.",
            |peer| Some(f64::from(u8::from(peer.is_up))),
        ),
        gauge(
            "sluice_peer_link_up",
            "Whether the fabric reaches the host.",
            |peer| Some(f64::from(u8::from(peer.link == "up"))),
        ),
        gauge(
            "sluice_peer_session_seconds",
            "How long the control connection has been there.",
            |peer| peer.up_s.map(|seconds| seconds as f64),
        ),
        gauge("sluice_peer_lanes", "Lanes to the host.", |peer| {
            Some(f64::from(peer.lanes))
        }),
        gauge(
            "sluice_peer_ends_waiting",
            "Ends that wait for their other ones at the host.",
            |peer| Some(f64::from(peer.waiting)),
        ),
        counter(
            "sluice_peer_sent_bytes",
            "Payload that was written to rings at the host.",
            |peer| Some(peer.sent_bytes as f64),
        ),
        counter(
            "sluice_peer_received_bytes",
            "Payload that the host has written to rings here.",
            |peer| Some(peer.received_bytes as f64),
        ),
        counter(
            "sluice_peer_link_losses",
            "Times that the link to the host has failed.",
            |peer| Some(peer.link_losses as f64),
        ),
        Family::counter(
            "sluice_control_sessions",
            "Control connections that were made.",
        )
        .value(control.sessions as f64),
        Family::counter(
            "sluice_control_accepted",
            "Connections that came to the control port.",
        )
        .value(control.accepted as f64),
        Family::counter("sluice_control_refused", "Of these, that came to nothing.").by(
            "reason",
            [("crowded", control.crowded), ("failed", control.failed)],
        ),
        Family::counter("sluice_control_messages", "Messages between daemons.").by(
            "direction",
            [
                ("received", control.messages_in),
                ("sent", control.messages_out),
            ],
        ),
    ]
}

fn about_handshakes(seen: &FindingReport) -> Vec<Family> {
    vec![
        Family::gauge(
            "sluice_handshake_option_in_use",
            "Whether the option that finds other hosts is in handshakes.",
        )
        .value(f64::from(u8::from(seen.in_use))),
        Family::counter(
            "sluice_handshakes",
            "Connections, by what the option has shown of the other end.",
        )
        .by(
            "peer",
            [
                ("can", seen.can),
                ("cannot", seen.cannot),
                ("echoed", seen.echoed),
                ("foreign", seen.foreign),
                ("unheard", seen.unheard),
            ],
        ),
        Family::counter(
            "sluice_handshake_options",
            "SYNs and SYN-ACKs with the option, and those that had no room for it.",
        )
        .by(
            "segment",
            [
                ("syn", seen.offered),
                ("syn_ack", seen.answered),
                ("no_room", seen.no_room),
            ],
        ),
        Family::gauge(
            "sluice_handshake_addresses_left_alone",
            "Addresses that drop the option and are reached without it for a while.",
        )
        .value(seen.left_alone as f64),
        Family::counter(
            "sluice_ends_not_asked",
            "Ends whose hosts were not asked for a sluiced, as their handshakes advise.",
        )
        .value(seen.not_asked as f64),
    ]
}

fn about_captured(counts: &Counts) -> Vec<Family> {
    vec![
        Family::gauge(
            "sluice_captured_open",
            "Captured connections that are open, by where their program is.",
        )
        .by(
            "program",
            [("here", counts.open), ("peer", counts.served_open)],
        ),
        Family::counter(
            "sluice_captured_connections",
            "Connections of programs here that were captured.",
        )
        .by(
            "way",
            [
                ("relays", counts.captured.saturating_sub(counts.direct)),
                ("direct", counts.direct),
                ("lost", counts.lost),
            ],
        ),
        Family::counter(
            "sluice_relayed_connections",
            "Connections that peers asked to be made to programs here.",
        )
        .by(
            "result",
            [("made", counts.served), ("refused", counts.refused)],
        ),
        Family::counter(
            "sluice_captured_reasons",
            "Connections that were not captured, went direct or were refused, by reason.",
        )
        .by("reason", counts.reasons.all()),
    ]
}

fn of_each(family: Family, fabric: &FabricReport, value: fn(&PeerReport) -> Option<f64>) -> Family {
    fabric
        .peers
        .iter()
        .fold(family, |family, peer| match value(peer) {
            Some(value) => family.with(label("peer", &peer.name), value),
            None => family,
        })
}

/// What Prometheus' own libraries say of a process, under the same names.
fn about_the_process() -> Vec<Family> {
    let mut all = Vec::new();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    if let (Some(user), Some(system)) = (fields.get(USER_TIME), fields.get(USER_TIME + 1)) {
        all.push(
            Family::counter("process_cpu_seconds", "Processor time of sluiced.")
                .value((user + system) / TICKS_PER_SECOND),
        );
    }
    if let Some(pages) = fields.get(RESIDENT) {
        all.push(
            Family::gauge("process_resident_memory_bytes", "Memory of sluiced.")
                .value(pages * PAGE_BYTES),
        );
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        all.push(
            Family::gauge("process_open_fds", "Descriptors of sluiced.").value(open.count() as f64),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use sluice_lane::table::{CLOSED_AT, MAGIC, VERSION, table_bytes};
    use sluice_lane::totals::TOTALS;
    use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};

    use super::*;

    fn table(closed: [u64; TOTALS]) -> Arc<EndTable> {
        let file = memfd::create(c"sluiced-test").unwrap();
        memfd::set_len(file.raw(), table_bytes() as u64).unwrap();
        let write = |at: usize, bytes: &[u8]| {
            memfd::write_at(file.raw(), bytes, at as u64).unwrap();
        };
        write(0, &MAGIC.to_ne_bytes());
        write(8, &VERSION.to_ne_bytes());
        let words: Vec<u8> = closed.iter().flat_map(|word| word.to_ne_bytes()).collect();
        write(CLOSED_AT, &words);
        memfd::add_seals(file.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE).unwrap();
        Arc::new(EndTable::new(file).unwrap())
    }

    const MOVED: [u64; TOTALS] = [2, 10, 20, 30, 40, 50, 60, 7, 8, 9, 5];

    #[test]
    fn what_ended_connections_moved_counts_once_and_stays() {
        let mut seen = Seen::default();
        let program = table(MOVED);
        let now = Totals::from_words(MOVED);
        seen.note(program.id(), now);
        seen.note(program.id(), now);
        assert_eq!(seen.totals, now);
        // Others use the table.
        let fork = program.clone();
        seen.note_end(&fork);
        drop(fork);
        seen.note_end(&program);
        assert_eq!(seen.totals, now);
        // Nobody has looked before a short-lived program was gone.
        seen.note_end(&table(MOVED));
        assert_eq!(seen.totals, now.plus(now));
    }

    #[test]
    fn a_program_that_counts_backwards_counts_nothing() {
        let mut seen = Seen::default();
        let all = Totals::from_words(MOVED);
        for now in [all, Totals::default(), all, all] {
            seen.note((1, 1), now);
        }
        assert_eq!(seen.totals, all);
    }
}
