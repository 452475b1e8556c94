//! What of the peer's stream has arrived out of order: ranges of positions. The bytes are the
//! caller's to keep.

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges that are kept at most. What would need one more is not placed: the peer sends it again.
pub const RANGES_MAX: usize = 64;

/// Disjoint ranges that do not touch, in order; the newest is remembered for SACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reassembly {
    ranges: Vec<Range<u64>>,
    /// Beginnings of the ranges that changed last, newest first (RFC 2018 §4).
    recent: [Option<u64>; 4],
}

impl Reassembly {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Where the last range ends; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// Notes a range; false if there is no room for one more.
    pub fn insert(&mut self, range: Range<u64>) -> bool {
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let behind = self
            .ranges
            .partition_point(|known| known.start <= range.end);
        let mut joined = range;
        if first < behind {
            joined.start = joined.start.min(self.ranges[first].start);
            joined.end = joined.end.max(self.ranges[behind - 1].end);
        } else if self.ranges.len() >= RANGES_MAX {
            return false;
        }
        self.touch(joined.start);
        self.ranges.splice(first..behind, [joined]);
        true
    }

    /// Takes the ranges that `next` reaches, and gives the position up to which all is there.
    pub fn advance(&mut self, mut next: u64) -> u64 {
        let reached = self.ranges.partition_point(|known| known.start <= next);
        for range in self.ranges.drain(..reached) {
            next = next.max(range.end);
        }
        // One that begins within the last is joined with it already.
        next
    }

    fn touch(&mut self, start: u64) {
        let mut before = Some(start);
        for place in &mut self.recent {
            let moved = core::mem::replace(place, before);
            if moved == Some(start) {
                break;
            }
            before = moved;
        }
    }

    /// The ranges to report, the one that changed last first (RFC 2018 §4).
    pub fn report(&self) -> impl Iterator<Item = Range<u64>> {
        let found = |start: &u64| self.ranges.iter().find(|range| range.contains(start));
        let mut said: [Option<u64>; 4] = [None; 4];
        let mut count = 0;
        self.recent.iter().flatten().filter_map(move |start| {
            let range = found(start)?;
            if said[..count].contains(&Some(range.start)) {
                return None;
            }
            said[count] = Some(range.start);
            count += 1;
            Some(range.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn the_newest_range_is_reported_first_and_no_range_twice() {
        let mut ranges = Reassembly::default();
        for start in [10, 30, 50, 12, 70] {
            assert!(ranges.insert(start..start + 3));
        }
        let report: Vec<_> = ranges.report().collect();
        assert_eq!(report, [70..73, 10..15, 50..53, 30..33]);
    }

    #[test]
    fn too_many_ranges_are_refused_and_joining_is_not() {
        let mut ranges = Reassembly::default();
        for n in 0..RANGES_MAX as u64 {
            assert!(ranges.insert(10 * n + 1..10 * n + 5));
        }
        assert!(!ranges.insert(7..8));
        assert!(ranges.insert(5..8));
        assert_eq!(ranges.advance(0), 0);
        assert_eq!(ranges.advance(1), 8);
        assert_eq!(ranges.len(), RANGES_MAX - 1);
    }

    proptest! {
        /// Against a bit for each position.
        #[test]
        fn ranges_are_what_was_put_in(steps in prop::collection::vec((0_u64..200, 1_u64..20, any::<bool>()), 1..60)) {
            let (mut ranges, mut oracle, mut next) = (Reassembly::default(), vec![false; 256], 0_u64);
            for (start, len, advance) in steps {
                let (start, end) = (start.max(next), start + len);
                if start < end && ranges.insert(start..end) {
                    oracle[start as usize..end as usize].fill(true);
                }
                if advance {
                    next = ranges.advance(next);
                    prop_assert!(!oracle[next as usize]);
                }
                let mut end = None;
                for range in &ranges.ranges {
                    prop_assert!(end.is_none_or(|end| end < range.start));
                    prop_assert!(oracle[range.start as usize..range.end as usize].iter().all(|b| *b));
                    end = Some(range.end);
                }
            }
        }
    }
}
