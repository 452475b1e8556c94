//! How `scripts/test` runs its steps side by side: `scripts/lib/schedule.sh`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sluice_tests::job::{Job, wait_until};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// Steps that do what their names say; they wait for each other by files in the folder of logs.
const STEPS: &str = r#"#!/bin/bash
set -eu
cd "$LOGS"
await() {
    for _ in $(seq 3000); do
        [[ ! -e $1 ]] || return 0
        sleep 0.01
    done
    echo "no $1"
    exit 1
}
touch "$2.began"
case $2 in
left) await right.began; echo "I am left"; echo "counts 2 0 1" ;;
right) await left.began; echo "I am right"; echo "counts 3 1 0" ;;
heavy-*)
    mkdir heavy || exit 1
    sleep 0.1
    rmdir heavy
    echo "counts 1 0 0"
    ;;
behind) [[ -e left.ended ]] || exit 1; echo "counts 1 0 0" ;;
broken) echo "a word"; exit 3 ;;
endless) sleep 1000 & echo $! >number; wait ;;
esac
touch "$2.ended"
"#;

/// What runs the steps that it is told, in its order and reported in another.
const SCRIPT: &str = r#"
set -euo pipefail
. "$ROOT/scripts/lib/leftovers.sh"
. "$ROOT/scripts/lib/schedule.sh"
passed=0 failed=0 skipped=0
trap end_running EXIT
AFTER[behind]=left
WEIGHT[heavy-a]=2 WEIGHT[heavy-b]=2 WEIGHT[heavy-c]=3
begin=($BEGIN) report=($REPORT)
side_by_side 2 2 "$LOGS/steps" begin report
echo "$passed $failed $skipped"
"#;

fn script(logs: &Path, begin: &str, report: &str) -> Command {
    let steps = logs.join("steps");
    fs::write(&steps, STEPS).expect("written");
    fs::set_permissions(&steps, fs::Permissions::from_mode(0o755)).expect("set");
    let mut command = sluice_tests::job::command("bash");
    command
        .args(["-c", SCRIPT])
        .env("ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("LOGS", logs)
        .env("BEGIN", begin)
        .env("REPORT", report);
    command
}

/// What the script printed.
fn run(begin: &str, report: &str) -> String {
    let logs = TempDir::new().expect("a folder");
    let job = Job::start(script(logs.path(), begin, report), logs.path(), "script");
    let outcome = job.expect("started").finish(LIMIT).expect("ended");
    outcome.success().expect("without an error").text()
}

#[test]
fn steps_run_side_by_side_and_are_reported_in_order() {
    let said = run("right left", "left right");
    assert_eq!(said, "I am left\nI am right\n5 1 1\n");
}

#[test]
fn a_step_begins_behind_those_that_it_needs() {
    assert_eq!(
        run("behind left right", "behind left right").lines().last(),
        Some("6 1 1")
    );
}

#[test]
fn a_step_that_wants_all_processors_has_no_company() {
    let said = run("heavy-a heavy-b heavy-c", "heavy-c heavy-b heavy-a");
    assert_eq!(said, "3 0 0\n");
}

#[test]
fn a_step_without_counts_has_failed() {
    let said = run("broken heavy-a", "broken heavy-a");
    let wanted = "a word\nFAIL broken: the step did not come to its end\n1 1 0\n";
    assert_eq!(said, wanted);
}

#[test]
fn what_runs_ends_with_the_script() {
    let logs = TempDir::new().expect("a folder");
    let command = script(logs.path(), "endless", "endless");
    let mut job = Job::start(command, logs.path(), "script").expect("started");
    let mut number = String::new();
    let file = logs.path().join("number");
    job.await_ready(LIMIT, "step", || {
        number = fs::read_to_string(&file).unwrap_or_default();
        number.ends_with('\n')
    })
    .expect("it runs");
    job.stop(LIMIT).expect("ended");
    let process = Path::new("/proc").join(number.trim());
    // A process that nobody has waited for is left of it where there is no init.
    let gone = wait_until(LIMIT, || {
        let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
        Ok(state.is_empty() || state.contains(") Z "))
    });
    assert!(gone.expect("looked"), "{number} runs on");
}
