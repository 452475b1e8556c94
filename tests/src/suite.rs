//! What a test is: a name and a function that passes, fails with a text, or cannot run here.

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

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

/// Makes a test for the runner. A skip prints `SKIP <name>: <reason>`, which
/// `scripts/test` counts, and passes unless skips are forbidden.
pub fn trial(name: impl Into<String>, body: impl FnOnce() -> Verdict + Send + 'static) -> Trial {
    let name = name.into();
    let label = name.clone();
    Trial::test(name, move || match body() {
        Ok(()) => Ok(()),
        Err(Problem::Failed(text)) => Err(Failed::from(text)),
        Err(Problem::Skipped(reason)) if skips_forbidden() => {
            Err(Failed::from(format!("skips are forbidden here: {reason}")))
        }
        Err(Problem::Skipped(reason)) => {
            println!("\nSKIP {label}: {reason}");
            Ok(())
        }
    })
}

/// Runs the body of a `#[test]` function. A skip is printed as by [`trial`], and passes unless
/// skips are forbidden.
///
/// # Panics
/// When the test fails.
pub fn check(name: &str, body: impl FnOnce() -> Verdict) {
    match body() {
        Ok(()) => {}
        Err(Problem::Failed(text)) => panic!("{text}"),
        Err(Problem::Skipped(reason)) => {
            assert!(!skips_forbidden(), "skips are forbidden here: {reason}");
            println!("SKIP {name}: {reason}");
        }
    }
}

/// The rows that every run of the tests has. With `SLUICE_ROWS=all`, or when some are asked for by
/// name, all there are.
pub fn usual(mut trials: Vec<Trial>, is_usual: impl Fn(&str) -> bool) -> Vec<Trial> {
    let all = std::env::var_os("SLUICE_ROWS").is_some_and(|rows| rows == "all");
    if !all && Arguments::from_args().filter.is_none() {
        trials.retain(|trial| is_usual(trial.name()));
    }
    trials
}

/// Runs the tests as `cargo test` would; `threads` bounds how many run at once,
/// unless the command line says otherwise.
pub fn run(trials: Vec<Trial>, threads: usize) -> Conclusion {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(threads);
    }
    libtest_mimic::run(&arguments, trials)
}
