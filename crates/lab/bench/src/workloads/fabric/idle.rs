//! Connections with lanes between two hosts on which nothing happens.

use std::time::Duration;

use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::model::{LANES, PointSpec, Sample, Variant};
use crate::process::Ready;
use crate::session::Session;
use crate::session::hosts::{Hosts, Side};
use crate::signals;
use crate::usage;
use crate::workloads::idle::{WATCHED_S, open};

pub const WORKLOAD: Workload = Workload {
    name: "idle",
    title: "Idle connections between two hosts",
    about: "A client opens 100 connections, exchanges a few messages on each, and then both ends \
            wait in epoll_wait. A run in which not every connection has a lane has failed. CPU time \
            and voluntary context switches are those of both daemons, and of both programs, from \
            five seconds after the last message on.",
    programs: &[],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const DAEMONS_CPU: &str = "CPU time of both sluiced";
const DAEMONS_WAKE_UPS: &str = "voluntary context switches of both sluiced";
const PROGRAMS_CPU: &str = "CPU time of both programs";

const CONNECTIONS: u32 = 100;
/// From the last message to the beginning of the watch: the daemons look at lanes less and less
/// often while nothing moves.
const SETTLING: Duration = Duration::from_secs(5);
/// A daemon wakes up a few times a second: in less time one that was disturbed would decide.
const WATCHED_S_MIN: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(30);

fn cells(options: &Options) -> Vec<Cell> {
    let seconds = options.idle_seconds.max(WATCHED_S_MIN);
    let point = |group, unit| {
        let label = format!("{CONNECTIONS} connections, {seconds} s");
        PointSpec::cost(group, label, unit, Variant::Sluice)
    };
    vec![Cell {
        title: format!("idle, {CONNECTIONS} connections"),
        variants: vec![Variant::Sluice],
        repetitions: options.repetitions.min(2),
        points: vec![
            point(DAEMONS_CPU, "ms"),
            point(DAEMONS_WAKE_UPS, "switches"),
            point(PROGRAMS_CPU, "ms"),
        ],
        run: Box::new(move |session, variant| measure(session, variant, seconds)),
    }]
}

fn measure(session: &Session, variant: Variant, seconds: u32) -> Result<Vec<Sample>> {
    let hosts = Hosts::new(session, variant)?;
    let (address, port) = (hosts.address().to_string(), session.free_port()?);
    let words = session.helper(&["hold-server", &port.to_string(), &address]);
    let server = hosts.server(&words, &Ready::Listens(port))?;
    let count = CONNECTIONS.to_string();
    let words = session.helper(&["hold-client", &port.to_string(), &count, &address]);
    let mut client = hosts.interactive(Side::Client, &words)?;
    client.wait_output("waiting", PATIENCE)?;
    open(&mut client)?;
    signals::pause(SETTLING)?;
    let lanes = hosts.lanes_given()?.unwrap_or(0);
    if lanes < u64::from(CONNECTIONS) {
        return Err(BenchError::Failed(format!(
            "{lanes} of {CONNECTIONS} idle connections had a lane"
        )));
    }
    let programs = [server.group(), client.group()];
    let look = || {
        (
            usage::usage(&hosts.daemon_groups()),
            usage::usage(&programs),
        )
    };
    let before = look();
    signals::pause(Duration::from_secs(u64::from(seconds)))?;
    let after = look();
    client.ensure_running()?;
    let details = [(WATCHED_S, f64::from(seconds)), (LANES, lanes as f64)];
    let sample = |value: u64, scale: f64| Sample {
        value: value as f64 / scale,
        details: details.into(),
        ..Sample::default()
    };
    let cpu_ns = |after: usage::Usage, before: usage::Usage| after.cpu_ns - before.cpu_ns;
    Ok(vec![
        sample(cpu_ns(after.0, before.0), 1e6),
        sample(after.0.sleeps.saturating_sub(before.0.sleeps), 1.0),
        sample(cpu_ns(after.1, before.1), 1e6),
    ])
}
