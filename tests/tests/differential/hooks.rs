//! The library's exported functions: each is described in docs/hooks.md, and each of the C library's names
//! for a function that has a hook has one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::job::{command, find_program, run};
use sluice_tests::lab::{Lab, find_sluice};
use sluice_tests::suite::{Verdict, fail, skip, trial};

/// Names of the C library's that are its own (`GLIBC_PRIVATE`).
const PRIVATE: &str = "GLIBC_PRIVATE";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("hooks/are-described", are_described),
        trial("hooks/have-all-names", have_all_names),
    ]
}

fn are_described() -> Verdict {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hooks.md");
    let described = described(&std::fs::read_to_string(document)?);
    let exported: BTreeSet<String> = exported(&library()?)?.into_values().flatten().collect();
    let missing: Vec<_> = exported.difference(&described).collect();
    let gone: Vec<_> = described.difference(&exported).collect();
    match (missing.as_slice(), gone.as_slice()) {
        ([], []) => Ok(()),
        _ => fail(format!(
            "docs/hooks.md does not describe {missing:?}, and describes {gone:?}, which the library does not export"
        )),
    }
}

/// What the code spans in the first column of the table name.
fn described(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split('|').next());
    cells
        .flat_map(|cell| cell.split(','))
        .map(|name| name.trim().trim_matches('`').to_owned())
        .collect()
}

fn have_all_names() -> Verdict {
    let hooks: BTreeSet<String> = exported(&library()?)?.into_values().flatten().collect();
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let Some(c_library) = files
        .map(Path::new)
        .find(|file| file.ends_with("libc.so.6"))
    else {
        return skip("this program has no GNU C library that is a file");
    };
    let mut missing = Vec::new();
    for names in exported(c_library)?.values() {
        if names.iter().any(|name| hooks.contains(name)) {
            missing.extend(names.iter().filter(|name| !hooks.contains(*name)).cloned());
        }
    }
    match missing.as_slice() {
        [] => Ok(()),
        _ => fail(format!(
            "{missing:?} of the C library are other names of functions with hooks, and have none"
        )),
    }
}

fn library() -> Verdict<PathBuf> {
    const NAME: &str = "libsluice_preload.so";
    let sluice = find_sluice()?;
    Ok(match std::env::var_os("SLUICE_LIBDIR") {
        Some(beside) => Path::new(&beside).join(NAME),
        None => sluice.with_file_name(NAME),
    })
}

/// The functions that an object exports for others, by their addresses: one may have several names.
fn exported(object: &Path) -> Verdict<BTreeMap<String, BTreeSet<String>>> {
    let Some(nm) = find_program("nm") else {
        return skip("nm is not installed; run scripts/setup test");
    };
    let lab = Lab::new()?;
    let mut list = command(nm);
    list.args(["-D", "--defined-only"]).arg(object);
    let listed = run(list, lab.path(), "nm", Duration::from_secs(60))?.success()?;
    let mut functions = BTreeMap::<String, BTreeSet<String>>::new();
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some("T" | "W" | "i"), Some(symbol)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        // The library's own functions are for `sluice-static`.
        if !version.ends_with(PRIVATE) && !name.starts_with("sluice_") {
            let names = functions.entry(address.to_owned()).or_default();
            names.insert(name.to_owned());
        }
    }
    if functions.is_empty() {
        return fail(format!("{} exports nothing", object.display()));
    }
    Ok(functions)
}
