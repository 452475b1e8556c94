//! The rules of the house that a machine can hold: who may depend on whom,
//! licences, file sizes, where documents lead, manifests, and
//! what README shows.

mod chart;
mod comments;
mod dependencies;
mod documents;
mod glossary;
mod kubernetes;
mod layers;
mod modules;
mod old_new;
mod protocols;
mod unsteady;
mod words;

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
    ("sluice-tcp", &["sluice-wire"]),
    ("sluice-planner", &["sluice-protocol"]),
    ("sluice-trace", &["sluice-sys", "sluice-wire"]),
    ("sluice-sys", &[]),
    // How long to look before sleeping: no I/O, no clock, no unsafe, so that a model can run it.
    ("sluice-waiting", &[]),
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
    (
        "sluice-lane",
        &["sluice-shmem", "sluice-sys", "sluice-waiting"],
    ),
    ("sluice-window", &["sluice-sys"]),
    ("sluice-control", &["sluice-sys"]),
    ("sluice-peering", &["sluice-control"]),
    ("sluice-relay", &[]),
    ("sluice-fabric", &["sluice-shmem", "sluice-waiting"]),
    (
        "sluice-preload-core",
        &[
            "sluice-control",
            "sluice-lane",
            "sluice-shmem",
            "sluice-sys",
            "sluice-waiting",
        ],
    ),
    // Bytes in, addresses out.
    ("sluice-go", &[]),
    ("sluice-preload", &["sluice-go", "sluice-preload-core"]),
    // A program beside the library, which it finds as any program does.
    ("sluice-static", &["sluice-go"]),
    ("sluice-verbs-model", &["sluice-sys"]),
    ("sluice-verbs", &["sluice-sys", "sluice-verbs-model"]),
    (
        "sluice-transport",
        &[
            "sluice-protocol",
            "sluice-shmem",
            "sluice-sys",
            "sluice-trace",
            "sluice-verbs",
            "sluice-waiting",
            "sluice-wire",
        ],
    ),
    (
        "sluice-transport-shm",
        &[
            "sluice-rendezvous",
            "sluice-shmem",
            "sluice-sys",
            "sluice-transport",
            "sluice-verbs",
        ],
    ),
    (
        "sluice-transport-iwarp",
        &[
            "sluice-protocol",
            "sluice-shmem",
            "sluice-sys",
            "sluice-trace",
            "sluice-transport",
            "sluice-verbs",
            "sluice-wire",
        ],
    ),
    (
        "sluice-transport-window",
        &[
            "sluice-protocol",
            "sluice-shmem",
            "sluice-sys",
            "sluice-transport",
            "sluice-verbs",
            "sluice-waiting",
            "sluice-window",
            "sluice-wire",
        ],
    ),
    (
        "sluice-transport-roce",
        &[
            "sluice-packet",
            "sluice-planner",
            "sluice-protocol",
            "sluice-rendezvous",
            "sluice-shmem",
            "sluice-sys",
            "sluice-trace",
            "sluice-transport",
            "sluice-verbs",
            "sluice-wire",
            "sluice-xdp",
        ],
    ),
    (
        "sluice-verbs-calls",
        &[
            "sluice-rendezvous",
            "sluice-sys",
            "sluice-transport",
            "sluice-transport-iwarp",
            "sluice-transport-roce",
            "sluice-transport-shm",
            "sluice-transport-window",
            "sluice-verbs",
            "sluice-verbs-abi",
        ],
    ),
    (
        "sluice-rdmacm",
        &[
            "sluice-sys",
            "sluice-verbs",
            "sluice-verbs-abi",
            "sluice-verbs-calls",
            "sluice-wire",
        ],
    ),
    (
        "sluice-rsocket",
        &["sluice-rdmacm", "sluice-verbs-abi", "sluice-verbs-calls"],
    ),
    (
        "sluice-ibverbs",
        &[
            "sluice-rdmacm",
            "sluice-rsocket",
            "sluice-transport-shm",
            "sluice-verbs-calls",
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
            "sluice-waiting",
            "sluice-window",
        ],
    ),
    (
        "sluice-cli",
        &[
            "sluice-bench-args",
            "sluice-control",
            "sluice-gateway",
            "sluice-peering",
            "sluice-rendezvous",
            "sluice-sys",
            "sluice-transport",
            "sluice-window",
            "sluice-xdp",
        ],
    ),
    // Hosts, links and programs for all tests and the benchmark: it must not know what it tests.
    ("sluice-lab", &[]),
    (
        "sluice-gateway",
        &["sluice-control", "sluice-relay", "sluice-sys"],
    ),
    ("sluice-verbs-testing", &["sluice-sys", "sluice-verbs"]),
    ("sluice-transport-loop", &["sluice-verbs"]),
    // A device for guests: it stands alone, as hardware does.
    ("opennic-model", &[]),
    ("sluice-bench-args", &[]),
    // The benchmark: nobody uses it, and it reaches the others by running `sluice`.
    (
        "sluice-bench",
        &[
            "sluice-bench-args",
            "sluice-control",
            "sluice-lab",
            "sluice-sys",
        ],
    ),
    ("sluice-skmsg", &["sluice-bpf-build", "sluice-sys"]),
    // What others can send and write, from outside: of each the parser.
    (
        "sluice-fuzz",
        &[
            "opennic-model",
            "sluice-control",
            "sluice-packet",
            "sluice-peering",
            "sluice-protocol",
            "sluice-rdmacm",
            "sluice-rendezvous",
            "sluice-rsocket",
            "sluice-shmem",
            "sluice-sys",
            "sluice-tcp",
            "sluice-transport-roce",
            "sluice-transport-shm",
            "sluice-verbs",
            "sluice-wire",
        ],
    ),
    ("sluice-tests", &["sluice-lab"]),
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
    rust_version: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    rename: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the root")
        .to_owned()
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
        for name in allowed.iter() {
            if !package.dependencies.iter().any(|used| used.name == *name) {
                wrong.push(format!("{} may use {name} and does not", package.name));
            }
        }
    }
    wrong
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
fn modules_are_in_no_circles() {
    let metadata = metadata();
    let mut found = BTreeSet::new();
    for package in metadata.members() {
        for target in &package.targets {
            let kinds = ["lib", "bin", "cdylib", "rlib", "staticlib"];
            if target
                .kind
                .iter()
                .any(|kind| kinds.contains(&kind.as_str()))
            {
                for circle in modules::circles(&target.src_path) {
                    found.insert(format!("{} {circle}", package.name));
                }
            }
        }
    }
    assert!(found.is_empty(), "circles between modules: {found:#?}");
}

/// Paths in the documents, from the root or from `crates/` on.
#[test]
fn documents_name_files_that_exist() {
    let wings: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("crates/ is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in tracked_files() {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        // What stands between backquotes is every other piece.
        for quoted in text.split('`').skip(1).step_by(2) {
            let below = quoted.strip_prefix("crates/").unwrap_or(quoted);
            let Some((folder, rest)) = below.split_once('/') else {
                continue;
            };
            let is_path = !rest.contains(|letter: char| letter.is_whitespace() || letter == '*');
            // Of the other folders only source: the same names stand for files of programs and systems.
            let base = if wings.iter().any(|name| name == folder) {
                root().join("crates")
            } else if !folder.is_empty() && root().join(folder).is_dir() && rest.ends_with(".rs") {
                root()
            } else {
                continue;
            };
            if is_path {
                seen += 1;
                if !base.join(below).exists() {
                    wrong.push(format!("{}: {quoted}", path.display()));
                }
            }
        }
    }
    assert!(seen > 0, "no document names a source file");
    assert!(wrong.is_empty(), "{wrong:#?}");
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
                    let ours = ["kernel/opennic", "kernel/window", "kernel/include"];
                    joins && ours.iter().any(|folder| line.contains(folder))
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

/// Packages are of one version; whoever adds a module's folder to DKMS by hand gets the same one.
#[test]
fn modules_of_the_kernel_have_the_version_of_the_workspace() {
    let metadata = metadata();
    let version = &metadata.members().next().expect("there are crates").version;
    for module in ["window", "rdma", "opennic"] {
        let path = root().join("kernel").join(module).join("dkms.conf");
        let text = fs::read_to_string(&path).expect("the module has a dkms.conf");
        let line = format!("PACKAGE_VERSION=\"{version}\"");
        assert!(
            text.lines().any(|it| it == line),
            "{} is not of version {version}",
            path.display()
        );
    }
}

/// A version that is built has a dated heading, as Keep a Changelog has it; what is newer stands above it.
#[test]
fn the_changelog_has_the_version_with_its_day() {
    let metadata = metadata();
    let version = &metadata.members().next().expect("there are crates").version;
    let text = fs::read_to_string(root().join("CHANGELOG.md")).expect("it is there");
    let newest = text.lines().filter_map(|line| line.strip_prefix("## ["));
    let newest: Vec<&str> = newest
        .filter(|line| !line.starts_with("Unreleased"))
        .collect();
    let day = newest
        .first()
        .and_then(|line| line.strip_prefix(&format!("{version}] - ")));
    let is_day = |day: &str| {
        let parts: Vec<&str> = day.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        lengths == [4, 2, 2] && parts.concat().bytes().all(|byte| byte.is_ascii_digit())
    };
    assert!(
        day.is_some_and(is_day),
        "CHANGELOG.md's newest version is {newest:?}, Cargo.toml's {version}"
    );
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
