//! `bench/old-new`, which measures two builds, with folders that have no Sluice in them but a script of that name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use sluice_tests::job::{self, Job, Outcome};
use tempfile::TempDir;

use super::root;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs the program as it is, with a daemon that has given no lane.
const PLAIN: &str = r#"#!/bin/sh
case $1 in
run) shift 2 && exec "$@" ;;
status) echo '"matches": 0' ;;
esac
"#;
const BROKEN: &str = "#!/bin/sh\necho a reason >&2\nexit 3\n";
/// Tells where it is by a file, and ends only if somebody ends it.
const ENDLESS: &str = "#!/bin/sh\ntouch \"$0.runs\"\n[ \"$1\" != run ] || exec sleep 1000\n";

/// A folder as a build has one.
fn build(script: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let sluice = folder.path().join("sluice");
    fs::write(&sluice, script).expect("written");
    fs::set_permissions(&sluice, fs::Permissions::from_mode(0o755)).expect("set");
    folder
}

fn old_new(temporary: &Path) -> Command {
    let mut command = job::command(root().join("bench/old-new"));
    command.env("TMPDIR", temporary);
    command
}

fn run(arguments: &[&str]) -> Outcome {
    let temporary = TempDir::new().expect("a folder");
    let logs = TempDir::new().expect("a folder");
    let mut command = old_new(temporary.path());
    command.args(arguments);
    let outcome = job::run(command, logs.path(), "old-new", LIMIT).expect("it ends");
    let left = fs::read_dir(&temporary).expect("read").count();
    assert_eq!(left, 0, "it has left temporary files");
    outcome
}

/// What it prints of two builds that are these scripts, and its exit status.
fn compared(old: &str, new: &str, options: &[&str]) -> (String, Option<i32>) {
    let (old, new) = (build(old), build(new));
    let path = |folder: &TempDir| folder.path().to_str().expect("a text").to_owned();
    let (old, new) = (path(&old), path(&new));
    let outcome = run(&[options, &["--rounds", "1", &old, &new]].concat());
    (outcome.text(), outcome.status.code())
}

#[test]
fn rows_have_names_of_their_own_and_are_chosen_by_them() {
    let all = run(&["--list"]).success().expect("a list").text();
    let names: BTreeSet<&str> = all.lines().collect();
    assert_eq!(names.len(), all.lines().count(), "{all}");
    let some = run(&["--list", "--rows", "GET 1 ,sock*polling"]);
    let some = some.success().expect("a list").text();
    assert!(some.lines().all(|line| names.contains(line)), "{some}");
    assert_eq!(some.lines().count(), 2, "{some}");
}

#[test]
fn errors_say_what_is_wrong() {
    let empty = TempDir::new().expect("a folder");
    let empty = empty.path().to_str().expect("a text");
    for (arguments, said) in [
        (&[][..], "needs two folders"),
        (&["/no/folder", "/no/folder"], "no folder /no/folder"),
        (&[empty, empty], "no sluice in "),
        (&[empty, empty, "many"], "'many' is no number of rounds"),
        (&["--floor", "high", empty, empty], "'high' is no ratio"),
        (&["--rows", "no such row", "--list"], "no such row"),
        (&["--rows"], "--rows needs a value"),
        (&["--fast"], "no option --fast"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.status.code(), Some(2), "{arguments:?}");
        let errors = String::from_utf8_lossy(&outcome.stderr);
        assert!(errors.contains(said), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_ratio_below_the_floor_is_a_failure() {
    let (said, status) = compared(PLAIN, PLAIN, &["--rows", "start"]);
    assert_eq!(status, Some(0), "{said}");
    let (said, status) = compared(PLAIN, PLAIN, &["--rows", "start", "--floor", "1000000"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("below 1000000:\n    start"), "{said}");
}

#[test]
fn a_run_without_a_figure_is_a_failure_with_its_reason() {
    let (said, status) = compared(PLAIN, BROKEN, &["--rows", "start"]);
    assert_eq!(status, Some(1), "{said}");
    let wanted = "no figure: new: the client failed with exit status 3: a reason";
    assert!(said.contains(wanted), "{said}");
}

#[test]
fn connections_without_lanes_are_told() {
    let (said, _) = compared(PLAIN, PLAIN, &["--rows", "fork with a lane"]);
    let told = ["old", "new"].map(|build| format!("{build}: runs with fewer than 1 lanes"));
    let told = told.iter().all(|line| said.contains(line));
    assert!(told || said.contains("left out: needs"), "{said}");
}

#[test]
fn an_interrupt_ends_what_it_has_started() {
    let (folder, temporary) = (build(ENDLESS), TempDir::new().expect("a folder"));
    let logs = TempDir::new().expect("a folder");
    let mut command = old_new(temporary.path());
    command.args(["--rows", "start"]);
    command.args([folder.path(), folder.path()]);
    let mut job = Job::start(command, logs.path(), "old-new").expect("started");
    let runs = folder.path().join("sluice.runs");
    job.await_ready(LIMIT, "a run", || runs.exists())
        .expect("it runs");
    job.signal(Signal::INT).expect("sent");
    // What it waits for would take longer.
    let outcome = job.finish(LIMIT).expect("it ends");
    assert_eq!(outcome.status.code(), Some(130), "{}", outcome.describe());
    assert_eq!(fs::read_dir(&temporary).expect("read").count(), 0);
}
