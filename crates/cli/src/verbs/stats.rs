//! What `--stats` prints: a line for each queue pair that the program and its children had, and one
//! for each thing that happened to their packets on a network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

use crate::terminal::harmless;

/// No more of the file is read than this: 100,000 queue pairs fit.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// A line of the library's.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Device(Device),
    QueuePair(QueuePair),
}

/// One device, as the library writes it when the program ends.
#[derive(Debug, Deserialize)]
struct Device {
    pid: u32,
    program: String,
    device: String,
    /// Those that are not 0.
    counters: BTreeMap<String, u64>,
}

/// One queue pair, as the library writes it when the pair is destroyed or the program ends.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct QueuePair {
    pid: u32,
    program: String,
    qpn: u32,
    r#type: String,
    sends: u64,
    send_bytes: u64,
    receives: u64,
}

/// The tables for a person, or a sentence if there is nothing to show. Lines that are no JSON
/// object are counted: a process may have been killed while it wrote.
pub fn table(source: impl Read) -> io::Result<String> {
    let (mut pairs, mut devices) = (String::new(), String::new());
    let mut unreadable = 0_u32;
    for line in BufReader::new(source.take(FILE_BYTES_MAX)).split(b'\n') {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Line>(&line) {
            Ok(Line::QueuePair(pair)) => add_pair(&mut pairs, &pair),
            Ok(Line::Device(device)) => add_device(&mut devices, &device),
            Err(_) => unreadable += 1,
        }
    }
    let mut text = pairs + &devices;
    if unreadable > 0 {
        let _ = writeln!(text, "sluice: {unreadable} more could not be read");
    }
    if text.is_empty() {
        text.push_str("sluice: no queue pair was made\n");
    }
    Ok(text)
}

fn add_pair(text: &mut String, pair: &QueuePair) {
    if text.is_empty() {
        text.push_str(
            "sluice:     PID PROGRAM          QPN      TYPE          SENDS     SENT BYTES       RECEIVES\n",
        );
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "sluice: {:>7} {:<16} {:#08x} {:<8} {:>10} {:>14} {:>14}",
        pair.pid,
        harmless(&pair.program),
        pair.qpn,
        harmless(&pair.r#type),
        pair.sends,
        pair.send_bytes,
        pair.receives,
    );
}

fn add_device(text: &mut String, device: &Device) {
    if text.is_empty() {
        text.push_str(
            "sluice:     PID PROGRAM          DEVICE   COUNTER                             COUNT\n",
        );
    }
    for (name, count) in &device.counters {
        let _ = writeln!(
            text,
            "sluice: {:>7} {:<16} {:<8} {:<26} {count:>14}",
            device.pid,
            harmless(&device.program),
            harmless(&device.device),
            harmless(name),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_pair_has_a_line() {
        let source = b"{\"pid\":7,\"program\":\"p\",\"qpn\":258,\"type\":\"RC\",\"sends\":3,\
            \"send_bytes\":24,\"receives\":5}\nnot json\n";
        let text = table(&source[..]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            ["sluice:", "7", "p", "0x000102", "RC", "3", "24", "5"]
        );
        assert!(lines[2].contains("1 more"));
        assert_eq!(table(&b""[..]).unwrap(), "sluice: no queue pair was made\n");
    }

    #[test]
    fn what_happened_on_the_network_comes_behind_the_queue_pairs() {
        let source = b"{\"pid\":7,\"program\":\"p\",\"device\":\"sluice0\",\
            \"counters\":{\"out_of_sequence\":3,\"a\\u001b[2J\":1}}\n\
            {\"pid\":7,\"program\":\"p\",\"qpn\":258,\"type\":\"RC\"}\n";
        let text = table(&source[..]).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines[1][3], "0x000102");
        assert_eq!(lines[2][3..], ["DEVICE", "COUNTER", "COUNT"]);
        assert_eq!(lines[3][4], "a?[2J");
        assert_eq!(
            lines[4],
            ["sluice:", "7", "p", "sluice0", "out_of_sequence", "3"]
        );
    }
}
