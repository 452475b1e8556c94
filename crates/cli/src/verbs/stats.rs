//! What `--stats` prints: a line for each queue pair that the program and its children had.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

use crate::terminal::harmless;

/// No more of the file is read than this: 100,000 queue pairs fit.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// One queue pair, as the library writes it when the pair is destroyed or the program ends.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    pid: u32,
    program: String,
    qpn: u32,
    r#type: String,
    sends: u64,
    send_bytes: u64,
    receives: u64,
}

/// The table for a person, or a sentence if there is nothing to show. Lines that are no JSON
/// object are counted: a process may have been killed while it wrote.
pub fn table(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let mut unreadable = 0_u32;
    for line in BufReader::new(source.take(FILE_BYTES_MAX)).split(b'\n') {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        let Ok(line) = serde_json::from_slice::<Line>(&line) else {
            unreadable += 1;
            continue;
        };
        if text.is_empty() {
            text.push_str(
                "sluice:     PID PROGRAM          QPN      TYPE          SENDS     SENT BYTES       RECEIVES\n",
            );
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "sluice: {:>7} {:<16} {:#08x} {:<8} {:>10} {:>14} {:>14}",
            line.pid,
            harmless(&line.program),
            line.qpn,
            harmless(&line.r#type),
            line.sends,
            line.send_bytes,
            line.receives,
        );
    }
    if unreadable > 0 {
        let _ = writeln!(text, "sluice: {unreadable} more could not be read");
    }
    if text.is_empty() {
        text.push_str("sluice: no queue pair was made\n");
    }
    Ok(text)
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
}
