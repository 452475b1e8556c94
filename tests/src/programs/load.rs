//! What wrk and ab say of an HTTP server.

use crate::job::Outcome;
use crate::suite::{Verdict, ensure};

/// wrk had answers, all of them good ones, and no connection had an error.
pub fn check_wrk(outcome: &Outcome) -> Verdict {
    let said = outcome.text();
    let is_clean = !said.contains("Non-2xx") && !said.contains("Socket errors");
    ensure(is_clean && said.contains("requests in"), || {
        outcome.describe()
    })
}

/// ab had a good answer to each of so many requests, of so many bytes.
pub fn check_ab(outcome: &Outcome, requests: usize, bytes: usize) -> Verdict {
    let said = outcome.text();
    let count = |name: &str| -> Option<usize> {
        let line = said.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let is_good = count("Complete requests:") == Some(requests)
        && count("Failed requests:") == Some(0)
        && count("HTML transferred:") == Some(requests * bytes);
    ensure(is_good, || outcome.describe())
}
