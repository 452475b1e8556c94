//! docs/verbs.md: every public call once, with a state that is true of the symbol tables and a
//! proof that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};

const DOCUMENT: &str = include_str!("../../../docs/verbs.md");
const GOLDEN: &str = include_str!("symbols.txt");
/// What the library is built from; targets in `stubs` only say no.
const SYMBOLS: [&str; 2] = [
    include_str!("../../../crates/verbs/ibverbs/symbols/verbs.txt"),
    include_str!("../../../crates/verbs/ibverbs/symbols/rdmacm.txt"),
];
/// Functions that a program gets from the header without a symbol.
const HEADER: &str = "/usr/include/infiniband/verbs.h";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("table/has-every-public-symbol-once", symbols),
        trial("table/has-every-function-of-the-header", inline_functions),
        trial("table/says-no-where-the-library-does", states),
        trial("table/names-proofs-that-exist", proofs),
    ]
}

struct Row<'a> {
    calls: Vec<&'a str>,
    state: &'a str,
    proof: &'a str,
}

/// Rows of three cells whose first one has names in backticks.
fn rows() -> Vec<Row<'static>> {
    DOCUMENT
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line
                .strip_prefix('|')?
                .strip_suffix('|')?
                .split('|')
                .map(str::trim)
                .collect();
            let [calls, state, proof] = cells[..] else {
                return None;
            };
            let calls = quoted(calls);
            (!calls.is_empty()).then_some(Row {
                calls,
                state,
                proof,
            })
        })
        .collect()
}

fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The public names of the golden list: not those that libraries of vendors use among themselves.
fn public() -> BTreeSet<&'static str> {
    GOLDEN
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_PRIVATE_"))
        .filter_map(|line| line.split('@').next())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Inline functions of a header for programs; those with leading underscores are its own.
fn inline(header: &str) -> BTreeSet<&str> {
    header
        .split("static inline")
        .skip(1)
        .filter_map(|text| text.split('(').next())
        .filter_map(|head| {
            head.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .find(|word| !word.is_empty())
        })
        .filter(|name| name.starts_with("ibv_"))
        .collect()
}

fn none(what: &str, names: &[&str]) -> Verdict {
    ensure(names.is_empty(), || format!("{what}: {}", names.join(" ")))
}

fn symbols() -> Verdict {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows() {
        for call in row.calls {
            *seen.entry(call).or_default() += 1;
        }
    }
    let public = public();
    ensure(public.len() > 150, || {
        "the golden list is cut off".to_owned()
    })?;
    let missing: Vec<&str> = public
        .iter()
        .filter(|name| !seen.contains_key(*name))
        .copied()
        .collect();
    none("not in docs/verbs.md", &missing)?;
    let twice: Vec<&str> = seen
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(name, _)| *name)
        .collect();
    none("more than once in docs/verbs.md", &twice)
}

fn inline_functions() -> Verdict {
    let Ok(header) = fs::read_to_string(HEADER) else {
        return skip(format!("{HEADER} is not installed; scripts/setup test"));
    };
    let inline = inline(&header);
    ensure(inline.len() > 50, || format!("{HEADER} is not understood"))?;
    let listed: BTreeSet<&str> = rows().into_iter().flat_map(|row| row.calls).collect();
    let missing: Vec<&str> = inline.difference(&listed).copied().collect();
    none("not in docs/verbs.md", &missing)?;
    let public = public();
    let strange: Vec<&str> = listed
        .iter()
        .filter(|name| !public.contains(*name) && !inline.contains(*name))
        .copied()
        .collect();
    none(
        "in docs/verbs.md, but neither symbol nor in the header",
        &strange,
    )
}

/// The functions behind the default versions.
fn targets() -> BTreeMap<&'static str, &'static str> {
    SYMBOLS
        .iter()
        .flat_map(|table| table.lines())
        .filter(|line| !line.starts_with(['#', '[']))
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(name, target)| (name, target.trim()))
        .collect()
}

fn states() -> Verdict {
    let targets = targets();
    let mut wrong = Vec::new();
    for row in rows() {
        let says_no = row.state.starts_with("refused") || row.state.starts_with("not yet");
        let nothing = row.state.starts_with("nothing to do");
        if !says_no && !nothing && !row.state.starts_with("done") {
            return fail(format!("'{}' is no state", row.state));
        }
        for call in row.calls {
            let target = targets.get(call).copied().unwrap_or_default();
            let fits = match target {
                "stubs::nothing" => nothing,
                stub if stub.starts_with("stubs::") => says_no,
                _ => true,
            };
            if !fits {
                wrong.push(call);
            }
        }
    }
    none(
        "its state in docs/verbs.md is not what the library does",
        &wrong,
    )
}

fn proofs() -> Verdict {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut suites = String::new();
    // The programs that several suites run are listed beside the harness.
    for folder in ["tests/tests", "tests/src/verbs"] {
        for path in rust_files(&root.join(folder))? {
            suites.push_str(&fs::read_to_string(path)?);
        }
    }
    let mut wrong = Vec::new();
    for row in rows() {
        let names = quoted(row.proof);
        ensure(!names.is_empty(), || format!("'{}' is no proof", row.proof))?;
        wrong.extend(names.into_iter().filter(|name| {
            if name.contains('/') {
                !root.join(name).is_file()
            } else {
                !suites.contains(&format!("\"{name}\""))
            }
        }));
    }
    none("named as a proof in docs/verbs.md, but not there", &wrong)
}

fn rust_files(folder: &Path) -> Verdict<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}
