//! The locks of this crate, and their order.
//!
//! Whoever holds one waits only for such as come behind it. Three of them have a [`Rank`], and builds
//! with debug assertions check it:
//!
//! 1. whoever joins a group ([`crate::multicast`]) or serves an interface ([`crate::node`]);
//! 2. a shard, and with it its queue pairs' machines ([`crate::keyed`]). Who holds one takes no other, but
//!    may put packets into what another waits with;
//! 3. the engine's own, a send half among them.
//!
//! Whoever posts holds none of these when it tries a shard.
//!
//! Behind all of these, so that a shard may be held by whoever takes one: the numbers,
//! and behind these the routes, which a new block is made known to; where a datagram goes; the table of
//! queue pairs; completion queues, and behind them the shards of each; groups' members; forwarding; a
//! gate's notes; what was brought; a queue that shards share, and behind it what waits for it; what is
//! not shared by several modules. Nobody who holds one of these takes another, or asks for
//! a shard, where nothing else is said.
//!
//! A shard and a shared queue are [`crate::baton`]s, all others the standard library's.

#[cfg(debug_assertions)]
use core::cell::Cell;

pub use sluice_verbs::locks::{Guard, Held, lock, read, taken, write};

/// The locks that others may be waited for with, and the queue that these may be, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Nobody else joins a group, or serves an interface.
    Change,
    /// A shard.
    Shard,
    /// A queue that shards share.
    Queue,
}

#[cfg(debug_assertions)]
thread_local! {
    /// How many of each rank this thread holds.
    static HELD: [Cell<u32>; 3] = const { [const { Cell::new(0) }; 3] };
}

/// A lock of a rank is held until this is dropped.
#[derive(Debug)]
pub struct Ranked {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl Rank {
    /// One of this rank is about to be waited for. In front of the waiting.
    #[inline]
    pub fn wait(self) -> Ranked {
        #[cfg(debug_assertions)]
        HELD.with(|held| {
            let behind = held.iter().skip(self as usize);
            let free = behind.into_iter().all(|count| count.get() == 0);
            debug_assert!(free, "{self:?} is waited for with {held:?} held");
        });
        self.got()
    }

    /// One of this rank was had without waiting, which is in no order.
    #[inline]
    pub fn got(self) -> Ranked {
        #[cfg(debug_assertions)]
        HELD.with(|held| {
            let count = &held[self as usize];
            count.set(count.get() + 1);
        });
        Ranked {
            #[cfg(debug_assertions)]
            rank: self,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Ranked {
    fn drop(&mut self) {
        HELD.with(|held| {
            let count = &held[self.rank as usize];
            count.set(count.get() - 1);
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_against_the_order_is_told() {
        let wait = |rank: Rank| std::panic::catch_unwind(|| drop(rank.wait()));
        let change = Rank::Change.wait();
        let shard = Rank::Shard.wait();
        let queue = Rank::Queue.wait();
        assert!(wait(Rank::Queue).is_err());
        drop(queue);
        assert!(wait(Rank::Queue).is_ok());
        assert!(wait(Rank::Shard).is_err() && wait(Rank::Change).is_err());
        // Who does not wait keeps nobody waiting.
        let other = Rank::Shard.got();
        drop((other, shard));
        assert!(wait(Rank::Shard).is_ok() && wait(Rank::Change).is_err());
        drop(change);
        assert!(wait(Rank::Change).is_ok());
    }
}
