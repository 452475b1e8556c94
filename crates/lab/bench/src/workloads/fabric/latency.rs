//! How long 64 bytes and their answer take between two hosts.

use super::{Cell, Options, Workload, variants};
use crate::error::{BenchError, Result};
use crate::helper::ping::Pinged;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::parse;
use crate::process::Ready;
use crate::session::Session;
use crate::session::hosts::Hosts;
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "latency",
    title: "Round trip of 64 bytes and their answer between two hosts",
    about: "The median, there and back. 'Programs poll' and 'programs block' are sockperf's \
            ping-pong, the former with --nonblocked at both ends except for 'TCP', whose programs \
            sleep in the kernel as they do by themselves. 'Programs sleep in epoll_wait' is a \
            small program of our own whose client sends one message every 2 ms, so that every \
            message finds its reader asleep.",
    programs: &["sockperf"],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const POLLING: &str = "programs poll";
pub const BLOCKING: &str = "programs block";
pub const SLEEPING: &str = "programs sleep in epoll_wait";

const MESSAGE_BYTES: u32 = 64;
const PAUSE_US: u32 = 2_000;

fn cells(options: &Options) -> Vec<Cell> {
    let polling: &[Variant] = &[Variant::TcpPolling];
    let shapes = [(POLLING, polling), (BLOCKING, &[]), (SLEEPING, &[])];
    let cell = |(label, more): (&'static str, &[Variant])| Cell {
        title: format!("64 B, {label}"),
        variants: variants(options, more),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            // Not the same variants everywhere, so a table for each.
            group: label.to_owned(),
            label: "64 B and back, median".to_owned(),
            x: None,
            unit: "µs",
            better: Better::Lower,
            cost_unit: CostUnit::Operation,
            paired: false,
            baseline: Variant::Tcp,
        }],
        run: Box::new(move |session, variant| {
            let sample = match label {
                SLEEPING => sleeping(session, variant)?,
                _ => sockperf(session, variant, label == POLLING, None)?,
            };
            Ok(vec![sample])
        }),
    };
    shapes.map(cell).into()
}

/// sockperf's ping-pong; `processors`: which ones server and client are bound to.
pub fn sockperf(
    session: &Session,
    variant: Variant,
    polling: bool,
    processors: Option<[u32; 2]>,
) -> Result<Sample> {
    let hosts = Hosts::new(session, variant)?;
    let (address, port) = (hosts.address(), session.free_port()?);
    let mut server = words!["sockperf", "server", "-i", address, "-p", port, "--tcp"];
    let mut client = words!["sockperf", "ping-pong", "-i", address, "-p", port, "--tcp"];
    client.extend(words!["-m", MESSAGE_BYTES, "-t", session.seconds]);
    client.extend(words!["--mps", 5_000_000, "--full-rtt"]);
    if polling && variant != Variant::Tcp {
        server.push("--nonblocked".to_owned());
        client.push("--nonblocked".to_owned());
    }
    if let Some([of_server, of_client]) = processors {
        server.splice(0..0, words!["taskset", "-c", of_server]);
        client.splice(0..0, words!["taskset", "-c", of_client]);
    }
    let server = hosts.server(&server, &Ready::Listens(port))?;
    let (output, mut sample) = hosts.measured(&[&server], &client)?;
    let result = output.read(parse::sockperf_ping_pong)?;
    sample.value = result.p50_us;
    sample.operations = result.messages;
    sample.bytes = 2.0 * result.messages * f64::from(MESSAGE_BYTES);
    sample.details.insert("latency_p99_us", result.p99_us);
    sample.details.insert("latency_p99_9_us", result.p999_us);
    Ok(sample)
}

fn sleeping(session: &Session, variant: Variant) -> Result<Sample> {
    let hosts = Hosts::new(session, variant)?;
    let (address, port) = (
        hosts.address().to_string(),
        session.free_port()?.to_string(),
    );
    let server = session.helper(&["hold-server", &port, &address]);
    let listens = Ready::Listens(port.parse().unwrap_or_default());
    let server = hosts.server(&server, &listens)?;
    let (pause, seconds) = (PAUSE_US.to_string(), session.seconds.to_string());
    let client = session.helper(&["ping-client", &port, &seconds, &pause, &address]);
    let (output, mut sample) = hosts.measured(&[&server], &client)?;
    let result: Pinged = output.read(|text| {
        serde_json::from_str(text.trim())
            .map_err(|error| BenchError::Failed(format!("the client said '{text}': {error}")))
    })?;
    sample.value = result.p50_us;
    sample.operations = result.rounds as f64;
    sample.bytes = 2.0 * result.rounds as f64 * f64::from(MESSAGE_BYTES);
    sample.details.insert("latency_p99_us", result.p99_us);
    Ok(sample)
}
