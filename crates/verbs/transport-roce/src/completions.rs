//! Which shards a completion queue's completions come from.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::locks::lock;
use crate::shard_set::{SHARDS_MAX, Set};

/// The shards that a completion queue's completions come from: those of its queue pairs.
#[derive(Debug, Default)]
pub struct Sources {
    set: AtomicU64,
    /// Queue pairs on each.
    counts: Mutex<Vec<u32>>,
}

impl Sources {
    /// A queue pair on this shard completes here, or does so no longer.
    fn change(&self, shard: usize, by: impl FnOnce(u32) -> u32) {
        let mut counts = lock(&self.counts);
        if counts.len() <= shard {
            counts.resize(shard + 1, 0);
        }
        let Some(count) = counts.get_mut(shard) else {
            return;
        };
        *count = by(*count);
        let bit = 1 << (shard % SHARDS_MAX);
        match *count {
            0 => self.set.fetch_and(!bit, Ordering::SeqCst),
            _ => self.set.fetch_or(bit, Ordering::SeqCst),
        };
    }

    /// The shards.
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

    /// The shards to look at for a completion queue. Empty: it has no queue pairs, and whoever
    /// polls it may look at all.
    pub fn sources(&self, own: &Sources) -> Set {
        Set(own.set().0 | self.any.set().0)
    }

    /// A queue pair on a shard completes to these queues. Until what is given back is dropped.
    pub fn join(&self, shard: usize, queues: [Option<u32>; 2]) -> Member {
        let by_id = lock(&self.by_id);
        let known = queues.iter().flatten().filter_map(|id| by_id.get(id));
        let mut sources: Vec<_> = known.cloned().collect();
        if queues == [None, None] {
            sources.push(self.any.clone());
        }
        for sources in &sources {
            sources.change(shard, |count| count.saturating_add(1));
        }
        Member { shard, sources }
    }
}

/// A queue pair's place among the sources of its completion queues.
#[derive(Debug)]
pub struct Member {
    shard: usize,
    sources: Vec<Arc<Sources>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        for sources in &self.sources {
            sources.change(self.shard, |count| count.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_queues_know_the_shards_of_their_queue_pairs() {
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
