//! What a link has posted and what of it is done: the book-keeping behind selective signalling.
//!
//! A completion costs the library, the device and whoever polls, so not every request asks for one.
//! Requests of a queue pair complete in order (IBTA 9.5.1, o9-20), so that a completion tells of all
//! requests before it. But a request that asks for none and has none behind it would never be known
//! to be done: [`SendQueue::needs_marker`] says when a *marker* is needed, an empty write that does
//! ask. A link that ends gets a marker too: what had succeeded without a completion is not flushed.

/// Below so many outstanding requests each asks for a completion: those of a quiet link, where
/// nothing would come behind them.
const QUIET: u32 = 4;

/// What was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    /// In one of the link's message buffers.
    Message,
    /// The body went along with the request.
    InlineMessage,
    Marker,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    kind: Kind,
}

/// A request that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The caller's; None for a marker.
    pub id: Option<u64>,
    /// Its place in the order of requests.
    pub position: u32,
}

/// Positions count requests from the link's beginning, modulo 2³².
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: Box<[Entry]>,
    mask: u32,
    /// Requests of the caller that may be outstanding. There are places for two markers besides.
    depth: u32,
    /// One request of so many asks for a completion on a busy link.
    interval: u32,
    done: u32,
    posted: u32,
    /// Behind the last request that asked for a completion.
    signalled: u32,
    /// Of the caller, outstanding.
    unfinished: u32,
    /// Outstanding [`Kind::Message`]s, how many there may be, and the buffer of the next.
    messages: u32,
    messages_max: u32,
    message_next: u32,
}

impl SendQueue {
    /// `depth` is 1 to 32768, `messages_max` 1 to `depth`.
    pub fn new(depth: u32, messages_max: u32) -> Self {
        let places = (depth + 2).next_power_of_two();
        let none = Entry {
            id: 0,
            kind: Kind::Marker,
        };
        Self {
            entries: vec![none; places as usize].into(),
            mask: places - 1,
            depth,
            interval: (depth / 4).max(1),
            done: 0,
            posted: 0,
            signalled: 0,
            unfinished: 0,
            messages: 0,
            messages_max,
            message_next: 0,
        }
    }

    /// Whether one more request of the caller may be posted.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many requests of the caller may be posted.
    pub fn room(&self) -> usize {
        (self.depth - self.unfinished) as usize
    }

    /// The message buffer of the link that may be filled, if one may.
    pub fn message_buffer(&self) -> Option<u32> {
        (self.messages < self.messages_max).then_some(self.message_next)
    }

    /// The position that the next request will have.
    pub fn position(&self) -> u32 {
        self.posted
    }

    /// Whether everything before this position is done.
    pub fn is_past(&self, position: u32) -> bool {
        // Positions of the last 2³¹ requests can be told from those to come.
        self.done.wrapping_sub(position) < 1 << 31
    }

    fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.done)
    }

    fn unsignalled(&self) -> u32 {
        self.posted.wrapping_sub(self.signalled)
    }

    /// Whether a completion is on its way that tells of all that was posted up to some place.
    fn expects_completion(&self) -> bool {
        self.signalled.wrapping_sub(self.done).wrapping_sub(1) < self.outstanding()
    }

    /// Whether the next request is to ask for a completion.
    pub fn wants_signal(&self) -> bool {
        self.outstanding() < QUIET
            || self.unsignalled() + 1 >= self.interval
            || !self.expects_completion()
    }

    /// Requests are outstanding, and no completion will tell of any.
    pub fn needs_marker(&self) -> bool {
        self.outstanding() > 0 && !self.expects_completion()
    }

    pub fn is_empty(&self) -> bool {
        self.outstanding() == 0
    }

    /// Requests of the caller that are not done.
    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// The request was posted.
    pub fn push(&mut self, id: u64, kind: Kind, signalled: bool) {
        let at = (self.posted & self.mask) as usize;
        if let Some(entry) = self.entries.get_mut(at) {
            *entry = Entry { id, kind };
        }
        self.posted = self.posted.wrapping_add(1);
        if signalled {
            self.signalled = self.posted;
        }
        if kind != Kind::Marker {
            self.unfinished += 1;
        }
        if kind == Kind::Message {
            self.messages += 1;
            self.message_next = match self.message_next + 1 {
                next if next == self.messages_max => 0,
                next => next,
            };
        }
    }

    /// Where the last request stands that asked for a completion, for [`Self::take_back`].
    pub fn signalled(&self) -> u32 {
        self.signalled
    }

    /// The last `count` requests, writes all of them, were not posted after all. `signalled`: as it
    /// was before these.
    pub fn take_back(&mut self, count: u32, signalled: u32) {
        self.posted = self.posted.wrapping_sub(count);
        self.unfinished -= count;
        self.signalled = signalled;
    }

    /// How many requests a completion of this position tells of; None if nothing outstanding has
    /// that position.
    pub fn covered(&self, position: u32) -> Option<u32> {
        let before = position.wrapping_sub(self.done);
        (before < self.outstanding()).then(|| before + 1)
    }

    /// Takes the oldest outstanding request out.
    pub fn pop(&mut self) -> Option<Finished> {
        if self.is_empty() {
            return None;
        }
        let position = self.done;
        let entry = *self.entries.get((position & self.mask) as usize)?;
        self.done = position.wrapping_add(1);
        if entry.kind == Kind::Message {
            self.messages -= 1;
        }
        let id = (entry.kind != Kind::Marker).then(|| {
            self.unfinished -= 1;
            entry.id
        });
        Some(Finished { id, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(queue: &mut SendQueue, id: u64) -> bool {
        let signal = queue.wants_signal();
        queue.push(id, Kind::Write, signal);
        signal
    }

    #[test]
    fn a_quiet_link_asks_each_time() {
        let mut queue = SendQueue::new(128, 16);
        for id in 0..1000 {
            assert!(post(&mut queue, id));
            assert_eq!(queue.covered(id as u32), Some(1));
            assert_eq!(queue.pop().unwrap().id, Some(id));
        }
        assert!(queue.is_empty() && !queue.needs_marker());
    }

    #[test]
    fn a_busy_link_asks_every_so_often() {
        let mut queue = SendQueue::new(128, 16);
        let asked = (0..128).filter(|id| post(&mut queue, *id)).count();
        assert!((7..=9).contains(&asked), "{asked}");
        assert!(!queue.has_room());
        assert_eq!(queue.unfinished(), 128);
    }

    #[test]
    fn what_nobody_will_tell_of_is_known() {
        let mut queue = SendQueue::new(128, 16);
        for id in 0..6 {
            post(&mut queue, id);
        }
        // The first four asked; 4 and 5 did not.
        assert!(!queue.needs_marker());
        for _ in 0..queue.covered(3).unwrap() {
            queue.pop();
        }
        assert!(queue.needs_marker());
        let position = queue.position();
        queue.push(0, Kind::Marker, true);
        assert!(!queue.needs_marker());
        assert_eq!(queue.unfinished(), 2);
        assert_eq!(queue.covered(position), Some(3));
        let ids: Vec<_> = std::iter::from_fn(|| queue.pop())
            .map(|one| one.id)
            .collect();
        assert_eq!(ids, [Some(4), Some(5), None]);
        assert_eq!(queue.unfinished(), 0);
    }

    #[test]
    fn a_place_in_the_order_is_passed_once() {
        let mut queue = SendQueue::new(8, 8);
        (queue.done, queue.posted, queue.signalled) = (u32::MAX, u32::MAX, u32::MAX);
        assert!(queue.is_past(queue.position()), "nothing is outstanding");
        post(&mut queue, 1);
        post(&mut queue, 2);
        let position = queue.position();
        post(&mut queue, 3);
        queue.pop();
        assert!(!queue.is_past(position));
        queue.pop();
        assert!(queue.is_past(position));
        queue.pop();
        assert!(queue.is_past(position));
    }

    #[test]
    fn markers_have_room_when_the_queue_is_full() {
        let mut queue = SendQueue::new(6, 6);
        for id in 0..6 {
            queue.push(id, Kind::Write, false);
        }
        assert!(!queue.has_room() && queue.needs_marker());
        queue.push(0, Kind::Marker, true);
        queue.push(0, Kind::Marker, true);
        assert_eq!(queue.covered(7), Some(8));
        assert_eq!(queue.pop().unwrap().id, Some(0));
    }

    #[test]
    fn positions_that_are_not_outstanding_cover_nothing() {
        let mut queue = SendQueue::new(8, 8);
        assert_eq!(queue.covered(0), None);
        post(&mut queue, 1);
        assert_eq!(queue.covered(1), None);
        assert_eq!(queue.covered(u32::MAX), None);
        queue.pop();
        assert_eq!(queue.covered(0), None);
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn message_buffers_go_round_and_are_bounded() {
        let mut queue = SendQueue::new(8, 3);
        for expected in [0, 1, 2] {
            assert_eq!(queue.message_buffer(), Some(expected));
            queue.push(0, Kind::Message, true);
        }
        assert_eq!(queue.message_buffer(), None);
        queue.push(0, Kind::InlineMessage, true);
        queue.pop();
        assert_eq!(queue.message_buffer(), Some(0));
    }

    /// Every id comes back once and in order, whatever is posted and completed when, across the
    /// turn of the 32-bit positions, and nothing is left that nobody will tell of.
    #[test]
    fn every_request_comes_back_once_in_order() {
        for depth in [1, 2, 3, 5, 64] {
            let mut queue = SendQueue::new(depth, depth);
            let start = u32::MAX - 500;
            (queue.done, queue.posted, queue.signalled) = (start, start, start);
            let mut signals = std::collections::VecDeque::new();
            let (mut next, mut expected, mut random) = (0_u64, 0_u64, 7_u64);
            while expected < 5000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                for _ in 0..random % 7 {
                    if queue.has_room() {
                        let signal = queue.wants_signal();
                        if signal {
                            signals.push_back(queue.position());
                        }
                        queue.push(next, Kind::Write, signal);
                        next += 1;
                    }
                }
                if queue.needs_marker() {
                    signals.push_back(queue.position());
                    queue.push(0, Kind::Marker, true);
                }
                assert!(queue.outstanding() <= depth + 1);
                if random % 3 == 0
                    && let Some(position) = signals.pop_front()
                {
                    for _ in 0..queue.covered(position).unwrap() {
                        if let Some(id) = queue.pop().unwrap().id {
                            assert_eq!(id, expected);
                            expected += 1;
                        }
                    }
                }
            }
        }
    }
}
