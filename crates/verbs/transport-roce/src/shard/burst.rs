//! How a program posts and polls, as those see it who do not hold the shard. What follows from it:
//! [`sluice_planner::posts`].

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sluice_planner::posts;

/// What is known of how a program posts and polls.
#[derive(Debug, Default)]
pub struct Burst {
    /// Requests posted since anybody has looked for packets.
    posts: AtomicU32,
    /// The last burst was a long one.
    flows: AtomicBool,
    /// Somebody polls: the engine thread has found nothing that was left for later since.
    polls: AtomicBool,
}

impl Burst {
    /// One more request is being posted. Which one of the burst it is. Who ends the burst and has
    /// counted it sees what was done in front of this.
    pub fn post(&self) -> u32 {
        self.posts.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Which one the next would be.
    pub fn next(&self) -> u32 {
        self.posts.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// In full flow, with the burst's request of that number.
    pub fn is_flowing(&self, post: u32) -> bool {
        posts::is_flowing(post, self.flows())
    }

    /// The last burst was a long one.
    pub fn flows(&self) -> bool {
        self.flows.load(Ordering::Relaxed)
    }

    /// The request of that number waits for more before anybody looks at it, if it is small.
    pub fn gathers(&self, post: u32) -> bool {
        posts::gathers(post, self.flows())
    }

    /// Somebody looks for packets: what is posted from now on is another burst.
    pub fn end(&self) {
        if self.posts.load(Ordering::Relaxed) != 0 {
            let posts = self.posts.swap(0, Ordering::Acquire);
            self.flows.store(posts::is_long(posts), Ordering::Relaxed);
        }
    }

    /// It is a program that polls, and so finds what posts have left; or it did not, and
    /// somebody else has found it.
    pub fn polled(&self, polls: bool) {
        self.polls.store(polls, Ordering::Relaxed);
    }

    /// Whether somebody who polls will find what is left.
    pub fn is_polled(&self) -> bool {
        self.polls.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts so many and looks; which of them waited.
    fn burst(burst: &Burst, posts: u32) -> Vec<u32> {
        let all: Vec<u32> = (0..posts).map(|_| burst.post()).collect();
        let waited = all.into_iter().filter(|post| burst.gathers(*post));
        let waited = waited.collect();
        burst.end();
        waited
    }

    #[test]
    fn who_looks_ends_the_burst() {
        let it = Burst::default();
        assert_eq!(burst(&it, 1), []);
        assert_eq!(burst(&it, 5), [5]);
        assert_eq!(burst(&it, 8), [5, 6, 7, 8]);
        // Looks without a post change nothing.
        it.end();
        assert_eq!(burst(&it, 3), [1, 2, 3]);
        assert_eq!(burst(&it, 3), []);
    }
}
