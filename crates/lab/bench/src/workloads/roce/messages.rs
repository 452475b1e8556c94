//! How many small messages a second go between two hosts, through one pair of queues and many,
//! with one engine thread and two.

use super::programs::{self, Perftest};
use super::{Cell, Options, Workload};
use crate::model::{Better, CostUnit, PointSpec, Variant};
use crate::words::words;
use crate::workloads::verbs::programs as said;

pub const WORKLOAD: Workload = Workload {
    name: "messages",
    title: "SENDs of 64 bytes in a second between two hosts",
    about: "perftest's average over all its pairs of queues, with its defaults: 128 SENDs under \
            way on each pair, one completion for 100, 512 receives posted. Both ends have as many \
            engine threads as the table says; queue pairs are dealt to them in turn, and perftest \
            polls all from one thread. Where AF_XDP copies its device hands so many small messages \
            to sockets, and only what answers them comes past the kernel.",
    programs: &[PROGRAM],
    compared_with: &[],
    obstacle: None,
    cells,
};

const PROGRAM: &str = "ib_send_bw";
/// The table of the default, which is what is promised for.
pub const GROUP: &str = PROGRAM;
/// Tables and numbers of engine threads.
const ENGINES: [(&str, u32); 2] = [(GROUP, 1), ("ib_send_bw, 2 engine threads", 2)];
pub const ONE: &str = "1 QP";
/// Labels and numbers of the points, the one for comparison first.
const NUMBERS: [(&str, u32); 3] = [(ONE, 1), ("16 QPs", 16), ("64 QPs", 64)];

const MTU: u32 = 1500;
const MESSAGE_BYTES: u32 = 64;

fn cells(options: &Options) -> Vec<Cell> {
    let tables = ENGINES.into_iter();
    tables
        .flat_map(|table| NUMBERS.map(|point| cell(options, table, point)))
        .collect()
}

fn cell(options: &Options, (group, engines): (&str, u32), (label, number): (&str, u32)) -> Cell {
    Cell {
        title: format!("{group}, {MESSAGE_BYTES} B, {label}"),
        variants: vec![Variant::RoceXdp, Variant::RoceUdp],
        repetitions: options.repetitions,
        points: vec![PointSpec {
            group: group.to_owned(),
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
                program: PROGRAM,
                mtu: MTU,
                arguments,
                bulk: true,
                faults: None,
            };
            let more = words!["--engines", engines];
            let (output, sample) = programs::perftest_with(session, variant, &test, &more)?;
            Ok(vec![said::rate(PROGRAM, &output, sample)?])
        }),
    }
}
