//! What is known of a round in which something was wrong.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::Program;
use crate::processes;
use crate::round::Round;
use crate::state::{Connection, EVENTS_MAX, Event};

/// Of each process, in a report.
const EVENTS_SHOWN: u64 = 24;

/// Of a connection: its first ones, as far as the processes remember.
const HISTORY_MAX: usize = 400;

const KINDS: [&str; 5] = ["nobody", "server", "client", "continued", "helper"];

pub struct Report {
    /// One line.
    pub summary: String,
    /// What was wrong, one line each.
    pub found: Vec<String>,
    /// Unfinished connections, and what each process did last.
    pub details: String,
    /// How often each operation was.
    pub counts: Vec<u64>,
    pub is_mutated: bool,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.found.is_empty()
    }

    /// All of it. Wrong bytes are called so, for what runs failed tests again (`tests/src/rerun/never.rs`).
    pub fn text(&self) -> String {
        const OF_BYTES: [&str; 4] = ["BYTES ", "INVENTED ", "EOF ", "END:"];
        let is_of_bytes = |line: &String| OF_BYTES.iter().any(|kind| line.starts_with(kind));
        let bytes = if self.found.iter().any(is_of_bytes) {
            "bytes differ\n"
        } else {
            ""
        };
        let found = self.found.join("\n");
        format!("{}\n{bytes}{found}\n{}", self.summary, self.details)
    }

    /// How often each operation was, of several rounds.
    pub fn add_counts(&self, program: &Program, sum: &mut BTreeMap<String, u64>) {
        for (name, count) in program.names.iter().zip(&self.counts) {
            *sum.entry(name.clone()).or_default() += count;
        }
    }
}

/// The connection that a violation names.
fn connection_of(found: &str) -> Option<u8> {
    let (_, rest) = found.split_once("connection ")?;
    rest.split([' ', ':']).next()?.parse().ok()
}

impl Round<'_> {
    /// What is unfinished, who has it, and the last events of each process.
    pub fn details(&self, connections: &[Connection]) -> String {
        let mut text = String::new();
        for (number, connection) in connections.iter().enumerate() {
            text += &self.unfinished(number, connection);
        }
        for (place, process) in self.processes.all.iter().enumerate() {
            let kind = KINDS.get(process.kind as usize).unwrap_or(&"unknown");
            let state = match (self.processes.is_alive(place), process.is_killed) {
                (true, _) => "lives",
                (false, true) => "was killed",
                (false, false) => "has ended",
            };
            text += &format!("  process {} ({kind}) {state}\n", process.pid);
            if self.processes.is_alive(place) {
                text += &processes::describe(process.pid);
            }
            let events = self.state.events(place, EVENTS_SHOWN);
            for event in events.unwrap_or_default() {
                text += &self.event(event);
            }
        }
        let found = self.found.iter().filter_map(|it| connection_of(it));
        for number in found.collect::<BTreeSet<u8>>() {
            text += &self.history(number);
        }
        text
    }

    /// What all processes did with a connection, in the order of time.
    fn history(&self, number: u8) -> String {
        let mut all = Vec::new();
        for (place, process) in self.processes.all.iter().enumerate() {
            let events = self.state.events(place, EVENTS_MAX).unwrap_or_default();
            let events = events.into_iter().filter(|it| it.connection == number);
            all.extend(events.map(|event| (event.at_ns, process.pid, event)));
        }
        all.sort_by_key(|(at_ns, ..)| *at_ns);
        let all = all.into_iter().take(HISTORY_MAX);
        let lines =
            all.map(|(_, pid, event)| format!("    {pid}: {}", self.event(event).trim_start()));
        format!("  history of connection {number}:\n") + &lines.collect::<String>()
    }

    fn unfinished(&self, number: usize, connection: &Connection) -> String {
        let mut text = String::new();
        for (direction, it) in connection.directions.iter().enumerate() {
            if it.sender_ended && it.receiver_ended {
                continue;
            }
            let by = |pid: u64, is_ended, call| {
                let ended = if is_ended { " (ended)" } else { "" };
                format!("{pid}{ended} by {}", self.program.name(call))
            };
            text += &format!(
                "  connection {number} direction {direction}: from {} to {}: {} of {} sent, \
                 {} offered, {} received, fin {}, eof {}, cut by {}\n",
                by(it.sender, it.sender_ended, it.send_call),
                by(it.receiver, it.receiver_ended, it.receive_call),
                it.sent,
                it.total,
                it.offered,
                it.received,
                it.is_fin,
                it.is_eof,
                if connection.cut == 0 {
                    "nobody"
                } else {
                    self.program.name(connection.cut)
                },
            );
        }
        text
    }

    fn event(&self, event: Event) -> String {
        format!(
            "    {:>9.3} ms, thread {}, connection {} direction {} at {}: {} {}\n",
            event.at_ns.saturating_sub(self.begin_ns) as f64 / 1e6,
            event.thread,
            event.connection,
            event.direction,
            event.offset,
            self.program.name(event.operation.into()),
            event.result,
        )
    }
}
