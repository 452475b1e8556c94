//! `enum ibv_rate` to numbers and back.

use std::ffi::c_int;

const RATE_MAX: c_int = 0;

/// The number of a rate, its multiple of 2.5 Gbit/s where it is one (as the header's functions
/// have it), and Mbit/s as signalled.
const RATES: &[(c_int, Option<c_int>, c_int)] = &[
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES
        .iter()
        .find(|known| known.0 == rate)
        .and_then(|known| known.1)
        .unwrap_or(-1)
}

pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES
        .iter()
        .find(|known| known.1 == Some(mult))
        .map_or(RATE_MAX, |known| known.0)
}

pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES
        .iter()
        .find(|known| known.0 == rate)
        .map_or(-1, |known| known.2)
}

pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES
        .iter()
        .find(|known| known.2 == mbps)
        .map_or(RATE_MAX, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(*rate)), *rate);
            assert_eq!(ibv_rate_to_mbps(*rate), *mbps);
            if mult.is_some() {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(*rate)), *rate);
            }
        }
        assert_eq!(ibv_rate_to_mult(RATE_MAX), -1);
        assert_eq!(mult_to_ibv_rate(3), RATE_MAX);
        assert_eq!(ibv_rate_to_mbps(99), -1);
    }
}
