//! How many small messages a second go through one pair of queues.

use super::programs::{self, UcxTest};
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "messages",
    title: "SENDs of 64 bytes in a second",
    about: "perftest's average with its defaults: 128 SENDs under way, one completion for 100. \
            UCX: tag_bw of its upper layer.",
    programs: &["ib_send_bw"],
    compared_with: &["ucx_perftest"],
    obstacle: None,
    cells,
};

pub const GROUP: &str = "ib_send_bw";

const MESSAGE_BYTES: u32 = 64;
const ITERATIONS_PER_S: u64 = 2_000_000;

fn cells(options: &Options) -> Vec<Cell> {
    vec![Cell {
        title: format!("{GROUP}, {MESSAGE_BYTES} B"),
        variants: vec![Variant::Verbs, Variant::UcxPosix],
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: GROUP.to_owned(),
            label: format!("{MESSAGE_BYTES} B"),
            x: None,
            unit: "messages/s",
            better: Better::Higher,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::UcxPosix,
        }],
        run: Box::new(|session, variant| Ok(vec![measure(session, variant)?])),
    }]
}

fn measure(session: &Session, variant: Variant) -> Result<Sample> {
    if variant == Variant::Verbs {
        let arguments = words!["-s", MESSAGE_BYTES, "-D", session.seconds];
        return programs::perftest_rate(session, variant, GROUP, &arguments);
    }
    let test = UcxTest {
        name: "tag_bw",
        layout: None,
    };
    let iterations = ITERATIONS_PER_S * u64::from(session.seconds);
    let (result, mut sample) = programs::ucx(session, variant, test, MESSAGE_BYTES, iterations)?;
    sample.value = result.messages_per_s;
    Ok(sample)
}
