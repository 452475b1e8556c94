//! What a test is: a name and a function that passes, fails with a text, or cannot run here.

pub use sluice_lab::verdict::{Problem, Verdict, check, ensure, fail, skip, skips_forbidden};

use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

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

/// Does it again until it does not fail, for what others do by and by; after the limit it fails as the last time.
pub fn eventually(limit: Duration, mut body: impl FnMut() -> Verdict) -> Verdict {
    let until = Instant::now() + limit;
    loop {
        match body() {
            Err(Problem::Failed(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// The same until it holds, some times: on a busy machine a program may have ended before there is a lane, or
/// before it hears that there will be none, as sluiced got no processor while it talked. What must hold each time is
/// an error outside.
pub fn until(mut holds: impl FnMut() -> Verdict<Verdict>) -> Verdict {
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        if holds()?.is_ok() {
            return Ok(());
        }
    }
    holds()?
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
