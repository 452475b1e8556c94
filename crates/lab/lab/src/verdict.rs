//! How something in the laboratory comes out: it passes, fails with a text, or cannot be done here.

use std::fmt;

/// Why a test did not pass.
#[derive(Debug)]
pub enum Problem {
    /// Something behaved wrongly; the text says what differed.
    Failed(String),
    /// The test cannot run on this machine; the text says what is missing.
    Skipped(String),
}

pub type Verdict<T = ()> = Result<T, Problem>;

impl Problem {
    /// Says more of a failure: what else was to be seen then.
    #[must_use]
    pub fn with(self, more: impl FnOnce() -> String) -> Problem {
        match self {
            Problem::Failed(text) => Problem::Failed(format!("{text}\n{}", more())),
            skipped @ Problem::Skipped(_) => skipped,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Failed(text) | Problem::Skipped(text) => f.write_str(text),
        }
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Problem::Failed(format!("the test itself could not go on: {error}"))
    }
}

pub fn fail<T>(text: impl Into<String>) -> Verdict<T> {
    Err(Problem::Failed(text.into()))
}

pub fn skip<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Problem::Skipped(reason.into()))
}

/// Fails with the text unless the condition holds.
pub fn ensure(condition: bool, text: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { fail(text()) }
}

/// True when a skip must count as a failure (`SLUICE_NO_SKIP=1`).
pub fn skips_forbidden() -> bool {
    std::env::var_os("SLUICE_NO_SKIP").is_some_and(|value| value == "1")
}

/// Runs the body of a `#[test]` function. A skip is printed as by [`made`], and passes unless skips
/// are forbidden.
///
/// # Panics
/// When the test fails.
pub fn check(name: &str, body: impl FnOnce() -> Verdict) {
    made(name, body());
}

/// What a `#[test]` function needs. None, with a line `SKIP name: reason` for `scripts/test`, where
/// it cannot be had.
///
/// # Panics
/// It could not be made, or skips are forbidden.
pub fn made<T>(test: &str, verdict: Verdict<T>) -> Option<T> {
    match verdict {
        Ok(made) => Some(made),
        Err(Problem::Failed(text)) => panic!("{text}"),
        Err(Problem::Skipped(reason)) => {
            assert!(!skips_forbidden(), "SKIP {test}: {reason}");
            println!("SKIP {test}: {reason}");
            None
        }
    }
}
