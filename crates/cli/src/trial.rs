//! Loads the library into a program that does nothing, and listens to what it says of itself.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sluice_sys::unix::wait_readable;

/// The variable that asks the library to write its version to this descriptor when it is loaded,
/// and what seccomp lets it do in a second line.
const PROBE_VARIABLE: &str = "SLUICE_PROBE_FD";
/// The variable that tells the library how many seccomp filters this program has tried.
pub const FILTERS_VARIABLE: &str = "SLUICE_SECCOMP_FILTERS";
/// A program that only prints its version must have ended by then, on a loaded machine too.
pub const CHILD_TIMEOUT: Duration = Duration::from_secs(20);
/// The first descriptor that is not standard input, output or error.
const FIRST_FREE: i32 = 3;
/// The library's two lines are no longer.
const ANSWER_BYTES_MAX: usize = 1024;

/// What came of loading the library.
#[derive(Debug, Default)]
pub struct Trial {
    /// Empty if the library was not loaded.
    pub version: String,
    /// `lanes`, or why there are none. Empty if it did not live to say so.
    pub standing: String,
    /// What the dynamic linker said.
    pub complaint: String,
    /// The signal that ended the program, if one did.
    pub signal: Option<i32>,
}

/// How many seccomp filters this process has, as the kernel counts them; 0 if it does not say.
pub fn own_filters() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status_field(&status, "Seccomp_filters")
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The value of a field of /proc/self/status.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Starts `sluice --version` with the library, as `sluice run` starts programs: whatever filters
/// this process has, the library tries them. Waits at most twice [`CHILD_TIMEOUT`].
pub fn load(library: &Path, filters: u32) -> io::Result<Trial> {
    let (reader, writer) = rustix::pipe::pipe()?;
    // Beyond the numbers that the child's own standard descriptors get: one of them may be closed here.
    let [reader, writer] =
        [reader, writer].map(|end| rustix::io::fcntl_dupfd_cloexec(end, FIRST_FREE));
    let (reader, writer) = (reader?, writer?);
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty())?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--version")
        .env("LD_PRELOAD", library)
        .env(PROBE_VARIABLE, writer.as_raw_fd().to_string())
        .env(FILTERS_VARIABLE, filters.to_string())
        .env_remove("SLUICE_LOG")
        .env_remove("SLUICE_STATS_FILE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The child's is the last writer: the pipe ends with the child, or with what it says.
    drop(writer);
    let answer = read_to_end(reader)?;
    let mut complaint = String::new();
    let deadline = Instant::now() + CHILD_TIMEOUT;
    let status = wait(&mut child, deadline)?;
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut complaint)?;
    }
    let mut lines = answer.lines().map(str::to_owned);
    Ok(Trial {
        version: lines.next().unwrap_or_default(),
        standing: lines.next().unwrap_or_default(),
        complaint,
        signal: status.and_then(|status| status.signal()),
    })
}

fn read_to_end(reader: OwnedFd) -> io::Result<String> {
    let timeout_ms = i32::try_from(CHILD_TIMEOUT.as_millis()).unwrap_or(i32::MAX);
    let mut file = std::fs::File::from(reader);
    let mut bytes = Vec::new();
    let mut block = [0; 256];
    // A program that lives on without a word is not waited for.
    while bytes.len() < ANSWER_BYTES_MAX && wait_readable(file.as_raw_fd(), timeout_ms)? {
        match file.read(&mut block)? {
            0 => break,
            more => bytes.extend_from_slice(&block[..more]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `None` where the caller of this program ignores SIGCHLD, so that the kernel tells nothing.
fn wait(child: &mut std::process::Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) => return Err(error),
            Ok(None) if Instant::now() >= deadline => {
                child.kill()?;
                return Ok(Some(child.wait()?));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Trial {
    /// Whether the library found that programs can have lanes.
    pub fn allows_lanes(&self) -> bool {
        self.standing == "lanes"
    }

    /// Why not, in words; of use only if not.
    pub fn obstacle(&self) -> String {
        match (self.standing.strip_prefix("no lanes: "), self.signal) {
            (Some(reason), _) => reason.to_owned(),
            (None, Some(libc::SIGSYS)) => {
                "a seccomp filter kills programs for a call that lanes need".to_owned()
            }
            (None, Some(signal)) => {
                format!("a program with the library is ended by signal {signal}")
            }
            (None, None) => "the library did not say what seccomp lets it do".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_matched_whole() {
        let status = "Seccomp_filters:\t3\nSeccomp:\t2\n";
        assert_eq!(status_field(status, "Seccomp"), Some("2"));
        assert_eq!(status_field(status, "Sec"), None);
    }

    #[test]
    fn a_program_that_was_killed_has_a_reason() {
        let killed = Trial {
            version: "1".to_owned(),
            signal: Some(libc::SIGSYS),
            ..Trial::default()
        };
        assert!(!killed.allows_lanes());
        assert!(killed.obstacle().contains("seccomp filter kills"));
        let refused = Trial {
            standing: "no lanes: a seccomp filter refuses connect".to_owned(),
            ..Trial::default()
        };
        assert_eq!(refused.obstacle(), "a seccomp filter refuses connect");
    }
}
