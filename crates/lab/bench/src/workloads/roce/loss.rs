//! What is left of the bandwidth when packets are lost.

use std::process::Command;

use super::bandwidth::{self, LARGE};
use super::programs::FAULT;
use super::{Cell, Options, Workload};
use crate::error::Result;
use crate::installation;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::session::Session;

pub const WORKLOAD: Workload = Workload {
    name: "loss",
    title: "Bandwidth of 64 KiB WRITE when packets are lost",
    about: "perftest's average without faults and with 'sluice verbs --fault loss=0.01' at both \
            ends, one after the other in each repetition: of the packets of each direction one in \
            a hundred is lost. A run in which the sender did not say that it lost some has failed.",
    programs: &[bandwidth::PROGRAM],
    compared_with: &[],
    obstacle: Some(obstacle),
    cells,
};

pub const GROUP: &str = "ib_write_bw, 64 KiB";
pub const LOSSLESS: &str = "lossless";
pub const LOSSY: &str = "1 % lost";

const LOSS: &str = "loss=0.01";

/// The `sluice` that is measured may be older than this.
fn obstacle() -> Option<String> {
    let sluice = installation::sluice().ok()?;
    let output = Command::new(sluice).args(["verbs", "--help"]).output();
    let option = format!("--{FAULT}");
    let has_option = output.is_ok_and(|help| {
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        help.split_whitespace().any(|word| word == option)
    });
    (!has_option).then(|| format!("not measured: 'sluice verbs' has no option {option} here"))
}

fn cells(options: &Options) -> Vec<Cell> {
    let point = |label: &str| PointSpec {
        group: GROUP.to_owned(),
        label: label.to_owned(),
        x: None,
        unit: "Gb/s",
        better: Better::Higher,
        cost_unit: CostUnit::None,
        paired: false,
        baseline: Variant::RoceXdp,
    };
    vec![Cell {
        title: format!("{GROUP}, with and without loss"),
        variants: vec![Variant::RoceXdp, Variant::RoceUdp],
        repetitions: options.repetitions,
        points: vec![point(LOSSLESS), point(LOSSY)],
        run: Box::new(|session, variant| {
            Ok(vec![
                measure(session, variant, None)?,
                measure(session, variant, Some(LOSS))?,
            ])
        }),
    }]
}

fn measure(session: &Session, variant: Variant, faults: Option<&'static str>) -> Result<Sample> {
    let mut sample = bandwidth::write_rate(session, variant, LARGE, faults)?;
    sample.value *= 8e-9;
    Ok(sample)
}
