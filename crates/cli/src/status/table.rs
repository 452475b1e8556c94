//! Live connections as a table, grouped by program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::layout::{Column, Keep, fit_with_reasons, line, titles};
use super::peers;
use crate::document::{Connection, Document, Process};
use crate::terminal::{Style, harmless};
use crate::units;

/// An IPv4 address with its port is 15 characters or more and is shown whole on loopback.
const COLUMNS: [Column; 13] = [
    Column::left("LOCAL").shrinks_to(15, Keep::End),
    Column::left("PEER").shrinks_to(15, Keep::End),
    Column::left("PEER PROGRAM").shrinks_to(14, Keep::Both),
    Column::left("PATH"),
    Column::right("LANE-IN"),
    Column::right("LANE-OUT"),
    Column::right("TCP-IN"),
    Column::right("TCP-OUT"),
    Column::right("SWITCH").sacrifice(2),
    Column::right("SLEEPS").sacrifice(3),
    Column::right("SPINS").sacrifice(4),
    Column::right("RING").sacrifice(5),
    Column::left("WHY TCP")
        .sacrifice(1)
        .shrinks_to(10, Keep::Start),
];
const INDENT: usize = 2;

fn cells(connection: &Connection, ring_bytes: u64) -> Vec<String> {
    let ring = if connection.has_lane() {
        units::bytes(connection.ring_bytes.unwrap_or(ring_bytes))
    } else {
        String::new()
    };
    vec![
        harmless(&connection.local),
        harmless(&connection.peer),
        harmless(&connection.peer_name()),
        connection.path().to_owned(),
        units::bytes(connection.lane_rx_bytes),
        units::bytes(connection.lane_tx_bytes),
        units::bytes(connection.tcp_rx_bytes),
        units::bytes(connection.tcp_tx_bytes),
        units::count(connection.switches),
        units::count(connection.sleeps),
        units::count(connection.spins),
        ring,
        harmless(connection.why_tcp()),
    ]
}

/// `nginx (pid 12, uid 33): 3 connections, 1 on a lane`, and a line for each reason that keeps
/// others on TCP.
fn heading(process: &Process, sharer: Option<&Process>, style: Style) -> String {
    let total = process.connections.len() as u64;
    let laned = process.connections.iter().filter(|c| c.on_lane()).count();
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for connection in process.connections.iter().filter(|c| !c.on_lane()) {
        *reasons.entry(connection.why_tcp()).or_default() += 1;
    }
    let program = if process.program.is_empty() {
        "?".to_owned()
    } else {
        harmless(&process.program)
    };
    let mut text = format!(
        "{} (pid {}, uid {}): ",
        style.bold(&program),
        process.pid,
        process.uid,
    );
    // Writing to a String cannot fail.
    let _ = match sharer {
        Some(sharer) => writeln!(text, "shares the connections of pid {}", sharer.pid),
        None if total == 0 && process.earlier => writeln!(text, "knew an earlier daemon"),
        None if total == 0 => writeln!(text, "no connections"),
        None => writeln!(
            text,
            "{}, {laned} on a lane",
            units::plural(total, "connection")
        ),
    };
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(*count), *reason));
    for (reason, count) in reasons {
        let indent = " ".repeat(INDENT);
        let _ = writeln!(text, "{indent}{count} on TCP: {}", harmless(reason));
    }
    text
}

/// One daemon's line: `sluiced 0.1.0, pid 7, up 3m05s, 12 of 65536 lanes in use, rings of 64K`.
pub fn daemon_line(document: &Document) -> String {
    format!(
        "sluiced {}, pid {}, up {}, {} of {} lanes in use, rings of {}",
        harmless(&document.version),
        document.pid,
        units::seconds(document.uptime_s),
        document.lanes.in_use,
        document.lanes.max,
        units::bytes(document.ring_bytes),
    )
}

fn colour_path(text: String, connection: &Connection, style: Style) -> String {
    // The path is the only cell that can be exactly one of these words between blanks.
    let word = connection.path();
    let painted = if connection.on_lane() {
        style.good(word)
    } else {
        style.note(word)
    };
    text.replacen(&format!(" {word} "), &format!(" {painted} "), 1)
}

/// The whole table of one daemon. `limit` is the width that lines may have, `None` for any.
pub fn render(document: &Document, style: Style, limit: Option<usize>) -> String {
    let mut text = format!("{}\n", style.dim(&daemon_line(document)));
    if let Some(why) = &document.no_lanes {
        let _ = writeln!(text, "no connection gets a lane: {}", harmless(why));
    }
    if document.lanes.shrunk > 0 {
        let count = units::plural(document.lanes.shrunk, "chunk");
        let _ = writeln!(
            text,
            "{count} of lanes with smaller rings: a control group is near its limit of memory"
        );
    }
    if let Some(fabric) = &document.fabric {
        text.push_str(&peers::render(fabric, style, limit));
    }
    let mut processes: Vec<&Process> = document.processes.iter().collect();
    processes.sort_by_key(|process| (&process.program, process.pid));
    if processes.is_empty() {
        text.push_str("no program is connected; start one with 'sluice run -- PROGRAM'\n");
        return text;
    }
    let rows: Vec<Vec<String>> = processes
        .iter()
        .flat_map(|process| &process.connections)
        .map(|connection| cells(connection, document.ring_bytes))
        .collect();
    // One set of widths for all programs keeps the columns under each other.
    let limit = limit.map(|limit| limit.saturating_sub(INDENT));
    let widths = fit_with_reasons(&COLUMNS, &rows, limit);
    let mut rows = rows.iter();
    for process in processes {
        let sharer = process.shares_with.and_then(|client| {
            let mut all = document.processes.iter();
            all.find(|other| other.client == client)
        });
        text.push_str(&heading(process, sharer, style));
        if process.connections.is_empty() {
            continue;
        }
        let indent = " ".repeat(INDENT);
        let _ = writeln!(text, "{indent}{}", style.dim(&titles(&COLUMNS, &widths)));
        for (connection, row) in process.connections.iter().zip(&mut rows) {
            let row = colour_path(line(&COLUMNS, &widths, row), connection, style);
            let _ = writeln!(text, "{indent}{row}");
        }
    }
    let earlier = document.processes.iter().filter(|p| p.earlier).count();
    if earlier > 0 {
        let _ = writeln!(
            text,
            "{} knew an earlier daemon; {} from then are not listed and keep their lanes",
            units::plural(earlier as u64, "process"),
            if earlier == 1 {
                "its connections"
            } else {
                "their connections"
            },
        );
    }
    if document.truncated {
        text.push_str("there are more connections than the daemon lists\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Lanes;

    fn connection(state: &str, reason: &str) -> Connection {
        Connection {
            local: "127.0.0.1:6379".to_owned(),
            peer: "127.0.0.1:54321".to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
            lane_rx_bytes: 123_456_789,
            lane_tx_bytes: 2048,
            tcp_rx_bytes: 999,
            tcp_tx_bytes: 17,
            switches: 2,
            sleeps: 4321,
            spins: 98_765,
            peer_pid: Some(4711),
            peer_program: Some("redis-benchmark".to_owned()),
            ..Connection::default()
        }
    }

    fn document(connections: Vec<Connection>) -> Document {
        Document {
            version: "0.1.0".to_owned(),
            pid: 7,
            uptime_s: 185,
            ring_bytes: 65_536,
            lanes: Lanes {
                in_use: 1,
                max: 65_536,
                shrunk: 0,
            },
            processes: vec![Process {
                pid: 12,
                program: "redis-server".to_owned(),
                connections,
                ..Process::default()
            }],
            ..Document::default()
        }
    }

    #[test]
    fn lines_fit_a_hundred_columns() {
        let mixed = document(vec![
            connection("lane", ""),
            connection("tcp", "the other end is not under sluice run"),
        ]);
        for limit in [100, 120, 160] {
            for line in render(&mixed, Style::PLAIN, Some(limit)).lines() {
                assert!(line.chars().count() <= limit, "{limit}: {line}");
            }
        }
    }

    #[test]
    fn wide_tables_show_everything() {
        let mut ipv6 = connection("lane", "");
        ipv6.local = "[2001:db8:1111:2222:3333:4444:5555:6666]:6379".to_owned();
        let text = render(
            &document(vec![
                ipv6.clone(),
                connection("tcp", "too little traffic yet"),
            ]),
            Style::PLAIN,
            None,
        );
        for part in [
            ipv6.local.as_str(),
            "redis-benchmark[4711]",
            "117M",
            "64K",
            "98k",
            "too little traffic yet",
            "2 connections, 1 on a lane",
            "  1 on TCP: too little traffic yet",
            "1 of 65536 lanes in use",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn smaller_rings_are_said_where_there_are_any() {
        let mut document = document(Vec::new());
        let said = |document: &Document| render(document, Style::PLAIN, None);
        assert!(!said(&document).contains("smaller rings"));
        document.lanes.shrunk = 2;
        let line =
            "2 chunks of lanes with smaller rings: a control group is near its limit of memory\n";
        assert!(said(&document).contains(line));
    }

    #[test]
    fn reasons_take_no_room_when_all_are_on_lanes() {
        let text = render(
            &document(vec![connection("lane", "")]),
            Style::PLAIN,
            Some(100),
        );
        assert!(!text.contains("WHY TCP"), "{text}");
        assert!(text.contains("SWITCH"), "{text}");
    }

    #[test]
    fn a_lane_whose_bytes_go_by_tcp_is_not_called_one() {
        let mut idle = connection("lane", "its readers sleep, and TCP wakes them");
        idle.path = "tcp".to_owned();
        let mut busy = connection("lane", "");
        busy.path = "lane".to_owned();
        let text = render(&document(vec![idle, busy]), Style::PLAIN, None);
        assert!(text.contains("2 connections, 1 on a lane"), "{text}");
        assert!(text.contains("1 on TCP: its readers sleep"), "{text}");
        // It has its rings all the same.
        assert_eq!(text.matches(" 64K").count(), 3, "{text}");
    }

    #[test]
    fn equal_reasons_are_counted() {
        let few = || connection("tcp", "too little traffic yet");
        let text = render(&document(vec![few(), few()]), Style::PLAIN, Some(100));
        assert!(text.contains("2 on TCP: too little traffic yet"), "{text}");
    }

    #[test]
    fn an_empty_daemon_says_how_to_use_it() {
        let mut empty = document(Vec::new());
        empty.processes.clear();
        let text = render(&empty, Style::PLAIN, Some(100));
        assert!(text.contains("sluice run -- PROGRAM"), "{text}");
    }

    #[test]
    fn forks_point_at_the_process_that_lists_their_connections() {
        let mut forked = document(vec![connection("lane", "")]);
        forked.truncated = true;
        forked.processes.push(Process {
            client: 9,
            pid: 13,
            program: "redis-server".to_owned(),
            shares_with: Some(0),
            ..Process::default()
        });
        let text = render(&forked, Style::PLAIN, Some(100));
        assert!(
            text.contains("(pid 13, uid 0): shares the connections of pid 12\n"),
            "{text}"
        );
        assert!(text.contains("there are more connections"), "{text}");
    }

    #[test]
    fn what_an_earlier_daemon_knew_is_not_said_to_be_nothing() {
        let mut after = document(Vec::new());
        after.processes[0].earlier = true;
        let text = render(&after, Style::PLAIN, Some(100));
        assert!(!text.contains("no connections"), "{text}");
        assert!(
            text.contains("1 process knew an earlier daemon; its connections"),
            "{text}"
        );
    }

    #[test]
    fn names_are_made_harmless() {
        let mut evil = document(vec![connection("tcp", "a\x1b[2Jb")]);
        evil.processes[0].program = "x\x1b]0;title\x07".to_owned();
        assert!(!render(&evil, Style::PLAIN, None).contains('\x1b'));
    }
}
