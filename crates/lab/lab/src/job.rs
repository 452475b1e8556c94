//! A child process that cannot outlive its test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::verdict::{Verdict, fail};

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A running child in its own process group, with its output in files (a pipe
/// that nobody reads would stop it). Dropping it kills the whole group.
pub struct Job {
    child: Child,
    label: String,
    stdout: PathBuf,
    stderr: PathBuf,
    status: Option<ExitStatus>,
}

/// What a finished child left.
#[derive(Debug)]
pub struct Outcome {
    pub label: String,
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Job {
    /// Starts the command. `label` names its output files in `dir` and its errors;
    /// it must be unique within the directory.
    pub fn start(mut command: Command, dir: &Path, label: &str) -> Verdict<Job> {
        let stdout = dir.join(format!("{label}.stdout"));
        let stderr = dir.join(format!("{label}.stderr"));
        command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .process_group(0);
        let child = command.spawn().or_else(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            fail(format!("{label}: cannot start {program}: {error}"))
        })?;
        Ok(Job {
            child,
            label: label.to_string(),
            stdout,
            stderr,
            status: None,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child alone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// The child's exit status if it has ended.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Waits for the child to end by itself. One that does not is killed and the
    /// test fails with the tail of its output.
    pub fn finish(mut self, limit: Duration) -> Verdict<Outcome> {
        if !wait_until(limit, || Ok(self.poll()?.is_some()))? {
            let state = self.describe();
            self.kill_group();
            return fail(format!(
                "{}: did not end within {limit:?}\n{state}",
                self.label
            ));
        }
        self.outcome()
    }

    /// Asks the child to end (SIGTERM) and waits; programs write their statistics then.
    pub fn stop(self, limit: Duration) -> Verdict<Outcome> {
        self.signal(Signal::TERM)?;
        self.finish(limit)
    }

    /// Waits until the condition holds, failing at once when the child ends before it does.
    pub fn await_ready(
        &mut self,
        limit: Duration,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> Verdict {
        let ready = wait_until(limit, || Ok(condition() || self.poll()?.is_some()))?;
        if let Some(status) = self.poll()? {
            return fail(format!(
                "{}: ended ({status}) before {what}\n{}",
                self.label,
                self.describe()
            ));
        }
        if !ready {
            return fail(format!(
                "{}: no {what} within {limit:?}\n{}",
                self.label,
                self.describe()
            ));
        }
        Ok(())
    }

    /// Waits until the child has printed that.
    pub fn await_text(&mut self, text: &str, limit: Duration) -> Verdict {
        let output = self.stdout.clone();
        self.await_ready(limit, &format!("{text:?}"), || {
            fs::read_to_string(&output).is_ok_and(|all| all.contains(text))
        })
    }

    /// The output so far, for error messages.
    pub fn describe(&self) -> String {
        format!(
            "--- stdout of {}\n{}\n--- stderr\n{}",
            self.label,
            tail(&fs::read(&self.stdout).unwrap_or_default()),
            tail(&fs::read(&self.stderr).unwrap_or_default())
        )
    }

    /// The file that its standard output goes to.
    pub fn stdout_path(&self) -> &Path {
        &self.stdout
    }

    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap_or_default()).into_owned()
    }

    fn outcome(&mut self) -> Verdict<Outcome> {
        let Some(status) = self.poll()? else {
            return fail(format!("{}: still running", self.label));
        };
        Ok(Outcome {
            label: self.label.clone(),
            status,
            stdout: fs::read(&self.stdout)?,
            stderr: fs::read(&self.stderr)?,
        })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill_group(&mut self) {
        // An error means that the group is gone, which is what is wanted.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill_group();
    }
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails with the output unless the program ended with status 0.
    pub fn success(self) -> Verdict<Outcome> {
        if self.status.success() {
            Ok(self)
        } else {
            fail(self.describe())
        }
    }

    pub fn describe(&self) -> String {
        let ended = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => format!("{}", self.status),
        };
        format!(
            "{}: {ended}\n--- stdout\n{}\n--- stderr\n{}",
            self.label,
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }
}

/// Runs a command to its end.
pub fn run(command: Command, dir: &Path, label: &str, limit: Duration) -> Verdict<Outcome> {
    Job::start(command, dir, label)?.finish(limit)
}

/// Polls the condition until it holds (true) or the limit has passed (false).
pub fn wait_until(
    limit: Duration,
    mut condition: impl FnMut() -> io::Result<bool>,
) -> io::Result<bool> {
    let until = Instant::now() + limit;
    loop {
        if condition()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// The program's full path, looked for in PATH and the sbin directories.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// A command with no input, whatever the test runner's own input is.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

fn tail(bytes: &[u8]) -> String {
    const SHOWN: usize = 4000;
    let text = String::from_utf8_lossy(bytes);
    if text.len() <= SHOWN {
        return text.into_owned();
    }
    let cut = (text.len() - SHOWN..text.len()).find(|&at| text.is_char_boundary(at));
    format!("[…]{}", &text[cut.unwrap_or(text.len())..])
}
