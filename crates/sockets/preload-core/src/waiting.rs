//! A wait of the program for several descriptors, by `poll` or `epoll_wait`: how long it may last, and what it does
//! next.

use core::ffi::c_int;
use sluice_lane::spin::{Gaps, Spinner};
use sluice_waiting::kernel::{KernelLooks, Next};
use sluice_waiting::limits::LIMITS;

/// How long a wait may last, in whatever unit the program's call has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// For ever.
    Never,
    /// Nanoseconds.
    Ns(u64),
}

impl Timeout {
    /// From the milliseconds of `epoll_wait` and `poll`.
    pub fn from_ms(ms: c_int) -> Self {
        match u64::try_from(ms) {
            Ok(ms) => Self::Ns(ms * 1_000_000),
            Err(_) => Self::Never,
        }
    }

    /// The shorter one.
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ns(a), Self::Ns(b)) => Self::Ns(a.min(b)),
            (Self::Never, other) | (other, Self::Never) => other,
        }
    }

    /// What is left after `passed_ns`.
    pub fn after(self, passed_ns: u64) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Ns(ns) => Self::Ns(ns.saturating_sub(passed_ns)),
        }
    }

    /// In milliseconds, rounded up, -1 for ever.
    pub fn ms(self) -> c_int {
        match self {
            Self::Never => -1,
            Self::Ns(ns) => c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
        }
    }
}

/// One such wait, from the first look at rings that found nothing on.
pub(crate) struct Wait {
    timeout: Timeout,
    spinner: Option<Spinner>,
    looks: KernelLooks,
}

impl Wait {
    /// The program's call has just begun.
    pub fn new(timeout: Timeout) -> Self {
        Self {
            timeout,
            spinner: None,
            looks: KernelLooks::default(),
        }
    }

    /// Whether a look has found nothing yet.
    pub fn has_begun(&self) -> bool {
        self.spinner.is_some()
    }

    /// Rings had something.
    pub fn found(&self, gaps: &Gaps) {
        if let Some(spinner) = &self.spinner {
            gaps.record(spinner.gap_ns());
        }
    }

    /// Rings had nothing: what comes next, for which so much is left of the program's time. A moment has passed, if it
    /// polls. `lanes`: there are rings. `hot`: somebody is about to publish. `gaps` are the waiter's.
    pub fn next(&mut self, gaps: &Gaps, lanes: bool, hot: bool) -> (Next, Timeout, &Spinner) {
        let spinner = self
            .spinner
            .get_or_insert_with(|| Spinner::start(if lanes { gaps.budget_ns() } else { 0 }));
        let left = self.timeout.after(spinner.waited_ns());
        let is_over = left == Timeout::Ns(0);
        let polls = !is_over && spinner.step() && lanes;
        let next = self
            .looks
            .next(&LIMITS, (polls, spinner.now_ns()), is_over, hot);
        (next, left, spinner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a wait does until it does not go on at once.
    fn last(wait: &mut Wait, gaps: &Gaps, lanes: bool, hot: bool) -> Next {
        loop {
            match wait.next(gaps, lanes, hot) {
                (Next::Rings | Next::Kernel, ..) => {}
                (next, ..) => return next,
            }
        }
    }

    #[test]
    fn it_polls_then_sleeps_and_ends_with_the_programs_time() {
        let gaps = Gaps::new();
        let mut wait = Wait::new(Timeout::Never);
        assert!(!wait.has_begun());
        assert_eq!(last(&mut wait, &gaps, true, false), Next::Sleep);
        assert_eq!(last(&mut wait, &gaps, true, true), Next::Awake);
        assert!(wait.has_begun());
        let mut short = Wait::new(Timeout::Ns(1));
        // Whether it polls before depends on what else the machine does.
        while last(&mut short, &gaps, true, true) != Next::Last {}
        let mut none = Wait::new(Timeout::Ns(0));
        assert_eq!(none.next(&gaps, true, true).0, Next::Last);
    }

    #[test]
    fn without_rings_it_sleeps_at_once() {
        let gaps = Gaps::new();
        let mut wait = Wait::new(Timeout::Never);
        assert_eq!(wait.next(&gaps, false, false).0, Next::Sleep);
    }

    #[test]
    fn a_wait_counts_once_however_often_it_looks() {
        // Where waits are long, the next few do not poll: each of them is one, and its looks are none.
        let gaps = Gaps::new();
        for _ in 0..8 {
            gaps.record(u64::MAX);
        }
        let mut try_it = Wait::new(Timeout::Never);
        last(&mut try_it, &gaps, true, false);
        for waits in 0..4 {
            assert!(!gaps.may_poll(), "{waits}");
            let mut wait = Wait::new(Timeout::Never);
            assert_eq!(wait.next(&gaps, true, false).0, Next::Sleep);
        }
        assert!(gaps.may_poll());
    }
}
