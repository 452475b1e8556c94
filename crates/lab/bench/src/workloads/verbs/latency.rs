//! How long one operation of 8 bytes takes.

use super::programs::{self, UcxTest};
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "latency",
    title: "Latency of 8 bytes",
    about: "The typical latency (median) that perftest reports: one way for WRITE and SEND, whose \
            answers are operations themselves, the whole operation for READ and fetch-and-add. \
            Both ends poll. 'Private memory' is the same with SLUICE_VERBS_ARENA=off, where every \
            one-sided operation is a call of the kernel. UCX: put_lat and get of its lower layer, \
            tag_lat of its upper one, fadd. libfabric: fi_pingpong with tagged messages (mean).",
    programs: &[
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat",
    ],
    compared_with: &["ucx_perftest", "fi_pingpong"],
    obstacle: None,
    cells,
};

pub const WRITE: &str = "ib_write_lat";
pub const SEND: &str = "ib_send_lat";
pub const READ: &str = "ib_read_lat";
pub const ATOMIC: &str = "ib_atomic_lat";

const MESSAGE_BYTES: u32 = 8;
/// For each second that a measurement may take. Where each operation waits for one of the other
/// program, a machine that runs other programs too needs far longer than the typical latency says.
const BACK_AND_FORTH_PER_S: u64 = 200_000;
const ONE_SIDED_PER_S: u64 = 500_000;

struct Shape {
    program: &'static str,
    variants: &'static [Variant],
}

const SHAPES: [Shape; 4] = [
    Shape {
        program: WRITE,
        variants: &[
            Variant::Verbs,
            Variant::VerbsPrivate,
            Variant::UcxPosix,
            Variant::UcxCma,
        ],
    },
    Shape {
        program: SEND,
        variants: &[Variant::Verbs, Variant::UcxPosix, Variant::Libfabric],
    },
    Shape {
        program: READ,
        variants: &[
            Variant::Verbs,
            Variant::VerbsPrivate,
            Variant::UcxPosix,
            Variant::UcxCma,
        ],
    },
    Shape {
        program: ATOMIC,
        variants: &[Variant::Verbs, Variant::UcxPosix],
    },
];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |Shape { program, variants }: Shape| Cell {
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
            baseline: Variant::UcxPosix,
        }],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, program)?])),
    };
    SHAPES.into_iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, program: &'static str) -> Result<Sample> {
    let per_s = match program {
        READ | ATOMIC => ONE_SIDED_PER_S,
        _ => BACK_AND_FORTH_PER_S,
    };
    let iterations = per_s * u64::from(session.seconds);
    match variant {
        Variant::Verbs | Variant::VerbsPrivate => {
            let mut arguments = words!["-n", iterations];
            if program != ATOMIC {
                arguments.extend(words!["-s", MESSAGE_BYTES]);
            }
            programs::perftest_latency(session, variant, program, &arguments)
        }
        Variant::Libfabric => {
            programs::libfabric_latency(session, variant, MESSAGE_BYTES, iterations)
        }
        _ => {
            let test = ucx_test(program, variant);
            let (result, mut sample) =
                programs::ucx(session, variant, test, MESSAGE_BYTES, iterations)?;
            sample.value = result.percentile_us;
            sample.details.insert("latency_avg_us", result.avg_us);
            Ok(sample)
        }
    }
}

/// What of UCX does the same.
fn ucx_test(program: &str, variant: Variant) -> UcxTest {
    let mapped = variant == Variant::UcxPosix;
    let (name, layout) = match program {
        WRITE => ("put_lat", Some(if mapped { "short" } else { "zcopy" })),
        READ => ("get", Some(if mapped { "bcopy" } else { "zcopy" })),
        ATOMIC => ("fadd", Some("short")),
        _ => ("tag_lat", None),
    };
    UcxTest { name, layout }
}
