//! Of which addresses it is known whether a daemon is there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use crate::limits::{PLACES_MAX, Timing, backoff};

/// What is known of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It waits to be asked.
    Waiting,
    /// The connection with this number will tell.
    Asking(u64),
    /// The peer of the session with this number is there.
    At(u64),
    /// Nobody is there, or nobody to talk to; not asked again before then.
    Nobody { since: Instant, until: Instant },
}

#[derive(Debug)]
struct Entry {
    place: Place,
    /// In a row.
    failures: u32,
}

/// A bounded table.
#[derive(Debug, Default)]
pub struct Places {
    entries: HashMap<IpAddr, Entry>,
}

impl Places {
    /// What is known of the address, which is in canonical form.
    pub fn get(&self, address: IpAddr, now: Instant) -> Option<Place> {
        let place = self.entries.get(&address)?.place;
        match place {
            Place::Nobody { until, .. } if until <= now => None,
            other => Some(other),
        }
    }

    /// Notes what is known. Returns false, and notes nothing, when the table is full of addresses
    /// where somebody is or may be.
    pub fn set(&mut self, address: IpAddr, place: Place) -> bool {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.place = place;
            return true;
        }
        if self.entries.len() >= PLACES_MAX {
            // Asking again costs little, and there is a bound on that as well.
            let somebody = |entry: &Entry| !matches!(entry.place, Place::Nobody { .. });
            self.entries.retain(|_, entry| somebody(entry));
        }
        if self.entries.len() >= PLACES_MAX {
            return false;
        }
        self.entries.insert(address, Entry { place, failures: 0 });
        true
    }

    /// Nobody to talk to was found there: it is left alone for a while, longer each time.
    pub fn fail(&mut self, address: IpAddr, timing: &Timing, random: u32, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.failures = entry.failures.saturating_add(1);
            let wait = backoff(timing.absent_min, timing.absent_max, entry.failures, random);
            let (since, until) = (now, now + wait);
            entry.place = Place::Nobody { since, until };
        }
    }

    /// Somebody may be there who was not: it is left alone no longer than after a first failure.
    pub fn hint(&mut self, address: IpAddr, timing: &Timing) {
        if let Some(entry) = self.entries.get_mut(&address)
            && let Place::Nobody { since, until } = &mut entry.place
        {
            *until = (*until).min(*since + timing.absent_min);
        }
    }

    /// All addresses of which this is known.
    pub fn with(&self, place: Place) -> Vec<IpAddr> {
        let same = |(address, entry): (&IpAddr, &Entry)| (entry.place == place).then_some(*address);
        self.entries.iter().filter_map(same).collect()
    }

    /// Somebody is there after all.
    pub fn found(&mut self, address: IpAddr, token: u64) {
        self.set(address, Place::At(token));
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.failures = 0;
        }
    }

    /// Knows nothing more of the address.
    pub fn remove(&mut self, address: IpAddr) {
        self.entries.remove(&address);
    }

    /// Knows nothing more of these.
    pub fn forget(&mut self, place: Place) {
        self.entries.retain(|_, entry| entry.place != place);
    }

    /// Knows nothing more of addresses where nobody was.
    pub fn forget_nobody(&mut self) {
        let somebody = |entry: &Entry| !matches!(entry.place, Place::Nobody { .. });
        self.entries.retain(|_, entry| somebody(entry));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_without_a_daemon_is_left_alone_longer_each_time() {
        let (mut places, timing) = (Places::default(), Timing::default());
        let address = "10.0.0.1".parse().unwrap();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(places.get(address, now), None);
            assert!(places.set(address, Place::Waiting));
            places.fail(address, &timing, u32::MAX, now);
            let Some(Place::Nobody { until, .. }) = places.get(address, now) else {
                panic!("{places:?}");
            };
            waits.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]);
        places.found(address, 7);
        places.fail(address, &timing, u32::MAX, now);
        assert_eq!(places.get(address, now + Duration::from_secs(5)), None);
    }

    #[test]
    fn a_hint_ends_a_long_wait_and_no_short_one() {
        let (mut places, timing) = (Places::default(), Timing::default());
        let address = "10.0.0.1".parse().unwrap();
        let start = Instant::now();
        places.hint(address, &timing);
        assert_eq!(places.get(address, start), None);
        assert!(places.set(address, Place::Waiting));
        places.hint(address, &timing);
        assert_eq!(places.get(address, start), Some(Place::Waiting));
        for _ in 0..10 {
            places.fail(address, &timing, u32::MAX, start);
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(places.get(address, at(599)).is_some());
        for _ in 0..100 {
            places.hint(address, &timing);
        }
        assert!(places.get(address, at(4)).is_some());
        assert_eq!(places.get(address, at(5)), None);
    }

    #[test]
    fn the_table_forgets_where_nobody_is_before_it_is_full() {
        let (mut places, timing) = (Places::default(), Timing::default());
        let now = Instant::now();
        let address = |n: u32| IpAddr::V4(n.into());
        for n in 0..3 * PLACES_MAX as u32 {
            assert!(places.set(address(n), Place::Waiting));
            places.fail(address(n), &timing, 0, now);
        }
        assert!(places.entries.len() <= PLACES_MAX);
        let mut places = Places::default();
        for n in 0..PLACES_MAX as u32 {
            assert!(places.set(address(n), Place::Asking(1)));
        }
        assert!(!places.set(address(u32::MAX), Place::Waiting));
        assert_eq!(places.with(Place::Asking(1)).len(), PLACES_MAX);
        places.forget(Place::Asking(1));
        assert!(places.entries.is_empty());
    }
}
