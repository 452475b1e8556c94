//! Requests that are posted thick and fast: each by itself costs a call of the kernel, and together
//! they cost little more than one. So they are gathered, for whoever looks next.
//!
//! A burst is what is posted between two looks for packets. Who posts a few and then polls has each
//! sent at once. Who has posted many is in full flow, and in the next burst too, from its first
//! request on.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Requests that leave at once, each by a call of the kernel, before whoever posts and posts
/// without polling is taken to be in full flow. From then on packets are gathered.
const ALONE: u32 = 4;
/// In full flow small requests are not even looked at one by one: so many at once, which saves
/// half of what a request costs.
const POSTS: u32 = 32;
/// Who has posted so many between two looks is in full flow from the first one after the second.
const FLOW_POSTS: u32 = 8;

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
        post > ALONE || self.flows()
    }

    /// The last burst was a long one.
    pub fn flows(&self) -> bool {
        self.flows.load(Ordering::Relaxed)
    }

    /// The request of that number waits for more before anybody looks at it, if it is small.
    pub fn gathers(&self, post: u32) -> bool {
        !post.is_multiple_of(POSTS) && self.is_flowing(post)
    }

    /// Nothing has waited before this one, which does.
    pub fn begins(post: u32) -> bool {
        post == ALONE + 1 || post % POSTS == 1
    }

    /// Somebody looks for packets: what is posted from now on is another burst.
    pub fn end(&self) {
        if self.posts.load(Ordering::Relaxed) != 0 {
            let posts = self.posts.swap(0, Ordering::Acquire);
            self.flows.store(posts >= FLOW_POSTS, Ordering::Relaxed);
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
    fn a_long_burst_makes_the_next_one_flow_from_the_first_request() {
        let it = Burst::default();
        assert_eq!(burst(&it, 1), []);
        assert_eq!(burst(&it, ALONE + 1), [ALONE + 1]);
        assert_eq!(burst(&it, FLOW_POSTS), [5, 6, 7, 8]);
        // Looks without a post change nothing.
        it.end();
        assert_eq!(burst(&it, 3), [1, 2, 3]);
        assert_eq!(burst(&it, 3), []);
    }

    #[test]
    fn so_many_are_looked_at_at_once() {
        let it = Burst::default();
        burst(&it, FLOW_POSTS);
        let sent: Vec<u32> = (1..=3 * POSTS).filter(|post| !it.gathers(*post)).collect();
        assert_eq!(sent, [POSTS, 2 * POSTS, 3 * POSTS]);
        for post in sent {
            assert!(Burst::begins(post + 1), "somebody is told of the rest");
        }
    }
}
