//! How long one operation of 8 bytes takes between two hosts.

use super::programs::{self, Perftest};
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::machine;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "latency",
    title: "Latency of 8 bytes between two hosts",
    about: "The typical latency (median) that perftest reports: one way for WRITE and SEND, whose \
            answers are operations themselves, the whole operation for READ and fetch-and-add. \
            Both ends poll. TCP is sockperf's ping-pong through the same kind of veth pair, with \
            14 bytes, its least; 'polling' with --nonblocked at both ends. Raw AF_XDP is half a \
            round trip of a packet with 8 bytes between two threads of one process that do \
            nothing else: what the kernel's part costs. It is measured beside SEND as well, since \
            it varies from one minute to the next.",
    programs: &[
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat",
        "sockperf",
    ],
    compared_with: &[machine::PING_PONG],
    obstacle: None,
    cells,
};

pub const WRITE: &str = "ib_write_lat";
pub const SEND: &str = "ib_send_lat";
const READ: &str = "ib_read_lat";
const ATOMIC: &str = "ib_atomic_lat";

const MTU: u32 = 1500;
const MESSAGE_BYTES: u32 = 8;
/// The least that sockperf sends: its own header.
const SOCKPERF_BYTES: u32 = 14;
/// For each second that a measurement may take.
const XDP_PER_S: u32 = 20_000;
const UDP_PER_S: u32 = 5_000;
const RAW_PER_S: u32 = 100_000;

const ONE_WAY: [Variant; 5] = [
    Variant::Tcp,
    Variant::TcpPolling,
    Variant::RoceXdp,
    Variant::RoceUdp,
    Variant::RawXdp,
];
const ANSWERED: [Variant; 3] = [Variant::RoceXdp, Variant::RoceUdp, Variant::RawXdp];
const BOTH_WAYS: [Variant; 2] = [Variant::RoceXdp, Variant::RoceUdp];

fn cells(options: &Options) -> Vec<Cell> {
    let shapes: [(&'static str, &[Variant]); 4] = [
        (WRITE, &ONE_WAY),
        // What TCP needs has been measured beside WRITE.
        (SEND, &ANSWERED),
        (READ, &BOTH_WAYS),
        (ATOMIC, &BOTH_WAYS),
    ];
    let cell = |(program, variants): (&'static str, &[Variant])| Cell {
        title: format!("{program}, {MESSAGE_BYTES} B"),
        variants: variants.to_vec(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: program.to_owned(),
            label: format!("{MESSAGE_BYTES} B"),
            x: None,
            unit: "µs",
            better: Better::Lower,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: if program == WRITE {
                Variant::Tcp
            } else {
                Variant::RoceXdp
            },
        }],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, program)?])),
    };
    shapes.into_iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, program: &'static str) -> Result<Sample> {
    let perftest = |per_s: u32| {
        let mut arguments = words!["-n", per_s.saturating_mul(session.seconds)];
        if program != ATOMIC {
            arguments.extend(words!["-s", MESSAGE_BYTES]);
        }
        let test = Perftest {
            program,
            mtu: MTU,
            arguments,
            bulk: false,
            faults: None,
        };
        programs::perftest_latency(session, variant, &test)
    };
    match variant {
        Variant::RoceXdp => perftest(XDP_PER_S),
        Variant::RoceUdp => perftest(UDP_PER_S),
        Variant::RawXdp => {
            let rounds = RAW_PER_S.saturating_mul(session.seconds);
            let (result, mut sample) =
                programs::raw(session, variant, MTU, MESSAGE_BYTES, rounds, 0)?;
            sample.value = result.one_way_us;
            Ok(sample)
        }
        _ => programs::tcp_latency(session, variant, MTU, SOCKPERF_BYTES),
    }
}
