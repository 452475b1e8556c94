//! Whether so many packets come that they are to be steered past the kernel's stack.
//!
//! A program in the kernel's generic code sees every packet of the interface, and the kernel makes
//! each one piece for it: TCP's large ones are copied, which halves what TCP carries between two
//! namespaces (docs/decisions/0027). So it is attached only while there is something for it. Without it
//! packets for us come by UDP sockets.

/// So many packets in so long a time are worth it, if more follow for as long again.
const BURST: u64 = 64;
const WINDOW_NS: u64 = 10_000_000;
/// It is detached so long after the last such burst, milliseconds, if [`QUIET_VARIABLE`] does not say.
const QUIET_MS: u64 = 200;
const QUIET_MS_MAX: u64 = 60_000;
/// The environment's variable for it, in milliseconds, 10 to 60,000; another value counts as none.
/// sluiced, whose bursts are A/B tests as a rule, sets less.
pub const QUIET_VARIABLE: &str = "SLUICE_VERBS_STEER_MS";
/// So many times as long after somebody has said that packets are to be expected: programs tell one
/// another more before they send.
const EXPECTED: u64 = 10;

/// What is known of the packets that came.
#[derive(Debug)]
pub struct Demand {
    quiet_ns: u64,
    since_ns: u64,
    packets: u64,
    /// When the last burst was, and the first of those in a row.
    burst_ns: u64,
    began_ns: u64,
    until_ns: u64,
}

impl Demand {
    /// No packets so far; steering ends so long after a burst.
    pub fn new(quiet_ms: u64) -> Self {
        Self {
            quiet_ns: quiet_ms * 1_000_000,
            since_ns: 0,
            packets: 0,
            burst_ns: 0,
            began_ns: 0,
            until_ns: 0,
        }
    }

    /// As [`QUIET_VARIABLE`] says.
    pub fn from_environment() -> Self {
        let text = std::env::var_os(QUIET_VARIABLE);
        Self::new(text.map_or(QUIET_MS, |text| quiet_ms(&text.to_string_lossy())))
    }

    /// Somebody is about to send.
    pub fn start(&mut self, now: u64) {
        self.until_ns = now + EXPECTED * self.quiet_ns;
    }

    /// `packets` have come, ever. Until when steering is wanted; a time that is over: it is not.
    pub fn look(&mut self, now: u64, packets: u64) -> u64 {
        if packets.wrapping_sub(self.packets) >= BURST {
            if now.saturating_sub(self.burst_ns) >= 2 * WINDOW_NS {
                self.began_ns = now;
            }
            self.burst_ns = now;
            // One by itself is over before the program is attached.
            let goes_on = now.saturating_sub(self.began_ns) >= WINDOW_NS;
            if goes_on || now < self.until_ns {
                self.until_ns = self.until_ns.max(now + self.quiet_ns);
            }
            self.since_ns = now;
            self.packets = packets;
        } else if now.saturating_sub(self.since_ns) >= WINDOW_NS {
            self.since_ns = now;
            self.packets = packets;
        }
        self.until_ns
    }
}

fn quiet_ms(text: &str) -> u64 {
    let parsed = text.trim().parse().ok();
    let known = parsed.filter(|ms| (WINDOW_NS / 1_000_000..=QUIET_MS_MAX).contains(ms));
    known.unwrap_or(QUIET_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_is_worth_it_for_a_while() {
        let mut demand = Demand::new(QUIET_MS);
        assert_eq!(demand.look(1000 * MS, 5), 0);
        assert_eq!(demand.look(1001 * MS, 69), 0, "one");
        assert_eq!(demand.look(1005 * MS, 133), 0, "it goes on");
        assert_eq!(demand.look(1011 * MS, 197), 1211 * MS, "for as long again");
        assert_eq!(demand.look(1060 * MS, 200), 1211 * MS);
        assert_eq!(demand.look(1061 * MS, 264), 1261 * MS, "another one");
    }

    #[test]
    fn bursts_by_themselves_are_not() {
        let mut demand = Demand::new(QUIET_MS);
        for time in 1..100 {
            let packets = time * 500;
            assert_eq!(demand.look(time * 50 * MS, packets), 0);
            assert_eq!(demand.look((time * 50 + 9) * MS, packets + 100), 0);
        }
    }

    #[test]
    fn a_packet_now_and_then_is_not() {
        let mut demand = Demand::new(QUIET_MS);
        demand.start(MS);
        let until = (1..1000).map(|ms| demand.look(ms * MS, ms * 3));
        assert!(until.into_iter().all(|until| until == 2001 * MS));
    }

    #[test]
    fn what_is_no_time_counts_as_none() {
        for (text, expected) in [
            ("20", 20),
            (" 10 ", 10),
            ("60000", 60_000),
            ("9", 200),
            ("60001", 200),
            ("", 200),
            ("-1", 200),
            ("soon", 200),
        ] {
            assert_eq!(quiet_ms(text), expected, "{text:?}");
        }
    }
}
