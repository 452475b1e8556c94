//! Whether the words of a command are words of today's programs: options, subcommands, files, steps, packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluice_tests::suite::Verdict;

use crate::markdown::words;

/// What commands of documents are held against.
pub struct Programs {
    pub root: PathBuf,
    /// The folder of `sluice` and `sluiced`.
    pub built: PathBuf,
}

/// What is asked of the words.
#[derive(Clone, Copy, PartialEq)]
pub enum As {
    /// All that the program needs is there.
    Command,
    /// Part of it is: an option that is named without its value, a placeholder in the place of a number.
    Mention,
}

impl Programs {
    /// What is wrong with a command.
    pub fn wrong(&self, command: &str, kind: As) -> Verdict<Option<String>> {
        let mut words = words(command);
        words.retain(|word| word != "…");
        let is_before = |word: &String| {
            word == "sudo"
                || word
                    .split_once('=')
                    .is_some_and(|(name, _)| is_variable(name))
        };
        let before = words.iter().take_while(|word| is_before(word)).count();
        words.drain(..before);
        if words.first().is_some_and(|word| word == "taskset") {
            words.drain(..3.min(words.len()));
        }
        let Some(program) = words.first() else {
            return Ok(None);
        };
        // The name of a file or folder in a sentence: that it exists is a rule of the workspace.
        if kind == As::Mention && words.len() == 1 {
            return Ok(None);
        }
        // What begins behind an own program's or a cluster's `--` is a command, too.
        let behind = words.iter().position(|word| word == "--");
        let is_ours = Path::new(program)
            .file_name()
            .is_some_and(|name| name == "sluice" || name == "sluiced");
        if is_ours || program == "kubectl" {
            if let Some(at) = behind
                && !words[at + 1..].is_empty()
                && let Some(wrong) = self.wrong(&words[at + 1..].join(" "), kind)?
            {
                return Ok(Some(wrong));
            }
            return if is_ours {
                self.ours(&words, kind)
            } else {
                Ok(None)
            };
        }
        match program.as_str() {
            "podman" => self.container(&words),
            "cargo" => Ok(self.cargo(&words)),
            "for" => {
                let inside = command.split_once(" do ").map_or("", |(_, inside)| inside);
                self.wrong(inside.trim_end_matches(" done"), kind)
            }
            _ if self.root.join(program).is_file() && program.contains('/') => {
                Ok(self.script(&words))
            }
            _ if ["scripts/", "bench/", "tests/", "packaging/"]
                .iter()
                .any(|folder| program.starts_with(folder)) =>
            {
                Ok(Some(format!("there is no {program}")))
            }
            _ => Ok(None),
        }
    }

    /// `--help` makes a program of clap's read what stands before it and do nothing.
    fn ours(&self, words: &[String], kind: As) -> Verdict<Option<String>> {
        let program = if words[0].ends_with("sluiced") {
            "sluiced"
        } else {
            "sluice"
        };
        let end = words
            .iter()
            .position(|word| word == "--" || word == "&")
            .unwrap_or(words.len());
        let end = words[..end]
            .iter()
            .position(|word| word == "|")
            .unwrap_or(end);
        let is_version = words[1..end] == ["--version"];
        let mut command = Command::new(self.built.join(program));
        command.args(&words[1..end]);
        if !is_version {
            command.arg("--help");
        }
        let output = command.output()?;
        if output.status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&output.stderr)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        let stands_for_one = said
            .split_once("invalid value '")
            .and_then(|(_, rest)| rest.split_once('\''))
            .is_some_and(|(value, _)| is_placeholder(value));
        let is_cut_short = kind == As::Mention && said.contains("a value is required for");
        Ok((!stands_for_one && !is_cut_short).then_some(said))
    }

    /// The image runs `sluiced`, and its name is `sluice`.
    fn container(&self, words: &[String]) -> Verdict<Option<String>> {
        let options = words
            .windows(2)
            .position(|two| two[0] == "sluice" && two[1].starts_with("--"));
        match options {
            Some(at) => {
                let mut options = vec!["sluiced".to_owned()];
                options.extend_from_slice(&words[at + 1..]);
                self.ours(&options, As::Command)
            }
            None => Ok(None),
        }
    }

    fn script(&self, words: &[String]) -> Option<String> {
        let path = self.root.join(&words[0]);
        let is_executable =
            fs::metadata(&path).is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
        if !is_executable {
            return Some(format!("{} is no program", words[0]));
        }
        let text = fs::read_to_string(&path).ok()?;
        let is_step =
            |word: &str| matches!(word, "quick") || text.contains(&format!("\nstep_{word}()"));
        words[1..].iter().find_map(|word| {
            let option = word.split('=').next().unwrap_or(word);
            let is_known = match words[0].as_str() {
                _ if option == "--help" && text.contains("argparse") => true,
                _ if option.starts_with("--") => text.contains(option),
                "scripts/test" => is_placeholder(word) || word == "STEP..." || is_step(word),
                "scripts/setup" => text.contains(&format!("    {word})")),
                _ => true,
            };
            (!is_known).then(|| format!("{} knows no {word}", words[0]))
        })
    }

    /// Packages of the workspace, and their programs, tests and examples.
    fn cargo(&self, words: &[String]) -> Option<String> {
        let value = |option: &str| {
            let at = words.iter().position(|word| word == option)?;
            words.get(at + 1)
        };
        let own = words
            .iter()
            .position(|word| word == "--")
            .unwrap_or(words.len());
        let folder = match (value("-p"), value("--path")) {
            (Some(package), _) => match self.folder(package) {
                Some(folder) => folder,
                None => return Some(format!("there is no package {package}")),
            },
            (None, Some(path)) => self.root.join(path),
            (None, None) if words.iter().any(|word| word == "fuzz") => self.root.join("fuzz"),
            (None, None) => return None,
        };
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            return Some(format!("there is no package in {}", folder.display()));
        };
        for (option, places) in [
            ("--test", "tests"),
            ("--example", "examples"),
            ("--bin", "src/bin"),
        ] {
            let Some(at) = words[..own].iter().position(|word| word == option) else {
                continue;
            };
            let name = words.get(at + 1).map_or("", String::as_str);
            let is_there = manifest.contains(&format!("name = \"{name}\""))
                || folder
                    .join(places)
                    .join(name)
                    .with_extension("rs")
                    .is_file()
                || folder.join(places).join(name).join("main.rs").is_file();
            if !is_there {
                return Some(format!("{} has no {option} {name}", folder.display()));
            }
        }
        // Behind "--", `sluice` has the words.
        (value("-p").map(String::as_str) == Some("sluice-cli") && words[1] == "run").then(|| {
            let mut ours = vec!["sluice".to_owned()];
            ours.extend_from_slice(words.get(own + 1..).unwrap_or_default());
            self.ours(&ours, As::Command).ok().flatten()
        })?
    }

    fn folder(&self, package: &str) -> Option<PathBuf> {
        let below = |folder: PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let wings = below(self.root.join("crates"));
        let mut folders: Vec<PathBuf> = wings.iter().cloned().flat_map(below).collect();
        folders.extend(wings);
        folders.extend(["tests", "fuzz", "bench/skmsg"].map(|folder| self.root.join(folder)));
        let name = format!("name = \"{package}\"");
        folders.into_iter().find(|folder| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            manifest.lines().any(|line| line == name)
        })
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|letter| letter.is_ascii_uppercase() || letter == b'_')
}

/// A word that stands for another one, `PORTS` or `N`.
pub fn is_placeholder(word: &str) -> bool {
    let is_capital = |letter: u8| letter.is_ascii_uppercase() || letter == b'-' || letter == b'_';
    word.starts_with(|letter: char| letter.is_ascii_uppercase()) && word.bytes().all(is_capital)
}

/// Commands that are wrong must be found to be.
pub fn check_lies(programs: &Programs) -> Verdict<Option<String>> {
    let lies = [
        "sluice run --nonsense -- PROGRAM",
        "sluice nonsense",
        "target/release/sluice verbs --device bogus -- PROGRAM",
        "sluice run -- sluice verbs --nonsense -- PROGRAM",
        "sluice run --spin-us 100000 -- PROGRAM",
        "sluice ca create one two",
        "sluiced --nonsense",
        "kubectl exec POD -- sluice statuss",
        "podman run IMAGE-OPTIONS sluice --nonsense",
        "scripts/nothing",
        "scripts/test nothing",
        "scripts/package --nothing",
        "X=1 cargo test -p sluice-nothing",
        "cargo test -p sluice-lane --test nothing",
        "cargo run -p sluice-cli -- mann DIR",
        "for a in b; do scripts/nothing $a done",
    ];
    for lie in lies {
        if programs.wrong(lie, As::Command)?.is_none() {
            return Ok(Some(format!("nothing wrong is found in: {lie}")));
        }
    }
    let truths = [
        "sluice run --spin-us N -- PROGRAM …",
        "sudo target/release/sluice bench rxe",
        "cargo test -p sluice-lane --test kill",
        "scripts/test fmt quick",
        "sluice status --json | jq .",
        "redis-server --nonsense",
    ];
    for truth in truths {
        if let Some(wrong) = programs.wrong(truth, As::Command)? {
            return Ok(Some(format!("{truth}: {wrong}")));
        }
    }
    let is_cut = programs
        .wrong("sluice run --socket", As::Mention)?
        .is_none()
        && programs
            .wrong("sluice run --socket", As::Command)?
            .is_some();
    Ok((!is_cut).then(|| "an option without its value".to_owned()))
}
