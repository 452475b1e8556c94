//! Lines in a log that strangers can cause.

use std::time::{Duration, Instant};

/// From one line to the next.
const INTERVAL: Duration = Duration::from_secs(60);

/// Lets one line a minute through.
#[derive(Debug, Default)]
pub struct Seldom {
    last: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Some: a line is due now, and how many were left out since the last one.
    pub fn is_due(&mut self, now: Instant) -> Option<u64> {
        let is_soon = |last| now.saturating_duration_since(last) < INTERVAL;
        if self.last.is_some_and(is_soon) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_says_how_many_others_there_were() {
        let mut seldom = Seldom::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = [0, 1, 59, 60, 61, 200].map(|seconds| seldom.is_due(at(seconds)));
        assert_eq!(due, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
