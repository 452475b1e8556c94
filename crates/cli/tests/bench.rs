//! `sluice bench` where the program that measures is another one, and where there is none.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Scratch, stderr, stdout};

/// A stand-in that says with what it was started, and ends with 7.
const STAND_IN: &str = "#!/bin/sh\nprintf '%s\\n' \"$SLUICE_BIN\" \"$$\" \"$@\"\nexit 7\n";

#[test]
fn the_program_gets_every_word_and_its_status_is_ours() {
    let scratch = Scratch::new();
    let program = scratch.path("sluice-bench");
    fs::write(&program, STAND_IN).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let words = [
        "bench",
        "fabric",
        "--clients",
        "1,2",
        "--out",
        "a b",
        "--quick",
    ];
    let mut command = scratch.sluice(words);
    command.stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id().to_string();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let own = fs::canonicalize(env!("CARGO_BIN_EXE_sluice")).unwrap();
    let mut expected = vec![own.to_str().unwrap(), &pid];
    expected.extend(&words[1..]);
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn words_are_judged_before_the_program_is_started() {
    let scratch = Scratch::new();
    for words in [
        ["bench", "--tests", "nothing"],
        ["bench", "--quick", "--full"],
    ] {
        let output = scratch.sluice(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).starts_with("sluice: "), "{output:?}");
    }
}

#[test]
fn without_the_program_there_is_help_and_a_word_of_what_is_missing() {
    let scratch = Scratch::new();
    let output = scratch.sluice(["bench", "--list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let text = stderr(&output);
    for word in [
        "cannot find sluice-bench",
        "packages may leave out",
        "SLUICE_LIBDIR",
    ] {
        assert!(text.contains(word), "{text}");
    }
    let output = scratch.sluice(["bench", "rxe", "--help"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("--repeats"), "{output:?}");
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let scratch = Scratch::new();
    fs::write(scratch.path("sluice-bench"), "").unwrap();
    let output = scratch.sluice(["bench", "--list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("cannot run"), "{output:?}");
}
