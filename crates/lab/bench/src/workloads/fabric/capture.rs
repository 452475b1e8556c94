//! Connections of programs as they are, which the daemons are to capture.

use std::time::{Duration, Instant};

use crate::error::{BenchError, Result};
use crate::helper::stall::LISTENING;
use crate::model::Variant;
use crate::process::Process;
use crate::session::hosts::{Hosts, Side};
use crate::signals;

/// For a program to start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// For a connection to be captured: the daemons learn from each other where they may.
const PATIENCE: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(200);
/// The daemon hears of captured connections a second late at most.
const LATE: Duration = Duration::from_millis(1500);

/// How many connections were captured before those that are measured; nothing in other variants.
#[derive(Debug)]
pub(super) struct Capture(Option<u64>);

impl Capture {
    /// Where connections are to be captured, waits until one is.
    pub fn begin(hosts: &Hosts<'_>, variant: Variant) -> Result<Self> {
        if variant != Variant::SluiceCaptured {
            return Ok(Self(None));
        }
        let deadline = Instant::now() + PATIENCE;
        while hosts.captured()? == 0 {
            if Instant::now() > deadline {
                return Err(BenchError::Failed("no connection is captured".to_owned()));
            }
            let (mut reader, port) = start_reader(hosts, 0)?;
            drop(reader.take_input());
            let (port, address) = (port.to_string(), hosts.address().to_string());
            let words = ["flow-writer", &port, &address, "0", "1"];
            let words = hosts.session().helper(&words);
            hosts.client(&words, 0)?.read(|_| Ok(()))?;
            signals::pause(RETRY)?;
        }
        let mut count = hosts.captured()?;
        loop {
            signals::pause(LATE)?;
            let now = hosts.captured()?;
            if now == count {
                return Ok(Self(Some(count)));
            }
            count = now;
        }
    }

    /// Fails if fewer connections than this were captured since.
    pub fn ensure(&self, hosts: &Hosts<'_>, connections: u64) -> Result<()> {
        let Some(before) = self.0 else {
            return Ok(());
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let captured = hosts.captured()?.saturating_sub(before);
            if captured >= connections {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(BenchError::Failed(format!(
                    "{captured} connections were captured, of {connections} at least"
                )));
            }
            signals::pause(RETRY)?;
        }
    }
}

/// A reader that listens, and its port.
pub(super) fn start_reader(hosts: &Hosts<'_>, slow_s: u32) -> Result<(Process, u16)> {
    let port = hosts.session().free_port()?;
    let (number, address) = (port.to_string(), hosts.address().to_string());
    let words = ["flow-reader", &number, &address, &slow_s.to_string()];
    let words = hosts.session().helper(&words);
    let mut reader = hosts.interactive(Side::Server, &words)?;
    reader.wait_output(LISTENING, START_PATIENCE)?;
    Ok((reader, port))
}
