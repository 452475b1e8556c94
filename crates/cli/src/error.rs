//! What went wrong, for a person: what happened, and what to do about it.

use std::fmt;

/// The exit status of `sluice` when `sluice` itself failed, as env(1) has it: 125 cannot be
/// confused with what the program that `sluice run` runs is likely to return.
pub const EXIT_OWN_FAILURE: u8 = 125;
/// The exit status when the program was found but could not be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The exit status when the program was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// What a command ends with: an exit status, or a failure to report.
pub type Outcome = Result<u8, Failure>;

/// An error that ends a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub what: String,
    pub hint: String,
    /// The exit status that it ends with.
    pub status: u8,
}

impl Failure {
    /// A failure with exit status 1. `what` says what happened, `hint` what to do; neither
    /// ends with a full stop.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: hint.into(),
            status: 1,
        }
    }

    /// The same failure with a word on why it may be so.
    #[must_use]
    pub fn because(mut self, why: &str) -> Self {
        self.what = format!("{}: {why}", self.what);
        self
    }

    /// The same failure with another exit status.
    #[must_use]
    pub fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// A text with Rust's "(os error N)" left out, wherever it is.
pub fn without_numbers(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut rest = text;
    let mut shown = String::new();
    while let Some(at) = rest.find(MARK) {
        shown.push_str(&rest[..at]);
        let behind = &rest[at + MARK.len()..];
        rest = behind.find(')').map_or("", |end| &behind[end + 1..]);
    }
    shown + rest
}

/// The kernel's words for an error, without Rust's "(os error N)".
pub fn reason(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => without_numbers(&std::io::Error::from_raw_os_error(code).to_string()),
        None => error.to_string(),
    }
}

/// What to do about a program of ours that cannot be started, without a full stop.
pub fn start_hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => "raise the limit of processes ('ulimit -u', pids.max of the cgroup)",
        Some(libc::EMFILE) => "raise the limit of open files ('ulimit -n')",
        Some(libc::ENFILE) => "raise the machine's limit of open files (fs.file-max)",
        Some(libc::ENOMEM) => "give it more memory",
        Some(libc::ENOENT) => "check that /proc is mounted, and install Sluice again",
        _ => "check its permissions, or set SLUICE_LIBDIR to the folder of a working one",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_and_what_to_do() {
        let failure = Failure::new("no daemon runs", "start one with 'sluice up'");
        assert_eq!(
            failure.to_string(),
            "no daemon runs; start one with 'sluice up'"
        );
        assert_eq!(failure.status, 1);
        assert_eq!(failure.with_status(125).status, 125);
    }

    #[test]
    fn what_to_do_about_a_start_depends_on_the_error() {
        let hint = |code| start_hint(&std::io::Error::from_raw_os_error(code));
        assert!(hint(libc::EAGAIN).contains("pids.max"));
        assert!(hint(libc::EMFILE).contains("ulimit -n"));
        assert!(hint(libc::EACCES).contains("permissions"));
    }

    #[test]
    fn system_errors_lose_their_number() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(reason(&error), "No such file or directory");
        assert_eq!(reason(&std::io::Error::other("odd")), "odd");
        assert_eq!(
            without_numbers("a: no (os error 2); b (os error 17)"),
            "a: no; b"
        );
    }
}
