//! Verbs over TCP between two hosts, beside RoCEv2 and kernel TCP: what SRoCE measured of its RDMA over a
//! user-space TCP (its figures 4, 5, 6 and table 2), in its order.

use super::roce::programs::{self, Perftest};
use super::verbs::programs as said;
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

/// Every workload over TCP.
pub const ALL: [Workload; 4] = [LATENCY, SIZES, DEPTHS, CONNECTIONS];

pub const LATENCY: Workload = Workload {
    name: "latency",
    title: "Latency of WRITE and SEND, one at a time",
    about: "One way, the typical latency (median) that perftest reports; both ends poll. ib_write_lat waits \
            for bytes in memory and does not call the library meanwhile: over TCP somebody has to \
            take them from the kernel, which is a thread of the transport, and on two processors that \
            waits for one of the two that poll. ib_send_lat polls its completion queue, which takes them \
            itself. TCP is half a round trip of sockperf's ping-pong with as many bytes (14 at least) through the same kind of \
            veth pair, with --nonblocked at both ends.",
    programs: &[WRITE_LAT, SEND_LAT, "sockperf"],
    compared_with: &[],
    obstacle: None,
    cells: latency_cells,
};

pub const SIZES: Workload = Workload {
    name: "sizes",
    title: "WRITEs over the size of messages, 500 in flight",
    about: "SRoCE's figure 4: perftest's average with 500 WRITEs in flight on one connection. Its \
            latencies under load are by Little's law what is in flight over the rate: 500 over \
            the messages in a second. TCP is one stream of iperf3 that writes as many bytes at a time. \
            SRoCE measured on 100 Gb/s adapters, with one core for TCP alone on each host: 20.2 Gb/s for \
            4096 B (its table 2).",
    programs: &[WRITE_BW, "iperf3"],
    compared_with: &[],
    obstacle: None,
    cells: size_cells,
};

pub const DEPTHS: Workload = Workload {
    name: "depths",
    title: "WRITEs of 4096 B over the number in flight",
    about: "SRoCE's figure 5, on one connection. A WRITE over iWARP is complete when TCP has it, over \
            RoCEv2 when the peer has it: with few in flight these are different things.",
    programs: &[WRITE_BW],
    compared_with: &[],
    obstacle: None,
    cells: depth_cells,
};

pub const CONNECTIONS: Workload = Workload {
    name: "connections",
    title: "WRITEs of 4096 B over the number of connections",
    about: "SRoCE's figure 6 and table 2: 500 WRITEs in flight on each connection, with as many threads \
            of the transport at each end as the table says. TCP is as many streams of iperf3, written \
            4096 B at a time. SRoCE's own, Gb/s: with one core for its TCP 20.2, 19.2, 18.7, 19.3, 18.1, \
            18.7, 16.7 for 1, 2, 4, 8, 16, 32, 64 connections; with two 1.1, 1.1, 11.2, 12.1, 13.0, 13.3, \
            14.2.",
    programs: &[WRITE_BW, "iperf3"],
    compared_with: &[],
    obstacle: None,
    cells: connection_cells,
};

pub const WRITE_LAT: &str = "ib_write_lat";
pub const SEND_LAT: &str = "ib_send_lat";
pub const WRITE_BW: &str = "ib_write_bw";
/// Labels and bytes of messages.
pub const SMALLEST: &str = "8 B";
pub const BULK: &str = "64 KiB";
const LATENCIES: [(&str, u32); 2] = [(SMALLEST, 8), ("4 KiB", 4096)];
const MESSAGES: [(&str, u32); 6] = [
    ("64 B", 64),
    ("512 B", 512),
    ("4 KiB", 4 << 10),
    ("16 KiB", 16 << 10),
    (BULK, 64 << 10),
    ("1 MiB", 1 << 20),
];
const IN_FLIGHT: u32 = 500;
const IN_FLIGHTS: [u32; 6] = [1, 4, 16, 64, 256, 500];
const CONNECTED: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
pub const ONE: &str = "1";
/// Tables and threads of the transport.
pub const ONE_WORKER: &str = "1 worker";
const WORKERS: [(&str, u32); 2] = [(ONE_WORKER, 1), ("2 workers", 2)];
const MESSAGE_BYTES: u32 = 4096;
const MTU: u32 = 9000;
/// Of latencies: where packets are longer than a page, AF_XDP takes them from the kernel in pieces.
const LATENCY_MTU: u32 = 1500;
/// The least that sockperf sends: its own header.
const SOCKPERF_BYTES: u32 = 14;
/// Latencies for each second that a measurement may take.
const PER_S: u32 = 1_000;
/// More WRITEs than this are not in flight on all connections together: perftest has a completion for
/// each, and queues have an end.
const IN_FLIGHT_MAX: u32 = 16_384;

const ALL_WAYS: [Variant; 4] = [
    Variant::Tcp,
    Variant::Iwarp,
    Variant::RoceXdp,
    Variant::RoceUdp,
];

fn point(group: &str, label: &str, x: Option<f64>, baseline: Variant) -> PointSpec {
    PointSpec {
        group: group.to_owned(),
        label: label.to_owned(),
        x,
        unit: "Gb/s",
        better: Better::Higher,
        cost_unit: CostUnit::Gigabyte,
        paired: false,
        baseline,
    }
}

fn latency_cells(options: &Options) -> Vec<Cell> {
    let cell = |(program, label, bytes): (&'static str, &'static str, u32)| Cell {
        title: format!("{program}, {label}"),
        variants: vec![
            Variant::TcpPolling,
            Variant::Iwarp,
            Variant::RoceXdp,
            Variant::RoceUdp,
        ],
        repetitions: options.repetitions,
        points: vec![PointSpec {
            unit: "µs",
            better: Better::Lower,
            cost_unit: CostUnit::None,
            ..point(program, label, None, Variant::TcpPolling)
        }],
        run: Box::new(move |session, variant| {
            let sample = match variant {
                Variant::TcpPolling => {
                    programs::tcp_latency(session, variant, LATENCY_MTU, bytes.max(SOCKPERF_BYTES))?
                }
                _ => {
                    let rounds = PER_S.saturating_mul(session.seconds);
                    let test = Perftest {
                        program,
                        mtu: LATENCY_MTU,
                        arguments: words!["-s", bytes, "-n", rounds],
                        bulk: bytes > LATENCY_MTU,
                        faults: None,
                    };
                    programs::perftest_latency(session, variant, &test)?
                }
            };
            Ok(vec![sample])
        }),
    };
    [WRITE_LAT, SEND_LAT]
        .into_iter()
        .flat_map(|program| LATENCIES.map(|(label, bytes)| cell((program, label, bytes))))
        .collect()
}

fn size_cells(options: &Options) -> Vec<Cell> {
    let cell = |(label, bytes): (&'static str, u32)| Cell {
        title: format!("{WRITE_BW}, {label}, {IN_FLIGHT} in flight"),
        variants: ALL_WAYS.to_vec(),
        repetitions: options.repetitions,
        points: vec![point(WRITE_BW, label, Some(f64::from(bytes)), Variant::Tcp)],
        run: Box::new(move |session, variant| {
            Ok(vec![rate(session, variant, Load { bytes, ..ONE_LOAD })?])
        }),
    };
    MESSAGES.into_iter().map(cell).collect()
}

fn depth_cells(options: &Options) -> Vec<Cell> {
    let cell = |in_flight: u32| Cell {
        title: format!("{WRITE_BW}, {MESSAGE_BYTES} B, {in_flight} in flight"),
        variants: vec![Variant::Iwarp, Variant::RoceXdp, Variant::RoceUdp],
        repetitions: options.repetitions,
        points: vec![point(
            WRITE_BW,
            &in_flight.to_string(),
            Some(f64::from(in_flight)),
            Variant::RoceXdp,
        )],
        run: Box::new(move |session, variant| {
            let load = Load {
                in_flight,
                ..ONE_LOAD
            };
            Ok(vec![rate(session, variant, load)?])
        }),
    };
    IN_FLIGHTS.into_iter().map(cell).collect()
}

fn connection_cells(options: &Options) -> Vec<Cell> {
    let cell = |(table, workers): (&'static str, u32), connections: u32| Cell {
        title: format!("{WRITE_BW}, {MESSAGE_BYTES} B, {connections} connections, {table}"),
        variants: ALL_WAYS.to_vec(),
        repetitions: options.repetitions,
        points: vec![point(
            table,
            &connections.to_string(),
            Some(f64::from(connections)),
            Variant::Tcp,
        )],
        run: Box::new(move |session, variant| {
            let load = Load {
                connections,
                workers,
                ..ONE_LOAD
            };
            Ok(vec![rate(session, variant, load)?])
        }),
    };
    WORKERS
        .into_iter()
        .flat_map(|table| CONNECTED.map(|connections| cell(table, connections)))
        .collect()
}

/// What is to be carried.
#[derive(Debug, Clone, Copy)]
struct Load {
    bytes: u32,
    in_flight: u32,
    connections: u32,
    workers: u32,
}

const ONE_LOAD: Load = Load {
    bytes: MESSAGE_BYTES,
    in_flight: IN_FLIGHT,
    connections: 1,
    workers: 1,
};

/// Gigabits of messages in a second.
fn rate(session: &Session, variant: Variant, load: Load) -> Result<Sample> {
    let mut sample = match variant {
        Variant::Tcp => {
            let more = words!["-l", load.bytes, "-P", load.connections];
            programs::tcp_rate_with(session, variant, MTU, &more)?
        }
        _ => write_rate(session, variant, load)?,
    };
    sample.value *= 8e-9;
    Ok(sample)
}

fn write_rate(session: &Session, variant: Variant, load: Load) -> Result<Sample> {
    let depth = load.in_flight.min(IN_FLIGHT_MAX / load.connections);
    let mut arguments = words!["-s", load.bytes, "-t", depth];
    arguments.extend(words!["-q", load.connections]);
    // -f: perftest would leave out a quarter of four seconds and more at both ends.
    arguments.extend(words!["-D", session.seconds, "-f", 0]);
    let test = Perftest {
        program: WRITE_BW,
        mtu: MTU,
        arguments,
        bulk: true,
        faults: None,
    };
    let more = words!["--engines", load.workers];
    let (output, sample) = programs::perftest_with(session, variant, &test, &more)?;
    let mut sample = said::rate(WRITE_BW, &output, sample)?;
    let in_flight = f64::from(depth) * f64::from(load.connections);
    let queued_us = in_flight / sample.value * 1e6;
    sample.details.insert("queued_us", queued_us);
    sample.bytes = sample.operations * f64::from(load.bytes);
    sample.value *= f64::from(load.bytes);
    Ok(sample)
}
