//! Whether many queue pairs between two processes cost more than one.

use super::programs;
use super::{Cell, Options, Workload};
use crate::model::{Better, CostUnit, PointSpec, Variant};
use crate::words::words;

pub const WORKLOAD: Workload = Workload {
    name: "queue-pairs",
    title: "One queue pair and a hundred",
    about: "Messages of 64 bytes a second through 1 and through 100 pairs of queues between the \
            same two processes, each with 128 requests under way: perftest's average.",
    programs: &["ib_write_bw", "ib_send_bw"],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const ONE: &str = "1 QP";
pub const MANY: &str = "100 QPs";

const MESSAGE_BYTES: u32 = 64;
const NUMBERS: [(&str, u32); 2] = [(ONE, 1), (MANY, 100)];

fn cells(options: &Options) -> Vec<Cell> {
    let cell = |(program, label, number): (&'static str, &str, u32)| Cell {
        title: format!("{program}, {label}"),
        variants: vec![Variant::Verbs],
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: program.to_owned(),
            label: label.to_owned(),
            x: None,
            unit: "messages/s",
            better: Better::Higher,
            cost_unit: CostUnit::None,
            paired: false,
            baseline: Variant::Verbs,
        }],
        run: Box::new(move |session, variant| {
            let mut arguments = words!["-s", MESSAGE_BYTES, "-q", number];
            arguments.extend(words!["-D", session.seconds]);
            let sample = programs::perftest_rate(session, variant, program, &arguments)?;
            Ok(vec![sample])
        }),
    };
    ["ib_write_bw", "ib_send_bw"]
        .into_iter()
        .flat_map(|program| NUMBERS.map(|(label, number)| (program, label, number)))
        .map(cell)
        .collect()
}
