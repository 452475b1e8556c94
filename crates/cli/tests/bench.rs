//! `sluice bench` interrupted in the middle: nothing that it made is left.

#![allow(unsafe_code)]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Scratch, real_daemon};

/// A process by its number and the time of its start, so that a new one with the same number is
/// not taken for it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    pid: i32,
    started: String,
    command: String,
}

/// All processes whose parents lead to `ancestor`.
fn descendants(ancestor: i32) -> Vec<Seen> {
    let all: Vec<(i32, Seen)> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| seen(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut found: Vec<Seen> = Vec::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for (_, process) in all.iter().filter(|(of, _)| *of == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// A process that is not a zombie, with its parent.
fn seen(pid: i32) -> Option<(i32, Seen)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let process = Seen {
        pid,
        started: (*fields.get(19)?).to_owned(),
        command: String::from_utf8_lossy(&command).replace('\0', " "),
    };
    Some((fields.get(1)?.parse().ok()?, process))
}

fn wait_for<T>(what: &str, bench: &mut Child, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        if let Some(status) = bench.try_wait().unwrap() {
            panic!("sluice bench ended ({status}) before {what}");
        }
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Interrupts the workload when programs with all of `words` in their command lines run, and
/// looks at what is left.
fn interrupted(workload: &str, variants: &str, words: &[&str], signal: i32) {
    let scratch = Scratch::new();
    let scratch = if variants.contains("sluice") {
        let scratch = scratch.with_library();
        std::os::unix::fs::symlink(real_daemon(), scratch.path("sluiced")).unwrap();
        scratch
    } else {
        scratch
    };
    let before = files(&scratch);
    let mut command: Command = scratch.sluice(["bench", "--only", workload, "--seconds", "60"]);
    let mut bench = command
        .args(["--variants", variants, "--out"])
        .arg(scratch.path("results/new"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(bench.id()).unwrap();
    let running = wait_for("its programs", &mut bench, || {
        let running = descendants(pid);
        let all = words
            .iter()
            .all(|word| running.iter().any(|process| process.command.contains(word)));
        all.then_some(running)
    });
    assert_ne!(files(&scratch), before, "a scratch folder is in use");
    // SAFETY: `kill` takes two integers, and the child has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = bench.try_wait().unwrap() {
            break status;
        }
        assert!(
            Instant::now() < deadline,
            "still running after signal {signal}"
        );
        std::thread::sleep(Duration::from_millis(2));
    };
    assert_eq!(status.code(), Some(128 + signal), "{:?}", status.signal());
    let left: Vec<&Seen> = running
        .iter()
        .filter(|process| seen(process.pid).is_some_and(|(_, now)| now.started == process.started))
        .collect();
    assert!(left.is_empty(), "still running: {left:?}");
    assert_eq!(files(&scratch), before, "files are left");
}

fn files(scratch: &Scratch) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn interrupted_while_connections_are_made() {
    let words = ["echo-once-server", "echo-once-client"];
    interrupted("connect", "tcp", &words, libc::SIGINT);
}

#[test]
fn interrupted_while_a_reader_sleeps() {
    let words = ["stall-reader", "stall-writer"];
    interrupted("stall", "tcp", &words, libc::SIGINT);
}

#[test]
fn terminated_with_a_daemon_of_its_own() {
    let words = ["sluiced", "echo-once-client"];
    interrupted("connect", "sluice", &words, libc::SIGTERM);
}
