//! Programs under measurement: started in a group of their own, watched, and always ended.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sluice_lab::job::{Ended, Job, tail};
use sluice_lab::ports::{Protocol, listens};

use super::error::{BenchError, Result};
use super::installation::SLUICE_VARIABLE;
use super::network::End;
use super::signals;

/// How long a server has to accept its first connection, and to end after it was asked to.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between two attempts to reach a server that starts.
const START_RETRY_MS: i32 = 2;
/// How much of a program's output an error message repeats, in bytes from its end.
const OUTPUT_SHOWN_BYTES: usize = 2_000;

/// A running program. Dropping it ends it and everything in its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    job: Job,
    pidfd: std::os::fd::OwnedFd,
    started: Instant,
}

/// What a program that ran to its end left behind.
#[derive(Debug)]
pub struct Output {
    pub stdout: String,
    stderr: String,
    /// User and system time in seconds.
    pub cpu_s: f64,
}

impl Output {
    /// What it wrote to its standard error.
    pub fn complaints(&self) -> &str {
        &self.stderr
    }

    /// Reads the standard output with `parse`; a failure also shows what the program complained
    /// of.
    pub fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        parse(&self.stdout).map_err(|error| match error {
            BenchError::Failed(text) if !self.stderr.trim().is_empty() => {
                let said = tail(self.stderr.trim_end(), OUTPUT_SHOWN_BYTES);
                BenchError::Failed(format!("{text}\nits standard error:\n{said}"))
            }
            other => other,
        })
    }
}

/// How a caller knows that a server is up.
#[derive(Debug, Clone)]
pub enum Ready {
    /// It accepts connections on this port of 127.0.0.1.
    Tcp(u16),
    /// It accepts connections on this socket.
    Unix(PathBuf),
    /// It listens on this port, whatever the address: for servers that would take a look at it
    /// for their client.
    Listens(u16),
    /// It has written this so many times: for servers that take a look at their port for a
    /// client.
    Says(&'static str, usize),
}

impl Ready {
    /// Whether process `pid` is up. Its own view of the network counts, which need not be ours.
    fn reached(&self, pid: i32, output: impl FnOnce() -> String) -> bool {
        match self {
            Self::Says(text, times) => output().matches(text).count() >= *times,
            Self::Listens(port) => ["tcp", "tcp6"].iter().any(|table| {
                let path = format!("/proc/{pid}/net/{table}");
                let table = fs::read_to_string(path).unwrap_or_default();
                listens(&table, Protocol::Tcp, *port)
            }),
            Self::Tcp(port) => std::net::TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            Self::Unix(path) => {
                // The daemon's socket is of another type than a stream; what counts for it is
                // that somebody listens, which the wrong type's errno tells too.
                match std::os::unix::net::UnixStream::connect(path) {
                    Ok(_) => true,
                    Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE),
                }
            }
        }
    }
}

impl Process {
    /// Starts `argv`, its output going to files in `folder`.
    ///
    /// `with_input` keeps a pipe to its standard input open; otherwise that is `/dev/null`.
    pub fn start(argv: &[String], folder: &Path, with_input: bool) -> Result<Self> {
        Self::start_on(None, argv, folder, with_input)
    }

    /// The same on one of two hosts, if one is named.
    pub fn start_on(
        host: Option<&End>,
        argv: &[String],
        folder: &Path,
        with_input: bool,
    ) -> Result<Self> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(BenchError::Failed("nothing to start".to_owned()));
        };
        let name = program_name(argv);
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(if with_input {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .env_remove(SLUICE_VARIABLE);
        if let Some(host) = host {
            host.place(&mut command);
        }
        // Behind the host: how the program is asked to end with this one is decided here.
        let parent = std::process::id().cast_signed();
        // SAFETY: the closure only makes system calls that are allowed between fork and exec.
        unsafe { command.pre_exec(move || signals::prepare_child(parent)) };
        let started = Instant::now();
        let job = Job::start(command, folder, &unique_number().to_string())?;
        let pid = job.id().cast_signed();
        // Unwatched it could outlive us: with an error it ends here.
        let watched = signals::remember_group(pid).and_then(|()| signals::pidfd(pid));
        let pidfd = watched.map_err(|error| {
            signals::forget_group(pid);
            BenchError::io(format!("watch {name}"), &error)
        })?;
        Ok(Self {
            name,
            job,
            pidfd,
            started,
        })
    }

    /// The process group, which has the number of its first process.
    pub fn group(&self) -> i32 {
        self.job.id().cast_signed()
    }

    /// The write end of its standard input, once.
    pub fn take_input(&mut self) -> Option<std::process::ChildStdin> {
        self.job.take_input()
    }

    /// What it has written to standard output so far.
    pub fn output_so_far(&self) -> String {
        self.job.stdout_so_far()
    }

    /// Waits until a server is up; fails if it ends or takes too long.
    pub fn wait_ready(&mut self, ready: &Ready) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !ready.reached(self.group(), || self.output_so_far()) {
            self.still_running(&format!("before it was up ({ready:?})"))?;
            if Instant::now() > deadline {
                return Err(self.failure(&format!("was not up ({ready:?}) within 10 s")));
            }
            signals::wait_readable(self.pidfd.as_raw_fd(), START_RETRY_MS)?;
        }
        // Somebody else's server on the port must not pass for ours.
        self.still_running("although its port answers: another program has it")
    }

    /// Waits until `line_wanted` is in its standard output.
    pub fn wait_output(&mut self, line_wanted: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let text = self.output_so_far();
            if text.contains(line_wanted) {
                return Ok(text);
            }
            self.still_running(&format!("before it said '{line_wanted}'"))?;
            if Instant::now() > deadline {
                return Err(self.failure(&format!("did not say '{line_wanted}' in time")));
            }
            signals::wait_readable(self.pidfd.as_raw_fd(), START_RETRY_MS)?;
        }
    }

    /// Fails if it has ended, for programs that only we are to end.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.still_running("by itself")
    }

    fn still_running(&mut self, when: &str) -> Result<()> {
        if self.poll_end()?.is_some() {
            return Err(self.failure(&format!("ended {when}")));
        }
        Ok(())
    }

    fn poll_end(&mut self) -> Result<Option<Ended>> {
        let ended = self
            .job
            .ended()
            .map_err(|error| BenchError::io(format!("wait for {}", self.name), &error))?;
        if ended.is_some() {
            signals::forget_group(self.group());
        }
        Ok(ended)
    }

    /// Waits for a program that ends by itself; fails when it takes longer than `limit` or
    /// reports failure. (redis-benchmark retries for ever when its server is gone.)
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let deadline = self.started + limit;
        let ended = loop {
            if let Some(ended) = self.poll_end()? {
                break ended;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failure(&format!("was still running after {} s", limit.as_secs())));
            }
            let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            signals::wait_readable(self.pidfd.as_raw_fd(), left_ms.saturating_add(1))?;
        };
        match (ended.status.signal(), ended.status.code()) {
            (Some(signal), _) => Err(self.failure(&format!("was ended by signal {signal}"))),
            (_, Some(0)) => Ok(Output {
                stdout: self.job.stdout_so_far(),
                stderr: self.job.stderr_so_far(),
                cpu_s: ended.cpu.as_secs_f64(),
            }),
            (_, Some(status)) => Err(self.failure(&format!("failed with exit status {status}"))),
            (None, None) => Err(self.failure("ended in an unknown way")),
        }
    }

    /// An error about this program, with the end of what it wrote.
    pub fn failure(&self, what: &str) -> BenchError {
        let mut text = format!("{} {what}", self.name);
        for said in [self.job.stderr_so_far(), self.job.stdout_so_far()] {
            if !said.trim().is_empty() {
                text.push_str("; it said:\n");
                text.push_str(tail(said.trim_end(), OUTPUT_SHOWN_BYTES));
                break;
            }
        }
        BenchError::Failed(text)
    }

    /// Asks it and its group to end; whoever does not is killed when the job is dropped.
    fn stop(&mut self) {
        self.job.signal_group(Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.poll_end(), Ok(None)) && Instant::now() < deadline {
            // After Ctrl-C every wait fails at once; then there is no time to ask politely.
            if signals::wait_readable(self.pidfd.as_raw_fd(), 100).is_err() {
                break;
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        self.job.forget_output();
        // What a panic would end; the job's own end follows.
        signals::forget_group(self.group());
    }
}

/// The program that a command line is about, without `sluice run --` or `env NAME=VALUE` before
/// it.
fn program_name(argv: &[String]) -> String {
    let is_env = |word: &String| word == "env" || word.ends_with("/env") || word.contains('=');
    let program = argv
        .iter()
        .position(|word| word == "--")
        .and_then(|index| argv.get(index + 1))
        .or_else(|| argv.iter().find(|word| !is_env(word)));
    let base = program.and_then(|path| path.rsplit('/').next());
    base.unwrap_or("program").to_owned()
}

fn unique_number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_an_accelerated_program_is_its_own() {
        let argv = ["/x/sluice", "run", "--", "/usr/bin/redis-server", "-p"].map(str::to_owned);
        assert_eq!(program_name(&argv), "redis-server");
        assert_eq!(program_name(&argv[3..]), "redis-server");
    }

    #[test]
    fn name_behind_env_is_its_own() {
        let argv = ["/usr/bin/env", "A=b", "/usr/bin/ucx_perftest", "-p"].map(str::to_owned);
        assert_eq!(program_name(&argv), "ucx_perftest");
    }

    #[test]
    fn failing_program_is_reported_with_what_it_said() {
        let folder = tempdir();
        let argv = ["sh", "-c", "echo broken >&2; exit 3"].map(str::to_owned);
        let process = Process::start(&argv, &folder, false).expect("sh starts");
        let error = process
            .finish(Duration::from_secs(60))
            .expect_err("status 3 is a failure");
        let text = error.to_string();
        assert!(
            text.contains("exit status 3") && text.contains("broken"),
            "{text}"
        );
        fs::remove_dir_all(folder).expect("remove the folder");
    }

    #[test]
    fn dropped_program_takes_its_children_along() {
        let folder = tempdir();
        let argv = ["sh", "-c", "sleep 100 & echo child $!; wait"].map(str::to_owned);
        let mut process = Process::start(&argv, &folder, false).expect("sh starts");
        let said = process
            .wait_output("\n", Duration::from_secs(60))
            .expect("sh says its child's number");
        let child: i32 = said
            .trim()
            .trim_start_matches("child ")
            .parse()
            .expect("a number");
        drop(process);
        let deadline = Instant::now() + Duration::from_secs(60);
        while signals::process_cpu_ns(child).is_some() {
            assert!(Instant::now() < deadline, "the child still runs");
            std::thread::yield_now();
        }
        fs::remove_dir_all(folder).expect("remove the folder");
    }

    fn tempdir() -> PathBuf {
        let name = format!(
            "sluice-bench-test.{}.{}",
            std::process::id(),
            unique_number()
        );
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("make a folder");
        folder
    }
}
