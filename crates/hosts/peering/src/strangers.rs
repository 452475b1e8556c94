//! Accepted connections that have not proven anything yet, and how many of them there may be.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use crate::limits::{
    FAILING_ADDRESSES_MAX, FAILURE_FORGOTTEN_AFTER, FAILURES_PER_ADDRESS_MAX, STRANGERS_MAX,
    STRANGERS_PER_ADDRESS_MAX,
};

/// Whom a connection counts for: an IPv4 address, or the /64 that an IPv6 host can take any
/// address of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin(IpAddr);

impl Origin {
    fn of(address: IpAddr) -> Origin {
        Origin(match address.to_canonical() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        })
    }
}

/// What is to be done with a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// In the place of this one, which must be closed.
    InsteadOf(u64),
    /// Close it.
    Refused,
}

/// Failed attempts of one origin.
#[derive(Debug)]
struct Failures {
    count: u32,
    /// Up to when those that are to be forgotten were.
    counted_at: Instant,
}

/// All strangers.
#[derive(Debug, Default)]
pub struct Strangers {
    present: Vec<(u64, Origin)>,
    failing: HashMap<Origin, Failures>,
}

impl Strangers {
    /// A connection from there was accepted and would get this number. `random` chooses who must
    /// go if there is no place left.
    pub fn admit(&mut self, token: u64, from: IpAddr, random: u64, now: Instant) -> Admission {
        let origin = Origin::of(from);
        if self.failures(origin, now) >= FAILURES_PER_ADDRESS_MAX {
            return Admission::Refused;
        }
        let same = self.present.iter().filter(|(_, other)| *other == origin);
        if same.count() >= STRANGERS_PER_ADDRESS_MAX {
            return Admission::Refused;
        }
        let mut admission = Admission::Admitted;
        if self.present.len() >= STRANGERS_MAX {
            let at = usize::try_from(random % STRANGERS_MAX as u64).unwrap_or(0);
            let (gone, _) = self.present.swap_remove(at);
            admission = Admission::InsteadOf(gone);
        }
        self.present.push((token, origin));
        admission
    }

    /// The connection has ended, or is none of a stranger any more. Of one that never was: nothing.
    pub fn leave(&mut self, token: u64) {
        self.present.retain(|(other, _)| *other != token);
    }

    /// An attempt from there came to nothing. Returns how many did of late.
    pub fn fail(&mut self, from: IpAddr, now: Instant) -> u32 {
        let origin = Origin::of(from);
        let count = self.failures(origin, now).saturating_add(1);
        if self.failing.len() >= FAILING_ADDRESSES_MAX && !self.failing.contains_key(&origin) {
            // They are forgotten within seconds anyway, and so many at a time are an attack that
            // counting does not help against.
            self.failing.clear();
        }
        let failures = Failures {
            count,
            counted_at: now,
        };
        self.failing.insert(origin, failures);
        count
    }

    /// Failures that are not forgotten yet.
    fn failures(&mut self, origin: Origin, now: Instant) -> u32 {
        let Some(failures) = self.failing.get_mut(&origin) else {
            return 0;
        };
        let passed = now.saturating_duration_since(failures.counted_at);
        let forgotten = passed.as_secs() / FAILURE_FORGOTTEN_AFTER.as_secs().max(1);
        if forgotten > 0 {
            let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
            failures.count = failures.count.saturating_sub(forgotten);
            failures.counted_at = now;
        }
        let count = failures.count;
        if count == 0 {
            self.failing.remove(&origin);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn one_address_gets_few_places_and_others_still_come_in() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for token in 0..STRANGERS_PER_ADDRESS_MAX as u64 {
            assert_eq!(
                strangers.admit(token, address(1), 0, now),
                Admission::Admitted
            );
        }
        assert_eq!(strangers.admit(100, address(1), 0, now), Admission::Refused);
        let mapped = "::ffff:0.0.0.1".parse().unwrap();
        assert_eq!(strangers.admit(100, mapped, 0, now), Admission::Refused);
        assert_eq!(
            strangers.admit(100, address(2), 0, now),
            Admission::Admitted
        );
        strangers.leave(3);
        assert_eq!(
            strangers.admit(101, address(1), 0, now),
            Admission::Admitted
        );
    }

    #[test]
    fn hosts_of_one_ipv6_network_share_their_places() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for token in 0..STRANGERS_PER_ADDRESS_MAX as u64 {
            let from = format!("2001:db8::{token}").parse().unwrap();
            assert_eq!(strangers.admit(token, from, 0, now), Admission::Admitted);
        }
        let same = "2001:db8::ffff:1".parse().unwrap();
        assert_eq!(strangers.admit(100, same, 0, now), Admission::Refused);
        let other = "2001:db8:0:1::1".parse().unwrap();
        assert_eq!(strangers.admit(100, other, 0, now), Admission::Admitted);
    }

    #[test]
    fn a_full_house_changes_one_at_random() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for n in 0..STRANGERS_MAX as u32 {
            strangers.admit(u64::from(n), address(n), 0, now);
        }
        let admission = strangers.admit(1000, address(1000), 5, now);
        assert_eq!(admission, Admission::InsteadOf(5));
        assert_eq!(strangers.present.len(), STRANGERS_MAX);
    }

    #[test]
    fn who_fails_too_often_waits() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for _ in 0..FAILURES_PER_ADDRESS_MAX {
            assert_eq!(strangers.admit(1, address(1), 0, now), Admission::Admitted);
            strangers.leave(1);
            strangers.fail(address(1), now);
        }
        assert_eq!(strangers.admit(1, address(1), 0, now), Admission::Refused);
        assert_eq!(strangers.admit(2, address(2), 0, now), Admission::Admitted);
        let later = now + FAILURE_FORGOTTEN_AFTER;
        assert_eq!(
            strangers.admit(1, address(1), 0, later),
            Admission::Admitted
        );
        let much_later = now + Duration::from_secs(3600);
        assert_eq!(strangers.failures(Origin::of(address(1)), much_later), 0);
        assert!(strangers.failing.is_empty());
        for n in 0..2 * FAILING_ADDRESSES_MAX as u32 {
            strangers.fail(address(n), now);
        }
        assert!(strangers.failing.len() <= FAILING_ADDRESSES_MAX);
    }
}
