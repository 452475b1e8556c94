//! Programs under measurement: started in a group of their own, watched, and always ended.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sluice_lab::ports::{Protocol, listens};

use super::error::{BenchError, Result};
use super::installation::SLUICE_VARIABLE;
use super::network::End;
use super::signals::{self, Ended};

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
    pid: i32,
    pidfd: std::os::fd::OwnedFd,
    stdout: PathBuf,
    stderr: PathBuf,
    stdin: Option<std::process::ChildStdin>,
    started: Instant,
    ended: Option<Ended>,
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
                listens(&read_lossy(Path::new(&path)), Protocol::Tcp, *port)
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
        let serial = unique_number();
        let stdout = folder.join(format!("{serial}.out"));
        let stderr = folder.join(format!("{serial}.err"));
        let open = |path: &Path| {
            File::create(path)
                .map_err(|error| BenchError::io(format!("write {}", path.display()), &error))
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(if with_input {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(open(&stdout)?)
            .stderr(open(&stderr)?)
            .env_remove(SLUICE_VARIABLE)
            .process_group(0);
        if let Some(host) = host {
            host.place(&mut command);
        }
        // Behind the host: how the program is asked to end with this one is decided here.
        let parent = std::process::id().cast_signed();
        // SAFETY: the closure only makes system calls that are allowed between fork and exec.
        unsafe { command.pre_exec(move || signals::prepare_child(parent)) };
        let started = Instant::now();
        let mut child = command
            .spawn()
            .map_err(|error| BenchError::io(format!("start {program}"), &error))?;
        let pid = child.id().cast_signed();
        let watched = signals::remember_group(pid).and_then(|()| signals::pidfd(pid));
        let pidfd = match watched {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // Unwatched it could outlive us; the error that led here is the one to report.
                signals::signal_group(pid, libc::SIGKILL);
                let _ = child.wait();
                signals::forget_group(pid);
                return Err(BenchError::io(format!("watch {name}"), &error));
            }
        };
        Ok(Self {
            name,
            pid,
            pidfd,
            stdout,
            stderr,
            stdin: child.stdin.take(),
            started,
            ended: None,
        })
    }

    /// The process group, which has the number of its first process.
    pub fn group(&self) -> i32 {
        self.pid
    }

    /// The write end of its standard input, once.
    pub fn take_input(&mut self) -> Option<std::process::ChildStdin> {
        self.stdin.take()
    }

    /// What it has written to standard output so far.
    pub fn output_so_far(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// Waits until a server is up; fails if it ends or takes too long.
    pub fn wait_ready(&mut self, ready: &Ready) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !ready.reached(self.pid, || self.output_so_far()) {
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
        if self.poll_end()? {
            return Err(self.failure(&format!("ended {when}")));
        }
        Ok(())
    }

    fn poll_end(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = signals::reap(self.pid)
                .map_err(|error| BenchError::io(format!("wait for {}", self.name), &error))?;
        }
        Ok(self.ended.is_some())
    }

    /// Waits for a program that ends by itself; fails when it takes longer than `limit` or
    /// reports failure. (redis-benchmark retries for ever when its server is gone.)
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let deadline = self.started + limit;
        while !self.poll_end()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failure(&format!("was still running after {} s", limit.as_secs())));
            }
            let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            signals::wait_readable(self.pidfd.as_raw_fd(), left_ms.saturating_add(1))?;
        }
        let Some(ended) = self.ended else {
            return Err(self.failure("ended in an unknown way"));
        };
        if libc::WIFSIGNALED(ended.status) {
            let signal = libc::WTERMSIG(ended.status);
            return Err(self.failure(&format!("was ended by signal {signal}")));
        }
        if libc::WEXITSTATUS(ended.status) != 0 {
            let status = libc::WEXITSTATUS(ended.status);
            return Err(self.failure(&format!("failed with exit status {status}")));
        }
        let output = Output {
            stdout: read_lossy(&self.stdout),
            stderr: read_lossy(&self.stderr),
            cpu_s: ended.cpu_s,
        };
        Ok(output)
    }

    /// An error about this program, with the end of what it wrote.
    pub fn failure(&self, what: &str) -> BenchError {
        let mut text = format!("{} {what}", self.name);
        for path in [&self.stderr, &self.stdout] {
            let said = read_lossy(path);
            if !said.trim().is_empty() {
                text.push_str("; it said:\n");
                text.push_str(tail(said.trim_end(), OUTPUT_SHOWN_BYTES));
                break;
            }
        }
        BenchError::Failed(text)
    }

    /// Ends it and its group: asks first, then insists.
    fn stop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        signals::signal_group(self.pid, libc::SIGTERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.poll_end(), Ok(false)) && Instant::now() < deadline {
            // After Ctrl-C every wait fails at once; then there is no time to ask politely.
            if signals::wait_readable(self.pidfd.as_raw_fd(), 100).is_err() {
                break;
            }
        }
        if self.ended.is_none() {
            signals::signal_group(self.pid, libc::SIGKILL);
            let killed_by = Instant::now() + STOP_TIMEOUT;
            while matches!(self.poll_end(), Ok(false)) && Instant::now() < killed_by {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_file(&self.stdout);
        let _ = fs::remove_file(&self.stderr);
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

fn read_lossy(path: &Path) -> String {
    fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

fn tail(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
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
    fn tail_does_not_split_a_character() {
        assert_eq!(tail("abc", 2), "bc");
        assert_eq!(tail("aéé", 3), "é");
    }

    #[test]
    fn failing_program_is_reported_with_what_it_said() {
        let folder = tempdir();
        let argv = ["sh", "-c", "echo broken >&2; exit 3"].map(str::to_owned);
        let process = Process::start(&argv, &folder, false).expect("sh starts");
        let error = process
            .finish(Duration::from_secs(10))
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
            .wait_output("\n", Duration::from_secs(10))
            .expect("sh says its child's number");
        let child: i32 = said
            .trim()
            .trim_start_matches("child ")
            .parse()
            .expect("a number");
        drop(process);
        let deadline = Instant::now() + Duration::from_secs(10);
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
