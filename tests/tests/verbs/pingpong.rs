//! The examples that come with libibverbs, which check what they receive.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::rows::{self, Row};

use crate::stage::Stage;

pub fn trials() -> Vec<Trial> {
    rows::pingpongs()
        .into_iter()
        .map(|row| trial(row.name(), move || pingpong(&row)))
        .collect()
}

fn pingpong(row: &Row) -> Verdict {
    // The first entry of the GID table.
    let mut all = vec![row.gid_option(), "0"];
    all.extend(row.arguments());
    let (server, client) = Stage::new()?.pair(row.program, &all)?;
    row.check(&server, &client)
}
