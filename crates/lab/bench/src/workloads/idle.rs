//! Open connections on which nothing happens: they must cost no CPU and little memory.

use std::time::Duration;

use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::model::{LANES, PointSpec, Sample, Variant};
use crate::process::{Process, Ready};
use crate::session::Session;
use crate::signals;
use crate::usage;

pub(super) const WORKLOAD: Workload = Workload {
    name: "idle",
    title: "Idle connections",
    about: "A client opens 1,000 connections, exchanges a few messages on each, and then both \
            ends wait in epoll_wait. CPU time and voluntary context switches are those of server, \
            client and sluiced from half a second after the last message on. Memory is the growth of their proportional \
            set size, shared memory included, against the time before the first connection; what \
            the kernel holds for sockets is in no process and not counted.",
    programs: &[],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const CPU: &str = "CPU time of all processes";
pub const WAKE_UPS: &str = "voluntary context switches";
pub const MEMORY: &str = "memory per connection, both ends";

/// How long the connections were watched; a result beside the values.
pub const WATCHED_S: &str = "watched_s";

/// From the last message to the beginning of the watch: going to sleep is no wake-up.
const SETTLING: Duration = Duration::from_millis(500);
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let (connections, seconds) = (options.idle_connections, options.idle_seconds);
    let point = |group, unit| {
        PointSpec::cost(
            group,
            format!("{connections} connections, {seconds} s"),
            unit,
            Variant::Tcp,
        )
    };
    let cell = Cell {
        title: format!("idle, {connections} connections"),
        variants,
        // Nothing here varies as rates do, and a repetition takes long.
        repetitions: options.repetitions.min(2),
        points: vec![
            point(CPU, "ms"),
            point(WAKE_UPS, "switches"),
            point(MEMORY, "KiB"),
        ],
        run: Box::new(move |session, variant| measure(session, variant, connections, seconds)),
    };
    vec![cell]
}

fn measure(
    session: &Session,
    variant: Variant,
    connections: u32,
    seconds: u32,
) -> Result<Vec<Sample>> {
    let port = session.free_port()?;
    let port_word = port.to_string();
    let server_words = session.helper(&["hold-server", &port_word]);
    let server = session.server(variant, &server_words, &Ready::Tcp(port))?;
    let client_words = session.helper(&["hold-client", &port_word, &connections.to_string()]);
    let mut client = session.interactive(variant.client_accelerated(), &client_words)?;
    client.wait_output("waiting", OPEN_TIMEOUT)?;
    let mut groups = session.daemon_group(variant);
    groups.extend([server.group(), client.group()]);
    let empty = usage::usage(&groups);
    let lanes_before = session.lanes_given(variant)?;
    open(&mut client)?;
    signals::pause(SETTLING)?;
    let start = usage::usage(&groups);
    if start.cpu_ns <= empty.cpu_ns {
        return Err(BenchError::Failed(
            "the CPU time of the idle programs cannot be read".to_owned(),
        ));
    }
    signals::pause(Duration::from_secs(u64::from(seconds)))?;
    let end = usage::usage(&groups);
    client.ensure_running()?;
    let mut details = std::collections::BTreeMap::from([(WATCHED_S, f64::from(seconds))]);
    if let (Some(before), Some(after)) = (lanes_before, session.lanes_given(variant)?) {
        details.insert(LANES, (after - before) as f64);
    }
    let memory_kib = end.pss_kib.saturating_sub(empty.pss_kib) as f64;
    let sample = |value: f64| Sample {
        value,
        details: details.clone(),
        ..Sample::default()
    };
    Ok(vec![
        sample(end.cpu_ns.saturating_sub(start.cpu_ns) as f64 / 1e6),
        sample(end.sleeps.saturating_sub(start.sleeps) as f64),
        sample(memory_kib / f64::from(connections)),
    ])
}

/// Lets the client open its connections, and waits until it has used them all.
///
/// The end of its input, when `input` is dropped, is what it waits for.
pub fn open(client: &mut Process) -> Result<()> {
    let input = client.take_input();
    if input.is_none() {
        return Err(BenchError::Failed(
            "the holding client has no input".to_owned(),
        ));
    }
    drop(input);
    client.wait_output("open", OPEN_TIMEOUT)?;
    Ok(())
}
