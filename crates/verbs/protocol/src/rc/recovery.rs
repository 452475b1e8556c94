//! What a requester sends again one by one, and how much it has under way after losses. Who says
//! that packets are lost is in [`super::losses`].
//!
//! What was sent again and is reported missing once more is lost again only if something that left
//! after it has come: a report may have left before it came.

use alloc::collections::BTreeMap;

/// A range that was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resent {
    /// After its last packet.
    end: u64,
    /// The first packet that left, for the first time, after it.
    next_fresh: u64,
    /// Counts what was sent again.
    serial: u64,
}

/// Ranges of packets by their first one: single packets, or pieces of one READ's response.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// To be sent again; each up to the packet given.
    due: BTreeMap<u64, u64>,
    resent: BTreeMap<u64, Resent>,
    serial: u64,
}

impl Recovery {
    /// What is to be sent again next.
    pub fn due(&self) -> Option<u64> {
        self.due.first_key_value().map(|(first, _)| *first)
    }

    /// That is sent now, if it was due; up to which packet. `next_fresh` is the next packet that
    /// was never sent.
    pub fn take(&mut self, first: u64, next_fresh: u64) -> Option<u64> {
        let end = self.due.remove(&first)?;
        self.serial += 1;
        let resent = Resent {
            end,
            next_fresh,
            serial: self.serial,
        };
        self.resent.insert(first, resent);
        Some(end)
    }

    /// To be sent again, whatever was sent before.
    pub fn force(&mut self, first: u64, end: u64) {
        self.due.insert(first, end);
    }

    /// The range that was sent again and has not come, around a packet.
    fn around(&self, index: u64) -> Option<(u64, Resent)> {
        let (first, resent) = self.resent.range(..=index).next_back()?;
        (index < resent.end).then_some((*first, *resent))
    }

    /// The packet was sent again, and has not come.
    pub fn awaits(&self, index: u64) -> bool {
        self.around(index).is_some()
    }

    /// These are lost, unless they are on their way again: `come` is the last packet that is known
    /// to have come, `newest` the last of the repetitions. Whether they are to be sent.
    pub fn lost(&mut self, first: u64, end: u64, come: u64, newest: u64) -> bool {
        if let Some((at, resent)) = self.around(first) {
            if come < resent.next_fresh && newest <= resent.serial {
                return false;
            }
            self.resent.remove(&at);
        }
        self.due.insert(first, end).is_none()
    }

    /// A repetition is answered at `index`: those of earlier packets that left before it were lost,
    /// whether the peer answers in the order of numbers or in that of requests.
    fn overtaken(&mut self, index: u64, serial: u64) {
        let due = &mut self.due;
        self.resent.retain(|first, resent| {
            let lost = *first < index && resent.serial < serial;
            if lost {
                due.insert(*first, resent.end);
            }
            !lost
        });
    }

    /// Data at `index` has come: of what was asked for again, something may have been lost once
    /// more.
    pub fn came(&mut self, index: u64, peer_is_sluice: bool) {
        // Of others than Sluice, who are asked for more than is missing, the rest of an earlier
        // answer comes too: what they leave out is seen when the answer is at its end.
        let decides = |first: u64, resent: Resent| {
            first == index || peer_is_sluice || index + 1 == resent.end
        };
        if let Some((first, resent)) = self.around(index)
            && decides(first, resent)
        {
            self.resent.remove(&first);
            self.overtaken(index, resent.serial);
            // Responses come in order.
            if first < index {
                let upto = if peer_is_sluice { index } else { resent.end };
                self.due.insert(first, upto);
            }
            if index + 1 < resent.end {
                self.resent.insert(index + 1, resent);
            }
        }
        if let Some((first, resent)) = self.resent.first_key_value()
            && index >= resent.next_fresh
        {
            let (first, end) = (*first, resent.end);
            self.resent.remove(&first);
            self.due.insert(first, end);
        }
    }

    /// The last of the repetitions whose first packet `holds` says has come; 0 if there is none.
    pub fn newest(&self, holds: impl Fn(u64) -> bool) -> u64 {
        let come = self.resent.iter().filter(|(first, _)| holds(**first));
        come.map(|(_, resent)| resent.serial).max().unwrap_or(0)
    }

    /// All before `oldest` is answered.
    pub fn answered(&mut self, oldest: u64) {
        if !self.due.is_empty() {
            self.due = self.due.split_off(&oldest);
        }
        if self.resent.is_empty() {
            return;
        }
        let rest = self.around(oldest);
        self.resent = self.resent.split_off(&oldest);
        if let Some((_, resent)) = rest {
            self.resent.insert(oldest, resent);
        }
    }

    /// Nothing is sent again one by one.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.resent.is_empty()
    }

    /// Everything is sent again anyway.
    pub fn clear(&mut self) {
        self.due.clear();
        self.resent.clear();
    }
}

/// How much may be under way, in request packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    max: u64,
    allowed: u64,
    /// Answered since it grew.
    answered: u64,
    /// No second cut before this packet is answered: it left before the first one.
    cut_until: u64,
}

/// Lost packets in a row that are taken for a queue that was full and not for a bad cable.
pub(super) const BURST: u64 = 8;

impl Window {
    /// It is not cut below that: fewer under way are hardly worth a look.
    const MIN: u64 = 16;

    pub fn new(max: u32) -> Self {
        let max = u64::from(max.max(1));
        Self {
            max,
            allowed: max,
            answered: 0,
            cut_until: 0,
        }
    }

    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// It is smaller than it may be, after a loss.
    pub fn is_cut(&self) -> bool {
        self.allowed < self.max
    }

    /// Packets were lost by which others, or all behind them, were lost too.
    pub fn cut(&mut self, oldest: u64, sent: u64) {
        if oldest >= self.cut_until {
            self.allowed = (self.allowed / 2).max(Self::MIN).min(self.max);
            self.cut_until = sent;
            self.answered = 0;
        }
    }

    /// An eighth more for each window that was answered.
    pub fn answered(&mut self, packets: u64) {
        if self.is_cut() {
            self.answered += packets;
            if self.answered >= self.allowed {
                self.answered = 0;
                self.allowed = (self.allowed + (self.allowed / 8).max(1)).min(self.max);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a report that was under way when the packet was sent again makes it be sent a
    /// third time; a repetition that is lost is never noticed.
    #[test]
    fn a_repetition_is_lost_when_later_ones_have_come() {
        let mut recovery = Recovery::default();
        assert!(recovery.lost(5, 6, 9, 0) && !recovery.lost(5, 6, 9, 0));
        assert!(recovery.lost(7, 8, 9, 0));
        assert_eq!(recovery.take(5, 10), Some(6));
        assert_eq!(recovery.take(7, 10), Some(8));
        assert!(!recovery.lost(5, 6, 9, 0), "on its way");
        assert!(recovery.lost(5, 6, 10, 0), "what left later has come");
        assert_eq!(recovery.take(5, 12), Some(6));
        // Of the repetitions, 7 was number 2 and 5 was number 3.
        assert!(!recovery.lost(5, 6, 11, 2) && recovery.lost(7, 8, 9, 3));
    }

    #[test]
    fn the_rest_of_a_range_is_still_on_its_way() {
        let mut recovery = Recovery::default();
        recovery.force(10, 20);
        assert_eq!(recovery.take(10, 50), Some(20));
        recovery.answered(15);
        assert!(!recovery.lost(15, 20, 40, 0) && recovery.lost(15, 20, 50, 0));
        recovery.answered(20);
        assert_eq!(recovery.due(), None);
    }

    #[test]
    fn a_window_shrinks_once_and_grows_back() {
        let mut window = Window::new(256);
        window.cut(0, 100);
        window.cut(99, 200);
        assert_eq!(window.allowed(), 128);
        window.cut(100, 200);
        assert_eq!(window.allowed(), 64);
        let mut rounds = 0;
        while window.is_cut() {
            window.answered(window.allowed());
            rounds += 1;
        }
        assert!(window.allowed() == 256 && rounds < 20, "{rounds}");
        for at in 0..20 {
            window.cut(1000 + at, 1001 + at);
        }
        assert_eq!(window.allowed(), Window::MIN);
        let mut small = Window::new(4);
        small.cut(0, 1);
        assert_eq!(small.allowed(), 4);
    }
}
