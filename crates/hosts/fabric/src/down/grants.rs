//! The grants of a ring to the far program: whether they were used, how long they stay, and when the next one may be.

/// A grant that nothing came by for so long is taken back, nanoseconds: its reader polls for
/// nothing; or, if it polls for other lanes, the connection is idle.
const IDLE_NS: u64 = 1_000_000;
const IDLE_AMONG_BUSY_NS: u64 = 100_000_000;
/// The same for a grant that was never used, beside some times what the daemons take to answer one
/// another. Until it is used or relinquished, what comes by TCP cannot be read, because ring bytes that
/// come before it may be on their way.
const UNUSED_NS: u64 = 100_000;
const UNUSED_ANSWERS: u64 = 4;
/// Time between a grant that was used and the next, nanoseconds.
const AGAIN_NS: u64 = 50_000;
/// Time that a reader who wants to sleep polls on behind the last bytes, nanoseconds: some times
/// what a message and its answer take.
const GRACE_NS: u64 = 200_000;
/// Time between a grant that was not used and the next, nanoseconds; it doubles up to the maximum.
const RETRY_NS: u64 = 1_000_000;
const RETRY_NS_MAX: u64 = 1_000_000_000;

/// Whether the last bytes came so long ago that no answer to them is about to come.
pub fn is_quiet(now_ns: u64, busy_ns: u64) -> bool {
    now_ns.saturating_sub(busy_ns) > GRACE_NS
}

/// The grants of one direction, of which at most one stands.
#[derive(Debug)]
pub struct Grants {
    /// When the last one was made or bytes came last.
    busy_ns: u64,
    is_used: bool,
    /// The far program has left the ring since the grant.
    has_left: bool,
    /// There was one, ever.
    was_one: bool,
    retry_at_ns: u64,
    retry_ns: u64,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            busy_ns: 0,
            is_used: false,
            has_left: false,
            was_one: false,
            retry_at_ns: 0,
            retry_ns: RETRY_NS,
        }
    }
}

impl Grants {
    /// Whether there was one, ever.
    pub fn was_one(&self) -> bool {
        self.was_one
    }

    /// When the last one was made or bytes came last, nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Whether bytes came by the last one.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    pub fn may_be_made(&self, now_ns: u64) -> bool {
        now_ns >= self.retry_at_ns
    }

    pub fn made(&mut self, now_ns: u64) {
        self.was_one = true;
        self.busy_ns = now_ns;
        self.is_used = false;
        self.has_left = false;
    }

    /// Bytes came by it.
    pub fn carried(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
        self.is_used = true;
    }

    /// The far program writes to the ring from here on.
    pub fn entered(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
        self.has_left = false;
    }

    /// The far program writes to the ring no more. What follows by TCP can be read only when the grant is over.
    pub fn left(&mut self) {
        self.has_left = true;
    }

    /// Whether no bytes came for a while, neither here nor, last at `waiter_busy_ns`, for whoever waits for this lane
    /// and others.
    pub fn is_quiet(&self, now_ns: u64, waiter_busy_ns: u64) -> bool {
        is_quiet(now_ns, self.busy_ns.max(waiter_busy_ns))
    }

    /// Whether the one that stands is of no more use. `answer_ns`: what the far daemon takes to answer.
    pub fn is_over(&self, now_ns: u64, is_quiet: bool, answer_ns: u64) -> bool {
        let limit_ns = match (self.is_used, is_quiet) {
            (_, false) => IDLE_AMONG_BUSY_NS,
            (false, true) => UNUSED_NS + UNUSED_ANSWERS * answer_ns,
            (true, true) => IDLE_NS,
        };
        self.has_left || now_ns.saturating_sub(self.busy_ns) > limit_ns
    }

    /// The one that was taken back is relinquished; says whether it was used. One that is not makes the next one later,
    /// unless that is what somebody `is_eager` for.
    pub fn relinquished(&mut self, now_ns: u64, is_eager: bool) -> bool {
        if self.is_used {
            self.retry_ns = RETRY_NS;
            self.retry_at_ns = self.retry_at_ns.max(now_ns + AGAIN_NS);
        } else {
            self.retry_at_ns = now_ns + self.retry_ns;
            if !is_eager {
                self.retry_ns = (2 * self.retry_ns).min(RETRY_NS_MAX);
            }
        }
        self.is_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_that_nobody_uses_become_rare_until_one_is_used() {
        let mut grants = Grants::default();
        let mut now_ns = 0;
        let mut gap_ns = RETRY_NS;
        for _ in 0..20 {
            grants.made(now_ns);
            assert!(!grants.relinquished(now_ns, false));
            assert!(
                !grants.may_be_made(now_ns + gap_ns - 1) && grants.may_be_made(now_ns + gap_ns)
            );
            now_ns += gap_ns;
            gap_ns = (2 * gap_ns).min(RETRY_NS_MAX);
        }
        assert_eq!(gap_ns, RETRY_NS_MAX);
        grants.made(now_ns);
        grants.carried(now_ns);
        assert!(grants.relinquished(now_ns, false) && grants.may_be_made(now_ns + AGAIN_NS));
        grants.made(now_ns);
        assert!(!grants.relinquished(now_ns, false) && grants.may_be_made(now_ns + RETRY_NS));
    }

    #[test]
    fn a_grant_stays_while_bytes_come_and_the_far_program_is_in_the_ring() {
        let mut grants = Grants::default();
        grants.made(0);
        // Not used: some times an answer; used: longer; beside others that are busy: longest.
        assert!(!grants.is_over(UNUSED_NS + 4_000, true, 1_000));
        assert!(grants.is_over(UNUSED_NS + 4_001, true, 1_000));
        grants.carried(0);
        assert!(!grants.is_over(IDLE_NS, true, 1_000) && grants.is_over(IDLE_NS + 1, true, 1_000));
        assert!(!grants.is_over(IDLE_AMONG_BUSY_NS, false, 1_000));
        grants.left();
        assert!(grants.is_over(0, false, 1_000));
        grants.entered(1);
        assert!(!grants.is_over(1, false, 1_000));
        assert!(grants.is_quiet(GRACE_NS + 2, 0) && !grants.is_quiet(GRACE_NS + 2, 2));
    }
}
