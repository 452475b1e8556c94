//! Static programs under `sluice run --static`, and dynamic ones of Go's: those of Go's have lanes and are right beside everything
//! that Go's runtime does, all others run as they would without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::apps::{Linked, apps_dir, compile_go};
use sluice_tests::job::{Job, Outcome, command, run};
use sluice_tests::lab::Mode;
use sluice_tests::programs::{require, text};
use sluice_tests::suite::{Verdict, ensure, fail, trial, until};

use crate::tools::{LIMIT, Stage};

/// Connections at once, and messages on each; some ten thousand system calls, and as many signals as
/// garbage collections bring.
const CONNECTIONS: &str = "4";
const ROUNDS: &str = "300";
/// More than anybody waits for.
const FOREVER: &str = "100000000";

pub fn trials() -> Vec<Trial> {
    vec![
        trial("static/busy", || busy_with(Linked::Statically)),
        // What is looked for is in the instructions.
        trial("static/stripped", || busy_with(Linked::Stripped)),
        trial("static/cgo", || busy_with(Linked::WithC)),
        trial("static/cgo-pie", || busy_with(Linked::Anywhere)),
        trial("static/cgo-race", raced),
        trial("static/dynamic-alone", alone),
        trial("static/python-client", python_client),
        trial("static/started", started),
        trial("static/exec", || executed(Linked::Statically)),
        trial("static/cgo-exec", || executed(Linked::WithC)),
        trial("static/server-killed", server_killed),
        trial("static/client-killed", client_killed),
        trial("static/refused", refused),
        trial("static/not-executable", not_executable),
    ]
}

fn stage() -> Verdict<Stage> {
    let mut stage = Stage::new()?;
    stage.lab.include_static();
    Ok(stage)
}

/// Starts a server that prints "port N" first.
fn serve(stage: &mut Stage, mode: Mode, program: &Path) -> Verdict<(Job, String)> {
    let mut server = stage.start(mode, &text(program), &["server"])?;
    let stdout = server.stdout_path().to_owned();
    let said = || fs::read_to_string(&stdout).unwrap_or_default();
    server.await_ready(LIMIT, "port", || said().contains('\n'))?;
    let said = said();
    let Some(port) = said.trim().strip_prefix("port ") else {
        return fail(format!("no port: {said}"));
    };
    Ok((server, port.to_owned()))
}

/// Runs a client and looks at each line of what it says.
fn check_client(stage: &mut Stage, program: &Path, port: &str) -> Verdict {
    let arguments = ["client", port, CONNECTIONS, ROUNDS];
    let outcome = stage.run(Mode::Accelerated, &text(program), &arguments)?;
    check_said(&outcome, program)
}

fn check_said(outcome: &Outcome, program: &Path) -> Verdict {
    let said = outcome.text();
    let bytes = |seed: u64| (0..300).map(move |round| 1 + (seed * 131 + round * 37) % 9000);
    let total: u64 = (0..4).flat_map(bytes).sum();
    let own = fs::canonicalize(program)?;
    let expected = [
        "begun".to_owned(),
        format!("checked {total}"),
        "collected true".to_owned(),
        "children true".to_owned(),
        format!("executable {}", own.display()),
    ];
    let lines: Vec<&str> = said.lines().collect();
    ensure(lines == expected, || outcome.describe())
}

/// Both ends: bytes are right beside garbage collection, goroutines that a signal must interrupt, threads that end,
/// children, and signals of the program's.
fn busy_with(linked: Linked) -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", linked, stage.lab.path())?;
    let busy = compile_go("busy.go", linked, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    until(|| {
        check_client(&mut stage, &busy, &port)?;
        Ok(stage.lab.require_lanes())
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// The race detector ends a process without the library's knowledge, so that there are no statistics.
fn raced() -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", Linked::Raced, stage.lab.path())?;
    let busy = compile_go("busy.go", Linked::Raced, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    check_client(&mut stage, &busy, &port)?;
    let mut client = begin(&mut stage, &busy, &port)?;
    client.await_ready(LIMIT, "lanes", || {
        let shown = stage.lab.status(&[]);
        stage.lab.is_standin() || shown.matches("4 connections, 4 on a lane").count() == 2
    })?;
    for job in [client, server] {
        job.signal(Signal::KILL)?;
        job.finish(LIMIT)?;
    }
    Ok(())
}

/// Its threads are not the C library's, although the dynamic linker loads that with our library: it is left alone.
fn alone() -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let busy = compile_go("busy.go", Linked::Alone, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    check_client(&mut stage, &busy, &port)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A static client that another program starts, in each way that there is.
fn started() -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let busy = compile_go("busy.go", Linked::Statically, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    let (path, words) = (text(&busy), format!("client {port} {CONNECTIONS} {ROUNDS}"));
    let listed = words.replace(' ', "','");
    let python = "/usr/bin/python3";
    let ways = [
        ("sh", format!("./busy {words}; exit $?")),
        ("sh", format!("PATH=$PWD; exec busy {words}")),
        // By execve, by vfork where Python has it, and by the C library's two functions.
        (
            python,
            format!("import subprocess\nsubprocess.run(['./busy','{listed}'], check=True)"),
        ),
        (
            python,
            format!(
                "import os\np = os.posix_spawn('{path}', ['busy','{listed}'], os.environ)\nexit(os.waitpid(p, 0)[1])"
            ),
        ),
        (
            python,
            format!(
                "import os\np = os.posix_spawnp('./busy', ['busy','{listed}'], os.environ)\nexit(os.waitpid(p, 0)[1])"
            ),
        ),
    ];
    for (shell, script) in &ways {
        until(|| {
            let outcome = stage.run(Mode::Accelerated, shell, &["-c", script])?;
            check_said(&outcome, &busy)?;
            Ok(stage.lab.require_lanes())
        })?;
    }
    // Where what would give it lanes is gone, it runs as it is.
    let script = format!("SLUICE_STATIC_LOADER=/nonexistent ./busy {words}");
    let outcome = stage.run(Mode::Accelerated, "sh", &["-c", &script])?;
    check_said(&outcome, &busy)?;
    // Nobody has asked for lanes of this one by its name.
    let build = b"\xff Go buildinf:";
    replaced(&echo, "other", build, b"\xff No buildinf:")?;
    let script = format!("./other client {port}");
    let outcome = stage.run(Mode::Accelerated, "sh", &["-c", &script])?;
    let is_quiet = outcome.text().starts_with("sum ") && !outcome.describe().contains("plain TCP");
    ensure(is_quiet, || outcome.describe())?;
    server.stop(LIMIT)?;
    // It is called by its own name.
    let mut server = stage.start(Mode::Accelerated, "sh", &["-c", "exec ./echo server"])?;
    let named = format!("echo (pid {}, ", server.id());
    let mut shown = String::new();
    server.await_ready(LIMIT, "the name in the status", || {
        shown = stage.lab.status(&[]);
        shown.contains(&named)
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A connection on a lane that goes to the next program, with bytes that nobody has read, or that two share.
fn executed(linked: Linked) -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", linked, stage.lab.path())?;
    let program = compile_go("exec.go", linked, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    for (how, expected) in [
        ("exec", "the next one is done\n"),
        ("unread", "the next one is done\n"),
        ("child", "the next one is done\nthe parent went on\n"),
    ] {
        until(|| {
            let outcome = stage.run(Mode::Accelerated, &text(&program), &[how, &port])?;
            ensure(outcome.text() == expected, || outcome.describe())?;
            Ok(stage.lab.require_lanes())
        })?;
    }
    server.stop(LIMIT)?;
    Ok(())
}

/// A static server, and a client that loads the library as all others do.
fn python_client() -> Verdict {
    let mut stage = stage()?;
    let program = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &program)?;
    let script = text(apps_dir().join("scripts/echo.py"));
    let arguments = [&script, "client", &port];
    until(|| {
        let outcome = stage.run(Mode::Accelerated, "/usr/bin/python3", &arguments)?;
        ensure(outcome.text().starts_with("sum "), || outcome.describe())?;
        Ok(stage.lab.require_lanes())
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A client that talks for ever, when it is in the middle of that.
fn begin(stage: &mut Stage, program: &Path, port: &str) -> Verdict<Job> {
    let arguments = ["client", port, CONNECTIONS, FOREVER];
    let mut client = stage.start(Mode::Accelerated, &text(program), &arguments)?;
    client.await_text("begun", LIMIT)?;
    Ok(client)
}

fn server_killed() -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let program = compile_go("busy.go", Linked::Statically, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    let client = begin(&mut stage, &program, &port)?;
    server.signal(Signal::KILL)?;
    let outcome = client.finish(LIMIT)?;
    let is_told = outcome.status.code() == Some(1) && outcome.describe().contains("busy: ");
    ensure(is_told, || outcome.describe())
}

fn client_killed() -> Verdict {
    let mut stage = stage()?;
    let echo = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let program = compile_go("busy.go", Linked::Statically, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Accelerated, &echo)?;
    for _ in 0..2 {
        let client = begin(&mut stage, &program, &port)?;
        client.signal(Signal::KILL)?;
        client.finish(LIMIT)?;
    }
    check_client(&mut stage, &program, &port)?;
    server.stop(LIMIT)?;
    Ok(())
}

fn replaced(program: &Path, name: &str, what: &[u8], with: &[u8]) -> Verdict<PathBuf> {
    let mut bytes = fs::read(program)?;
    let places: Vec<usize> = (0..bytes.len().saturating_sub(what.len()))
        .filter(|at| bytes[*at..].starts_with(what))
        .collect();
    let [at] = places[..] else {
        return fail(format!("{} places of {what:?}", places.len()));
    };
    bytes[at..at + with.len()].copy_from_slice(with);
    let copy = program.with_file_name(name);
    fs::write(&copy, bytes)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

/// What is no Go program, says that it is of another version, or is cut off runs as it would, and a line says why it
/// has no lanes.
fn refused() -> Verdict {
    let mut stage = stage()?;
    let program = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let (server, port) = serve(&mut stage, Mode::Plain, &program)?;
    let build = b"\xff Go buildinf:";
    let other = replaced(&program, "other", build, b"\xff No buildinf:")?;
    let outcome = stage.run(Mode::Accelerated, &text(other), &["client", &port])?;
    ensure(outcome.text().starts_with("sum "), || outcome.describe())?;
    if stage.lab.is_standin() {
        return Ok(());
    }
    let is_said = outcome.describe().contains("it is no Go program");
    ensure(is_said, || outcome.describe())?;

    let source = stage.path("hello.c");
    fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { puts(\"hello\"); }\n",
    )?;
    let hello = stage.path("hello");
    let mut build = command(require("gcc")?);
    build.args(["-static", "-o"]).arg(&hello).arg(&source);
    run(build, stage.lab.path(), "gcc", LIMIT)?.success()?;
    let outcome = stage.run(Mode::Accelerated, &text(&hello), &[])?;
    let is_plain = outcome.text() == "hello\n" && outcome.describe().contains("runs on plain TCP");
    ensure(is_plain, || outcome.describe())?;
    server.stop(LIMIT)?;
    Ok(())
}

/// What the kernel would not execute is not executed this way.
fn not_executable() -> Verdict {
    let stage = stage()?;
    let program = compile_go("echo.go", Linked::Statically, stage.lab.path())?;
    let copy = stage.path("data");
    fs::copy(&program, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644))?;
    let mut start = stage.lab.command(Mode::Accelerated, &copy);
    start.args(["client", "1"]);
    if stage.lab.is_standin() {
        return Ok(());
    }
    let outcome = Job::start(start, stage.lab.path(), "data")?.finish(LIMIT)?;
    ensure(outcome.status.code() == Some(126), || outcome.describe())
}
