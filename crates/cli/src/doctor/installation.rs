//! The files of this installation, whether they fit together, and the daemon.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Check, Verdict};
use crate::daemon::{self, State};
use crate::document::Document;
use crate::error::{Failure, reason};
use crate::terminal::harmless;
use crate::trial::{self, CHILD_TIMEOUT, Trial};
use crate::{locate, units};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Every check of the installation, in the order of the report.
pub fn checks(socket: Option<&Path>) -> Vec<Check> {
    let mut checks = Vec::new();
    match locate::library() {
        Ok(path) => {
            checks.push(Check::ok("library", path.display().to_string()));
            let filters = trial::own_filters();
            let trial = trial::load(&path, filters);
            checks.push(preload(&trial));
            checks.push(seccomp(filters, trial.as_ref().ok()));
        }
        Err(failure) => {
            checks.push(missing("library", &failure));
            checks.push(seccomp(trial::own_filters(), None));
        }
    }
    let program = locate::daemon();
    let control = match daemon::socket_path(socket) {
        Ok(path) => control_socket(&path, program.is_ok()),
        Err(failure) => missing("control socket", &failure),
    };
    checks.push(match program {
        Ok(path) => daemon_program(&path),
        // In a container the library is mounted, and the daemon runs in another one.
        Err(failure) if control.verdict == Verdict::Ok => Check::note(
            "daemon",
            format!("{failure}"),
            "the one at the control socket is enough",
        ),
        Err(failure) => missing("daemon", &failure),
    });
    checks.push(control);
    checks
}

fn missing(name: &'static str, failure: &Failure) -> Check {
    let text = failure.to_string();
    let (found, hint) = text.split_once("; ").unwrap_or((&text, ""));
    Check::missing(name, found, hint)
}

/// Runs a program that ends by itself, and ends it if it does not.
fn run_bounded(command: &mut Command) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    let deadline = Instant::now() + CHILD_TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(std::io::Error::other(format!(
                "it did not end within {} s",
                CHILD_TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output()
}

/// Whether a program could be started with the library.
fn preload(trial: &std::io::Result<Trial>) -> Check {
    const NAME: &str = "LD_PRELOAD";
    match trial {
        Ok(Trial { version, .. }) if version == VERSION => {
            Check::ok(NAME, format!("works, the library is version {version}"))
        }
        Ok(trial) if trial.version.is_empty() => Check::missing(
            NAME,
            match trial.complaint.lines().next() {
                Some(line) => format!("the library was not loaded: {line}"),
                None => "the library was not loaded".to_owned(),
            },
            "see 'LD_DEBUG=files sluice --version' with the library in LD_PRELOAD; a file system \
             mounted noexec or a security module may forbid it",
        ),
        Ok(Trial { version, .. }) => Check::missing(
            NAME,
            format!("the library is version {version}, sluice is {VERSION}"),
            "install both from one release, or point SLUICE_LIBDIR at the right folder",
        ),
        Err(error) => Check::missing(
            NAME,
            format!("cannot try: {}", reason(error)),
            "check that this process may start others",
        ),
    }
}

/// What the filters of this process, which programs started from it get too, mean for them.
fn seccomp(filters: u32, trial: Option<&Trial>) -> Check {
    const NAME: &str = "seccomp";
    if filters == 0 {
        return Check::ok(NAME, "no filter");
    }
    let found = units::plural(u64::from(filters), "filter");
    match trial.filter(|trial| !trial.version.is_empty()) {
        None => Check::note(
            NAME,
            found,
            "whether they let through what lanes need can be said once the library is there",
        ),
        Some(trial) if trial.allows_lanes() => Check::ok(
            NAME,
            format!("{found}; what lanes need goes through (tried)"),
        ),
        Some(trial) => Check::missing(
            NAME,
            format!("{found}: {}", trial.obstacle()),
            "programs run on TCP here; whoever set the filters (a container runtime, a service \
             manager) can allow the call",
        ),
    }
}

fn daemon_program(path: &Path) -> Check {
    const NAME: &str = "daemon";
    let mut command = Command::new(path);
    command
        .arg("--version")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let shown = path.display();
    match run_bounded(&mut command) {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().next().unwrap_or_default();
            if line.split_whitespace().any(|word| word == VERSION) {
                Check::ok(NAME, format!("{shown}, version {VERSION}"))
            } else {
                Check::missing(
                    NAME,
                    format!("{shown} says '{line}', sluice is {VERSION}"),
                    "install both from one release, or point SLUICE_LIBDIR at the right folder",
                )
            }
        }
        Ok(output) => Check::missing(
            NAME,
            format!("{shown} ends with {}", output.status),
            "run it by hand with --version and see what it says",
        ),
        Err(error) => Check::missing(
            NAME,
            format!("{shown} cannot be run: {}", reason(&error)),
            "check its permissions",
        ),
    }
}

fn control_socket(socket: &Path, program: bool) -> Check {
    const NAME: &str = "control socket";
    let state = daemon::probe(socket);
    let shown = socket.display();
    match state {
        State::Running { pid, uid } => match running(socket) {
            Some(daemon) if !daemon.version.is_empty() && daemon.version != VERSION => {
                let version = daemon.version;
                Check::missing(
                    NAME,
                    format!("{shown}: a daemon of version {version} runs, sluice is {VERSION}"),
                    "stop it with 'sluice down'; the next 'sluice run' starts the right one",
                )
            }
            _ if !daemon::serves_us(uid) => {
                let state = daemon::third_users(uid);
                Check::missing(NAME, format!("{shown}: {state}"), state.hint())
            }
            Some(Document {
                no_lanes: Some(why),
                ..
            }) => Check::missing(
                NAME,
                format!(
                    "{shown}: pid {pid}, uid {uid}, gives no lanes: {}",
                    harmless(&why)
                ),
                "start it with CAP_BPF and CAP_NET_ADMIN in the first user namespace, as root's \
                 service has them, or let each user run one of their own",
            ),
            _ => Check::ok(NAME, format!("{shown}: running, pid {pid}, uid {uid}")),
        },
        State::Absent | State::Stale if program => trial(socket, &state),
        // The line of the daemon's program says what is missing.
        State::Absent | State::Stale => Check::note(NAME, format!("{shown}: {state}"), ""),
        state => Check::missing(NAME, format!("{shown}: {state}"), state.hint()),
    }
}

fn running(socket: &Path) -> Option<Document> {
    let (_, text) = daemon::fetch_status(socket).ok()?;
    serde_json::from_slice(&text).ok()
}

/// No daemon runs: tries whether one would, on a socket of another name in the directory that it would
/// use, which may be full or closed to this user.
fn trial(socket: &Path, state: &State) -> Check {
    const NAME: &str = "control socket";
    let shown = socket.display();
    let folder = socket.parent().filter(|it| !it.as_os_str().is_empty());
    let was_there = folder.is_none_or(Path::exists);
    // No longer than the real one's name, as the kernel limits the path.
    let private = socket.with_file_name("try.sock");
    let attempt = daemon::ensure(&private, None)
        .map_err(daemon::NoDaemon::into_failure)
        .and_then(|_| daemon::stop(&private));
    if let (false, Some(folder)) = (was_there, folder) {
        // Left if something else is in it by now.
        let _ = std::fs::remove_dir(folder);
    }
    match attempt {
        Ok(()) => Check::ok(
            NAME,
            format!("{shown}: {state}; 'sluice run' starts one (tried, works)"),
        ),
        Err(failure) => missing(NAME, &failure),
    }
}
