//! What is in flight, which of it arrived, and which is lost (RFC 2018, RACK of RFC 8985 §6).

use alloc::collections::VecDeque;
use core::ops::Range;

use crate::Instant;

/// Segments in flight at most: no more are sent until some are acknowledged. They bound the memory
/// of a connection and the time that an acknowledgement takes.
pub const SEGMENTS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    start: u64,
    end: u64,
    sent: Instant,
    retransmitted: bool,
    /// A SACK says that it arrived.
    sacked: bool,
    /// Taken for lost and not sent again yet.
    lost: bool,
}

impl Segment {
    fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scoreboard {
    segments: VecDeque<Segment>,
    sacked_bytes: u64,
    lost_bytes: u64,
    /// Nothing before this position is lost.
    lost_from: u64,
    /// The delivered segment that was sent last: RACK.xmit_ts, RACK.end_seq, RACK.rtt.
    newest: (Instant, u64),
    newest_rtt: u64,
    /// The highest position delivered, RACK.fack.
    highest: u64,
    reordering: bool,
    min_rtt: u64,
}

impl Scoreboard {
    pub fn new() -> Self {
        Self {
            segments: VecDeque::new(),
            sacked_bytes: 0,
            lost_bytes: 0,
            lost_from: u64::MAX,
            newest: (Instant(0), 0),
            newest_rtt: 0,
            highest: 0,
            reordering: false,
            min_rtt: u64::MAX,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.segments.len() >= SEGMENTS_MAX
    }

    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Positions taken for delivered or lost, which are not in the network (RFC 6675 §4, "pipe").
    pub fn not_in_network(&self) -> u64 {
        self.sacked_bytes + self.lost_bytes
    }

    pub fn any_lost(&self) -> bool {
        self.lost_bytes > 0
    }

    pub fn any_sacked(&self) -> bool {
        self.sacked_bytes > 0
    }

    pub fn sent(&mut self, range: Range<u64>, now: Instant) {
        self.segments.push_back(Segment {
            start: range.start,
            end: range.end,
            sent: now,
            retransmitted: false,
            sacked: false,
            lost: false,
        });
    }

    /// All before `una` has arrived. The round trip of the newest segment that was sent once
    /// (Karn's rule, RFC 6298 §3), if no other was sent twice: that one closed a hole, and how long the
    /// others waited behind it is no round trip.
    pub fn acknowledge(&mut self, una: u64, now: Instant) -> Option<u64> {
        let (mut rtt, mut mended) = (None, false);
        while let Some(front) = self.segments.front_mut() {
            if front.start >= una {
                break;
            }
            let gone = una.min(front.end) - front.start;
            if front.sacked {
                self.sacked_bytes -= gone;
            }
            if front.lost {
                self.lost_bytes -= gone;
            }
            if front.end > una {
                front.start = una;
                break;
            }
            let segment = *front;
            self.segments.pop_front();
            mended |= segment.retransmitted;
            if !segment.sacked {
                rtt = self.delivered(&segment, now).or(rtt);
            }
        }
        rtt.filter(|_| !mended)
    }

    /// A range has arrived, so its whole segments have.
    pub fn sack(&mut self, range: Range<u64>, now: Instant) {
        let mut index = self.segments.partition_point(|s| s.start < range.start);
        while let Some(segment) = self.segments.get_mut(index) {
            if segment.end > range.end {
                break;
            }
            index += 1;
            if segment.sacked {
                continue;
            }
            segment.sacked = true;
            self.sacked_bytes += segment.bytes();
            if segment.lost {
                segment.lost = false;
                self.lost_bytes -= segment.bytes();
            }
            let segment = *segment;
            self.delivered(&segment, now);
        }
    }

    /// RFC 8985 §6.2, steps 1 to 3.
    fn delivered(&mut self, segment: &Segment, now: Instant) -> Option<u64> {
        let rtt = now.since(segment.sent);
        if !segment.retransmitted {
            self.min_rtt = self.min_rtt.min(rtt);
            self.reordering |= segment.end < self.highest;
        }
        self.highest = self.highest.max(segment.end);
        // Sooner than any round trip: it is the first transmission that arrived.
        let of_the_first = segment.retransmitted && rtt < self.min_rtt;
        if !of_the_first && (segment.sent, segment.end) > self.newest {
            self.newest = (segment.sent, segment.end);
            self.newest_rtt = rtt;
        }
        (!segment.retransmitted).then_some(rtt)
    }

    /// Takes for lost what was sent long enough before something that arrived (RFC 8985 §6.2,
    /// step 5). Whether there is any, and when to look again.
    pub fn detect(&mut self, now: Instant, srtt: u64, recovering: bool) -> (bool, Option<Instant>) {
        // Without reordering, as quick as three duplicates are.
        let patient = self.reordering || !(recovering || self.sacked_segments_are_three());
        let window = if patient && self.min_rtt < u64::MAX {
            (self.min_rtt / 4).min(srtt)
        } else {
            0
        };
        let (mut any, mut again) = (false, None);
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            if (segment.sent, segment.end) >= self.newest {
                // What was never sent twice is in the order of sending: no later one is older.
                if !segment.retransmitted {
                    break;
                }
                continue;
            }
            if segment.sacked || segment.lost {
                continue;
            }
            let due = segment.sent.after(self.newest_rtt + window);
            if due <= now {
                self.lose(index);
                any = true;
            } else {
                again = Some(again.map_or(due, |known: Instant| known.min(due)));
            }
        }
        (any, again)
    }

    fn sacked_segments_are_three(&self) -> bool {
        self.any_sacked() && self.segments.iter().filter(|s| s.sacked).take(3).count() == 3
    }

    fn lose(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        if !segment.lost && !segment.sacked {
            segment.lost = true;
            self.lost_bytes += segment.bytes();
            self.lost_from = self.lost_from.min(segment.start);
        }
    }

    /// The first that is not acknowledged is lost.
    pub fn lose_first(&mut self) {
        if !self.segments.is_empty() {
            self.lose(0);
        }
    }

    /// All that has not arrived is lost, for a timer says so (RFC 6298 §5.4). If the first is said
    /// to have arrived, the receiver has thrown away what it had (RFC 2018 §8): nothing has arrived.
    pub fn lose_all(&mut self) {
        if self.segments.front().is_some_and(|front| front.sacked) {
            self.sacked_bytes = 0;
            for segment in &mut self.segments {
                segment.sacked = false;
            }
        }
        for index in 0..self.segments.len() {
            self.lose(index);
        }
    }

    /// The window has opened, and what ends behind its old `edge` was thrown away. What was sent less
    /// than a round trip ago was not: it had not arrived when the peer said so.
    pub fn lose_from(&mut self, edge: u64, now: Instant) {
        let trip = if self.min_rtt == u64::MAX {
            0
        } else {
            self.min_rtt
        };
        let first = self.segments.partition_point(|s| s.end <= edge);
        for index in first..self.segments.len() {
            if self.segments[index].sent.after(trip) <= now {
                self.lose(index);
            }
        }
    }

    /// The first that is lost, at most `bytes` of it, as sent again now. Nothing that lies behind
    /// the window's edge, but for the first of all, which is how one learns that the window opens.
    pub fn resend(&mut self, bytes: u64, edge: u64, now: Instant) -> Option<Range<u64>> {
        if self.lost_bytes == 0 {
            return None;
        }
        let mut index = self.segments.partition_point(|s| s.start < self.lost_from);
        while !self.segments.get(index)?.lost {
            index += 1;
        }
        if index > 0 && self.segments[index].end > edge {
            return None;
        }
        self.lost_from = self.segments[index].end;
        self.again(index, bytes, now)
    }

    /// The last in flight, sent once more as a probe (RFC 8985 §7.3).
    pub fn probe(&mut self, bytes: u64, now: Instant) -> Option<Range<u64>> {
        let index = self.segments.len().checked_sub(1)?;
        self.again(index, bytes, now)
    }

    fn again(&mut self, index: usize, bytes: u64, now: Instant) -> Option<Range<u64>> {
        let segment = self.segments.get_mut(index)?;
        if segment.lost {
            segment.lost = false;
            self.lost_bytes -= segment.bytes();
        }
        segment.sent = now;
        segment.retransmitted = true;
        let range = segment.start..segment.end;
        if segment.bytes() <= bytes {
            return Some(range);
        }
        // The path takes less than it did. Where there is room the rest becomes one of its own.
        let middle = range.start + bytes;
        let rest = Segment {
            start: middle,
            ..*segment
        };
        // Else it is taken to be in flight, and a timer finds it.
        if self.segments.len() < 2 * SEGMENTS_MAX {
            self.segments[index].end = middle;
            self.segments.insert(index + 1, rest);
            self.lose(index + 1);
        }
        Some(range.start..middle)
    }
}
