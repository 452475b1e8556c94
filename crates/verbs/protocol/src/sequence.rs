//! Packet sequence numbers as counters that do not wrap.

use sluice_wire::Psn;

/// Packets whose numbers can be told apart (IBTA 9.7.5.1.1): half of the numbers there are. A
/// requester never has more than this in flight.
pub const IN_FLIGHT_MAX: u64 = 1 << 23;

/// One direction of a connection. Inside, packets are counted from 0 in 64 bits, which never
/// wrap; on the wire is that count plus the first number, modulo 2²⁴.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    first: Psn,
}

impl Sequence {
    /// `first` is the number of packet 0.
    pub const fn new(first: Psn) -> Self {
        Self { first }
    }

    /// What is on the wire for a packet.
    pub const fn psn(self, index: u64) -> Psn {
        // The low 32 bits decide, since 2²⁴ divides 2³².
        self.first.after(index as u32)
    }

    /// The packet that a number means, given that it is less than 2²³ after `near` or at most 2²³
    /// before it. None when that would be before packet 0.
    pub const fn index(self, psn: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(psn.distance(self.psn(near)) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HALF: i64 = IN_FLIGHT_MAX as i64;

    proptest! {
        /// Catches: a sign or off-by-one fault in the arithmetic (mutation: `HALF` allowed ahead).
        #[test]
        fn what_is_sent_is_understood(first: u32, near in 0..u64::MAX / 2, ahead in -HALF..HALF) {
            let sequence = Sequence::new(Psn::new(first));
            let packet = near.checked_add_signed(ahead);
            if let Some(packet) = packet {
                prop_assert_eq!(sequence.index(sequence.psn(packet), near), Some(packet));
            }
        }

        /// Whatever comes in is within half of the numbers of what was expected.
        #[test]
        fn no_number_is_far(first: u32, near: u64, psn: u32) {
            let sequence = Sequence::new(Psn::new(first));
            if let Some(index) = sequence.index(Psn::new(psn), near) {
                let distance = i128::from(index) - i128::from(near);
                prop_assert!((-i128::from(HALF)..i128::from(HALF)).contains(&distance));
                prop_assert_eq!(sequence.psn(index), Psn::new(psn));
            }
        }

        /// Each packet has the number after the one before it (IBTA 9.7.2).
        #[test]
        fn numbers_count_up(first: u32, index in 0..u64::MAX) {
            let sequence = Sequence::new(Psn::new(first));
            prop_assert_eq!(sequence.psn(index + 1).distance(sequence.psn(index)), 1);
        }
    }

    #[test]
    fn nothing_is_before_the_first() {
        let sequence = Sequence::new(Psn::new(5));
        assert_eq!(sequence.index(Psn::new(5), 0), Some(0));
        assert_eq!(sequence.index(Psn::new(4), 0), None);
        assert_eq!(sequence.index(Psn::new(4), 1 << 24), Some((1 << 24) - 1));
    }
}
