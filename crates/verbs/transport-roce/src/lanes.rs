//! Which lanes there are, and whose packets are on which.
//!
//! A queue pair is on the lane that its number leaves as the remainder, so that whoever has a
//! packet in hand, the kernel included ([`sluice_packet::UdpPort::open_group`]), knows where
//! it belongs from its header alone.

use core::fmt;
use core::num::NonZeroU8;
use core::str::FromStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::locks::lock;

/// Lanes of a transport, at most: a bit each in a word.
pub const LANES_MAX: usize = 64;

/// How many engine threads a transport has. Each has ports and a share of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engines(NonZeroU8);

/// The environment's variable for it; `sluice verbs` sets it.
pub const ENGINES_VARIABLE: &str = "SLUICE_VERBS_ENGINES";

/// What was given is not a number of engine threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEngines(String);

impl fmt::Display for NotEngines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no number of engine threads; 1 to {LANES_MAX} are",
            self.0
        )
    }
}

impl std::error::Error for NotEngines {}

impl Default for Engines {
    /// One: more are for machines with processors to spare.
    fn default() -> Self {
        Self(NonZeroU8::MIN)
    }
}

impl FromStr for Engines {
    type Err = NotEngines;

    fn from_str(text: &str) -> Result<Self, NotEngines> {
        let number: Option<NonZeroU8> = text.trim().parse().ok();
        number
            .filter(|number| usize::from(number.get()) <= LANES_MAX)
            .map(Self)
            .ok_or_else(|| NotEngines(text.to_owned()))
    }
}

impl Engines {
    /// What [`ENGINES_VARIABLE`] says; the default where it is not set, or is empty.
    pub fn from_environment() -> Result<Self, NotEngines> {
        match std::env::var_os(ENGINES_VARIABLE) {
            Some(text) if !text.is_empty() => text.to_string_lossy().parse(),
            _ => Ok(Self::default()),
        }
    }

    /// From 1 to [`LANES_MAX`].
    pub fn count(self) -> usize {
        usize::from(self.0.get())
    }
}

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(pub u64);

impl Set {
    /// The first so many.
    pub fn first(count: usize) -> Self {
        match count {
            0..LANES_MAX => Self((1 << count) - 1),
            _ => Self(u64::MAX),
        }
    }

    pub fn insert(&mut self, lane: usize) {
        self.0 |= 1 << (lane % LANES_MAX);
    }

    pub fn remove(&mut self, lane: usize) {
        self.0 &= !(1 << (lane % LANES_MAX));
    }

    /// All of another's too.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub fn contains(self, lane: usize) -> bool {
        self.0 & 1 << (lane % LANES_MAX) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Set {
    type Item = usize;

    /// Takes the first out.
    fn next(&mut self) -> Option<usize> {
        let lane = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lane)
    }
}

/// The lanes that a completion queue's completions come from: those of its queue pairs.
#[derive(Debug, Default)]
pub struct Sources {
    set: AtomicU64,
    /// Queue pairs on each.
    counts: Mutex<Vec<u32>>,
}

impl Sources {
    /// A queue pair on this lane completes here, or does so no longer.
    fn change(&self, lane: usize, by: impl FnOnce(u32) -> u32) {
        let mut counts = lock(&self.counts);
        if counts.len() <= lane {
            counts.resize(lane + 1, 0);
        }
        let Some(count) = counts.get_mut(lane) else {
            return;
        };
        *count = by(*count);
        let bit = 1 << (lane % LANES_MAX);
        match *count {
            0 => self.set.fetch_and(!bit, Ordering::SeqCst),
            _ => self.set.fetch_or(bit, Ordering::SeqCst),
        };
    }

    /// The lanes.
    pub fn set(&self) -> Set {
        Set(self.set.load(Ordering::SeqCst))
    }
}

/// The completion queues of a transport.
#[derive(Debug, Default)]
pub struct Completions {
    by_id: Mutex<HashMap<u32, Arc<Sources>>>,
    /// Of queue pairs whose completions come to nobody knows which queue: an extended target's go
    /// to the shared receive queue that a message names.
    any: Arc<Sources>,
}

impl Completions {
    /// A completion queue of that number is there from now on.
    pub fn add(&self, id: u32) -> Arc<Sources> {
        let sources = Arc::<Sources>::default();
        lock(&self.by_id).insert(id, sources.clone());
        sources
    }

    /// It is gone.
    pub fn remove(&self, id: u32, sources: &Arc<Sources>) {
        let mut by_id = lock(&self.by_id);
        // Its number may be another's by now.
        if by_id.get(&id).is_some_and(|own| Arc::ptr_eq(own, sources)) {
            by_id.remove(&id);
        }
    }

    /// The lanes to look at for a completion queue. Empty: it has no queue pairs, and whoever
    /// polls it may look at all.
    pub fn sources(&self, own: &Sources) -> Set {
        Set(own.set().0 | self.any.set().0)
    }

    /// A queue pair on a lane completes to these queues. Until what is given back is dropped.
    pub fn join(&self, lane: usize, queues: [Option<u32>; 2]) -> Member {
        let by_id = lock(&self.by_id);
        let known = queues.iter().flatten().filter_map(|id| by_id.get(id));
        let mut sources: Vec<_> = known.cloned().collect();
        if queues == [None, None] {
            sources.push(self.any.clone());
        }
        for sources in &sources {
            sources.change(lane, |count| count.saturating_add(1));
        }
        Member { lane, sources }
    }
}

/// A queue pair's place among the sources of its completion queues.
#[derive(Debug)]
pub struct Member {
    lane: usize,
    sources: Vec<Arc<Sources>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        for sources in &self.sources {
            sources.change(self.lane, |count| count.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_engines_are_checked() {
        for (text, count) in [("1", 1), ("2", 2), (" 64 ", 64)] {
            assert_eq!(text.parse::<Engines>().unwrap().count(), count);
        }
        for text in ["", "0", "65", "256", "-1", "two", "1.5", "1 2"] {
            let error = text.parse::<Engines>().unwrap_err().to_string();
            assert!(error.contains("1 to 64"), "{error}");
        }
    }

    #[test]
    fn a_set_gives_its_lanes_in_their_order() {
        let mut set = Set::default();
        assert!(set.is_empty());
        for lane in [63, 0, 7] {
            set.insert(lane);
        }
        assert_eq!(set.collect::<Vec<_>>(), [0, 7, 63]);
        set.remove(0);
        set.add(Set(0b110));
        assert!(set.contains(1) && set.contains(63) && !set.contains(0));
        assert_eq!(set.collect::<Vec<_>>(), [1, 2, 7, 63]);
        assert_eq!(Set::first(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Set::first(64).count(), 64);
    }

    #[test]
    fn completion_queues_know_the_lanes_of_their_queue_pairs() {
        let all = Completions::default();
        let (one, two) = (all.add(1), all.add(2));
        assert!(all.sources(&one).is_empty());
        let first = all.join(0, [Some(1), Some(1)]);
        let second = all.join(5, [Some(1), Some(2)]);
        assert_eq!(all.sources(&one).collect::<Vec<_>>(), [0, 5]);
        assert_eq!(all.sources(&two).collect::<Vec<_>>(), [5]);
        let target = all.join(3, [None, None]);
        assert_eq!(all.sources(&two).collect::<Vec<_>>(), [3, 5]);
        drop((second, target));
        assert_eq!(all.sources(&one).collect::<Vec<_>>(), [0]);
        assert!(all.sources(&two).is_empty());
        drop(first);
        assert!(all.sources(&one).is_empty());
        // A queue of the same number that came later is not taken away.
        let again = all.add(2);
        all.remove(2, &two);
        let _member = all.join(4, [Some(2), Some(2)]);
        assert_eq!(all.sources(&again).collect::<Vec<_>>(), [4]);
    }
}
