//! What steps of `scripts/test` leave behind is found and named: `scripts/lib/leftovers.sh`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sluice_tests::job::{Job, command, wait_until};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// Two steps run. The first leaves a process behind, the second a process without an environment and a file.
const SCRIPT: &str = r#"
set -euo pipefail
. "$ROOT/scripts/lib/results.sh"
. "$ROOT/scripts/lib/leftovers.sh"
scratch=$TMPDIR
trap end_leftovers EXIT
step() { # name, script
    note_leftovers
    env "$(step_mark "$1")" setsid bash -c "$2"
    note_leftovers "$1"
}
await_processes() { :; }
touch "$TMPDIR/before"
remember_what_is_there
step quiet 'touch "$TMPDIR/gone"; rm "$TMPDIR/gone"'
step first 'sleep 1000 & echo $! >"$NUMBERS/first"'
step second 'cd "$TMPDIR"; touch left; env -i sleep 1000 & echo $! >"$NUMBERS/second"'
report_leftovers "$NUMBERS/records" commit-1
"#;

#[test]
fn what_steps_leave_behind_is_named_recorded_and_ended() {
    let (scratch, numbers) = (folder(), folder());
    let mut script = command("bash");
    script
        .args(["-c", SCRIPT])
        .env("ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("TMPDIR", scratch.path())
        .env("NUMBERS", numbers.path());
    let job = Job::start(script, numbers.path(), "script").expect("started");
    let outcome = job.finish(LIMIT).expect("ended");
    let said = outcome.success().expect("without an error").text();

    let number = |name: &str| {
        let number = fs::read_to_string(numbers.path().join(name)).expect("a number");
        number.trim().to_string()
    };
    let file = |name: &str| format!("file {}", scratch.path().join(name).display());
    let (first, second) = (part(&said, "first"), part(&said, "second"));
    let process = |name: &str| format!("process {} sleep ", number(name));
    assert!(first.contains(&process("first")), "{said}");
    assert!(second.contains(&process("second")), "{said}");
    assert!(second.contains(&file("left")), "{said}");
    assert!(!said.contains("by quiet"), "{said}");
    assert!(!said.contains(&file("before")), "{said}");
    assert!(!said.contains(&file("gone")), "{said}");

    let records = fs::read(numbers.path().join("records")).expect("records");
    let records: Vec<serde_json::Value> = serde_json::from_slice(&records).expect("JSON");
    let of_first = records.iter().find(|record| record["step"] == "first");
    let of_first = of_first.expect("a record of the first");
    assert_eq!(of_first["name"], "left behind");
    assert_eq!(of_first["commit"], "commit-1");
    let message = of_first["message"].as_str().expect("words");
    assert!(message.contains(&process("first")), "{message}");

    for name in ["first", "second"] {
        let process = Path::new("/proc").join(number(name));
        let gone = wait_until(LIMIT, || {
            // Where there is no init, nobody waits for it.
            let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
            Ok(state.is_empty() || state.contains(") Z "))
        });
        assert!(gone.expect("looked"), "{} runs on", number(name));
    }
}

/// The lines about what a step left behind.
fn part<'a>(said: &'a str, step: &str) -> &'a str {
    let (_, behind) = said
        .split_once(&format!("LEFT BEHIND by {step}:\n"))
        .unwrap_or_else(|| panic!("nothing of {step} in:\n{said}"));
    behind.split("LEFT BEHIND").next().unwrap_or_default()
}

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}
