//! Verbs processes as a table: a line for each device of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Device, Process, State, Verbs};
use crate::status::layout::{Column, Keep, fit, line, titles};
use crate::terminal::{Style, harmless};
use crate::units;

const COLUMNS: [Column; 14] = [
    Column::right("PID"),
    Column::left("PROGRAM").shrinks_to(8, Keep::Start),
    Column::left("USER"),
    Column::left("DEVICE"),
    Column::left("OVER").shrinks_to(6, Keep::Start),
    Column::left("ADDRESS")
        .sacrifice(2)
        .shrinks_to(9, Keep::Start),
    Column::left("QPS").shrinks_to(6, Keep::Start),
    Column::right("SENDS"),
    Column::right("SENT"),
    Column::right("RECVS"),
    Column::right("RCVD"),
    Column::right("AGAIN").sacrifice(3),
    Column::right("DROPS").sacrifice(4),
    Column::left("NOTE")
        .sacrifice(1)
        .shrinks_to(10, Keep::Start),
];
/// These are left out where they are empty in every line.
const MAY_BE_EMPTY: [usize; 5] = [2, 5, 11, 12, 13];
const INDENT: usize = 2;

/// `2 RTS, 1 INIT`; those that can send come first.
pub fn states(counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    counts.sort_by_key(|(name, _)| name.as_str() != "RTS");
    let each = counts.iter().map(|(name, count)| format!("{count} {name}"));
    each.collect::<Vec<_>>().join(", ")
}

/// What it goes over: `shared memory`, `AF_XDP va, UDP`.
pub fn over(device: &Device) -> String {
    match device.ways.is_empty() {
        false => device.ways.join(", "),
        true if device.is_network() => device.transport.clone(),
        true => "shared memory".to_owned(),
    }
}

/// The first address, and how many there are besides.
fn address(device: &Device) -> String {
    match &device.addresses[..] {
        [] => String::new(),
        [only] => only.clone(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

/// What is to be known of a process besides figures.
fn note(process: &Process) -> String {
    let mut notes = Vec::new();
    match process.state {
        State::Answers => {}
        State::Stopped => notes.push("is stopped"),
        State::Silent => notes.push("does not answer"),
        State::Unknown => notes.push("answers as another version would"),
    }
    if process.same_network == Some(false) {
        notes.push("other network namespace");
    }
    let devices = process.report.iter().flat_map(|report| &report.devices);
    if devices.clone().any(|device| device.is_partial) {
        notes.push("busy, packets not all counted");
    }
    if process.report.is_some() && devices.count() == 0 {
        notes.push("no device open");
    }
    notes.join("; ")
}

fn cells(process: &Process, device: Option<&Device>, own: u32) -> Vec<String> {
    let mut cells = vec![
        process.pid.map_or("?".to_owned(), |pid| pid.to_string()),
        match process.program.is_empty() {
            true => "?".to_owned(),
            false => harmless(&process.program),
        },
        match process.uid == own {
            true => String::new(),
            false => process.uid.to_string(),
        },
    ];
    let figures = match device {
        None => vec![String::new(); 10],
        Some(device) => {
            let count = |number: Option<u64>| number.map_or(String::new(), units::count);
            vec![
                harmless(&device.name),
                harmless(&over(device)),
                harmless(&address(device)),
                harmless(&states(&device.queue_pairs)),
                units::count(device.sends),
                units::bytes(device.send_bytes),
                units::count(device.receives),
                units::bytes(device.receive_bytes),
                count(device.repeated()),
                count(device.dropped()),
            ]
        }
    };
    cells.extend(figures);
    cells.push(note(process));
    cells
}

/// `verbs: 2 processes, 3 queue pairs`.
fn heading(verbs: &Verbs) -> String {
    let reports = verbs.processes.iter().filter_map(|one| one.report.as_ref());
    let devices = reports.flat_map(|report| &report.devices);
    let pairs = super::sum(devices.map(Device::queue_pair_count));
    format!(
        "verbs: {}, {}",
        units::plural(verbs.processes.len() as u64, "process"),
        units::plural(pairs, "queue pair")
    )
}

/// The table; nothing where there are no processes. `own`: the user whose name is not said.
/// `limit` is the width that lines may have, `None` for any.
pub fn render(verbs: &Verbs, own: u32, style: Style, limit: Option<usize>) -> String {
    if verbs.processes.is_empty() {
        return String::new();
    }
    let mut text = format!("{}\n", style.dim(&heading(verbs)));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for process in &verbs.processes {
        let devices = process.report.iter().flat_map(|report| &report.devices);
        let before = rows.len();
        rows.extend(devices.map(|device| cells(process, Some(device), own)));
        if rows.len() == before {
            rows.push(cells(process, None, own));
        }
    }
    let is_shown = |index: &usize| {
        !MAY_BE_EMPTY.contains(index) || rows.iter().any(|row| !row[*index].is_empty())
    };
    let shown: Vec<usize> = (0..COLUMNS.len()).filter(is_shown).collect();
    let columns: Vec<Column> = shown.iter().map(|index| COLUMNS[*index]).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| shown.iter().map(|index| row[*index].clone()).collect())
        .collect();
    let widths = fit(&columns, &rows, limit.map(|l| l.saturating_sub(INDENT)));
    let indent = " ".repeat(INDENT);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{indent}{}", style.dim(&titles(&columns, &widths)));
    for row in &rows {
        let _ = writeln!(text, "{indent}{}", line(&columns, &widths, row));
    }
    if !verbs.complete {
        text.push_str("there are more verbs processes than could be asked in time\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use sluice_rendezvous::survey::Answer;

    use super::super::tests::{ANSWER, verbs};
    use super::*;

    #[test]
    fn each_device_has_a_line() {
        let both = verbs(vec![Answer::Bytes(ANSWER.into()), Answer::Stopped]);
        let text = render(&both, 1000, Style::PLAIN, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0], "verbs: 2 processes, 3 queue pairs");
        for part in [
            "7 ib_write_bw sluice0 AF_XDP va, UDP 10.9.0.1 +1 2 RTS, 1 INIT",
            "5.0k",
            "5.0M",
            " 12 ",
        ] {
            let squeezed: Vec<&str> = lines[2].split_whitespace().collect();
            assert!(
                lines[2].contains(part) || squeezed.join(" ").contains(part),
                "{part} in\n{text}"
            );
        }
        assert!(lines[3].ends_with("is stopped"), "{text}");
        assert!(!text.contains("USER"), "{text}");
        assert!(render(&both, 0, Style::PLAIN, None).contains("1000"));
        assert_eq!(render(&verbs(Vec::new()), 0, Style::PLAIN, None), "");
    }

    #[test]
    fn within_a_host_there_are_no_columns_of_a_network() {
        let answer = ANSWER
            .replace("\"roce\"", "\"shm\"")
            .replace("\"AF_XDP va\",\"UDP\"", "")
            .replace("\"10.9.0.1\",\"fd09::1\"", "");
        let text = render(
            &verbs(vec![Answer::Bytes(answer.into())]),
            1000,
            Style::PLAIN,
            None,
        );
        assert!(text.contains("shared memory"), "{text}");
        for title in ["ADDRESS", "AGAIN", "DROPS", "NOTE"] {
            assert!(!text.contains(title), "{title} in\n{text}");
        }
    }

    #[test]
    fn lines_fit_a_terminal_and_names_are_harmless() {
        let evil = ANSWER
            .replace("va", "\\u001b[2J")
            .replace("RTS", "\\u001b]0;x");
        let answers = vec![
            Answer::Bytes(ANSWER.into()),
            Answer::Bytes(evil.into()),
            Answer::Silent,
        ];
        let text = render(&verbs(answers), 0, Style::PLAIN, Some(80));
        assert!(!text.contains('\x1b'), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
