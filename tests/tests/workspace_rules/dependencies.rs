//! Other people's code: that it is used, its licences, its versions, and the Rust that it asks for. What is allowed
//! is in deny.toml, which cargo-deny reads, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Metadata, metadata, root, tracked_files};

/// The parts of deny.toml that are held here.
#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    /// Of an expression with `OR` one of them is enough, one with `AND` needs all.
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

/// What is allowed of one crate, too.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

impl Licences {
    fn of(&self, name: &str) -> Vec<String> {
        let exceptions = self.exceptions.iter().filter(|it| it.name == name);
        let more = exceptions.flat_map(|it| it.allow.clone());
        self.allow.iter().cloned().chain(more).collect()
    }
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

/// A version that may be beside another one of its crate.
#[derive(Deserialize)]
struct Skip {
    /// `name@version`, and the version may leave its end out.
    #[serde(rename = "crate")]
    what: String,
    reason: String,
}

impl Policy {
    fn read() -> Policy {
        let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml is there");
        toml::from_str(&text).expect("deny.toml is understood")
    }
}

impl Skip {
    fn is(&self, name: &str, version: &str) -> bool {
        let Some((skipped, begin)) = self.what.split_once('@') else {
            return false;
        };
        let rest = version.strip_prefix(begin);
        skipped == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Numbers of a version, of which those that are left out are 0.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// Crates of which there are several versions without a reason, and reasons for what there is not.
fn duplicates<'a>(
    packages: impl Iterator<Item = (&'a str, &'a str)>,
    skips: &[Skip],
) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version) in packages {
        versions.entry(name).or_default().insert(version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let mut wrong = Vec::new();
    for (name, versions) in &versions {
        let is_skipped = |version: &&&str| skips.iter().any(|skip| skip.is(name, version));
        let left: Vec<_> = versions.iter().filter(|it| !is_skipped(it)).collect();
        if left.len() > 1 {
            wrong.push(format!("{name} has the versions {left:?}"));
        }
    }
    for skip in skips {
        let is_of_use = |(name, versions): (&&str, &BTreeSet<&str>)| {
            versions.iter().any(|version| skip.is(name, version))
        };
        if skip.reason.is_empty() || !versions.iter().any(is_of_use) {
            wrong.push(format!("{} is in deny.toml without a reason", skip.what));
        }
    }
    wrong
}

impl Metadata {
    /// Names and versions of all that Cargo.lock has.
    fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        let packages = self.packages.iter();
        packages.map(|package| (package.name.as_str(), package.version.as_str()))
    }
}

fn licence_allowed(allowed: &[String], expression: &str) -> bool {
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
    if allowed.iter().any(|one| one == rest) {
        return true;
    }
    if let Some(parts) = split_outside(rest, " AND ") {
        return parts.iter().all(|part| licence_allowed(allowed, part));
    }
    split_outside(rest, " OR ")
        .is_some_and(|parts| parts.iter().any(|part| licence_allowed(allowed, part)))
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

/// A dependency whose name no source of the crate has.
#[test]
fn every_dependency_is_used() {
    let files = tracked_files();
    let mut unused = Vec::new();
    for package in metadata().members() {
        let folder = package
            .manifest_path
            .parent()
            .expect("a manifest is in a folder");
        let sources: Vec<&PathBuf> = files
            .iter()
            .filter(|path| path.starts_with(folder) && path.extension().is_some_and(|e| e == "rs"))
            .collect();
        let mut text = String::new();
        for source in sources {
            let source_text = fs::read_to_string(source).unwrap_or_default();
            // A file that is taken in from another crate is part of this one.
            for line in source_text.lines() {
                let path = line
                    .strip_prefix("#[path = \"")
                    .and_then(|rest| rest.strip_suffix("\"]"));
                if let Some(path) = path {
                    let other = source.with_file_name(path);
                    text.push_str(&fs::read_to_string(other).unwrap_or_default());
                }
            }
            text.push_str(&source_text);
        }
        let words: BTreeSet<&str> = text
            .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .collect();
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            if !words.contains(name.replace('-', "_").as_str()) {
                unused.push(format!("{}: {name}", package.name));
            }
        }
    }
    assert!(
        unused.is_empty(),
        "dependencies that nothing uses: {unused:#?}"
    );
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let metadata = metadata();
    let licences = Policy::read().licenses;
    let wrong: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| {
            let allowed = licences.of(&package.name);
            let licence = package.license.as_deref();
            !licence.is_some_and(|it| licence_allowed(&allowed, it))
        })
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.license
            )
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "licences that are not in deny.toml: {wrong:#?}"
    );
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned);
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
    ] {
        assert!(licence_allowed(&allowed, good), "{good}");
    }
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-2.0",
        "(GPL-2.0 OR LGPL-2.1) AND MIT",
        "",
    ] {
        assert!(!licence_allowed(&allowed, bad), "{bad}");
    }
}

#[test]
fn no_crate_is_there_in_two_versions_without_a_reason() {
    let wrong = duplicates(metadata().versions(), &Policy::read().bans.skip);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_second_version_is_found() {
    let skip = |what: &str| Skip {
        what: what.to_owned(),
        reason: "because".to_owned(),
    };
    let packages = [("a", "1.2.0"), ("a", "2.0.0"), ("b", "1.0.0")];
    let find = |skips: &[Skip]| duplicates(packages.into_iter(), skips).len();
    assert_eq!(find(&[]), 1);
    assert_eq!(find(&[skip("a@1")]), 0);
    assert_eq!(find(&[skip("a@1.2.0")]), 0);
    // No version of that name, none that begins so, and one that is alone.
    for other in ["c@1", "a@1.20", "b@1"] {
        assert_eq!(find(&[skip("a@2"), skip(other)]), 1, "{other}");
    }
    assert_eq!(find(&[skip("a@1"), skip("a@2")]), 0);
}

/// The Rust that all our crates name.
fn oldest_rust(metadata: &Metadata) -> &str {
    let mut ours = BTreeSet::new();
    for package in metadata.members() {
        let version = package.rust_version.as_deref();
        ours.insert(version.unwrap_or_else(|| panic!("{} names no rust-version", package.name)));
    }
    let [oldest] = ours.into_iter().collect::<Vec<_>>()[..] else {
        panic!("crates of ours name several Rusts");
    };
    oldest
}

/// What people read, what they install, and what continuous integration and images build with.
#[test]
fn the_oldest_rust_is_the_same_wherever_it_is_named() {
    let metadata = metadata();
    let oldest = oldest_rust(&metadata);
    let image = format!("rust:{oldest}-bookworm");
    let mut wrong = Vec::new();
    for (path, words) in [
        ("README.md", format!("Rust {oldest} or newer")),
        ("CONTRIBUTING.md", format!("Rust ({oldest} or newer)")),
        ("docs/releasing.md", format!("`Cargo.toml` is {oldest},")),
        ("scripts/setup", format!("RUST_NEEDED={oldest}\n")),
        (".github/workflows/ci.yml", image.clone()),
        (".devcontainer/devcontainer.json", image.clone()),
        ("packaging/container/Containerfile", image),
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap_or_default();
        if !text.contains(&words) {
            wrong.push(format!("{path} has no {words:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whoever has the oldest Rust that we name can build all of it.
#[test]
fn no_dependency_asks_for_a_newer_rust_than_we_do() {
    let metadata = metadata();
    let oldest = oldest_rust(&metadata);
    let newer: Vec<String> = metadata
        .packages
        .iter()
        .filter_map(|package| {
            let wants = package.rust_version.as_deref()?;
            let is_newer = numbers(wants) > numbers(oldest);
            is_newer.then(|| format!("{} {}: {wants}", package.name, package.version))
        })
        .collect();
    assert!(newer.is_empty(), "newer than {oldest}: {newer:#?}");
}

#[test]
fn dependencies_are_from_crates_io() {
    let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
    let metadata = metadata();
    let sources = metadata
        .packages
        .iter()
        .filter_map(|it| it.source.as_deref());
    let others: BTreeSet<&str> = sources.filter(|it| *it != crates_io).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// What goes into a package of the workspace when it is built alone.
fn linked(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args([
        "tree",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--locked",
        "--package",
    ]);
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Certificates are made by `sluice ca`, and read by everybody else.
#[test]
fn only_the_command_makes_certificates_and_draws() {
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.starts_with(name));
    let daemon = linked(&["sluice-daemon"]);
    assert!(
        has(&daemon, "rustls v") && !has(&daemon, "rcgen v"),
        "{daemon}"
    );
    let command = linked(&["sluice-cli"]);
    assert!(
        has(&command, "rcgen v") && has(&command, "ratatui v") && has(&command, "h2 v"),
        "{command}"
    );
    let lean = linked(&["sluice-cli", "--no-default-features"]);
    assert!(
        has(&lean, "rustls v") && !has(&lean, "rcgen v") && !has(&lean, "ratatui v"),
        "{lean}"
    );
    assert!(!has(&lean, "h2 v") && !has(&lean, "tokio v"), "{lean}");
    assert!(!has(&daemon, "tokio v"), "{daemon}");
}
