//! CPython's own tests of sockets, selectors and what is built on them: the same
//! result for every single test with and without `sluice run`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Deserialize;
use sluice_tests::apps::apps_dir;
use sluice_tests::job::{Job, wait_until};
use sluice_tests::lab::{Lab, Mode};
use sluice_tests::suite::{self, Verdict, ensure, fail, skip, trial};

const PYTHON: &str = "/usr/bin/python3";

const SUITES: &[&str] = &[
    "test_socket",
    "test_selectors",
    "test_asyncio",
    "test_ssl",
    "test_socketserver",
    "test_httplib",
    "test_ftplib",
    "test_poll",
    "test_epoll",
    "test_select",
];

/// A run in which no test began or ended for so long has stopped.
const LIMIT: Duration = Duration::from_secs(240);
/// Of a whole run; that of asyncio takes minutes, and more where others want the processors.
const RUN_LIMIT: Duration = Duration::from_secs(1500);

/// Some of CPython's tests depend on the machine's load by themselves. One whose results differ is
/// run again without Sluice, so often: unless it ends there as it did with Sluice, it counts.
const PLAIN_RUNS: usize = 6;

fn main() -> ExitCode {
    let trials = SUITES
        .iter()
        .map(|&name| trial(format!("cpython/{name}"), move || check(name)))
        .collect();
    // Two at a time: they wait for one another and for timers more than they work.
    suite::run(trials, 2).exit_code()
}

fn check(name: &str) -> Verdict {
    if !Path::new(PYTHON).is_file() {
        return skip(format!("{PYTHON} is not installed; run scripts/setup test"));
    }
    let mut lab = Lab::new()?;
    // Most of these connections carry a few messages only: all are to be laned.
    lab.announce_at_once();
    let module = format!("test.{name}");
    let plain = run(&lab, Mode::Plain, "plain", &[&module])?;
    if plain
        .results
        .keys()
        .all(|id| id.starts_with("unittest.loader"))
    {
        return skip(format!(
            "{PYTHON} has no {module}; its test suite is a package of its own"
        ));
    }
    let accelerated = run(&lab, Mode::Accelerated, "sluice", &[&module])?;
    if let Some(stuck) = accelerated.stuck_at {
        return fail(format!(
            "{stuck} did not end under sluice run within {LIMIT:?}, or all within {RUN_LIMIT:?}"
        ));
    }
    ensure(plain.stuck_at.is_none(), || {
        format!("{:?} does not end plainly", plain.stuck_at)
    })?;

    let mut differing = differences(&plain.results, &accelerated.results);
    for turn in 0..PLAIN_RUNS {
        if differing.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = differing.keys().map(String::as_str).collect();
        let plain = run(&lab, Mode::Plain, &format!("plain-{turn}"), &names)?;
        differing.retain(|id, (_, sluice)| plain.results.get(id) != Some(sluice));
    }
    ensure(differing.is_empty(), || {
        let lines: Vec<String> = differing
            .iter()
            .map(|(id, (plain, sluice))| format!("{id}: plain {plain}, sluice {sluice}"))
            .collect();
        let log = fs::read_to_string(lab.path().join("sluice.stderr")).unwrap_or_default();
        format!("{}\n{}", lines.join("\n"), about(&log, differing.keys()))
    })
}

struct Run {
    results: BTreeMap<String, String>,
    /// The test that was running when the time was up.
    stuck_at: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    start: Option<String>,
    done: Option<String>,
    result: Option<String>,
    end: Option<u64>,
}

fn run(lab: &Lab, mode: Mode, label: &str, names: &[&str]) -> Verdict<Run> {
    let output = lab.path().join(format!("{label}.results"));
    let work = lab.path().join(format!("{label}.work"));
    fs::create_dir_all(&work)?;
    let mut command = lab.command(mode, PYTHON);
    command
        .arg(apps_dir().join("scripts/unittest_results.py"))
        .arg(&output)
        .args(names)
        .current_dir(&work)
        .env("TMPDIR", &work)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let mut job = Job::start(command, lab.path(), label)?;
    let (mut bytes, mut grown_at) = (0, Instant::now());
    wait_until(RUN_LIMIT, || {
        let now = fs::metadata(&output).map_or(0, |file| file.len());
        if now != bytes {
            (bytes, grown_at) = (now, Instant::now());
        }
        Ok(job.poll()?.is_some() || grown_at.elapsed() > LIMIT)
    })?;
    let log = job.describe();
    drop(job);

    let mut run = Run {
        results: BTreeMap::new(),
        stuck_at: None,
    };
    let mut ended = false;
    for line in fs::read_to_string(&output).unwrap_or_default().lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else {
            continue;
        };
        ended |= line.end.is_some();
        if line.start.is_some() {
            run.stuck_at = line.start;
        }
        if let (Some(id), Some(result)) = (line.done, line.result) {
            run.stuck_at = None;
            run.results.insert(id, result);
        }
    }
    if !ended && run.stuck_at.is_none() {
        return fail(format!("{label}: the run broke off between tests\n{log}"));
    }
    Ok(run)
}

type Results = BTreeMap<String, String>;

/// The tests whose results differ, with both results.
fn differences(plain: &Results, accelerated: &Results) -> BTreeMap<String, (String, String)> {
    const NONE: &str = "not run";
    let mut differing = BTreeMap::new();
    for id in plain.keys().chain(accelerated.keys()) {
        let left = plain.get(id).map_or(NONE, String::as_str);
        let right = accelerated.get(id).map_or(NONE, String::as_str);
        if left != right {
            differing.insert(id.clone(), (left.to_string(), right.to_string()));
        }
    }
    differing
}

/// The parts of the log that explain the failures of these tests.
fn about<'a>(log: &str, ids: impl Iterator<Item = &'a String>) -> String {
    const LINES: usize = 25;
    let lines: Vec<&str> = log.lines().collect();
    let mut text = String::new();
    for id in ids {
        if let Some(at) = lines.iter().position(|line| line.starts_with(id.as_str())) {
            text += &lines[at..lines.len().min(at + LINES)].join("\n");
            text.push('\n');
        }
    }
    text
}
