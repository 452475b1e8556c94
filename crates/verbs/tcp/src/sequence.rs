//! Sequence numbers, 32 bits on the wire and 64 inside.
//!
//! Inside, a *position* counts from the SYN, which is 0; the byte at offset `k` of the stream is
//! at `k + 1`, and the FIN behind the last. Positions never wrap, so every comparison is an
//! ordinary one, and only this module knows of arithmetic modulo 2³² (RFC 9293 §3.4).

/// One direction's numbers, by the number of its SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub u32);

impl Numbers {
    /// What stands on the wire for a position.
    pub const fn wire(self, position: u64) -> u32 {
        self.0.wrapping_add(position as u32)
    }

    /// The position that a number means, the one nearest to `near`. None if it lies before the SYN.
    pub const fn position(self, number: u32, near: u64) -> Option<u64> {
        let distance = number.wrapping_sub(self.wire(near)).cast_signed();
        near.checked_add_signed(distance as i64)
    }
}

/// The first sequence number of a connection (RFC 9293 §3.4.1, RFC 6528 §3): a clock that ticks
/// every 4 µs, and on top of it a keyed hash over both addresses and ports, which nobody outside
/// can compute. The hash is the caller's: SipHash or better, its key from the system's randomness.
pub const fn initial(hash: u32, now: crate::Instant) -> u32 {
    hash.wrapping_add((now.0 / 4_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_where_numbers_wrap() {
        let numbers = Numbers(u32::MAX - 2);
        for near in [0_u64, 3, 1 << 31, 1 << 32, (7 << 32) + 5] {
            for distance in [-2_i64, 0, 1, 1 << 30, -(1 << 30)] {
                let position = near.checked_add_signed(distance);
                let number = numbers.wire(near).wrapping_add(distance as u32);
                assert_eq!(numbers.position(number, near), position);
            }
        }
    }

    #[test]
    fn the_clock_of_first_numbers_ticks_every_four_microseconds() {
        assert_eq!(initial(u32::MAX, crate::Instant(4_000)), 0);
        assert_eq!(initial(5, crate::Instant(7_999)), 6);
    }
}
