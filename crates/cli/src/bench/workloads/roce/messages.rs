//! How many small messages a second go between two hosts, through one pair of queues and many.

use super::programs::{self, Perftest};
use super::{Cell, Options, Workload};
use crate::bench::model::{Better, CostUnit, PointSpec, Variant};
use crate::bench::session::words;

pub const WORKLOAD: Workload = Workload {
    name: "messages",
    title: "SENDs of 64 bytes in a second between two hosts",
    about: "perftest's average over all its pairs of queues, with its defaults: 128 SENDs under \
            way on each pair, one completion for 100, 512 receives posted.",
    programs: &[GROUP],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const GROUP: &str = "ib_send_bw";
pub const ONE: &str = "1 QP";
/// Labels and numbers of the points, the one for comparison first.
const NUMBERS: [(&str, u32); 3] = [(ONE, 1), ("16 QPs", 16), ("64 QPs", 64)];

const MTU: u32 = 1500;
const MESSAGE_BYTES: u32 = 64;

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |(label, number): (&str, u32)| Cell {
        title: format!("{GROUP}, {MESSAGE_BYTES} B, {label}"),
        variants: vec![Variant::RoceXdp, Variant::RoceUdp],
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: GROUP.to_owned(),
            label: label.to_owned(),
            x: None,
            unit: "messages/s",
            better: Better::Higher,
            cost_unit: CostUnit::Operation,
            paired: false,
            baseline: Variant::RoceXdp,
        }],
        run: Box::new(move |session, variant| {
            let mut arguments = words!["-s", MESSAGE_BYTES, "-q", number];
            arguments.extend(words!["-D", session.seconds, "-f", 0]);
            let test = Perftest {
                program: GROUP,
                mtu: MTU,
                arguments,
                faults: None,
            };
            let sample = programs::perftest_rate(session, variant, &test)?;
            Ok(vec![sample])
        }),
    };
    NUMBERS.into_iter().map(cell).collect()
}
