//! A test's private directory, daemon and way of starting programs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::job::{Job, command};
use crate::stats::{self, Totals};
use crate::suite::{Verdict, fail, skip};

/// Until a daemon has its socket: milliseconds, and more where others want the processors.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Name of the file in which the library says what it did.
const STATS_FILE: &str = "stats";

/// The user `nobody` and its group `nogroup`.
const NOBODY: u32 = 65_534;

/// What `sluice run` needs beside `sluice` itself.
const INSTALLED: [&str; 2] = ["sluiced", "libsluice_preload.so"];

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Accelerated,
}

/// Everything one test needs; dropping it stops the daemon and removes the directory.
pub struct Lab {
    dir: Option<TempDir>,
    daemon: Option<Job>,
    sluice: Option<PathBuf>,
    min_ops: Option<u32>,
    includes_static: bool,
    /// As whom its programs and its daemon run, if not as the test.
    user: Option<u32>,
}

impl Lab {
    /// Makes the directory and starts a `sluiced` of this test's own.
    ///
    /// Skips when there is no `sluice` to test.
    pub fn new() -> Verdict<Lab> {
        Lab::of_user(None)
    }

    /// The same without privileges: where the test runs as root, the directory belongs to `nobody`, and the daemon
    /// and all programs run as `nobody`.
    pub fn unprivileged() -> Verdict<Lab> {
        let is_root = rustix::process::geteuid().is_root();
        Lab::of_user(is_root.then_some(NOBODY))
    }

    fn of_user(user: Option<u32>) -> Verdict<Lab> {
        let mut lab = Lab {
            dir: Some(tempfile::Builder::new().prefix("sluice-test-").tempdir()?),
            daemon: None,
            sluice: None,
            min_ops: None,
            includes_static: false,
            user,
        };
        chown(lab.path(), user, user)?;
        if std::env::var_os("SLUICE_TEST_STANDIN").is_some_and(|value| value == "1") {
            return Ok(lab);
        }
        let found = find_sluice()?;
        let sluice = match user {
            // Another user may not get to where it was built.
            Some(_) => install(&found, &lab.path().join("installed"))?,
            None => found,
        };
        lab.daemon = Some(start_daemon(&sluice, lab.path(), user)?);
        lab.sluice = Some(sluice);
        // The library appends to this file but never makes it.
        fs::write(lab.stats_file(), "")?;
        chown(lab.stats_file(), user, user)?;
        Ok(lab)
    }

    /// The same, for tests of what a plain run does not have.
    pub fn with_library() -> Verdict<Lab> {
        let lab = Lab::new()?;
        if lab.is_standin() {
            return skip("there is no library in a plain run");
        }
        Ok(lab)
    }

    pub fn path(&self) -> &Path {
        self.dir
            .as_ref()
            .map_or(Path::new("/nonexistent"), TempDir::path)
    }

    /// True when the accelerated side is run plainly too (`SLUICE_TEST_STANDIN=1`).
    pub fn is_standin(&self) -> bool {
        self.sluice.is_none()
    }

    /// Announces connections at their first read or write from now on, instead of sparing those
    /// that may end soon.
    pub fn announce_at_once(&mut self) {
        self.min_ops = Some(0);
    }

    /// Starts programs with `--static` from now on.
    pub fn include_static(&mut self) {
        self.includes_static = true;
    }

    pub fn daemon(&self) -> Option<&Job> {
        self.daemon.as_ref()
    }

    pub fn daemon_mut(&mut self) -> Option<&mut Job> {
        self.daemon.as_mut()
    }

    /// Kills the daemon, and starts another one in its place.
    pub fn replace_daemon(&mut self) -> Verdict {
        let (Some(daemon), Some(sluice)) = (self.daemon.take(), &self.sluice) else {
            return Ok(());
        };
        daemon.signal(Signal::KILL)?;
        daemon.finish(START_LIMIT)?;
        fs::remove_file(self.socket())?;
        self.daemon = Some(start_daemon(sluice, self.path(), self.user)?);
        Ok(())
    }

    /// A command that starts the program in the mode. Statistics of all accelerated
    /// programs of the lab go to one file; see [`Lab::totals`].
    pub fn command(&self, mode: Mode, program: impl AsRef<OsStr>) -> Command {
        let mut command = match (mode, &self.sluice) {
            (Mode::Accelerated, Some(sluice)) => {
                let mut command = command(sluice);
                command.arg("run");
                if self.includes_static {
                    command.arg("--static");
                }
                command
                    .arg("--")
                    .arg(program)
                    .env("SLUICE_SOCKET", self.socket())
                    .env("SLUICE_STATS_FILE", self.stats_file());
                if let Some(min_ops) = self.min_ops {
                    command.env("SLUICE_MIN_OPS", min_ops.to_string());
                }
                command
            }
            _ => command(program),
        };
        become_user(&mut command, self.user);
        command
    }

    /// The sum of what accelerated programs that have ended reported.
    pub fn totals(&self) -> Verdict<Totals> {
        Ok(stats::read(&self.stats_file())?)
    }

    /// Forgets the statistics written so far.
    pub fn reset_totals(&self) -> Verdict {
        Ok(fs::write(self.stats_file(), "")?)
    }

    /// Fails unless at least `bytes` went through lanes.
    pub fn require_lane_bytes(&self, bytes: u64) -> Verdict {
        if self.is_standin() {
            return Ok(());
        }
        let totals = self.totals()?;
        if totals.lane_bytes() >= bytes {
            return Ok(());
        }
        fail(format!(
            "{} bytes went by lane, expected at least {bytes}: {totals:?}",
            totals.lane_bytes()
        ))
    }

    /// Fails unless a connection got a lane and bytes went through it, however few: on a machine
    /// whose processors others want too, ends that sleep are woken by TCP with the bytes in it.
    pub fn require_lanes(&self) -> Verdict {
        if self.is_standin() {
            return Ok(());
        }
        let totals = self.totals()?;
        if totals.laned > 0 && totals.lane_bytes() > 0 {
            return Ok(());
        }
        fail(format!(
            "no lane was used: {totals:?}\n{}",
            self.status(&["--json"])
        ))
    }

    /// What `sluice status` says of the daemon, with more options; nothing where it fails.
    pub fn status(&self, more: &[&str]) -> String {
        let Some(sluice) = &self.sluice else {
            return String::new();
        };
        let mut status = command(sluice);
        status.arg("status").args(more);
        status.arg("--socket").arg(self.socket());
        become_user(&mut status, self.user);
        let said = status.output().map(|output| output.stdout);
        String::from_utf8_lossy(&said.unwrap_or_default()).into_owned()
    }

    fn socket(&self) -> PathBuf {
        self.path().join("control.sock")
    }

    fn stats_file(&self) -> PathBuf {
        self.path().join(STATS_FILE)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.daemon = None;
        if std::env::var_os("SLUICE_TEST_KEEP").is_some_and(|value| value == "1")
            && let Some(dir) = self.dir.take()
        {
            println!("kept {}", dir.keep().display());
        }
    }
}

/// The `sluice` to test; skips when there is none.
pub fn find_sluice() -> Verdict<PathBuf> {
    let path = match std::env::var_os("SLUICE_BIN") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/sluice"),
    };
    if !path.is_file() {
        return skip(format!(
            "{} does not exist; run `cargo build --release` or set SLUICE_BIN",
            path.display()
        ));
    }
    Ok(path.canonicalize()?)
}

/// Where the daemon and the library of a `sluice` are.
fn beside(sluice: &Path) -> PathBuf {
    std::env::var_os("SLUICE_LIBDIR")
        .map(PathBuf::from)
        .or_else(|| sluice.parent().map(Path::to_path_buf))
        .unwrap_or_default()
}

/// Copies what `sluice run` needs to a new directory that every user can read; the path of the copied `sluice`.
fn install(sluice: &Path, to: &Path) -> Verdict<PathBuf> {
    fs::create_dir(to)?;
    let copy = to.join("sluice");
    fs::copy(sluice, &copy)?;
    for file in INSTALLED {
        fs::copy(beside(sluice).join(file), to.join(file))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}

/// Has the program run as that user, in the group of the same number and no other one, with the files that were
/// installed for the user.
fn become_user(command: &mut Command, user: Option<u32>) {
    if let Some(user) = user {
        command.uid(user).gid(user).env_remove("SLUICE_LIBDIR");
    }
}

fn start_daemon(sluice: &Path, dir: &Path, user: Option<u32>) -> Verdict<Job> {
    let beside = match user {
        Some(_) => sluice.with_file_name(""),
        None => beside(sluice),
    };
    let socket = dir.join("control.sock");
    let mut daemon = command(beside.join("sluiced"));
    become_user(&mut daemon, user);
    // The idle exit is for a runner that is killed and cannot stop its daemons.
    daemon
        .arg("--socket")
        .arg(&socket)
        .args(["--idle-exit", "120"]);
    let mut job = Job::start(daemon, dir, "sluiced")?;
    job.await_ready(START_LIMIT, "control socket", || socket.exists())?;
    Ok(job)
}
