//! `sluice run`: the program gets what the caller gave, and the caller what the program gave.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use common::{Daemon, Ended, Manner, Scratch, compile, stderr, stdout, wait_for};

fn scratch() -> Scratch {
    Scratch::new().with_library()
}

#[test]
fn the_program_replaces_sluice() {
    let scratch = scratch();
    let mut command = scratch.sluice(["run", "--no-daemon", "--", "sh", "-c", "echo $$; exit 7"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stdout(&output).trim(), pid.to_string());
}

#[test]
fn a_small_stack_suffices_and_is_the_programs_too() {
    let scratch = scratch();
    let under = |words: &[&str]| {
        let mut sluice = scratch.sluice([]);
        sluice.args(words);
        let script = "ulimit -s 64; exec \"$0\" \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(sluice.get_program());
        shell.args(sluice.get_args());
        for (name, value) in sluice.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.output().unwrap()
    };
    for words in [&["--help"][..], &["run", "--help"], &["status", "--json"]] {
        assert_eq!(under(words).status.signal(), None, "{words:?}");
    }
    let output = under(&["run", "--no-daemon", "--", "sh", "-c", "ulimit -s; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output).trim(), "64");
}

#[test]
fn the_environment_is_prepared() {
    let scratch = scratch();
    let output = scratch
        .sluice([
            "run",
            "--no-daemon",
            "--spin-us",
            "0",
            "--log",
            "info",
            "env",
        ])
        .env("LD_PRELOAD", "/nonexistent/other.so")
        .output()
        .unwrap();
    let text = stdout(&output);
    let library = scratch.path("libsluice_preload.so");
    for line in [
        format!("LD_PRELOAD={}:/nonexistent/other.so", library.display()),
        format!("SLUICE_SOCKET={}", scratch.socket().display()),
        "SLUICE_SPIN_US=0".to_owned(),
        "SLUICE_LOG=info".to_owned(),
        "UV_USE_IO_URING=0".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
}

#[test]
fn exit_statuses_are_those_of_env() {
    let scratch = scratch();
    let plain = scratch.path("plain");
    fs::write(&plain, "no program").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let plain = plain.display().to_string();
    for (arguments, status) in [
        (vec!["run", "--no-daemon", "no-such-program-here"], 127),
        (vec!["run", "--no-daemon", "/no/such/program"], 127),
        (vec!["run", "--no-daemon", &plain], 126),
        (vec!["run", "--no-daemon", "/"], 126),
        (vec!["run", "--no-such-flag", "true"], 125),
        (vec!["run"], 125),
    ] {
        let output = scratch.sluice([]).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.starts_with("sluice: "), "{arguments:?}: {text}");
        // With --stats the failure happens in the child; the caller must see the same.
        if status > 125 {
            let mut with_stats = arguments.clone();
            with_stats.insert(1, "--stats");
            let output = scratch.sluice([]).args(&with_stats).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{with_stats:?}");
        }
    }
}

#[test]
fn without_its_library_it_says_what_to_do() {
    let scratch = Scratch::new();
    let output = scratch.sluice(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = stderr(&output);
    assert!(text.contains("cannot find libsluice_preload.so"), "{text}");
    assert!(text.contains("SLUICE_LIBDIR"), "{text}");
}

/// A line of /proc/self/status as a program sees it, with and without sluice before it.
fn seen(scratch: &Scratch, wrapper: &[&str], shell: &str) -> String {
    let mut words = vec!["sh", "-c", shell];
    if !wrapper.is_empty() {
        let sluice = env!("CARGO_BIN_EXE_sluice");
        words = vec!["sh", "-c", shell, sluice];
        words.extend(wrapper);
    }
    let output = Command::new(words[0])
        .args(&words[1..])
        .env("SLUICE_LIBDIR", &scratch.0)
        .env("SLUICE_SOCKET", scratch.socket())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn ignored_signals_stay_ignored_and_others_do_not_become_so() {
    let scratch = scratch();
    for trap in ["", "trap '' PIPE HUP; ", "trap '' CHLD; "] {
        let plain = seen(
            &scratch,
            &[],
            &format!("{trap} exec grep -E 'Sig(Ign|Blk)' /proc/self/status"),
        );
        let wrapped = seen(
            &scratch,
            &["run", "--no-daemon"],
            &format!("{trap} exec \"$0\" \"$@\" grep -E 'Sig(Ign|Blk)' /proc/self/status"),
        );
        assert_eq!(plain, wrapped, "trap: {trap:?}");
        let followed = seen(
            &scratch,
            &["run", "--no-daemon", "--stats"],
            &format!("{trap} exec \"$0\" \"$@\" grep -E 'Sig(Ign|Blk)' /proc/self/status"),
        );
        assert_eq!(plain, followed, "trap: {trap:?}, with --stats");
    }
}

#[test]
fn closed_descriptors_stay_closed() {
    let scratch = scratch();
    let inner = "sh -c 'readlink /proc/self/fd/0 || echo closed' 0<&-";
    let plain = seen(&scratch, &[], &format!("exec {inner}"));
    assert_eq!(plain, "closed\n");
    let shell = format!("exec \"$0\" \"$@\" {inner}");
    assert_eq!(seen(&scratch, &["run", "--no-daemon"], &shell), plain);
}

#[test]
fn a_program_without_a_linker_is_warned_about_and_run() {
    let scratch = scratch();
    let source = scratch.path("static.c");
    fs::write(&source, "int main(void) { return 3; }").unwrap();
    let program = scratch.path("static");
    compile(&["-static"], &source, &program);
    let output = scratch
        .sluice(["run", "--no-daemon"])
        .arg(&program)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(text.contains("is statically linked"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_dynamic_program_is_run_without_a_word() {
    let scratch = scratch();
    let output = scratch
        .sluice(["run", "--no-daemon", "true"])
        .output()
        .unwrap();
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
}

#[test]
fn a_hung_daemon_keeps_nobody_from_running() {
    let scratch = scratch();
    let _daemon = Daemon::start(&scratch.socket(), Manner::Hangs);
    let output = scratch
        .sluice(["run", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "ran\n");
    // SLUICE_SOCKET has named it.
    let text = stderr(&output);
    assert_eq!(text.matches("warning").count(), 1, "{text}");
    assert!(text.contains("did not answer"), "{text}");
    let output = scratch
        .sluice(["run", "--log", "warn", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let text = stderr(&output);
    assert!(text.contains("did not answer"), "{text}");
    assert!(text.contains("stay on TCP"), "{text}");
}

#[test]
fn a_daemon_that_cannot_be_started_keeps_nobody_from_running() {
    let scratch = scratch();
    let daemon = scratch.path("sluiced");
    fs::write(&daemon, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
    let output = scratch
        .sluice(["run", "--log", "warn", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let text = stderr(&output);
    assert!(
        text.contains("sluiced was started and does not serve"),
        "{text}"
    );
}

#[test]
fn statistics_are_summed_over_the_family() {
    let scratch = scratch();
    let source = scratch.path("family.c");
    let text = "#include <sys/wait.h>\n#include <unistd.h>\n\
                int main(void) { if (fork() == 0) return 0; wait(0); return 5; }";
    fs::write(&source, text).unwrap();
    let program = scratch.path("family");
    compile(&[], &source, &program);
    let output = scratch
        .sluice(["run", "--no-daemon", "--stats", "--"])
        .arg(&program)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(
        text.contains("2 processes: 4 connections, 2 on a lane"),
        "{text}"
    );
    assert!(text.contains("4.0K read (4096 bytes)"), "{text}");
    assert!(text.contains("2 on TCP: too little traffic yet"), "{text}");
    let left: Vec<_> = fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("sluice-stats"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Its runtime, a shared library, wants to be the first.
#[test]
fn a_program_with_address_sanitizer_runs() {
    let scratch = scratch();
    let (source, program) = (scratch.0.join("s.c"), scratch.0.join("s"));
    let code = "#include <stdlib.h>\nint main(int count, char **words) {
                    char *bytes = malloc(8); bytes[count] = 3; int found = bytes[count]; free(bytes);
                    return count > 1 ? bytes[0] : found; }";
    fs::write(&source, code).unwrap();
    compile(&["-fsanitize=address"], &source, &program);
    let program = program.to_str().unwrap();
    let run = |words: &[&str]| {
        let mut command = scratch.sluice(["run", "--no-daemon", "--"]);
        command.args(words).output().unwrap()
    };
    assert_eq!(run(&[program]).status.code(), Some(3));
    let child = format!("{program}; exit $(($? + 1))");
    assert_eq!(run(&["sh", "-c", &child]).status.code(), Some(4));
    // It still finds what it is there for.
    let found = run(&[program, "more"]);
    assert!(
        stderr(&found).contains("heap-use-after-free"),
        "{}",
        stderr(&found)
    );
}

#[test]
fn with_statistics_a_signals_death_is_passed_on() {
    let scratch = scratch();
    let output = scratch
        .sluice([
            "run",
            "--no-daemon",
            "--stats",
            "--",
            "sh",
            "-c",
            "kill -KILL $$",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    let text = stderr(&output);
    assert!(text.contains("no process wrote statistics"), "{text}");
}

#[test]
fn with_statistics_signals_reach_the_program() {
    let scratch = scratch();
    let script = "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    for (signal, status) in [(libc::SIGTERM, Some(9)), (libc::SIGUSR1, None)] {
        let mut command =
            scratch.sluice(["run", "--no-daemon", "--stats", "--", "sh", "-c", script]);
        // A group of its own, so that the signal reaches sluice alone.
        let child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Ended(child);
        let mut out = child.0.stdout.take().unwrap();
        let mut ready = [0; 6];
        out.read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready\n");
        let pid = rustix::process::Pid::from_child(&child.0);
        let named = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, named).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let ended = child.0.wait().unwrap();
        match status {
            Some(status) => {
                assert_eq!(rest, "got\n");
                assert_eq!(ended.code(), Some(status));
            }
            None => assert_eq!(ended.signal(), Some(signal)),
        }
    }
}

/// Starts a script in a process group of its own, with statistics. Its number is that of the first line that it prints.
fn start_with_statistics(scratch: &Scratch, script: &str) -> (Ended, rustix::process::Pid) {
    let mut command = scratch.sluice(["run", "--no-daemon", "--stats", "--", "sh", "-c", script]);
    let child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = Ended(child.unwrap());
    let mut line = String::new();
    let out = child.0.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let program = rustix::process::Pid::from_raw(line.trim().parse().unwrap());
    (child, program.unwrap())
}

fn wait_for_stop(who: &str, pid: rustix::process::Pid) {
    let status = format!("/proc/{}/stat", pid.as_raw_nonzero());
    wait_for(who, || {
        let text = fs::read_to_string(&status).unwrap();
        // The state follows the name in parentheses.
        text.rsplit(") ").next().unwrap().starts_with('T')
    });
}

#[test]
fn with_statistics_sluice_stops_with_its_group() {
    let scratch = scratch();
    let goes_on = scratch.0.join("goes_on");
    // A shell that waits for a child which it has made by vfork cannot be stopped.
    let script = format!(
        "echo $$; while [ ! -e {} ]; do :; done; exit 4",
        goes_on.display()
    );
    let (mut child, program) = start_with_statistics(&scratch, &script);
    let group = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process_group(group, rustix::process::Signal::TSTP).unwrap();
    wait_for_stop("the stop of the program", program);
    wait_for_stop("the stop of sluice", group);
    fs::write(goes_on, "").unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::CONT).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(4));
}

#[test]
fn with_statistics_a_program_is_stopped_and_continued_alone() {
    let scratch = scratch();
    let (mut child, program) = start_with_statistics(&scratch, "echo $$; kill -STOP $$; exit 4");
    wait_for_stop("the stop of the program", program);
    rustix::process::kill_process(program, rustix::process::Signal::CONT).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(4));
}

/// Whoever kills what a supervisor has started means the program, not the process in front of it.
#[test]
fn with_statistics_the_program_dies_with_sluice() {
    let scratch = scratch();
    let left = || {
        let entries = fs::read_dir(&scratch.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with("sluice-stats"))
            .count()
    };
    let (mut child, _program) = start_with_statistics(&scratch, "echo $$; exec sleep 1000");
    child.0.kill().unwrap();
    // The program has the other end, and nobody else.
    let mut rest = String::new();
    let mut out = child.0.stdout.take().unwrap();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_eq!(left(), 1, "nobody was there to remove it");
    let mut next = scratch.sluice(["run", "--no-daemon", "--stats", "--", "true"]);
    assert!(next.output().unwrap().status.success());
    assert_eq!(left(), 0);
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let scratch = scratch();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = scratch.sluice(["run", "--help"]).stdout(full).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("cannot write to standard output"), "{text}");
}
