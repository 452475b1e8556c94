//! Whether the documents' commands are right: each word against today's programs, and each command that can be run
//! on a machine of its own is run there.
//!
//! A story (`stories/*.sh`) is a script of commands. A line `#: DOCUMENT [WORD=TEXT]...` says that the commands of
//! this document that follow are run by the lines behind it, with texts in the place of words. What no story runs is in
//! `not_run.toml`, with the reason.

mod book;
mod markdown;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::Deserialize;
use sluice_tests::job::{find_program, run};
use sluice_tests::own_root;
use sluice_tests::suite::{self, Verdict, ensure, fail, skip, trial};

use words::{As, Programs};

/// The longest story has all of redis-benchmark, which takes seconds where nothing else runs.
const LIMIT: Duration = Duration::from_secs(400);

fn main() -> ExitCode {
    let mut trials = vec![
        trial("reading", reading),
        trial("words", all_words),
        trial("places", places),
        trial("places/lies", lies),
        trial("configurations", configurations),
        trial("book", || book::built(&source())),
    ];
    for path in stories().unwrap_or_default() {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        trials.push(trial(format!("story/{name}"), move || story(&path)));
    }
    suite::run(trials, 2).exit_code()
}

fn source() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

fn here() -> PathBuf {
    source().join("tests/tests/documents")
}

fn stories() -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(here().join("stories"))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn programs() -> Verdict<Programs> {
    let sluice = sluice_tests::lab::find_sluice()?;
    let built = sluice.parent().map(Path::to_path_buf).unwrap_or_default();
    Ok(Programs {
        root: source(),
        built,
    })
}

/// The documents of the repository, by their paths from its root.
fn documents() -> Verdict<BTreeMap<String, String>> {
    let mut git = Command::new("git");
    let output = git
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.md",
        ])
        .current_dir(source())
        .output()?;
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut documents = BTreeMap::new();
    for path in list.lines().filter(|path| source().join(path).exists()) {
        documents.insert(path.to_owned(), fs::read_to_string(source().join(path))?);
    }
    ensure(documents.len() > 20, || {
        format!("only {} documents", documents.len())
    })?;
    Ok(documents)
}

/// What the blocks of a document have of commands.
fn commands(text: &str) -> Vec<String> {
    let (blocks, _) = markdown::blocks(text);
    let blocks = blocks.iter().filter(|block| block.language.is_empty());
    blocks
        .flat_map(|block| markdown::commands(&block.text))
        .collect()
}

fn reading() -> Verdict {
    match markdown::check_reading() {
        Ok(()) => Ok(()),
        Err(found) => fail(format!("this was read: {found}")),
    }
}

fn all_words() -> Verdict {
    let programs = programs()?;
    if let Some(lie) = words::check_lies(&programs)? {
        return fail(lie);
    }
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in documents()? {
        let (_, prose) = markdown::blocks(&text);
        let mentions = markdown::spans(&prose).into_iter().filter(|span| {
            let ours = [
                "sluice ",
                "sluiced ",
                "scripts/",
                "cargo ",
                "bench/",
                "target/release/sluice ",
            ];
            ours.iter().any(|start| span.starts_with(start))
        });
        let mentions = mentions.map(|span| (span, As::Mention));
        let commands = commands(&text)
            .into_iter()
            .map(|command| (command, As::Command));
        for (command, kind) in commands.chain(mentions) {
            seen += 1;
            if let Some(why) = programs.wrong(&command, kind)? {
                wrong.push(format!("{path}: {command}: {why}"));
            }
        }
    }
    ensure(seen > 300, || format!("only {seen} commands are seen"))?;
    ensure(wrong.is_empty(), || format!("{wrong:#?}"))
}

/// What is not run here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NotRun {
    document: String,
    why: String,
    commands: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exceptions {
    #[serde(rename = "not-run")]
    not_run: Vec<NotRun>,
}

/// A document's commands that a story runs, and its lines for them.
#[derive(Debug)]
struct Part {
    document: String,
    /// What stands for which words of the document.
    texts: Vec<(String, String)>,
    lines: Vec<String>,
}

impl Part {
    fn all(story: &str) -> Vec<Part> {
        let mut parts = Vec::<Part>::new();
        for line in story.lines() {
            if let Some(head) = line.strip_prefix("#: ") {
                let mut words = head.split_whitespace();
                let document = words.next().unwrap_or_default().to_owned();
                let texts = words.filter_map(|word| word.split_once('='));
                let texts = texts
                    .map(|(word, text)| (word.to_owned(), text.to_owned()))
                    .collect();
                parts.push(Part {
                    document,
                    texts,
                    lines: Vec::new(),
                });
            } else if let Some(part) = parts.last_mut() {
                part.lines.push(markdown::tidy(line));
            }
        }
        parts
    }

    /// Whether one of the lines is the command, with what the test does with its output or result behind it.
    fn runs(&self, command: &str) -> bool {
        let texts = self.texts.iter();
        let command = texts.fold(command.to_owned(), |command, (word, text)| {
            command.replace(word, text)
        });
        self.lines.iter().any(|line| {
            let line = line.strip_prefix("on_other ").unwrap_or(line);
            line.strip_prefix(&command).is_some_and(|rest| {
                let behind = ["", " &", " >", " 2>", " |", " <"];
                rest.is_empty()
                    || behind
                        .iter()
                        .any(|mark| !mark.is_empty() && rest.starts_with(mark))
            })
        })
    }
}

/// Commands that have no place, and places of commands that are not there.
fn misplaced(
    documents: &BTreeMap<String, String>,
    parts: &[Part],
    not_run: &[NotRun],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let empty = String::new();
    for (path, text) in documents {
        for command in commands(text) {
            let stories = parts
                .iter()
                .any(|part| part.document == *path && part.runs(&command));
            let exceptions = not_run.iter().filter(|row| row.document == *path);
            let is_excepted = exceptions
                .flat_map(|row| &row.commands)
                .any(|row| *row == command);
            match (stories, is_excepted) {
                (false, false) => wrong.push(format!("{path}: nothing runs: {command}")),
                (true, true) => wrong.push(format!(
                    "{path}: a story runs it, and it is not run: {command}"
                )),
                _ => {}
            }
        }
    }
    for part in parts {
        let commands = commands(documents.get(&part.document).unwrap_or(&empty));
        if !commands.iter().any(|command| part.runs(command)) {
            wrong.push(format!(
                "{}: a story runs none of its commands",
                part.document
            ));
        }
    }
    for row in not_run {
        let commands = commands(documents.get(&row.document).unwrap_or(&empty));
        let gone = row
            .commands
            .iter()
            .filter(|command| !commands.contains(command));
        wrong.extend(gone.map(|command| format!("{}: it has no more: {command}", row.document)));
        if row.why.is_empty() || row.commands.is_empty() {
            wrong.push(format!(
                "{}: a row without commands or reason",
                row.document
            ));
        }
    }
    wrong
}

fn places() -> Verdict {
    let text = fs::read_to_string(here().join("not_run.toml"))?;
    let exceptions: Exceptions = toml::from_str(&text).or_else(|error| fail(error.to_string()))?;
    let mut parts = Vec::new();
    for path in stories()? {
        parts.extend(Part::all(&fs::read_to_string(path)?));
    }
    let wrong = misplaced(&documents()?, &parts, &exceptions.not_run);
    ensure(wrong.is_empty(), || {
        format!(
            "{wrong:#?}\nCommands of documents are run by tests/tests/documents/stories, or named in not_run.toml. A block \
                 that is no commands has a fence that says what it is (text, toml, yaml)."
        )
    })
}

fn lies() -> Verdict {
    let document = |text: &str| BTreeMap::from([("a.md".to_owned(), text.to_owned())]);
    let wrong = |text: &str, story: &str, except: &[&str]| {
        let commands = except.iter().map(|&command| command.to_owned()).collect();
        let row = NotRun {
            document: "a.md".to_owned(),
            why: "so".to_owned(),
            commands,
        };
        let rows = if except.is_empty() {
            Vec::new()
        } else {
            vec![row]
        };
        misplaced(&document(text), &Part::all(story), &rows).len()
    };
    let text = "Do\n\n    one WORD\n    two\n";
    let found = [
        wrong(text, "#: a.md WORD=1\none 1 &\ntwo\n", &[]),
        wrong(text, "#: a.md WORD=1\none 1\n", &["two"]),
        // Nothing runs it; another document's story does; it is another command; it is another beginning.
        wrong(text, "#: a.md WORD=1\none 1\n", &[]),
        wrong(text, "#: a.md WORD=1\none 1\n#: b.md\ntwo\n", &[]),
        wrong(text, "#: a.md WORD=1\none 1\ntwo three\n", &[]),
        wrong(text, "#: a.md WORD=1\none 1\necho two\n", &[]),
        // Both; something that is gone.
        wrong(text, "#: a.md WORD=1\none 1\ntwo\n", &["two"]),
        wrong(text, "#: a.md WORD=1\none 1\ntwo\n", &["three"]),
    ];
    ensure(found == [0, 0, 1, 2, 1, 1, 1, 1], || format!("{found:?}"))
}

/// Each block of TOML is a configuration, or the part of one.
fn configurations() -> Verdict {
    let programs = programs()?;
    let dir = tempfile::tempdir()?;
    let text_of = |block: &str| {
        let has = |part: &str| block.contains(part);
        let mut text = block.to_owned();
        let mut needs = |is_there: bool, part: &str| {
            if !is_there {
                text.push_str(part);
            }
        };
        needs(
            has("[daemon]"),
            "[daemon]\nname = \"here\"\npsk_file = \"peering.key\"\n",
        );
        for (name, address) in [("gw", "10.0.0.1"), ("app1", "10.0.0.11")] {
            let is_named = has(&format!("[[peer]]\nname = \"{name}\""))
                || has(&format!("[daemon]\nname = \"{name}\""));
            needs(
                is_named,
                &format!("[[peer]]\nname = \"{name}\"\ncontrol = \"{address}\"\n"),
            );
        }
        needs(
            !has("[[gateway.node]]") || has("[gateway]"),
            "[gateway]\naddresses = [\"203.0.113.7\"]\n",
        );
        text
    };
    let check = |text: &str| -> Verdict<Option<String>> {
        let key = dir.path().join("peering.key");
        if !key.exists() {
            let made = Command::new(programs.built.join("sluice"))
                .args(["ca", "key"])
                .arg(&key)
                .output()?;
            ensure(made.status.success(), || format!("{made:?}"))?;
        }
        let file = dir.path().join("sluiced.toml");
        fs::write(&file, text)?;
        let mut command = Command::new(programs.built.join("sluice"));
        let output = command
            .args(["up", "--check", "--config"])
            .arg(&file)
            .output()?;
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok((!output.status.success()).then(|| said.into_owned()))
    };
    let mut seen = 0;
    for (path, text) in documents()? {
        for block in markdown::blocks(&text)
            .0
            .iter()
            .filter(|block| block.language == "toml")
        {
            seen += 1;
            let text = text_of(&block.text);
            if let Some(said) = check(&text)? {
                return fail(format!("{path}:\n{text}\n{said}"));
            }
        }
    }
    ensure(seen >= 5, || format!("only {seen} configurations are seen"))?;
    let lie = check(&text_of("[daemon]\nname = \"a\"\nnonsense = 1\n"))?;
    ensure(lie.is_some(), || "nonsense is no fault".to_owned())
}

fn story(path: &Path) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skip("a root of its own takes root");
    }
    let text = fs::read_to_string(path)?;
    // "# needs: PROGRAM..." is what of the machine a story uses.
    let needs = text
        .lines()
        .filter_map(|line| line.strip_prefix("# needs: "));
    for program in needs
        .flat_map(str::split_whitespace)
        .chain(["unshare", "nsenter", "strip", "ss"])
    {
        if find_program(program).is_none() {
            return skip(format!("no {program}"));
        }
    }
    let dir = tempfile::tempdir()?;
    let mut command = own_root::script(&here().join("lab.sh"));
    command
        .arg(source())
        .arg(fs::canonicalize(programs()?.built)?)
        .arg(source().join("tests/apps/scripts/live_talk.py"))
        .arg(path)
        .arg(dir.path().join("lab"));
    fs::create_dir(dir.path().join("lab"))?;
    let outcome = run(command, dir.path(), "story", LIMIT)?;
    // What a story leaves behind may have its last word after it.
    let is_good = outcome.text().lines().any(|it| it == "all good");
    ensure(is_good && outcome.status.success(), || outcome.describe())
}
