//! One wait's polling.

use crate::limits::Limits;

/// How the next moment of a wait is passed. The driver does so, and says when it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It looks again at once.
    Look,
    /// The same, and looks at the clock: [`Polling::looked`].
    LookAtClock,
    /// It gives the processor to whoever wants it: [`Polling::yielded`].
    Yield,
    /// It polls no more: [`Polling::ended`].
    Over,
}

/// What a yield has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yielded {
    /// Nobody else wanted the processor.
    Alone,
    /// Somebody else ran.
    Switched,
    /// Somebody else waits for the processor who takes it for as long as his slice lasts: nobody of this
    /// process polls for a while.
    Starved,
}

/// How far a wait has come. All times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    start_ns: u64,
    now_ns: u64,
    budget_ns: u64,
    /// Processor time spent.
    spent_ns: u64,
    lost: u32,
    looks: u32,
}

impl Polling {
    /// A wait begins that may poll for `budget_ns`.
    pub const fn start(now_ns: u64, budget_ns: u64) -> Self {
        Self {
            start_ns: now_ns,
            now_ns,
            budget_ns,
            spent_ns: 0,
            lost: 0,
            looks: 0,
        }
    }

    /// Whether it may poll at all.
    pub const fn polls(&self) -> bool {
        self.budget_ns > 0
    }

    /// How long the wait has lasted, as of the last look at the clock.
    pub const fn waited_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.start_ns)
    }

    /// The time of the last look at the clock.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What the wait counts for in its waiter's [gaps](crate::gaps) if polling ended it: the processor time that it took.
    pub const fn gap_ns(&self) -> u64 {
        self.spent_ns
    }

    /// What it counts for if it took a sleep of `asleep_ns` besides. While others want the
    /// processor, a wait that polling did not end is as good as endless.
    pub const fn gap_with_sleep_ns(&self, asleep_ns: u64, is_oversubscribed: bool) -> u64 {
        if self.budget_ns > 0 && is_oversubscribed {
            u64::MAX
        } else {
            self.waited_ns().saturating_add(asleep_ns)
        }
    }

    /// Whether the polling is over.
    #[inline]
    pub const fn is_over(&self, limits: &Limits, is_oversubscribed: bool) -> bool {
        let budget_ns = if is_oversubscribed && limits.oversubscribed_ns < self.budget_ns {
            limits.oversubscribed_ns
        } else {
            self.budget_ns
        };
        self.spent_ns >= budget_ns || self.lost as u64 >= limits.lost_max
    }

    /// A look has found nothing. `is_oversubscribed`: others want the processor of late.
    #[inline]
    pub const fn next(&mut self, limits: &Limits, is_oversubscribed: bool) -> Pass {
        if self.is_over(limits, is_oversubscribed) {
            return Pass::Over;
        }
        if self.spent_ns >= limits.hard_ns || is_oversubscribed {
            return Pass::Yield;
        }
        self.looks = self.looks.wrapping_add(1);
        if (self.looks as u64).is_multiple_of(limits.looks_per_clock) {
            Pass::LookAtClock
        } else {
            Pass::Look
        }
    }

    /// Time has passed by looks.
    #[inline]
    pub const fn looked(&mut self, now_ns: u64) {
        self.spent_ns += now_ns.saturating_sub(self.now_ns);
        self.now_ns = now_ns;
    }

    /// The processor was given away, and is back.
    #[inline]
    pub const fn yielded(&mut self, limits: &Limits, now_ns: u64) -> Yielded {
        let away_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = now_ns;
        if away_ns < limits.yield_switch_ns {
            self.spent_ns += away_ns;
            return Yielded::Alone;
        }
        self.spent_ns += limits.switch_cost_ns;
        if away_ns >= limits.yield_starved_ns {
            self.lost = limits.lost_max as u32;
            return Yielded::Starved;
        }
        if away_ns >= limits.yield_lost_ns {
            self.lost += 1;
        }
        Yielded::Switched
    }

    /// It polls no more. A wait that may not sleep goes on looking, and must notice that its time is over.
    pub const fn ended(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }
}

/// Whether a moment of a wait that has its own end, `round` of them after its beginning, is passed by looking
/// hard. Else the processor is given away.
pub const fn looks_hard(limits: &Limits, round: u32, is_oversubscribed: bool) -> bool {
    (round as u64) < limits.pass_hard_rounds && !is_oversubscribed
}
