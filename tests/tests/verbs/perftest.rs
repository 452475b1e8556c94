//! perftest: latency and bandwidth of every operation.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::rows::{self, Row};

use crate::stage::{Environment, PATH_MTU, Stage, WAYS};

pub fn trials() -> Vec<Trial> {
    let rows = rows::perftests().into_iter();
    let mut trials: Vec<Trial> = rows
        .map(|row| trial(row.name(), move || measure(&row, &[], &[])))
        .collect();
    // How memory is reached shows in no result, but must change none either.
    for (way, environment) in &WAYS[1..] {
        for program in ["ib_write_bw", "ib_read_lat", "ib_send_bw", "ib_atomic_bw"] {
            let row = rows::named(&format!("{program}/rc"));
            trials.push(trial(format!("{program}/{way}"), move || {
                measure(&row, &["-n", "500"], environment)
            }));
        }
    }
    trials
}

fn measure(row: &Row, more: &[&str], environment: Environment) -> Verdict {
    let mut stage = Stage::new()?.with_limit(row.limit());
    stage.set(environment);
    let mut arguments = row.arguments();
    // Of two -n the last one counts.
    arguments.extend(more);
    let (server, client) = stage.pair(row.program, &arguments)?;
    row.check(&server, &client, PATH_MTU)
}
