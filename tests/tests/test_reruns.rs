//! How `scripts/test` runs failed tests again: the records of `scripts/lib/programs.sh` and the program `rerun-failed`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A test program with the tests `first` and `always`. `first` fails once; `always` fails each time.
const PROGRAM: &str = r#"#!/bin/bash
[[ $1 != --list ]] || { printf 'first: test\nalways: test\ngood: test\n'; exit; }
echo "$*" >>"$0.calls"
echo "$TMPDIR" >>"$0.tmpdir"
if [[ $* == "--exact first --test-threads=1" ]]; then
    echo "test result: ok. 1 passed; 0 failed; 0 ignored;"
    exit
fi
names="first always"
[[ $1 != --exact ]] || names=$2
echo "test good ... ok"
printf '\nfailures:\n\n'
for name in $names; do printf -- '---- %s ----\n%s\n\n' "$name" "${SAYS:-no answer}"; done
printf '\nfailures:\n'
for name in $names; do echo "    $name"; done
printf '\ntest result: FAILED. 1 passed; 2 failed; 0 ignored;\n'
exit 101
"#;

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(TempDir::new().expect("a folder"));
        let program = place.path().join("program");
        fs::write(&program, PROGRAM).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
        place
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// Runs the program as a step does, says so of what it says, and runs its failed tests again.
    fn run(&self, step: &str, says: &str) -> String {
        let script = r#"
            set -euo pipefail
            . scripts/lib/programs.sh
            run_recorded "$STEP" 60 tests "$LOGS/program" >"$LOGS/said" || echo "status $?"
            "$RERUN" "$LOGS" commit-1
        "#;
        let output = Command::new("bash")
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .args(["-c", script])
            .env("LOGS", self.path())
            .env("STEP", step)
            .env("SAYS", says)
            .env("TMPDIR", self.path())
            .env("RERUN", env!("CARGO_BIN_EXE_rerun-failed"))
            .output()
            .expect("bash runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }
}

#[test]
fn a_test_that_passes_alone_is_recorded_as_unsteady_and_does_not_count() {
    let place = Place::new();
    let said = place.run("fabric", "no answer");
    assert!(said.starts_with("status 101\n"), "{said}");
    assert!(
        said.contains("UNSTEADY fabric first: passed alone in rerun 1"),
        "{said}"
    );
    assert!(
        said.contains("FAILED fabric always: failed alone, too"),
        "{said}"
    );
    assert_eq!(place.read("unsteady.count"), "1\n");
    assert_eq!(place.read("unsteady/fabric--first.0"), "no answer");
    assert!(place.read("unsteady/fabric--first.1").contains("1 passed"));
    assert!(place.read("said").contains("test good ... ok"));
    let entries: serde_json::Value =
        serde_json::from_str(&place.read("unsteady.json")).expect("JSON");
    assert_eq!(entries[0]["name"], "first");
    assert_eq!(entries[0]["step"], "fabric");
    assert_eq!(entries[0]["commit"], "commit-1");
    assert_eq!(entries[0]["message"], "no answer");
    assert!(
        entries[0]["load"]
            .as_str()
            .is_some_and(|load| load.contains('/'))
    );
    assert_eq!(entries.as_array().map(Vec::len), Some(1));
    // Once at first, once the one, twice the other, in the step's folder of temporary files.
    let again = "--exact always --test-threads=1\n";
    let first = "--exact first --test-threads=1\n";
    assert_eq!(
        place.read("program.calls"),
        format!("\n{first}{again}{again}")
    );
    let tmpdir = format!("{}\n", place.path().display());
    assert_eq!(place.read("program.tmpdir"), tmpdir.repeat(4));
}

#[test]
fn wrong_bytes_and_steps_without_time_are_not_run_again() {
    for (step, says) in [("fabric", "round 7: bytes differ"), ("rules", "no answer")] {
        let place = Place::new();
        let said = place.run(step, says);
        assert!(said.contains("first: not run again"), "{said}");
        assert_eq!(place.read("unsteady.count"), "0\n");
        assert_eq!(place.read("program.calls"), "\n");
    }
}
