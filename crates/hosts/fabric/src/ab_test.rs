//! Whether rings pay for a reader, by an A/B test: what it takes by TCP alone while the daemon
//! sleeps, and then what it takes with rings.
//!
//! A reader is whoever waits for bytes: an epoll instance with all lanes that it watches, or a program
//! that reads one lane. What its lanes move is counted together: which of them is served more often
//! than others changes from one moment to the next.

/// What is compared is measured for so long at least, nanoseconds; rings are judged after each such
/// time.
const MEASURED_NS: u64 = 5_000_000;
/// With rings it must be no less than this part of what it is without.
const WORTH: f64 = 0.9;
/// What moved by TCP alone is measured again after such a time of rings, nanoseconds, at first and at
/// most: programs change what they do.
const CONFIRMED_NS: u64 = 200_000_000;
const CONFIRMED_NS_MAX: u64 = 60_000_000_000;
/// With rings it is so many times as much that nothing has to be confirmed soon.
const CLEAR: f64 = 1.5;
/// How long a measurement is of any use while no ring is, nanoseconds.
const FRESH_NS: u64 = 100_000_000;
/// Time between rings that moved less and the next, nanoseconds, at first and at most.
const WORSE_NS: u64 = 400_000_000;
const WORSE_NS_MAX: u64 = 60_000_000_000;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Not what moves by TCP alone.
    Unknown,
    /// That is measured, from then on.
    Alone(Sample),
    /// Bytes per nanosecond are known, as of then. Rings may be used.
    Open { alone: f64, at_ns: u64 },
    /// They are used, are judged from that sample on, and confirmed at that time.
    Used {
        alone: f64,
        sample: Sample,
        confirm_ns: u64,
        is_worth_it: bool,
    },
    /// They moved less. Nothing is tried before then.
    Worse(u64),
}

/// When it was, and what had moved by then.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at_ns: u64,
    moved: u64,
}

/// What is known of one reader.
#[derive(Clone, Copy, Debug)]
pub struct AbTest {
    phase: Phase,
    /// Bytes that it has taken.
    moved: u64,
    worse_ns: u64,
    confirmed_ns: u64,
}

impl Default for AbTest {
    fn default() -> Self {
        Self {
            phase: Phase::Unknown,
            moved: 0,
            worse_ns: WORSE_NS,
            confirmed_ns: CONFIRMED_NS,
        }
    }
}

impl AbTest {
    /// The reader has taken so many bytes.
    pub fn count(&mut self, bytes: u64) {
        self.moved = self.moved.wrapping_add(bytes);
    }

    /// The daemon lets the reader be, and measures what that takes.
    pub fn begin_alone(&mut self, now_ns: u64) {
        if self.is_unknown(now_ns) {
            self.phase = Phase::Alone(self.sample(now_ns));
        }
    }

    /// The daemon has let the reader be since [`AbTest::begin_alone`].
    pub fn end_alone(&mut self, now_ns: u64) {
        if let Phase::Alone(sample) = self.phase {
            self.phase = match self.rate_since(sample, now_ns) {
                Some(alone) if alone > 0.0 => Phase::Open {
                    alone,
                    at_ns: now_ns,
                },
                _ => Phase::Unknown,
            };
        }
    }

    /// The daemon polls for others in any case, and so what is measured meanwhile is what moves beside
    /// that.
    pub fn measure_beside(&mut self, now_ns: u64) {
        self.begin_alone(now_ns);
        if let Phase::Alone(sample) = self.phase
            && self.rate_since(sample, now_ns).is_some()
        {
            self.end_alone(now_ns);
        }
    }

    /// The daemon did not let it be.
    pub fn disturb_alone(&mut self) {
        if let Phase::Alone(_) = self.phase {
            self.phase = Phase::Unknown;
        }
    }

    /// Whether what it takes by TCP alone has yet to be measured, before rings are tried.
    pub fn is_to_be_measured(&self, now_ns: u64) -> bool {
        self.is_unknown(now_ns) || matches!(self.phase, Phase::Alone(_))
    }

    /// Whether nothing is known, or not any more.
    fn is_unknown(&self, now_ns: u64) -> bool {
        match self.phase {
            Phase::Unknown => true,
            Phase::Open { at_ns, .. } => now_ns >= at_ns + FRESH_NS,
            Phase::Worse(until_ns) => now_ns >= until_ns,
            Phase::Alone(_) | Phase::Used { .. } => false,
        }
    }

    /// Whether rings may be granted, and may stay so.
    pub fn allow(&self, now_ns: u64) -> bool {
        match self.phase {
            Phase::Open { .. } => !self.is_unknown(now_ns),
            Phase::Used { .. } => true,
            _ => false,
        }
    }

    /// Whether rings are in use and were found to be worth their polling.
    pub fn are_worth_it(&self) -> bool {
        matches!(
            self.phase,
            Phase::Used {
                is_worth_it: true,
                ..
            }
        )
    }

    /// A ring is in use.
    pub fn judge(&mut self, now_ns: u64) {
        match self.phase {
            Phase::Open { alone, .. } => {
                self.phase = Phase::Used {
                    alone,
                    sample: self.sample(now_ns),
                    confirm_ns: now_ns + self.confirmed_ns,
                    is_worth_it: false,
                };
            }
            Phase::Used {
                alone,
                sample,
                confirm_ns,
                ..
            } => {
                let Some(rate) = self.rate_since(sample, now_ns) else {
                    return;
                };
                if now_ns >= sample.at_ns + FRESH_NS {
                    // Whoever used them last has ended.
                    self.phase = Phase::Unknown;
                } else if rate < WORTH * alone {
                    self.phase = Phase::Worse(now_ns + self.worse_ns);
                    self.worse_ns = (4 * self.worse_ns).min(WORSE_NS_MAX);
                } else if now_ns >= confirm_ns && rate < CLEAR * alone {
                    self.confirmed_ns = (4 * self.confirmed_ns).min(CONFIRMED_NS_MAX);
                    self.phase = Phase::Unknown;
                } else {
                    self.worse_ns = WORSE_NS;
                    self.phase = Phase::Used {
                        alone,
                        sample: self.sample(now_ns),
                        confirm_ns,
                        is_worth_it: true,
                    };
                }
            }
            _ => {}
        }
    }

    /// Nothing comes any more: what is measured over that says nothing.
    pub fn rest(&mut self, now_ns: u64) {
        if let Phase::Used { alone, .. } = self.phase {
            self.phase = Phase::Open {
                alone,
                at_ns: now_ns,
            };
        }
    }

    /// The far reader of the same connection lets go of its ring although bytes come here. If it
    /// measures, it can do so only when this one does.
    pub fn join(&mut self) {
        if let Phase::Used {
            is_worth_it: true, ..
        } = self.phase
        {
            self.phase = Phase::Unknown;
        }
    }

    fn sample(&self, at_ns: u64) -> Sample {
        Sample {
            at_ns,
            moved: self.moved,
        }
    }

    /// Bytes per nanosecond; `None`: it is too soon to say.
    fn rate_since(&self, sample: Sample, now_ns: u64) -> Option<f64> {
        let passed_ns = now_ns.saturating_sub(sample.at_ns);
        let bytes = self.moved.wrapping_sub(sample.moved);
        (passed_ns >= MEASURED_NS).then(|| bytes as f64 / passed_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A reader that takes so many bytes in a millisecond, for so many, and is judged in each.
    fn used(ab_test: &mut AbTest, from_ms: u64, ms: u64, bytes: u64) {
        for now in from_ms..from_ms + ms {
            ab_test.judge(now * MS);
            ab_test.count(bytes);
        }
        ab_test.judge((from_ms + ms) * MS);
    }

    /// The same by TCP alone.
    fn alone(ab_test: &mut AbTest, from_ms: u64, ms: u64, bytes: u64) {
        ab_test.begin_alone(from_ms * MS);
        ab_test.count(bytes * ms);
        ab_test.end_alone((from_ms + ms) * MS);
    }

    #[test]
    fn nothing_is_tried_before_it_was_measured() {
        let mut ab_test = AbTest::default();
        assert!(!ab_test.allow(MS) && ab_test.is_to_be_measured(MS));
        alone(&mut ab_test, 1, 4, 100);
        assert!(!ab_test.allow(5 * MS), "too short");
        alone(&mut ab_test, 5, 8, 0);
        assert!(!ab_test.allow(13 * MS), "nothing moved");
        alone(&mut ab_test, 13, 8, 100);
        assert!(ab_test.allow(21 * MS) && !ab_test.is_to_be_measured(21 * MS));
        assert!(!ab_test.allow(121 * MS) && ab_test.is_to_be_measured(121 * MS));
        ab_test.begin_alone(121 * MS);
        ab_test.disturb_alone();
        ab_test.count(1000);
        ab_test.end_alone(130 * MS);
        assert!(!ab_test.allow(130 * MS), "the daemon polled");
    }

    #[test]
    fn it_is_measured_beside_others() {
        let mut ab_test = AbTest::default();
        for now in 0..5 {
            ab_test.measure_beside(now * MS);
            assert!(!ab_test.allow(now * MS));
            ab_test.count(100);
        }
        ab_test.measure_beside(5 * MS);
        assert!(ab_test.allow(5 * MS));
        used(&mut ab_test, 5, 5, 80);
        assert!(!ab_test.allow(10 * MS), "worse than what was measured");
        ab_test.measure_beside(10 * MS);
        assert!(!ab_test.is_to_be_measured(409 * MS));
    }

    #[test]
    fn what_moves_less_is_tried_again_ever_later() {
        let mut ab_test = AbTest::default();
        let mut now = 0;
        for pause_ms in [400, 1_600, 6_400, 25_600, 60_000, 60_000] {
            alone(&mut ab_test, now, 8, 100);
            used(&mut ab_test, now + 8, 4, 80);
            assert!(ab_test.allow((now + 12) * MS), "too soon to say");
            used(&mut ab_test, now + 12, 1, 80);
            now += 13;
            for wait in [0, pause_ms - 1] {
                assert!(!ab_test.is_to_be_measured((now + wait) * MS));
                ab_test.begin_alone((now + wait) * MS);
                assert!(!ab_test.allow((now + wait) * MS));
            }
            now += pause_ms;
            assert!(ab_test.is_to_be_measured(now * MS));
        }
        alone(&mut ab_test, now, 8, 100);
        used(&mut ab_test, now + 8, 5, 95);
        assert!(ab_test.are_worth_it());
        used(&mut ab_test, now + 13, 5, 80);
        assert!(!ab_test.allow((now + 18) * MS));
        assert!(
            ab_test.is_to_be_measured((now + 418) * MS),
            "from the start"
        );
    }

    #[test]
    fn what_moves_about_as_much_is_confirmed_ever_later() {
        let mut ab_test = AbTest::default();
        let mut now = 0;
        for confirm_ms in [200, 800, 3_200] {
            alone(&mut ab_test, now, 10, 100);
            used(&mut ab_test, now + 10, confirm_ms - 5, 140);
            assert!(ab_test.are_worth_it());
            now += 10 + confirm_ms - 5;
            used(&mut ab_test, now, 10, 140);
            now += 10;
            assert!(!ab_test.allow(now * MS) && ab_test.is_to_be_measured(now * MS));
        }
        alone(&mut ab_test, now, 10, 100);
        used(&mut ab_test, now + 10, 100_000, 160);
        assert!(ab_test.are_worth_it(), "no doubt");
    }

    #[test]
    fn a_pause_is_not_judged() {
        let mut ab_test = AbTest::default();
        alone(&mut ab_test, 0, 8, 100);
        used(&mut ab_test, 8, 10, 100);
        ab_test.rest(18 * MS);
        assert!(ab_test.allow(100 * MS) && !ab_test.are_worth_it());
        used(&mut ab_test, 100, 10, 100);
        assert!(ab_test.are_worth_it());
        ab_test.rest(110 * MS);
        assert!(!ab_test.allow(211 * MS), "by then all may be different");
        alone(&mut ab_test, 211, 8, 100);
        used(&mut ab_test, 219, 10, 100);
        ab_test.judge(400 * MS);
        assert!(
            ab_test.is_to_be_measured(400 * MS),
            "nobody was there to say so"
        );
    }

    #[test]
    fn both_ends_of_a_connection_measure_at_the_same_time() {
        let mut ab_test = AbTest::default();
        alone(&mut ab_test, 0, 8, 100);
        ab_test.judge(8 * MS);
        ab_test.join();
        assert!(ab_test.allow(8 * MS), "it has only begun");
        used(&mut ab_test, 8, 10, 100);
        ab_test.join();
        assert!(ab_test.is_to_be_measured(18 * MS) && !ab_test.allow(18 * MS));
    }
}
