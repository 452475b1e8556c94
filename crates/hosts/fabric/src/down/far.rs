//! Whether the far daemon polls, and how long it takes to answer.

/// No grant to a daemon that takes longer to answer, nanoseconds.
const ANSWER_NS_MAX: u64 = 1_000_000;
/// A daemon that has answered polls for so long, nanoseconds, and a call that is not answered is
/// made again after so long.
pub(crate) const AWAKE_NS: u64 = 2_000_000;
const CALL_NS: u64 = 20_000_000;

/// What is known of the far daemon.
#[derive(Debug, Default)]
pub struct Far {
    /// When it was called last, and whether it has yet to answer.
    called_ns: Option<u64>,
    is_calling: bool,
    /// How long the last answer took.
    answer_ns: u64,
    awake_until_ns: u64,
}

impl Far {
    /// It calls, or answers, and polls for a while.
    pub fn is_heard(&mut self, now_ns: u64) {
        self.awake_until_ns = now_ns + AWAKE_NS / 2;
    }

    /// It is there.
    pub fn answered(&mut self, now_ns: u64) {
        if let (Some(called_ns), true) = (self.called_ns, self.is_calling) {
            self.answer_ns = now_ns.saturating_sub(called_ns);
            self.is_calling = false;
        }
        self.is_heard(now_ns);
    }

    /// How long it takes to answer, nanoseconds.
    pub fn answer_ns(&self) -> u64 {
        self.answer_ns
    }

    /// Whether it polls, and answers soon enough for a grant.
    pub fn polls(&self, now_ns: u64) -> bool {
        now_ns < self.awake_until_ns && self.answer_ns < ANSWER_NS_MAX
    }

    /// Whether it is to be called now, which it is from here on.
    pub fn call(&mut self, now_ns: u64) -> bool {
        let is_due = |at| now_ns.saturating_sub(at) > CALL_NS;
        let is_to_be = self.called_ns.is_none_or(is_due);
        if is_to_be {
            self.called_ns = Some(now_ns);
            self.is_calling = true;
        }
        is_to_be
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_polls_for_a_while_and_is_called_no_sooner_than_after_a_while() {
        let mut far = Far::default();
        assert!(!far.polls(0) && far.call(5) && !far.call(6) && !far.call(5 + CALL_NS));
        far.answered(105);
        assert_eq!(far.answer_ns(), 100);
        assert!(far.polls(106) && !far.polls(105 + AWAKE_NS));
        assert!(far.call(6 + CALL_NS));
        // What it says without having been called is no answer's time.
        far.answered(6 + CALL_NS + 50);
        far.answered(6 + 3 * CALL_NS);
        assert_eq!(far.answer_ns(), 50);
    }

    #[test]
    fn who_takes_too_long_gets_no_grant() {
        let mut far = Far::default();
        assert!(far.call(0));
        far.answered(ANSWER_NS_MAX);
        assert!(!far.polls(ANSWER_NS_MAX + 1));
    }
}
