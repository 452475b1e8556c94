//! What the preloaded library says about a run: one JSON line per process, in
//! the file that `SLUICE_STATS_FILE` names.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// The counters of one process, or a sum of them. Bytes are payload bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub connections: u64,
    pub laned: u64,
    pub lane_rx_bytes: u64,
    pub lane_tx_bytes: u64,
    pub tcp_rx_bytes: u64,
    pub tcp_tx_bytes: u64,
    pub switches: u64,
    pub reasons: BTreeMap<String, u64>,
}

impl Totals {
    pub fn lane_bytes(&self) -> u64 {
        self.lane_rx_bytes + self.lane_tx_bytes
    }

    fn add(&mut self, other: &Totals) {
        self.connections += other.connections;
        self.laned += other.laned;
        self.lane_rx_bytes += other.lane_rx_bytes;
        self.lane_tx_bytes += other.lane_tx_bytes;
        self.tcp_rx_bytes += other.tcp_rx_bytes;
        self.tcp_tx_bytes += other.tcp_tx_bytes;
        self.switches += other.switches;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
    }
}

/// The sum over all processes that have ended; zeros when none has. A line that
/// is not JSON is an error: the library writes each line with one `write`.
pub fn read(path: &Path) -> io::Result<Totals> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Totals::default()),
        Err(error) => return Err(error),
    };
    let mut sum = Totals::default();
    for line in text.lines() {
        let one: Totals = serde_json::from_str(line).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{error} in the line {line:?}"),
            )
        })?;
        sum.add(&one);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_processes_are_summed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("stats");
        let line = r#"{"pid":1,"program":"x","connections":2,"laned":1,"lane_rx_bytes":10,"lane_tx_bytes":5,"tcp_rx_bytes":1,"tcp_tx_bytes":1,"switches":2,"sleeps":0,"spins":3,"reasons":{"refused":1}}"#;
        fs::write(&path, format!("{line}\n{line}\n")).expect("writing");
        let sum = read(&path).expect("two good lines");
        assert_eq!((sum.connections, sum.laned, sum.lane_bytes()), (4, 2, 30));
        assert_eq!(sum.reasons["refused"], 2);
    }

    #[test]
    fn a_missing_file_is_zero_and_a_torn_line_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("stats");
        assert_eq!(read(&path).expect("no file yet").connections, 0);
        fs::write(&path, "{\"pid\":1,").expect("writing");
        assert!(read(&path).is_err());
    }
}
