//! The C programs of `tests/apps/verbs`, which try what other programs do not: what peers must not
//! be able to do, what calls must refuse, and calls that nobody else makes.

use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::apps::apps_dir;
use sluice_tests::job::{command, find_program, run};
use sluice_tests::suite::{Verdict, skip, trial};

use crate::stage::{Environment, LIMIT, Stage, WAYS};

/// Programs of two processes, which reach each other's memory in one of several ways.
const PAIRS: [&str; 3] = ["protection", "receives", "windows"];
/// Programs of one process, to which that makes no difference.
const ALONE: [&str; 2] = ["limits", "queries"];

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

fn compile(name: &str, folder: &Path) -> Verdict<PathBuf> {
    const HEADER: &str = "/usr/include/infiniband/verbs.h";
    let Some(gcc) = find_program("gcc").filter(|_| Path::new(HEADER).exists()) else {
        return skip("gcc or libibverbs-dev is not installed; scripts/setup test");
    };
    let binary = folder.join(name);
    let mut gcc = command(gcc);
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"])
        .arg("-o")
        .arg(&binary)
        .arg(apps_dir().join("verbs").join(name).with_extension("c"))
        .arg("-libverbs");
    run(gcc, folder, &format!("gcc-{name}"), LIMIT)?.success()?;
    Ok(binary)
}
