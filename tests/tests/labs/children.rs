//! A test run that is killed leaves nothing: no process, no namespace, no guest.
//!
//! The test binary starts itself with a role, kills that process, and looks.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::guest::Settings;
use sluice_tests::guest::stranger::Stranger;
use sluice_tests::hosts::{self, Pair};
use sluice_tests::job::{Job, command, wait_until};
use sluice_tests::suite::{Problem, Verdict, ensure, fail, skip, trial};

/// The variable that gives a process its role instead of the tests.
pub const ROLE: &str = "SLUICE_LABS_ROLE";

const LIMIT: Duration = Duration::from_secs(90);
const BOOT_LIMIT: Duration = Duration::from_secs(600);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("killed/hosts", || killed("hosts")),
        trial("killed/guest", || killed("guest")),
        trial("ended/hosts", ended),
    ]
}

/// Plays the role until it is killed.
pub fn be(role: &OsStr) -> ExitCode {
    let played = match role.to_str() {
        Some("hosts") => be_hosts(),
        Some("guest") => be_guest(),
        _ => fail(format!("no role {role:?}")),
    };
    match played {
        Err(Problem::Skipped(reason)) => println!("skip {reason}"),
        other => println!("the role ended: {other:?}"),
    }
    ExitCode::FAILURE
}

fn be_hosts() -> Verdict {
    let pair = Pair::new(hosts::Settings {
        faults: true,
        ..hosts::Settings::default()
    })?;
    let mut sleeper = pair.left.command("sleep");
    sleeper.arg("1000");
    let sleeper = Job::start(sleeper, pair.path(), "sleeper")?;
    say(&pair.left.namespace().path(), sleeper.id())
}

fn be_guest() -> Verdict {
    let lab = Stranger::new(Settings::default())?;
    say(&lab.host.namespace().path(), lab.guest.process())
}

/// Tells the namespace's number and the process that must end with this one.
fn say(namespace: &str, process: u32) -> Verdict {
    let number = fs::metadata(namespace)?.ino();
    println!("ready {number} {process}");
    io::stdout().flush()?;
    loop {
        thread::sleep(LIMIT);
    }
}

fn killed(role: &str) -> Verdict {
    let dir = tempfile::Builder::new().prefix("sluice-labs-").tempdir()?;
    let mut child = command(std::env::current_exe()?);
    // What it cannot remove any more goes with this test's directory.
    child.env(ROLE, role).env("TMPDIR", dir.path());
    let mut child = Job::start(child, dir.path(), role)?;
    let mut said = Vec::new();
    wait_until(BOOT_LIMIT, || {
        let text = child.stdout_so_far();
        said = text.split_whitespace().map(str::to_owned).collect();
        Ok(text.ends_with('\n') || child.poll()?.is_some())
    })?;
    let (namespace, process) = match said.first().map(String::as_str) {
        Some("ready") if said.len() == 3 => (said[1].clone(), said[2].clone()),
        Some("skip") => return skip(said[1..].join(" ")),
        _ => return fail(child.describe()),
    };
    let all = holders(&namespace)?;
    ensure(all.contains(&process), || {
        format!("process {process} is not in the namespace")
    })?;
    // The runner alone, as the kernel does when memory is short. The job would kill its group.
    child.signal(Signal::KILL)?;
    let left = || -> io::Result<Vec<String>> { Ok(still(&all, &holders(&namespace)?)) };
    let gone = wait_until(LIMIT, || {
        Ok(!Path::new("/proc").join(&process).exists() && left()?.is_empty())
    })?;
    ensure(gone, || {
        format!("process {process} or others live on: {:?}", left())
    })
}

/// What is dropped is gone too, while the test runner lives on.
fn ended() -> Verdict {
    let pair = Pair::new(hosts::Settings::default())?;
    let path = pair.left.namespace().path();
    let namespace = fs::metadata(&path)?.ino().to_string();
    let mut sleeper = pair.left.command("sleep");
    sleeper.arg("1000");
    let sleeper = Job::start(sleeper, pair.path(), "sleeper")?;
    let all = holders(&namespace)?;
    ensure(all.len() == 2, || {
        format!("held by {all:?}, not by a program and us")
    })?;
    drop(sleeper);
    drop(pair);
    let left = || -> io::Result<Vec<String>> { Ok(still(&all, &holders(&namespace)?)) };
    let gone = wait_until(LIMIT, || Ok(left()?.is_empty()))?;
    ensure(gone, || format!("still held by {:?}", left()))
}

/// Those of them that hold it now. Others that do have another one: the kernel gives numbers of namespaces again, and
/// other suites make some meanwhile.
fn still(all: &[String], now: &[String]) -> Vec<String> {
    let is_still = |holder: &&String| all.contains(holder);
    now.iter().filter(is_still).cloned().collect()
}

/// Processes that are in the network namespace or have it open: all that keeps it.
fn holders(namespace: &str) -> io::Result<Vec<String>> {
    let link = format!("net:[{namespace}]");
    let is_it = |path: &Path| fs::read_link(path).is_ok_and(|to| to == Path::new(&link));
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end while it is looked at.
        let mut open = fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        if is_it(&entry.path().join("ns/net"))
            || open.any(|fd| fd.is_ok_and(|fd| is_it(&fd.path())))
        {
            holders.push(name);
        }
    }
    Ok(holders)
}
