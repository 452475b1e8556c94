//! RDMA programs on two hosts that share memory, beside half a round trip of kernel TCP and a copy.

use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::{path_text, words};
use crate::workloads::roce::programs::{self as between_hosts, Perftest};
use crate::workloads::verbs::programs as within_host;

pub const WORKLOAD: Workload = Workload {
    name: "verbs",
    title: "perftest between two hosts over 'sluice verbs --device window:FILE'",
    about: "The typical latency (median) that perftest reports for 8 B, one way for WRITE and SEND, the whole \
            operation for READ and fetch-and-add, and its average rates. Both ends poll, on a processor each \
            where there are two. TCP is half a round trip of sockperf's ping-pong with 14 bytes, its least, and \
            --nonblocked at both ends; memcpy is one thread that copies between two buffers of its own. RoPCIe, over a PCIe bridge: \
            3.6 µs for SEND by processor writes, 10 µs by DMA, 82 Gb/s.",
    programs: &[
        WRITE_LAT, SEND_LAT, READ_LAT, ATOMIC_LAT, WRITE_BW, READ_BW, SEND_BW, "sockperf",
        "taskset",
    ],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const WRITE_LAT: &str = "ib_write_lat";
pub const SEND_LAT: &str = "ib_send_lat";
const READ_LAT: &str = "ib_read_lat";
const ATOMIC_LAT: &str = "ib_atomic_lat";
pub const WRITE_BW: &str = "ib_write_bw";
const READ_BW: &str = "ib_read_bw";
const SEND_BW: &str = "ib_send_bw";

const SMALL: (&str, u32) = ("8 B", 8);
pub const LARGE: (&str, u32) = ("1 MiB", 1 << 20);
const MESSAGE: (&str, u32) = ("64 B", 64);

/// Of the link on which the programs find each other, bytes.
const MTU: u32 = 1500;
/// The least that sockperf sends: its own header.
const SOCKPERF_BYTES: u32 = 14;
/// Operations one at a time for each second that a measurement may take.
const PER_S: u32 = 100_000;

/// What a program tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measure {
    Latency,
    /// Bytes in a second.
    Bytes,
    Messages,
}

/// A program of perftest, the length of its messages with a label, what it tells, and what is beside it.
#[derive(Debug, Clone, Copy)]
struct Test {
    program: &'static str,
    label: &'static str,
    bytes: u32,
    measure: Measure,
    beside: Option<Variant>,
}

const fn test(
    program: &'static str,
    (label, bytes): (&'static str, u32),
    measure: Measure,
    beside: Option<Variant>,
) -> Test {
    Test {
        program,
        label,
        bytes,
        measure,
        beside,
    }
}

const POLLED: Option<Variant> = Some(Variant::TcpPolling);
const COPIED: Option<Variant> = Some(Variant::Memcpy);

const TESTS: [Test; 7] = [
    test(WRITE_LAT, SMALL, Measure::Latency, POLLED),
    test(SEND_LAT, SMALL, Measure::Latency, POLLED),
    test(READ_LAT, SMALL, Measure::Latency, None),
    test(ATOMIC_LAT, SMALL, Measure::Latency, None),
    test(WRITE_BW, LARGE, Measure::Bytes, COPIED),
    test(READ_BW, LARGE, Measure::Bytes, COPIED),
    test(SEND_BW, MESSAGE, Measure::Messages, None),
];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |test: Test| {
        let mut variants = Vec::from_iter(test.beside);
        variants.push(Variant::VerbsWindow);
        if options.window_delay_ns != 0 {
            variants.push(Variant::VerbsWindowDelayed);
        }
        let (unit, better) = match test.measure {
            Measure::Latency => ("µs", Better::Lower),
            Measure::Bytes => ("GB/s", Better::Higher),
            Measure::Messages => ("messages/s", Better::Higher),
        };
        Cell {
            title: format!("{}, {}", test.program, test.label),
            variants,
            repetitions: options.repetitions,
            points: vec![PointSpec {
                group: test.program.to_owned(),
                label: test.label.to_owned(),
                x: None,
                unit,
                better,
                cost_unit: CostUnit::None,
                paired: false,
                baseline: test.beside.unwrap_or(Variant::VerbsWindow),
            }],
            run: Box::new(move |session, variant| Ok(vec![measured(session, variant, test)?])),
        }
    };
    TESTS.map(cell).into()
}

fn measured(session: &Session, variant: Variant, test: Test) -> Result<Sample> {
    let Test {
        program,
        bytes,
        measure,
        ..
    } = test;
    let gigabytes = f64::from(bytes) / 1e9;
    match variant {
        Variant::TcpPolling => {
            return between_hosts::tcp_latency(session, variant, MTU, bytes.max(SOCKPERF_BYTES));
        }
        Variant::Memcpy => {
            let mut sample = within_host::memcpy_rate(session, variant, bytes)?;
            sample.value *= gigabytes;
            return Ok(sample);
        }
        _ => {}
    }
    let mut arguments = match measure {
        Measure::Latency => words!["-n", PER_S.saturating_mul(session.seconds)],
        // -f: perftest would leave out a quarter of four seconds and more at both ends.
        Measure::Bytes | Measure::Messages => words!["-D", session.seconds, "-f", 0],
    };
    if program != ATOMIC_LAT {
        arguments.extend(words!["-s", bytes]);
    }
    let perftest = Perftest {
        program,
        mtu: MTU,
        arguments,
        bulk: false,
        faults: None,
    };
    let network = session.network(MTU)?;
    let folder = session.folder(&format!("verbs-{}", session.next_number()))?;
    let file = folder.join("window");
    session.create_window(&file)?;
    // Who polls on its peer's processor waits until the kernel takes that away from it.
    let front = [1, 0].map(|processor| {
        let mut words = words!["env"];
        if variant == Variant::VerbsWindowDelayed {
            words.push(session.delay_variable());
        }
        if super::are_two_processors() {
            words.extend(words!["taskset", "-c", processor]);
        }
        words
    });
    let options = words!["--device", format!("window:{}", path_text(&file))];
    let (output, sample) =
        between_hosts::both_ends(session, variant, &perftest, &network, front, &options)?;
    if measure == Measure::Latency {
        return within_host::latency(program, &output, sample);
    }
    let mut sample = within_host::rate(program, &output, sample)?;
    if measure == Measure::Bytes {
        sample.value *= gigabytes;
    }
    Ok(sample)
}
