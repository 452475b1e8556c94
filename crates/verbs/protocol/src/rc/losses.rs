//! How a requester learns that packets are lost, and what it sends again for that.
//!
//! | who says that packets are lost | peer | what is sent again |
//! |---|---|---|
//! | a selective report ([`sluice_wire::selective`]) | Sluice | the holes of the report |
//! | a NAK for a missing packet | Sluice | that packet |
//! | the same | other | all from there on (IBTA 9.7.5.2.2), of a window that shrinks |
//! | later READ data, atomic data, ACK | Sluice | a READ of the missing range |
//! | the same | other | a READ of all from the missing packet to the READ's end |
//! | silence for some round trips | any | the oldest packet |
//! | the local ACK timeout | any | all, of a window that shrinks |
//!
//! Silence is [`super::requester`]'s, what is sent again is kept in [`super::recovery`].

use sluice_wire::selective::Report;

use super::recovery::BURST;
use super::requester::{Entry, Requester};
use crate::counters::Counters;

impl Requester {
    /// A selective report of the peer's.
    pub fn report(&mut self, report: &Report<'_>, counters: &mut Counters) {
        let Some(base) = self.sequence.index(report.base, self.oldest) else {
            counters.stale_responses += 1;
            return;
        };
        let held_until = base.saturating_add(report.held_until());
        let until = held_until.max(base.saturating_add(u64::from(report.extent)));
        if until > self.sent {
            counters.future_responses += 1;
            return;
        }
        // When the receiver is not ready, or all is sent again, there is nothing to choose.
        if self.failed || self.rnr_until.is_some() || until <= self.oldest {
            counters.stale_responses += 1;
            return;
        }
        counters.reports += 1;
        let holds = |index: u64| index < base || report.holds(index - base);
        let newest = self.recovery.newest(holds);
        let come = held_until.saturating_sub(1);
        let from = base.max(self.oldest);
        let mut row = 0;
        let mut burst = false;
        let begin = self.entries.partition_point(|entry| entry.end() <= from);
        // No more packets than a window.
        for entry in self.entries.range(begin..) {
            if entry.first >= until {
                break;
            }
            let (last, one) = span(entry);
            for index in entry.first.max(from)..last.min(until) {
                if holds(index) {
                    row = 0;
                } else if index < self.next {
                    row += 1;
                    burst |= row >= BURST;
                    self.recovery.lost(index, index + one, come, newest);
                }
            }
        }
        if burst {
            self.window.cut(self.oldest, self.sent);
        }
    }

    /// Responses before packet `until` are here or lost, those of READs and atomics too.
    pub fn implied_nak(&mut self, until: u64, counters: &mut Counters) {
        let from = self.examined.max(self.oldest);
        self.examined = self.examined.max(until);
        if from >= until {
            return;
        }
        let mut asked = 0;
        let begin = self.entries.partition_point(|entry| entry.end() <= from);
        // At most as many as may be posted, and as many pieces as are remembered.
        for place in begin..self.entries.len() {
            let Some(entry) = self.entries.get(place).copied() else {
                break;
            };
            if entry.first >= until {
                break;
            }
            if entry.request.operation.has_response_data() {
                asked += self.look_for_holes(&entry, from, until);
            }
        }
        if asked > 0 {
            counters.implied_naks += 1;
        }
        if asked >= BURST {
            self.window.cut(self.oldest, self.sent);
        }
    }

    /// Asks again for what of a response is missing; how many packets.
    fn look_for_holes(&mut self, entry: &Entry, from: u64, until: u64) -> u64 {
        let end = entry.end().min(until);
        let mut index = entry.first.max(from);
        let mut asked = 0;
        while index < end {
            if self.arrived(index) {
                index += 1;
                continue;
            }
            let hole = self.hole_end(index, end);
            // Others may take a piece out of the middle for all that is wanted from now on.
            let upto = if self.peer_is_sluice {
                hole
            } else {
                entry.end()
            };
            if self.recovery.lost(index, upto, 0, 0) {
                asked += hole - index;
            }
            index = upto;
        }
        asked
    }

    /// The peer, which is Sluice, misses a packet.
    pub fn missing(&mut self, index: u64, counters: &mut Counters) {
        let Some(entry) = self.entry(index).copied() else {
            return;
        };
        let (_, one) = span(&entry);
        if index < self.next && self.recovery.lost(index, index + one, index, 0) {
            counters.sequence_naks += 1;
        } else {
            counters.stale_responses += 1;
        }
    }
}

/// After the last packet that the request itself has, and how many numbers each of them takes: a
/// READ has one packet, which takes those of its response.
fn span(entry: &Entry) -> (u64, u64) {
    if entry.request.operation.has_response_data() {
        (entry.first + 1, entry.end() - entry.first)
    } else {
        (entry.end(), 1)
    }
}
