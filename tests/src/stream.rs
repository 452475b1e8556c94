//! What the two ends of `tests/apps/stream.c` say: checked records in both directions of some
//! connections.

use std::time::Duration;

use crate::job::{Job, Outcome};
use crate::suite::{Verdict, ensure, fail};

/// Waits until the server listens, and says where.
pub fn await_port(server: &mut Job, limit: Duration) -> Verdict<u16> {
    let output = server.stdout_path().to_owned();
    let mut port = None;
    server.await_ready(limit, "port", || {
        port = port_in(&std::fs::read_to_string(&output).unwrap_or_default());
        port.is_some()
    })?;
    match port {
        Some(port) => Ok(port),
        None => fail("the server printed no port"),
    }
}

fn port_in(text: &str) -> Option<u16> {
    let (line, _) = text.split_once('\n')?;
    line.strip_prefix("port ")?.parse().ok()
}

/// Every connection got all its records.
pub fn check_complete(outcome: &Outcome, connections: usize, records: u32) -> Verdict {
    let lines = connection_lines(outcome);
    let good = lines.len() == connections
        && lines
            .iter()
            .all(|(got, ended)| *got == u64::from(records) && ended == "done");
    ensure(good, || {
        format!("not all records arrived\n{}", outcome.describe())
    })
}

/// Every connection got an exact prefix, and then the end of the stream or a reset.
pub fn check_cut(outcome: &Outcome, connections: usize) -> Verdict {
    let lines = connection_lines(outcome);
    ensure(lines.len() == connections, || {
        format!("not every connection was reported\n{}", outcome.describe())
    })?;
    let mut received = 0;
    for (records, ended) in lines {
        received += records;
        ensure(ended == "eof" || ended == "reset", || {
            format!("a connection ended by {ended}\n{}", outcome.describe())
        })?;
    }
    ensure(received > 0, || {
        format!(
            "nothing was transferred before the kill\n{}",
            outcome.describe()
        )
    })
}

/// Of each "connection I: received N records, ended by X" line, N and X.
fn connection_lines(outcome: &Outcome) -> Vec<(u64, String)> {
    let text = outcome.text();
    text.lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(": received ")?;
            let (records, ended) = rest.split_once(" records, ended by ")?;
            Some((records.parse().ok()?, ended.to_string()))
        })
        .collect()
}
