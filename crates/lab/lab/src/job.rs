//! A child process that cannot outlive its test.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::verdict::{Verdict, fail};

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A running child in its own process group, with its output in files (a pipe
/// that nobody reads would stop it). Dropping it kills the whole group.
#[derive(Debug)]
pub struct Job {
    child: Child,
    label: String,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: Option<Ended>,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// User and system time of the child and of its own children that it has waited for.
    pub cpu: Duration,
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
            ended: None,
        })
    }

    /// The write end of its standard input, once, if the command has a pipe there.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child alone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// The child's exit status if it has ended; then its process group is ended, too.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        Ok(self.ended()?.map(|ended| ended.status))
    }

    /// How the child ended, if it has; as [`Job::poll`].
    pub fn ended(&mut self) -> io::Result<Option<Ended>> {
        if self.ended.is_none() {
            self.ended = self.reap()?;
        }
        Ok(self.ended)
    }

    /// Sends a signal to every process of the group, unless the child has ended.
    pub fn signal_group(&self, signal: Signal) {
        if self.ended.is_none() {
            // An error means that the group is gone.
            let _ = kill_process_group(self.pid(), signal);
        }
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
            shown(&fs::read(&self.stdout).unwrap_or_default()),
            shown(&fs::read(&self.stderr).unwrap_or_default())
        )
    }

    /// The file that its standard output goes to.
    pub fn stdout_path(&self) -> &Path {
        &self.stdout
    }

    pub fn stdout_so_far(&self) -> String {
        read_lossy(&self.stdout)
    }

    pub fn stderr_so_far(&self) -> String {
        read_lossy(&self.stderr)
    }

    /// Removes the files of its output, which otherwise stay.
    pub fn forget_output(&self) {
        for path in [&self.stdout, &self.stderr] {
            let _ = fs::remove_file(path);
        }
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
        if self.ended.is_some() {
            return;
        }
        self.signal_group(Signal::KILL);
        // Until it can be collected; errors say that it is gone.
        let _ = waitid(
            WaitId::Pid(self.pid()),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        let _ = self.ended();
    }

    /// Collects the child if it has ended, and ends what it left in its process group first: as long as
    /// the leader has not been collected, the group's number cannot be a stranger's. Never blocks.
    fn reap(&self) -> io::Result<Option<Ended>> {
        let pid = self.pid();
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(pid), look)?.is_none() {
            return Ok(None);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid, and the call writes only these two variables.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            let raw = pid.as_raw_nonzero().get();
            if libc::wait4(raw, &raw mut status, 0, &raw mut usage) != raw {
                return Err(io::Error::last_os_error());
            }
            usage
        };
        let time = |time: libc::timeval| {
            let microseconds = u64::try_from(time.tv_usec).unwrap_or(0);
            Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
                + Duration::from_micros(microseconds)
        };
        Ok(Some(Ended {
            status: ExitStatus::from_raw(status),
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
        }))
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
            shown(&self.stdout),
            shown(&self.stderr)
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
        .find(|candidate| is_executable(candidate))
}

/// The folder of PostgreSQL's programs, of the newest version that Debian's packages have brought.
pub fn postgresql_folder() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let newest = versions
        .flatten()
        .filter_map(|version| version.file_name().to_string_lossy().parse::<u32>().ok())
        .max()?;
    let folder = PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"));
    is_executable(&folder.join("postgres")).then_some(folder)
}

/// Whether it is a file that somebody may execute.
pub fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A command with no input, whatever the test runner's own input is.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// The end of what a program wrote, at most so many bytes and whole characters.
pub fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// What is shown of an output in errors.
fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 4000;
    let text = String::from_utf8_lossy(bytes);
    let end = tail(&text, SHOWN);
    if end.len() == text.len() {
        return text.into_owned();
    }
    format!("[…]{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_does_not_split_a_character() {
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("aéé", 3), "é");
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }
}
