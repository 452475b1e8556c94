//! What `scripts/test` reads from the logs of `cargo test` (`scripts/lib/results.sh`), and what it says of a program that has not
//! ended by itself (`scripts/lib/programs.sh`).

use std::fs;
use std::process::Command;

use tempfile::NamedTempFile;

/// What a command of `results.sh` prints of a log.
fn read(command: &str, log: &str) -> String {
    let file = NamedTempFile::new().expect("a temporary file");
    fs::write(&file, log).expect("write the log");
    say(&format!(
        ". scripts/lib/results.sh; {command} {}",
        file.path().display()
    ))
}

/// What a script prints, under the settings of `scripts/test`.
fn say(script: &str) -> String {
    let output = Command::new("bash")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(["-c", &format!("set -euo pipefail; {script}")])
        .output()
        .expect("bash runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// The log of a test program run with `--show-output` of which some tests failed.
const SHOWN: &str = "\
running 4 tests
test good ... ok

successes:

---- good stdout ----
good said this
    which is no name


successes:
    good
    quiet

failures:

---- bad stdout ----
thread 'bad' panicked at src/lib.rs:1:1:
    nor is this
---- worse stdout ----
worse said that


failures:
    bad
    worse

test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running unittests src/lib.rs
running 1 test

successes:

---- other stdout ----
other said something


successes:
    other

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

/// The log of a suite of ours, which are run with libtest-mimic.
const OURS: &str = "\
running 2 tests
test ipv4/stream ... ok
test ipv6/stream ... FAILED

failures:

---- ipv6/stream ----
the sums differ


failures:
    ipv6/stream

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

#[test]
fn only_failed_tests_are_named() {
    assert_eq!(read("failed_names", SHOWN), "bad\nworse\n");
    assert_eq!(read("failed_names", OURS), "ipv6/stream\n");
}

#[test]
fn only_words_of_failed_tests_are_printed() {
    assert_eq!(
        read("first_words", SHOWN),
        "    ---- bad stdout ----
    thread 'bad' panicked at src/lib.rs:1:1:
        nor is this
    ---- worse stdout ----
    worse said that
"
    );
    assert_eq!(
        read("first_words", OURS),
        "    ---- ipv6/stream ----\n    the sums differ\n"
    );
}

#[test]
fn results_are_added_up() {
    assert_eq!(read("count_results passed", SHOWN), "3\n");
    assert_eq!(read("count_results failed", SHOWN), "2\n");
    assert_eq!(read("count_results failed", ""), "0\n");
}

/// More than a pipe takes: a reader that leaves early would end the script with status 141.
#[test]
fn long_lists_are_cut_and_end_nothing() {
    let names: String = (0..100_000).map(|i| format!("    test_{i}\n")).collect();
    let log = format!("failures:\n{names}\ntest result: FAILED. 0 passed; 100000 failed;\n");
    let listed = read(
        "list() { failed_names \"$1\" | first_lines 40; }; list",
        &log,
    );
    assert_eq!(listed.lines().count(), 40);
    assert_eq!(listed.lines().last(), Some("test_39"));
    let said: String = (0..10_000)
        .map(|i| format!("---- test_{i} stdout ----\nfailed\n"))
        .collect();
    let log = format!("failures:\n{said}\nfailures:\n{names}\ntest result: FAILED.\n");
    assert_eq!(read("first_words", &log).lines().count(), 100);
}

#[test]
fn programs_without_an_end_are_counted() {
    let log = "error: t/a did not end within 600 s\nerror: t/b ended with status 139\nerror: no\n";
    assert_eq!(read("count_unended", log), "2\n");
    assert_eq!(read("count_unended", OURS), "0\n");
}

#[test]
fn a_program_that_does_not_end_by_itself_is_named() {
    let ends = |seconds: u32, command: &str| {
        say(&format!(
            ". scripts/lib/programs.sh; run_program {seconds} tests {command} || echo failed"
        ))
    };
    assert_eq!(ends(9, "true"), "");
    assert_eq!(ends(9, "bash -c 'exit 101'"), "failed\n");
    let too_late = "\nerror: sleep did not end within 1 s\nfailed\n";
    assert_eq!(ends(1, "sleep 60"), too_late);
    let died = ends(9, "bash -c 'kill -SEGV $$'");
    assert!(
        died.contains("\nerror: bash ended with status 139\n"),
        "{died}"
    );
}
