//! How many bytes one-sided operations move.

use super::programs::{self, UcxTest};
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

pub(super) const WORKLOAD: Workload = Workload {
    name: "bandwidth",
    title: "Bandwidth of 64 KiB WRITE and READ",
    about: "perftest's average. memcpy is one thread that copies 64 KiB again and again between \
            two buffers of its own, which stay in the cache as perftest's do: nothing that copies \
            once is faster. UCX: put_bw and get of its lower layer.",
    programs: &["ib_write_bw", "ib_read_bw"],
    compared_with: &["ucx_perftest"],
    obstacle: None,
    cells,
};

/// The programs, each a group of one point.
pub const GROUPS: [&str; 2] = ["ib_write_bw", "ib_read_bw"];

const MESSAGE_BYTES: u32 = 64 << 10;
const ITERATIONS_PER_S: u64 = 50_000;

const VARIANTS: [Variant; 5] = [
    Variant::Memcpy,
    Variant::Verbs,
    Variant::VerbsPrivate,
    Variant::UcxPosix,
    Variant::UcxCma,
];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |program: &'static str| Cell {
        title: format!("{program}, 64 KiB"),
        variants: VARIANTS.to_vec(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: program.to_owned(),
            label: "64 KiB".to_owned(),
            x: None,
            unit: "GB/s",
            better: Better::Higher,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::Memcpy,
        }],
        run: Box::new(move |session, variant| Ok(vec![measure(session, variant, program)?])),
    };
    GROUPS.into_iter().map(cell).collect()
}

fn measure(session: &Session, variant: Variant, program: &'static str) -> Result<Sample> {
    let mut sample = match variant {
        Variant::Memcpy => programs::memcpy_rate(session, variant, MESSAGE_BYTES)?,
        Variant::Verbs | Variant::VerbsPrivate => {
            let arguments = words!["-s", MESSAGE_BYTES, "-D", session.seconds];
            programs::perftest_rate(session, variant, program, &arguments)?
        }
        _ => {
            let mapped = variant == Variant::UcxPosix;
            let test = UcxTest {
                name: if program == GROUPS[0] {
                    "put_bw"
                } else {
                    "get"
                },
                layout: Some(if mapped { "bcopy" } else { "zcopy" }),
            };
            let iterations = ITERATIONS_PER_S * u64::from(session.seconds);
            let (result, mut sample) =
                programs::ucx(session, variant, test, MESSAGE_BYTES, iterations)?;
            sample.value = result.messages_per_s;
            sample
        }
    };
    let message_bytes = f64::from(MESSAGE_BYTES);
    sample.value *= message_bytes / 1e9;
    sample.bytes = sample.operations * message_bytes;
    Ok(sample)
}
