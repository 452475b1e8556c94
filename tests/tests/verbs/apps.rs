//! The C programs of `tests/apps/verbs`, which try what other programs do not: what peers must not
//! be able to do, what calls must refuse, and calls that nobody else makes.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, trial};
use sluice_tests::verbs::compile;

use crate::stage::{Environment, Stage, WAYS};

/// Programs of two processes, which reach each other's memory in one of several ways.
const PAIRS: [&str; 4] = ["once", "protection", "receives", "windows"];
/// Programs of one process, to which that makes no difference.
const ALONE: [&str; 4] = ["closes", "files", "limits", "queries"];

pub fn trials() -> Vec<Trial> {
    let alone = ALONE.map(|name| trial(format!("apps/{name}"), move || execute(name, &[])));
    let pairs = PAIRS.iter().flat_map(|name| {
        WAYS.iter().map(move |(way, environment)| {
            trial(format!("apps/{name}/{way}"), move || {
                execute(name, environment)
            })
        })
    });
    alone.into_iter().chain(pairs).collect()
}

fn execute(name: &str, environment: Environment) -> Verdict {
    let mut stage = Stage::new()?;
    stage.set(environment);
    let program = compile(name, stage.folder())?;
    stage.run(&program.to_string_lossy(), &[])?.success()?;
    Ok(())
}
