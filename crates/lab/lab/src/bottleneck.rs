//! A slow link with a queue in front of it, as a router has: it marks what has to wait, and drops
//! what does not fit. Decisions, without I/O.

use std::time::{Duration, Instant};

/// What the link carries, and when its router says that it is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    pub bytes_per_second: u64,
    /// Frames of ECN-capable transports are marked (RFC 3168 §5) when so many bytes are in the
    /// queue in front of them.
    pub mark_above: u64,
    /// And all are dropped when it is so many.
    pub drop_above: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is none.
    Full,
    /// It has left at that time.
    Until {
        time: Instant,
        /// It is to be marked.
        mark: bool,
    },
}

/// The queue of a link, by when it will be empty.
#[derive(Debug)]
pub struct Queue {
    link: Bottleneck,
    empty_at: Option<Instant>,
}

impl Queue {
    pub fn new(link: Bottleneck) -> Queue {
        Queue {
            link,
            empty_at: None,
        }
    }

    /// A frame of so many bytes comes.
    pub fn enter(&mut self, now: Instant, bytes: usize) -> Place {
        let link = self.link;
        let empty_at = self.empty_at.map_or(now, |empty_at| empty_at.max(now));
        let waits = empty_at.duration_since(now);
        let queued = waits.as_nanos() * u128::from(link.bytes_per_second) / 1_000_000_000;
        if queued > u128::from(link.drop_above) {
            return Place::Full;
        }
        let takes = bytes as u64 * 1_000_000_000 / link.bytes_per_second.max(1);
        let time = empty_at + Duration::from_nanos(takes);
        self.empty_at = Some(time);
        Place::Until {
            time,
            mark: queued > u128::from(link.mark_above),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a queue that never empties or never fills, marks behind the drops.
    #[test]
    fn a_queue_marks_and_then_drops() {
        let mut queue = Queue::new(Bottleneck {
            bytes_per_second: 1_000_000,
            mark_above: 2500,
            drop_above: 4500,
        });
        let begin = Instant::now();
        let mut fates = Vec::new();
        for _ in 0..7 {
            fates.push(match queue.enter(begin, 1000) {
                Place::Full => 'd',
                Place::Until { mark: true, .. } => 'm',
                Place::Until { mark: false, .. } => 'p',
            });
        }
        assert_eq!(String::from_iter(fates), "pppmmdd");
        let later = begin + Duration::from_millis(5);
        let left = Place::Until {
            time: later + Duration::from_millis(1),
            mark: false,
        };
        assert_eq!(queue.enter(later, 1000), left);
    }
}
