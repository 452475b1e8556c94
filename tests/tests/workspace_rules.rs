//! The rules of the house that a machine can hold: who may depend on whom,
//! licences, and file sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// A file longer than this has more than one story to tell.
const LINES_MAX: usize = 800;

/// Who may use whom inside the workspace, for the sake of building: the arrows of
/// the design. What a crate may use, it names here itself; nothing is inherited.
const MAY_USE: &[(&str, &[&str])] = &[
    ("sluice-wire", &[]),
    ("sluice-protocol", &["sluice-wire"]),
    ("sluice-trace", &["sluice-sys", "sluice-wire"]),
    ("sluice-sys", &[]),
    ("sluice-rendezvous", &["sluice-sys"]),
    ("sluice-verbs-abi", &[]),
    ("sluice-rdma", &["sluice-verbs-abi"]),
    ("sluice-packet", &["sluice-sys", "sluice-wire"]),
    ("sluice-bpf-build", &[]),
    ("sluice-bpf", &["sluice-bpf-build", "sluice-sys"]),
    (
        "sluice-xdp",
        &[
            "sluice-bpf-build",
            "sluice-packet",
            "sluice-sys",
            "sluice-wire",
        ],
    ),
    ("sluice-shmem", &["sluice-sys"]),
    ("sluice-lane", &["sluice-shmem", "sluice-sys"]),
    ("sluice-window", &["sluice-sys"]),
    ("sluice-control", &["sluice-sys"]),
    ("sluice-peering", &["sluice-control"]),
    ("sluice-relay", &[]),
    ("sluice-fabric", &["sluice-shmem"]),
    (
        "sluice-preload-core",
        &[
            "sluice-control",
            "sluice-lane",
            "sluice-shmem",
            "sluice-sys",
        ],
    ),
    ("sluice-preload", &["sluice-preload-core", "sluice-sys"]),
    (
        "sluice-verbs",
        &["sluice-protocol", "sluice-shmem", "sluice-sys"],
    ),
    (
        "sluice-transport-shm",
        &[
            "sluice-rendezvous",
            "sluice-shmem",
            "sluice-sys",
            "sluice-trace",
            "sluice-verbs",
        ],
    ),
    (
        "sluice-transport-roce",
        &[
            "sluice-packet",
            "sluice-protocol",
            "sluice-rendezvous",
            "sluice-shmem",
            "sluice-sys",
            "sluice-trace",
            "sluice-verbs",
            "sluice-wire",
            "sluice-xdp",
        ],
    ),
    (
        "sluice-ibverbs",
        &[
            "sluice-rendezvous",
            "sluice-sys",
            "sluice-transport-roce",
            "sluice-transport-shm",
            "sluice-verbs",
            "sluice-verbs-abi",
            "sluice-wire",
        ],
    ),
    (
        "sluice-daemon",
        &[
            "sluice-bpf",
            "sluice-control",
            "sluice-fabric",
            "sluice-lane",
            "sluice-peering",
            "sluice-rdma",
            "sluice-relay",
            "sluice-shmem",
            "sluice-sys",
        ],
    ),
    (
        "sluice-cli",
        &[
            "sluice-control",
            "sluice-gateway",
            "sluice-peering",
            "sluice-rendezvous",
            "sluice-sys",
            "sluice-verbs",
            "sluice-window",
            "sluice-xdp",
        ],
    ),
    ("sluice-netns-testing", &[]),
    (
        "sluice-gateway",
        &["sluice-control", "sluice-relay", "sluice-sys"],
    ),
    ("sluice-verbs-testing", &["sluice-verbs"]),
    // A device for guests: it stands alone, as hardware does.
    ("opennic-model", &[]),
    // Of the benchmark: nobody uses it.
    ("sluice-skmsg", &["sluice-bpf-build", "sluice-sys"]),
    ("sluice-tests", &[]),
];

/// Licences of other people's code that may go into our binaries. An expression
/// with `OR` needs one of them, one with `AND` all.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "WTFPL",
    "Zlib",
];

const OUR_LICENCE: &str = "Apache-2.0 OR MIT";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn metadata() -> Metadata {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

impl Metadata {
    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// Every use of one of our crates by another that the table does not allow.
fn forbidden_arrows(metadata: &Metadata, table: &[(&str, &[&str])]) -> Vec<String> {
    let table: BTreeMap<&str, &[&str]> = table.iter().copied().collect();
    let ours: BTreeSet<&str> = metadata
        .members()
        .map(|package| package.name.as_str())
        .collect();
    let mut wrong = Vec::new();
    for package in metadata.members() {
        let Some(allowed) = table.get(package.name.as_str()) else {
            wrong.push(format!("{} is not in the table", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            // Tests may look at a crate from outside its layer.
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let name = dependency.name.as_str();
            if ours.contains(name) && !for_tests && !allowed.contains(&name) {
                wrong.push(format!("{} uses {name}", package.name));
            }
        }
    }
    wrong
}

fn licence_allowed(expression: &str) -> bool {
    // "/" is an old way to write OR. Parentheses group an OR within an AND.
    let expression = expression.replace('/', " OR ");
    let mut rest = expression.trim();
    if let Some(inner) = rest
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'))
        && !inner.contains(['(', ')'])
    {
        rest = inner.trim();
    }
    if LICENCES.contains(&rest) {
        return true;
    }
    if let Some(parts) = split_outside(rest, " AND ") {
        return parts.iter().all(|part| licence_allowed(part));
    }
    split_outside(rest, " OR ").is_some_and(|parts| parts.iter().any(|part| licence_allowed(part)))
}

/// Splits at a separator that is not inside parentheses; None when there is none.
fn split_outside<'a>(text: &'a str, separator: &str) -> Option<Vec<&'a str>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= start && text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                start = at + separator.len();
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(&text[start..]);
    Some(parts)
}

fn tracked_files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| root().join(line))
        .collect()
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let wrong = forbidden_arrows(&metadata(), MAY_USE);
    assert!(wrong.is_empty(), "against the design's arrows: {wrong:#?}");
}

#[test]
fn an_arrow_against_the_table_is_found() {
    let metadata = metadata();
    let wrong = forbidden_arrows(&metadata, &[("sluice-sys", &[]), ("sluice-shmem", &[])]);
    assert!(
        wrong.contains(&"sluice-shmem uses sluice-sys".to_string()),
        "{wrong:?}"
    );
    assert!(
        wrong.contains(&"sluice-lane is not in the table".to_string()),
        "{wrong:?}"
    );
}

#[test]
fn every_crate_has_our_licence() {
    for package in metadata().members() {
        assert_eq!(
            package.license.as_deref(),
            Some(OUR_LICENCE),
            "{}",
            package.name
        );
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert!(root().join(name).is_file(), "{name} is missing");
    }
}

/// Modules for Linux are under its licence, and stay apart from what is under ours: each file says
/// so, and no crate takes one in.
#[test]
fn kernel_code_has_the_kernels_licence_and_nothing_else_uses_it() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in tracked_files() {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let kernel = path.starts_with(root().join("kernel"));
        match extension {
            Some("c" | "h") if kernel => {
                seen += 1;
                let first = text.lines().next().unwrap_or_default();
                if !first.contains("SPDX-License-Identifier: GPL-2.0") {
                    wrong.push(format!("{}: {first}", path.display()));
                }
            }
            Some("rs" | "c" | "h") if !kernel => {
                let takes_in = |line: &&str| {
                    let line = line.trim_start();
                    let joins = line.starts_with("#include") || line.starts_with("#[path");
                    joins && line.contains("kernel/opennic")
                };
                if let Some(line) = text.lines().find(takes_in) {
                    wrong.push(format!("{}: {line}", path.display()));
                }
            }
            _ => {}
        }
    }
    assert!(seen > 0, "there is no kernel code");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let metadata = metadata();
    let wrong: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(licence_allowed))
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.license
            )
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "licences that are not in the list: {wrong:#?}"
    );
}

#[test]
fn licence_expressions_are_understood() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
    ] {
        assert!(licence_allowed(good), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-2.0",
        "(GPL-2.0 OR LGPL-2.1) AND MIT",
        "",
    ] {
        assert!(!licence_allowed(bad), "{bad}");
    }
}

#[test]
fn no_source_file_is_too_long() {
    let mut long = Vec::new();
    for path in tracked_files() {
        let source = path.extension().and_then(|extension| extension.to_str());
        if !matches!(source, Some("rs" | "c" | "h" | "sh" | "py")) {
            continue;
        }
        // A file that is listed and gone was deleted and not yet committed.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let lines = text.lines().count();
        if lines > LINES_MAX {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(long.is_empty(), "more than {LINES_MAX} lines: {long:#?}");
}
