//! perftest: latency and bandwidth of every operation.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::rows::{self, Row};

use crate::stage::Stage;

pub fn trials() -> Vec<Trial> {
    rows::perftests()
        .into_iter()
        .map(|row| trial(row.name(), move || measure(&row)))
        .collect()
}

fn measure(row: &Row) -> Verdict {
    let mut stage = Stage::new()?.with_limit(row.limit());
    let (server, client) = stage.pair(row.program, &row.arguments())?;
    row.check(&server, &client)
}
