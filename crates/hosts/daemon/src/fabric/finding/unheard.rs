//! Addresses that the option keeps from being reached: something on the way drops SYNs with options
//! that it does not know, and each connection is a second late.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// So many SYNs to one address that had to be repeated, each within [`MEMORY`] of the one before,
/// are none that were lost by chance. Where they were, every host is asked, and nothing else is lost.
const UNHEARD_MAX: u32 = 3;
const MEMORY: Duration = Duration::from_secs(60);
/// Addresses of which it is known how many there were.
const COUNTED_MAX: usize = 1024;
/// How long an address is left alone.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(600);
/// With more of them at a time the option does harm here.
const LEFT_ALONE_MAX: usize = 256;

/// A bounded table.
#[derive(Debug, Default)]
pub struct Unheard {
    counts: HashMap<IpAddr, (u32, Instant)>,
    /// And until when.
    left_alone: HashMap<IpAddr, Instant>,
}

impl Unheard {
    /// A SYN to this address was not heard with the option. Whether the address is left alone from
    /// now on; an error: there are too many of them.
    pub fn note(&mut self, address: IpAddr, now: Instant) -> Result<bool, String> {
        if self.left_alone.contains_key(&address) {
            return Ok(false);
        }
        let is_fresh = |at: Instant| now.saturating_duration_since(at) <= MEMORY;
        if self.counts.len() >= COUNTED_MAX && !self.counts.contains_key(&address) {
            self.counts.retain(|_, (_, last)| is_fresh(*last));
            if self.counts.len() >= COUNTED_MAX {
                return Err(TOO_MANY.to_owned());
            }
        }
        let (count, last) = self.counts.entry(address).or_insert((0, now));
        *count = if is_fresh(*last) { *count + 1 } else { 1 };
        *last = now;
        if *count < UNHEARD_MAX {
            return Ok(false);
        }
        if self.left_alone.len() >= LEFT_ALONE_MAX {
            return Err(TOO_MANY.to_owned());
        }
        self.counts.remove(&address);
        self.left_alone.insert(address, now + LEFT_ALONE_FOR);
        Ok(true)
    }

    /// Forgets whose time is over. Whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.left_alone.len();
        self.left_alone.retain(|_, until| *until > now);
        self.left_alone.len() != before
    }

    /// When [`Unheard::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.left_alone.values().min().copied()
    }

    /// All of them.
    pub fn left_alone(&self) -> impl Iterator<Item = IpAddr> {
        self.left_alone.keys().copied()
    }
}

const TOO_MANY: &str =
    "it makes handshakes with too many hosts late; something on the way drops it";

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    #[test]
    fn three_in_a_minute_are_left_alone_for_ten() {
        let mut unheard = Unheard::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // Chance.
        for seconds in [0, 100, 150, 300] {
            assert_eq!(unheard.note(address(1), at(seconds)), Ok(false));
        }
        assert_eq!(unheard.note(address(2), at(301)), Ok(false));
        assert_eq!(unheard.note(address(1), at(310)), Ok(false));
        assert_eq!(unheard.next_deadline(), None);
        assert_eq!(unheard.note(address(1), at(320)), Ok(true));
        assert_eq!(unheard.note(address(1), at(320)), Ok(false), "is already");
        assert_eq!(unheard.left_alone().collect::<Vec<_>>(), [address(1)]);
        assert_eq!(unheard.next_deadline(), Some(at(920)));
        assert!(!unheard.expire(at(919)));
        assert!(unheard.expire(at(920)));
        assert_eq!(unheard.left_alone().count(), 0);
        assert_eq!(
            unheard.note(address(1), at(920)),
            Ok(false),
            "from the start"
        );
    }

    #[test]
    fn too_many_are_an_error() {
        let mut unheard = Unheard::default();
        let now = Instant::now();
        let most = LEFT_ALONE_MAX as u32;
        for number in 0..=most {
            assert_eq!(unheard.note(address(number), now), Ok(false));
            assert_eq!(unheard.note(address(number), now), Ok(false));
            let third = unheard.note(address(number), now);
            assert_eq!(third.is_err(), number == most, "{number}: {third:?}");
        }
        let mut unheard = Unheard::default();
        for number in 0..COUNTED_MAX as u32 {
            assert_eq!(unheard.note(address(number), now), Ok(false));
        }
        assert!(unheard.note(address(u32::MAX >> 8), now).is_err());
        let later = now + 2 * MEMORY;
        assert_eq!(unheard.note(address(u32::MAX >> 8), later), Ok(false));
    }
}
