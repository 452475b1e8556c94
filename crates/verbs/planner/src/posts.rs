//! Requests that are posted thick and fast: each by itself costs a call of the kernel, and together
//! they cost little more than one. So they are gathered, for whoever looks next.
//!
//! A burst is what is posted between two looks for packets. Who posts a few and then polls has each
//! sent at once. Who has posted many is in full flow, and in the next burst too, from its first
//! request on.

/// Requests that leave at once, each by a call of the kernel, before whoever posts and posts
/// without polling is taken to be in full flow. From then on packets are gathered.
const ALONE: u32 = 4;
/// In full flow small requests are not even looked at one by one: so many at once, which saves
/// half of what a request costs.
const POSTS: u32 = 32;
/// Who has posted so many between two looks is in full flow from the first one after the second.
const FLOW_POSTS: u32 = 8;

/// In full flow, with the burst's request of that number; the first is 1. `flows`: the last burst was a
/// long one.
pub const fn is_flowing(post: u32, flows: bool) -> bool {
    post > ALONE || flows
}

/// The request of that number waits for more before anybody looks at it, if it is small.
pub const fn gathers(post: u32, flows: bool) -> bool {
    !post.is_multiple_of(POSTS) && is_flowing(post, flows)
}

/// Nothing has waited before this one, which does.
pub const fn begins(post: u32) -> bool {
    post == ALONE + 1 || post % POSTS == 1
}

/// Whether a burst of so many requests was a long one.
pub const fn is_long(posts: u32) -> bool {
    posts >= FLOW_POSTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Which ones of a burst of so many wait.
    fn burst(flows: bool, posts: u32) -> Vec<u32> {
        (1..=posts).filter(|post| gathers(*post, flows)).collect()
    }

    #[test]
    fn a_long_burst_makes_the_next_one_flow_from_the_first_request() {
        assert_eq!(burst(false, 1), []);
        assert_eq!(burst(false, ALONE + 1), [ALONE + 1]);
        assert_eq!(burst(false, FLOW_POSTS), [5, 6, 7, 8]);
        assert!(is_long(FLOW_POSTS) && !is_long(FLOW_POSTS - 1));
        assert_eq!(burst(true, 3), [1, 2, 3]);
    }

    #[test]
    fn so_many_are_looked_at_at_once() {
        let sent: Vec<u32> = (1..=3 * POSTS)
            .filter(|post| !gathers(*post, true))
            .collect();
        assert_eq!(sent, [POSTS, 2 * POSTS, 3 * POSTS]);
        for post in sent {
            assert!(begins(post + 1), "somebody is told of the rest");
        }
    }
}
