//! The examples that come with libibverbs, which check what they receive.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::rows::{self, Row};

use crate::stage::{Environment, PATH_MTU, Stage, WAYS};

pub fn trials() -> Vec<Trial> {
    let rows = rows::pingpongs().into_iter();
    let mut trials: Vec<Trial> = rows
        .map(|row| trial(row.name(), move || pingpong(&row, &[], &[])))
        .collect();
    // The other ways to a peer's memory, with small and with large messages.
    for (way, environment) in &WAYS[1..] {
        for program in ["ibv_rc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
            let row = rows::named(&format!("{program}/plain"));
            trials.push(trial(format!("{program}/{way}"), move || {
                pingpong(&row, &["-n", "300"], environment)
            }));
        }
    }
    trials
}

fn pingpong(row: &Row, more: &[&str], environment: Environment) -> Verdict {
    // The first entry of the GID table.
    let mut all = vec![row.gid_option(), "0"];
    all.extend(row.arguments());
    all.extend(more);
    let mut stage = Stage::new()?;
    stage.set(environment);
    let (server, client) = stage.pair(row.program, &all)?;
    row.check(&server, &client, PATH_MTU)
}
