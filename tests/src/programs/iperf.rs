//! iperf3, which counts what it sends and what arrives.

use std::thread;
use std::time::{Duration, Instant};

use crate::fleet::LIMIT;
use crate::job::Outcome;
use crate::suite::{Verdict, ensure, fail};

/// Runs a client until the server has time for it: it may have one that has ended on its hands still.
pub fn run(mut client: impl FnMut() -> Verdict<Outcome>) -> Verdict<Outcome> {
    let until = Instant::now() + LIMIT;
    loop {
        let outcome = client()?;
        if !outcome.text().contains("the server is busy") || Instant::now() > until {
            return Ok(outcome);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What a client says (`-J`) that has arrived, in bytes: something, and no more than was sent. The
/// sender's last bytes may still be on the way when the receiver stops counting.
pub fn received(client: &Outcome) -> Verdict<u64> {
    let said: serde_json::Value = serde_json::from_slice(&client.stdout)
        .or_else(|error| fail(format!("no JSON: {error}\n{}", client.describe())))?;
    let bytes = |end: &str| said["end"][end]["bytes"].as_u64().unwrap_or(0);
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    ensure(received > 0 && received <= sent, || {
        format!("sent {sent} received {received}\n{}", client.describe())
    })?;
    Ok(received)
}
