//! `sluice bench` interrupted in the middle: nothing that it made is left.

#![allow(unsafe_code)]

#[path = "../../../cli/tests/common/scratch.rs"]
mod scratch;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use scratch::{PATIENCE, Scratch, built, stderr};

const BENCH: &str = env!("CARGO_BIN_EXE_sluice-bench");

/// An installation with the program of these tests in it.
fn installation() -> Scratch {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink(BENCH, scratch.path("sluice-bench")).unwrap();
    scratch
}

/// `sluice` with arguments: these tests are of what its users start.
fn sluice<const N: usize>(scratch: &Scratch, arguments: [&str; N]) -> Command {
    static SLUICE: LazyLock<PathBuf> = LazyLock::new(|| built(Path::new(BENCH), "sluice"));
    scratch.command(&SLUICE, arguments)
}

/// A process by its number and the time of its start, so that a new one with the same number is
/// not taken for it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    pid: i32,
    started: String,
    command: String,
    /// The network namespace that it is in.
    network: Option<PathBuf>,
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
        network: fs::read_link(format!("/proc/{pid}/ns/net")).ok(),
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
    let scratch = installation();
    let scratch = if variants.contains("sluice") {
        let scratch = scratch.with_library();
        std::os::unix::fs::symlink(built(Path::new(BENCH), "sluiced"), scratch.path("sluiced"))
            .unwrap();
        scratch
    } else {
        scratch
    };
    let mut command = sluice(
        &scratch,
        ["bench", "--only", workload, "--variants", variants],
    );
    interrupted_command(&scratch, &mut command, words, signal);
}

/// The same with a command. Returns what ran when the signal came.
fn interrupted_command(
    scratch: &Scratch,
    command: &mut Command,
    words: &[&str],
    signal: i32,
) -> Vec<Seen> {
    let before = files(scratch);
    let mut bench = command
        .args(["--seconds", "60", "--out"])
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
    assert_ne!(files(scratch), before, "a scratch folder is in use");
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
    let is_there =
        |process: &&Seen| seen(process.pid).is_some_and(|(_, now)| now.started == process.started);
    // A daemon's helper ends by itself behind the daemon.
    let left = || running.iter().filter(is_there).collect::<Vec<&Seen>>();
    while !left().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(left().is_empty(), "still running: {:?}", left());
    assert_eq!(files(scratch), before, "files are left");
    running
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

/// What prevents network namespaces with programs in them, if anything does.
fn hosts_obstacle(programs: &[&str]) -> Option<String> {
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("network namespaces need root".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect();
    let missing = |name: &&&str| !folders.iter().any(|folder| folder.join(name).exists());
    let missing = programs.iter().find(missing);
    missing.map(|name| format!("{name} is not installed; scripts/setup test"))
}

/// Says that a test cannot run; `SLUICE_NO_SKIP=1` makes it a failure.
fn skip(test: &str, reason: &str) {
    let strict = std::env::var_os("SLUICE_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!strict, "SKIP {test}: {reason}");
    println!("SKIP {test}: {reason}");
}

#[test]
fn interrupted_between_two_hosts() {
    let needed = [
        "ip",
        "sockperf",
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat",
    ];
    if let Some(reason) = hosts_obstacle(&needed) {
        return skip("interrupted_between_two_hosts", &reason);
    }
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let scratch = installation();
        let mut command = sluice(&scratch, ["bench", "roce", "--only", "latency"]);
        // The first variant is TCP, which needs no library.
        let words = ["sockperf server", "sockperf ping-pong"];
        let running = interrupted_command(&scratch, &mut command, &words, signal);
        let mut hosts: Vec<PathBuf> = running
            .iter()
            .filter(|process| process.command.contains("sockperf"))
            .filter_map(|process| process.network.clone())
            .collect();
        hosts.sort();
        hosts.dedup();
        assert_eq!(hosts.len(), 2, "each end is on a host of its own");
        assert!(!hosts.contains(&own), "neither is this one");
        let left = || -> Vec<Seen> {
            fs::read_dir("/proc")
                .unwrap()
                .flatten()
                .filter_map(|entry| seen(entry.file_name().to_str()?.parse().ok()?))
                .map(|(_, process)| process)
                .filter(|process| process.network.as_ref().is_some_and(|n| hosts.contains(n)))
                .collect()
        };
        // One that was killed needs a processor to end.
        let deadline = Instant::now() + PATIENCE;
        while !left().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(left().is_empty(), "still on one of the hosts: {:?}", left());
    }
}

#[test]
fn hosts_need_root_and_it_is_said() {
    for suite in ["roce", "fabric"] {
        needs_root(suite);
    }
}

fn needs_root(suite: &str) {
    const NOBODY: u32 = 65534;
    let scratch = installation();
    let mut command = sluice(&scratch, ["bench", suite, "--only", "latency"]);
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            let reason = format!("nobody may not execute sluice: {error}");
            return skip("hosts_need_root_and_it_is_said", &reason);
        }
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("needs root"), "{output:?}");
    let report = format!("/sluice-bench-{suite}");
    assert!(!Path::new(&report).exists());
}

#[test]
fn kernel_without_rxe_is_told_where_it_is() {
    let scratch = installation();
    let listed = sluice(&scratch, ["bench", "rxe", "--list"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    for workload in ["write", "send", "read"] {
        assert!(
            text.lines().any(|line| line.starts_with(workload)),
            "{text}"
        );
    }
    if Path::new("/sys/module/rdma_rxe").exists() {
        // It would measure.
        return;
    }
    // SAFETY: geteuid has no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let output = sluice(&scratch, ["bench", "rxe"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = if is_root { "bench/rxe" } else { "needs root" };
    assert!(stderr(&output).contains(expected), "{output:?}");
}
