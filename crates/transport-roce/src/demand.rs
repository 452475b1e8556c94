//! Whether so many packets come that they are to be steered past the kernel's stack.
//!
//! A program in the kernel's generic code sees every packet of the interface, and the kernel makes
//! each one piece for it: TCP's large ones are copied, which halves what TCP carries between two
//! namespaces (docs/decisions/0027). So it is attached only while there is something for it. Without it
//! packets for us come by UDP sockets.

/// So many packets in so long a time are worth it.
const BURST: u64 = 64;
const WINDOW_NS: u64 = 10_000_000;
/// It is detached so long after the last such burst, nanoseconds.
const QUIET_NS: u64 = 200_000_000;
/// The same after somebody has said that packets are to be expected: programs tell one another more
/// before they send.
const EXPECTED_NS: u64 = 2_000_000_000;

/// What is known of the packets that came.
#[derive(Debug, Default)]
pub struct Demand {
    since_ns: u64,
    packets: u64,
    until_ns: u64,
}

impl Demand {
    /// Somebody is about to send.
    pub fn start(&mut self, now: u64) {
        self.until_ns = now + EXPECTED_NS;
    }

    /// `packets` have come, ever. Until when steering is wanted; a time that is over: it is not.
    pub fn look(&mut self, now: u64, packets: u64) -> u64 {
        if packets.wrapping_sub(self.packets) >= BURST {
            self.until_ns = self.until_ns.max(now + QUIET_NS);
            self.since_ns = now;
            self.packets = packets;
        } else if now.saturating_sub(self.since_ns) >= WINDOW_NS {
            self.since_ns = now;
            self.packets = packets;
        }
        self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_is_worth_it_for_a_while() {
        let mut demand = Demand::default();
        assert_eq!(demand.look(1000 * MS, 5), 0);
        assert_eq!(demand.look(1001 * MS, 69), 1201 * MS);
        assert_eq!(demand.look(1050 * MS, 100), 1201 * MS);
        assert_eq!(demand.look(1051 * MS, 164), 1251 * MS, "another one");
    }

    #[test]
    fn a_packet_now_and_then_is_not() {
        let mut demand = Demand::default();
        demand.start(MS);
        let until = (1..1000).map(|ms| demand.look(ms * MS, ms * 3));
        assert!(until.into_iter().all(|until| until == 2001 * MS));
    }
}
