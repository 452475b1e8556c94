//! Which of the tests that failed in a run of `scripts/test` are unsteady.
//!
//! Each failed test is run again, alone, up to [`RERUNS_MAX`] times. A test that passes then is *unsteady*: it is
//! recorded, and does not count as failed. A test that fails each time has failed, and so has one whose failure
//! no second run can excuse ([`never`]) and one that is left when [`BUDGET`] is used up.

pub mod log;
pub mod never;
pub mod record;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::job::{Job, command};
use crate::suite::{Problem, Verdict};
use record::Record;

/// How often a failed test is run again.
pub const RERUNS_MAX: u32 = 2;
/// How long all reruns together may take.
pub const BUDGET: Duration = Duration::from_mins(15);
/// More unsteady tests than this in one run all count as failed.
pub const UNSTEADY_MAX: usize = 25;
/// How long one rerun of one test may take.
const RERUN_MAX: Duration = Duration::from_mins(6);
/// A program that did not come to its end leaves tests behind; more than these are not run one by one.
const LEFT_MAX: usize = 10;
/// Steps whose failures always count; no time and no other process matters to them.
const STEADY_STEPS: &[&str] = &["fmt", "compile", "rules", "loom", "build"];

/// What `scripts/test` counted as one failure.
#[derive(Clone, Debug)]
pub struct Failure {
    pub record: Record,
    /// The failed test; for a program that did not end in time, those of its tests that had not passed.
    pub tests: Vec<String>,
    /// What the test said.
    pub words: String,
    /// Why the failure counts at once.
    pub never: Option<String>,
}

/// How a rerun of one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerun {
    pub passed: bool,
    pub words: String,
    /// Why it shows a failure that no other run excuses.
    pub never: Option<String>,
}

/// What became of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// The number of the rerun that passed.
    Unsteady(u32),
    /// Why it counts.
    Failed(String),
}

impl Failure {
    /// The step and the test, the tests of a program that hung, or a program that says nothing of its tests.
    pub fn name(&self) -> String {
        let tests = match self.tests.as_slice() {
            [] => self.record.program.display().to_string(),
            tests => tests.join(", "),
        };
        format!("{} {tests}", self.record.step)
    }
}

/// The failures of one program. `list` asks it for the names of its tests.
pub fn failures(record: &Record, root: &Path, list: impl FnOnce() -> String) -> Vec<Failure> {
    let log = fs::read(&record.log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let failure = |tests: Vec<String>, words: String, never: Option<String>| Failure {
        record: record.clone(),
        tests,
        words,
        never,
    };
    let steady = STEADY_STEPS.contains(&record.step.as_str());
    let steady = steady.then(|| format!("a failure of the step {}", record.step));
    match record.status {
        0 => Vec::new(),
        101 => log::failed(&log)
            .into_iter()
            .map(|failed| {
                let never = steady
                    .clone()
                    .or_else(|| never::reason(&failed.words, root));
                failure(vec![failed.name], failed.words, never)
            })
            .collect(),
        124 | 137 => {
            let words = format!(
                "{} did not end within {} s",
                record.program.display(),
                record.seconds
            );
            let left = log::not_passed(&list(), &log);
            let many = (left.is_empty() || left.len() > LEFT_MAX)
                .then(|| format!("{} tests had not passed", left.len()));
            vec![failure(left, words, steady.or(many))]
        }
        status => {
            let words = format!("{} ended with status {status}", record.program.display());
            let never = Some(format!("the test program's end with status {status}"));
            vec![failure(Vec::new(), words, never)]
        }
    }
}

/// Runs the tests of a failure again with `run`, until all have passed in one rerun. `left` is what is left of the
/// budget.
pub fn classify(
    failure: &Failure,
    mut left: impl FnMut() -> Duration,
    mut run: impl FnMut(&str, u32, Duration) -> Rerun,
) -> Class {
    if let Some(reason) = &failure.never {
        return Class::Failed(format!("not run again: {reason}"));
    }
    let mut last = String::new();
    for number in 1..=RERUNS_MAX {
        let mut passed = true;
        for test in &failure.tests {
            let limit = left();
            if limit.is_zero() {
                let minutes = BUDGET.as_secs() / 60;
                return Class::Failed(format!("the {minutes} minutes of reruns are used up"));
            }
            let rerun = run(test, number, limit);
            if let Some(reason) = rerun.never {
                return Class::Failed(format!("rerun {number} showed {reason}"));
            }
            if !rerun.passed {
                passed = false;
                last = rerun.words;
                break;
            }
        }
        if passed {
            return Class::Unsteady(number);
        }
    }
    Class::Failed(format!("failed alone, too: {}", last.trim()))
}

/// The record of an unsteady test.
#[derive(Serialize)]
struct Entry {
    name: String,
    step: String,
    commit: String,
    ended: String,
    load: String,
    message: String,
}

/// Reruns what failed below `logs` and prints what became of each. How many of the failures do not count.
pub fn run(logs: &Path, root: &Path, commit: &str) -> io::Result<usize> {
    let until = Instant::now() + BUDGET;
    let records = record::read_all(&logs.join("runs"))?;
    let failures: Vec<Failure> = records
        .iter()
        .flat_map(|record| failures(record, root, || listed(record)))
        .collect();
    println!(
        "Running {} failed tests again, each alone (at most {RERUNS_MAX} times, {} minutes together):",
        failures.iter().filter(|one| one.never.is_none()).count(),
        BUDGET.as_secs() / 60
    );
    let (reruns, unsteady) = (logs.join("reruns"), logs.join("unsteady"));
    fs::create_dir_all(&reruns)?;
    fs::create_dir_all(&unsteady)?;
    let mut entries = Vec::new();
    for failure in &failures {
        let name = failure.name();
        let file = |number: u32| format!("{}.{number}", file_name(&name));
        fs::write(reruns.join(file(0)), &failure.words)?;
        let left = || until.saturating_duration_since(Instant::now());
        let class = classify(failure, left, |test, number, limit| {
            let (rerun, log) = rerun(&failure.record, test, limit, &reruns, root);
            // The tests of a program that hung share a file.
            let before = fs::read_to_string(reruns.join(file(number))).unwrap_or_default();
            let _ = fs::write(reruns.join(file(number)), before + &log);
            rerun
        });
        match class {
            Class::Unsteady(last) => {
                println!("UNSTEADY {name}: passed alone in rerun {last}; at first it said:");
                for number in 0..=last {
                    fs::rename(reruns.join(file(number)), unsteady.join(file(number)))?;
                }
                entries.push(Entry {
                    name: failure.tests.join(", "),
                    step: failure.record.step.clone(),
                    commit: commit.to_string(),
                    ended: failure.record.ended.clone(),
                    load: failure.record.load.clone(),
                    message: failure.words.clone(),
                });
            }
            Class::Failed(why) => {
                let first = why.lines().next().unwrap_or_default();
                println!("FAILED {name}: {first}; at first it said:");
            }
        }
        for line in failure
            .words
            .lines()
            .filter(|line| !line.is_empty())
            .take(8)
        {
            println!("    {line}");
        }
    }
    append(&logs.join("unsteady.json"), &entries)?;
    let count = entries.len();
    if count > UNSTEADY_MAX {
        println!(
            "{count} unsteady tests in one run are more than {UNSTEADY_MAX}: all count as failed"
        );
        return Ok(0);
    }
    println!("unsteady tests: {count} (logs: {})", unsteady.display());
    Ok(count)
}

/// Adds entries to the array of a file, which need not be there.
fn append(file: &Path, entries: &[Entry]) -> io::Result<()> {
    let mut all: Vec<serde_json::Value> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(_) => Vec::new(),
    };
    for entry in entries {
        all.push(serde_json::to_value(entry)?);
    }
    fs::write(file, serde_json::to_string_pretty(&all)? + "\n")
}

/// The start of a file's name, which the kernel limits to 255 bytes.
fn file_name(name: &str) -> String {
    let name = name.replace('/', "__").replace(' ', "--");
    name.chars().take(100).collect()
}

fn program(record: &Record, arguments: &[&str]) -> std::process::Command {
    let mut command = command(&record.program);
    command
        .args(arguments)
        .current_dir(&record.folder)
        .env("CARGO_MANIFEST_DIR", &record.folder)
        .env_remove("TMPDIR");
    if !record.tmpdir.is_empty() {
        command.env("TMPDIR", &record.tmpdir);
    }
    command
}

fn listed(record: &Record) -> String {
    let output = program(record, &["--list"]).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Runs one test alone; what came of it and the whole log.
fn rerun(
    record: &Record,
    test: &str,
    limit: Duration,
    folder: &Path,
    root: &Path,
) -> (Rerun, String) {
    let limit = limit
        .min(RERUN_MAX)
        .min(Duration::from_secs(record.seconds));
    let command = program(record, &["--exact", test, "--test-threads=1"]);
    let outcome: Verdict<_> = Job::start(command, folder, "rerun").and_then(|job| {
        let stdout: PathBuf = job.stdout_path().into();
        let outcome = job.finish(limit);
        let _ = fs::remove_file(stdout.with_extension("stderr"));
        let _ = fs::remove_file(stdout);
        outcome
    });
    let (passed, words, log) = match outcome {
        Ok(outcome) => {
            let stdout = outcome.text();
            let passed = outcome.status.success() && log::one_passed(&stdout);
            let failed = log::failed(&stdout).pop();
            let words = failed.map_or_else(|| outcome.describe(), |failed| failed.words);
            let log = stdout + &String::from_utf8_lossy(&outcome.stderr);
            (passed, words, log)
        }
        Err(Problem::Failed(words) | Problem::Skipped(words)) => (false, words.clone(), words),
    };
    let never = (!passed).then(|| never::reason(&words, root)).flatten();
    let rerun = Rerun {
        passed,
        words,
        never,
    };
    (rerun, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(folder: &Path, status: i32, log: &str) -> Record {
        let file = folder.join("0001.log");
        fs::write(&file, log).expect("written");
        Record {
            step: "fabric".into(),
            status,
            seconds: 60,
            folder: folder.into(),
            program: "/t/fabric".into(),
            tmpdir: String::new(),
            ended: "now".into(),
            load: "1.0".into(),
            log: file,
        }
    }

    fn failures_of(status: i32, log: &str, list: &str) -> Vec<Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let record = record(folder.path(), status, log);
        failures(&record, folder.path(), || list.to_string())
    }

    /// The log of a program of which one test failed.
    fn log_of(words: &str) -> String {
        format!(
            "test a ... ok\n\nfailures:\n\n---- b/c ----\n{words}\n\n\nfailures:\n    b/c\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored;\n"
        )
    }

    fn one(words: &str) -> Failure {
        failures_of(101, &log_of(words), "").remove(0)
    }

    fn rerun(passed: bool) -> Rerun {
        Rerun {
            passed,
            words: "late".into(),
            never: None,
        }
    }

    const LEFT: Duration = Duration::from_secs(9);

    #[test]
    fn a_test_that_passes_alone_is_unsteady() {
        let failure = one("no answer within 9 s");
        assert_eq!(failure.tests, ["b/c"]);
        let class = classify(&failure, || LEFT, |_, number, _| rerun(number == 2));
        assert_eq!(class, Class::Unsteady(2));
    }

    #[test]
    fn a_test_that_fails_each_time_has_failed() {
        let mut runs = 0;
        let class = classify(
            &one("no answer within 9 s"),
            || LEFT,
            |_, _, _| {
                runs += 1;
                rerun(false)
            },
        );
        assert_eq!(class, Class::Failed("failed alone, too: late".into()));
        assert_eq!(runs, RERUNS_MAX);
    }

    #[test]
    fn a_crash_is_not_run_again_and_one_in_a_rerun_counts() {
        let crash = one("server: killed by signal 11\n");
        let class = classify(&crash, || LEFT, |_, _, _| panic!("it was run again"));
        assert!(matches!(class, Class::Failed(_)));
        let late = one("no answer within 9 s");
        let never = Some("a crash".to_string());
        let class = classify(
            &late,
            || LEFT,
            |_, _, _| Rerun {
                never: never.clone(),
                ..rerun(false)
            },
        );
        assert_eq!(class, Class::Failed("rerun 1 showed a crash".into()));
    }

    #[test]
    fn nothing_is_run_when_the_budget_is_used_up() {
        let class = classify(
            &one("no answer within 9 s"),
            || Duration::ZERO,
            |_, _, _| panic!("it was run again"),
        );
        assert!(matches!(class, Class::Failed(_)));
    }

    #[test]
    fn of_a_program_that_hung_the_tests_that_had_not_passed_run_again() {
        let log = "running 3 tests\ntest a ... ok\n";
        let hung = failures_of(124, log, "a: test\nb/c: test\nd: test\n");
        assert_eq!(hung.len(), 1);
        assert_eq!(hung[0].tests, ["b/c", "d"]);
        let mut ran = Vec::new();
        let class = classify(
            &hung[0],
            || LEFT,
            |test, _, _| {
                ran.push(test.to_string());
                rerun(true)
            },
        );
        assert_eq!((class, ran.len()), (Class::Unsteady(1), 2));
    }

    #[test]
    fn a_program_that_says_nothing_of_its_tests_has_failed() {
        for (status, list) in [(124, ""), (139, "b: test\n"), (2, "b: test\n")] {
            let failures = failures_of(status, "", list);
            assert!(failures[0].never.is_some(), "{status}");
        }
    }

    #[test]
    fn steps_without_time_are_never_unsteady() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut record = record(folder.path(), 101, &log_of("late"));
        record.step = "rules".into();
        let failures = failures(&record, folder.path(), String::new);
        assert!(failures[0].never.is_some());
    }

    #[test]
    fn entries_are_added_to_those_that_are_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("unsteady.json");
        for name in ["a", "b"] {
            let entry = Entry {
                name: name.into(),
                step: "unit".into(),
                commit: "c".into(),
                ended: "now".into(),
                load: "1".into(),
                message: "late".into(),
            };
            append(&file, &[entry]).expect("written");
        }
        let all: Vec<serde_json::Value> =
            serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
        assert_eq!(all.len(), 2);
        assert_eq!(all[1]["name"], "b");
    }
}
