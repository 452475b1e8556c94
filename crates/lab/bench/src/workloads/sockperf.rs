//! sockperf: latency of one message at a time, and a stream of small messages.

use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::parse;
use crate::process::Ready;
use crate::session::Session;
use crate::words::words;

pub(super) const WORKLOAD: Workload = Workload {
    name: "sockperf",
    title: "sockperf ping-pong and throughput",
    about: "Ping-pong sends a message when the last one came back; latency is one way, half the \
            round trip. 'Both ends poll' runs both programs with --nonblocked, so that TCP too \
            needs no wake-up. Throughput sends as fast as it can. sockperf drops its own first \
            400 ms.",
    programs: &["sockperf"],
    compared_with: &[],
    obstacle: None,
    cells,
};

#[derive(Debug, Clone, Copy)]
struct Shape {
    group: &'static str,
    mode: &'static str,
    message_bytes: u32,
    polling: bool,
}

const SHAPES: [Shape; 5] = [
    ping_pong(64, false),
    ping_pong(1_024, false),
    ping_pong(64, true),
    throughput(64),
    throughput(1_024),
];

const fn ping_pong(message_bytes: u32, polling: bool) -> Shape {
    Shape {
        group: "ping-pong, median one way",
        mode: "ping-pong",
        message_bytes,
        polling,
    }
}

const fn throughput(message_bytes: u32) -> Shape {
    Shape {
        group: "throughput",
        mode: "throughput",
        message_bytes,
        polling: false,
    }
}

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let cell = |shape: Shape| Cell {
        title: format!("sockperf {}, {} B", shape.mode, shape.message_bytes),
        variants: variants.clone(),
        repetitions: options.repetitions,
        points: vec![point(shape)],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, shape)?])),
    };
    SHAPES.into_iter().map(cell).collect()
}

fn point(shape: Shape) -> PointSpec {
    let is_latency = shape.mode == "ping-pong";
    let suffix = if shape.polling {
        ", both ends poll"
    } else {
        ""
    };
    PointSpec {
        group: shape.group.to_owned(),
        label: format!("{} B{suffix}", shape.message_bytes),
        x: None,
        unit: if is_latency { "µs" } else { "messages/s" },
        better: if is_latency {
            Better::Lower
        } else {
            Better::Higher
        },
        cost_unit: CostUnit::Operation,
        paired: false,
        baseline: Variant::Tcp,
    }
}

fn measure(session: &Session, variant: Variant, shape: Shape) -> Result<Sample> {
    let port = session.free_port()?;
    let mut server_words = words!["sockperf", "server", "-i", "127.0.0.1", "-p", port, "--tcp"];
    let mut client_words = words![
        "sockperf",
        shape.mode,
        "-i",
        "127.0.0.1",
        "-p",
        port,
        "--tcp",
        "-m",
        shape.message_bytes,
        "-t",
        session.seconds,
    ];
    if shape.mode == "ping-pong" {
        // sockperf makes room for 600,000 messages a second unless told, and ends with
        // "_seqN > m_maxSequenceNo" when a lane carries more.
        client_words.extend(words!["--mps", 5_000_000]);
    }
    if shape.polling {
        server_words.push("--nonblocked".to_owned());
        client_words.push("--nonblocked".to_owned());
    }
    let server = session.server(variant, &server_words, &Ready::Tcp(port))?;
    let (output, mut sample) = session.measured(variant, &[&server], &client_words)?;
    if shape.mode == "ping-pong" {
        let result = output.read(parse::sockperf_ping_pong)?;
        sample.value = result.p50_us;
        sample.operations = result.messages;
        sample.bytes = 2.0 * result.messages * f64::from(shape.message_bytes);
        sample.details.insert("latency_p99_us", result.p99_us);
        sample.details.insert("latency_p99_9_us", result.p999_us);
        sample.details.insert("latency_max_us", result.max_us);
    } else {
        let result = output.read(parse::sockperf_throughput)?;
        sample.value = result.messages_per_s;
        sample.operations = result.messages;
        sample.bytes = result.messages * f64::from(shape.message_bytes);
    }
    Ok(sample)
}
