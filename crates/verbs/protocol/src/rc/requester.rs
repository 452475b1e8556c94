//! The requester of a reliable connection: what is sent, and when it is sent again (IBTA 9.7.3,
//! 9.7.6). What comes back is in [`super::responses`], what is lost in [`super::losses`], what is sent
//! again one by one in [`super::recovery`].

use alloc::collections::VecDeque;
use core::cell::Cell;

use super::Config;
use super::early::Arrived;
use super::granted::Granted;
use super::recovery::{Recovery, Window};
use super::timers::{Due, Timers};
use crate::counters::Counters;
use crate::request::{Completion, PostError, Request, Status};
use crate::segment::Path;
use crate::sequence::{IN_FLIGHT_MAX, Sequence};
use crate::time::Instant;
use crate::transmit::Transmit;

/// A request and the packets that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub request: Request,
    /// Its first packet.
    pub first: u64,
    /// Sequence numbers that it takes.
    packets: u32,
    /// Request packets of all requests before it, ever. A READ has one, whatever its response.
    weight: u64,
    /// Each of its packets is a WRITE of its own.
    single: bool,
}

impl Entry {
    /// The packet after its last.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// Request packets before packet `index`, ever.
    fn weight_of(&self, index: u64) -> u64 {
        self.weight + self.weight_before(index)
    }

    /// Its own request packets before packet `index`.
    fn weight_before(&self, index: u64) -> u64 {
        let before = index.saturating_sub(self.first);
        if self.request.operation.has_response_data() {
            before.min(1)
        } else {
            before
        }
    }
}

/// What is asked for again when nothing comes.
#[derive(Clone, Copy, Debug)]
struct Probe {
    first: u64,
    end: u64,
    /// One packet, without data in its response.
    plain: bool,
}

/// Packets are counted from 0 ([`Sequence`]): `oldest` ≤ `next` ≤ `sent` ≤ `end`.
#[derive(Debug)]
pub(super) struct Requester {
    pub path: Path,
    pub sequence: Sequence,
    pub entries: VecDeque<Entry>,
    /// Where [`Requester::entry`] found something behind the oldest; only a hint.
    last_found: Cell<usize>,
    granted: Granted,
    done: VecDeque<Completion>,
    depth: usize,
    /// The oldest packet without an answer.
    pub oldest: u64,
    /// The next one to send; before `sent` while packets are sent again.
    pub next: u64,
    /// What comes after all that were ever sent.
    pub sent: u64,
    /// What comes after all that are asked for.
    end: u64,
    /// As [`Entry::weight`], of the next request.
    end_weight: u64,
    pub window: Window,
    /// What is to be sent again before `next`.
    pub recovery: Recovery,
    /// What was sent as a probe and is not answered.
    probed: Option<Probe>,
    /// The missing packet that the last NAK was about.
    pub nak_at: Option<u64>,
    /// Missing responses before this packet have been asked for again.
    pub examined: u64,
    /// The peer has said that all before this packet is done; READs and atomics may lack their
    /// data all the same.
    pub acknowledged: u64,
    /// Data of responses that came before its turn.
    pub early: Arrived,
    /// READs and atomics under way.
    reads: u8,
    reads_max: u8,
    /// Packets since one asked for an acknowledgement.
    unasked: u64,
    pub timers: Timers,
    retries: u8,
    retries_max: u8,
    rnr_retries: u8,
    rnr_retries_max: u8,
    /// The receiver was not ready; nothing is sent before that.
    pub rnr_until: Option<Instant>,
    /// Nothing from this packet on is sent, and that is why.
    fault: Option<(u64, Status)>,
    pub failed: bool,
    /// Nothing is sent for the first time ([`super::Connection::hold`]).
    pub held: bool,
    /// Repetitions say that we are Sluice.
    tells: bool,
    /// The peer is Sluice: it keeps what comes early, and may be asked for a piece of a READ.
    pub peer_is_sluice: bool,
}

/// Packets without a wish for an acknowledgement while they are spread over time: a timeout should
/// not come before the next one that has it.
const UNASKED_SLOW: u64 = 4;

/// Packets of READ data that may be under way for each request packet that may be.
const READ_SHARE: u64 = 4;

/// A retry count that never runs out (IBTA 9.7.5.2.8).
const FOR_EVER: u8 = 7;

impl Requester {
    pub fn new(config: &Config) -> Self {
        let retries = config.retry_cnt.min(7);
        let rnr_retries = config.rnr_retry.min(FOR_EVER);
        Self {
            path: config.path(),
            sequence: Sequence::new(config.send_psn),
            entries: VecDeque::new(),
            last_found: Cell::new(0),
            granted: Granted::default(),
            done: VecDeque::new(),
            depth: config.depth,
            oldest: 0,
            next: 0,
            sent: 0,
            end: 0,
            end_weight: 0,
            window: Window::new(config.window),
            recovery: Recovery::default(),
            probed: None,
            nak_at: None,
            examined: 0,
            acknowledged: 0,
            early: Arrived::default(),
            reads: 0,
            reads_max: config.max_rd_atomic,
            unasked: 0,
            timers: Timers::new(config.timeout),
            retries,
            retries_max: retries,
            rnr_retries,
            rnr_retries_max: rnr_retries,
            rnr_until: None,
            fault: None,
            failed: false,
            held: false,
            tells: config.early,
            peer_is_sluice: false,
        }
    }

    /// Other limits, from now on.
    pub fn change(&mut self, config: &Config) {
        self.reads_max = config.max_rd_atomic;
        self.timers.set_timeout(config.timeout);
        self.retries_max = config.retry_cnt.min(7);
        self.retries = self.retries.min(self.retries_max);
        self.rnr_retries_max = config.rnr_retry.min(FOR_EVER);
        self.rnr_retries = self.rnr_retries_max;
    }

    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        let answerable = !request.operation.has_response_data() || self.reads_max > 0;
        if self.failed {
            return Err(PostError::Failed);
        }
        if !request.is_legal() || !answerable || !self.path.has(&request) {
            return Err(PostError::Illegal);
        }
        if self.entries.len() + self.done.len() >= self.depth {
            return Err(PostError::Full);
        }
        let entry = Entry {
            single: self.path.single_writes && self.granted.covers(&request),
            request,
            first: self.end,
            packets: request.packets(self.path.mtu),
            weight: self.end_weight,
        };
        self.end = entry.end();
        self.end_weight += entry.weight_before(self.end);
        self.entries.push_back(entry);
        Ok(())
    }

    pub fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    pub fn has_completion(&self) -> bool {
        !self.done.is_empty()
    }

    /// The request that a packet belongs to.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        let at = |place: usize| {
            let entry = self.entries.get(place)?;
            (entry.first..entry.end()).contains(&index).then_some(entry)
        };
        // Mostly it is the oldest, that of the packet before, or the one behind that.
        let last = self.last_found.get();
        for place in [0, last, last + 1] {
            if let Some(entry) = at(place) {
                self.last_found.set(place.max(last));
                return Some(entry);
            }
        }
        let place = self.entries.partition_point(|entry| entry.end() <= index);
        self.last_found.set(place);
        at(place)
    }

    /// The packet that would be sent now, and its request.
    pub fn candidate(&self) -> Option<(u64, &Entry)> {
        if self.failed || self.rnr_until.is_some() {
            return None;
        }
        let again = self.recovery.due();
        let index = again.unwrap_or(self.next);
        // Mostly all is sent.
        if index >= self.end {
            return None;
        }
        if self.fault.is_some_and(|(first, _)| index >= first) {
            return None;
        }
        let entry = self.entry(index)?;
        if index == self.oldest && index < self.sent {
            return Some((index, entry));
        }
        let allowed = self.window.allowed();
        // What is answered in full has left the queue.
        let oldest = self.entries.front()?.weight_of(self.oldest);
        let read = entry.request.operation.has_response_data();
        // The data of READs counts as well. Most often it is too much of it that was lost.
        let data_max = (READ_SHARE * allowed).min(Arrived::SPAN);
        let room = !(read && index - self.oldest >= data_max);
        if again.is_some() {
            return room.then_some((index, entry));
        }
        let room = room && entry.weight_of(index) - oldest < allowed;
        let fresh = index >= self.sent;
        let last = if read { entry.end() } else { index + 1 };
        let room = room
            && !(fresh && self.held)
            && !(fresh && last - self.oldest > IN_FLIGHT_MAX)
            && !(fresh && read && self.reads >= self.reads_max);
        room.then_some((index, entry))
    }

    /// See [`super::Connection::waiting`].
    pub fn waiting(&self) -> u64 {
        self.entry(self.sent)
            .map_or(0, |entry| self.end_weight - entry.weight_of(self.sent))
    }

    /// There is something to send.
    pub fn is_ready(&self) -> bool {
        self.candidate().is_some()
    }

    /// Sends the [`Requester::candidate`]. `slow`: packets are spread over time, so that more of
    /// them ask for an acknowledgement.
    pub fn transmit(
        &mut self,
        index: u64,
        entry: &Entry,
        now: Instant,
        slow: bool,
        counters: &mut Counters,
    ) -> Option<Transmit> {
        let place = (index - entry.first) as u32;
        let psn = self.sequence.psn(index);
        let path = Path {
            single_writes: entry.single,
            ..self.path
        };
        let mut packet = path.packet(&entry.request, place, psn)?;
        let single = self.recovery.take(index, self.sent);
        let read = entry.request.operation.has_response_data();
        let after = if read { entry.end() } else { index + 1 };
        match (single, &mut packet.headers.reth) {
            (None, _) => self.next = after,
            // A piece of a READ: whole packets, no more than the READ has.
            (Some(end), Some(reth)) if read && end < entry.end() => {
                reth.length = (end - index) as u32 * self.path.mtu.bytes() as u32;
            }
            _ => {}
        }
        counters.request_packets += 1;
        let fresh = index >= self.sent;
        if fresh {
            self.sent = after;
            self.reads += u8::from(read);
        } else {
            counters.repeated_packets += 1;
            packet.headers.bth.sluice = self.tells;
        }
        // A READ's response is its acknowledgement. Of messages each last packet asks for one,
        // and so do some between, and whatever is followed by silence: the peer that puts several
        // answers into one is the one that knows whether it can.
        if !read {
            let unasked_max = if slow {
                UNASKED_SLOW
            } else {
                self.window.allowed() / 4
            };
            let asks = single.is_some()
                || after == entry.end()
                || self.unasked >= unasked_max
                || self.candidate().is_none();
            packet.headers.bth.ack_request = asks;
            self.unasked = if asks { 0 } else { self.unasked + 1 };
        }
        if fresh && (read || packet.headers.bth.ack_request) {
            self.timers.sent(index, now);
        }
        let probe = self.probed.is_some_and(|probe| probe.first == index);
        if !self.timers.is_running() || (index == self.oldest && single.is_none()) {
            self.timers.restart(now);
        } else if index == self.oldest && !probe {
            // The timeout runs on, lest somebody who asks for the same packet for ever is waited
            // for as long.
            self.timers.postpone(now);
        }
        Some(packet)
    }

    pub fn deadline(&self) -> Option<Instant> {
        if self.failed {
            None
        } else if self.rnr_until.is_some() {
            self.rnr_until
        } else {
            self.timers.deadline()
        }
    }

    pub fn expire(&mut self, now: Instant, counters: &mut Counters) {
        if self.failed {
            return;
        }
        if let Some(until) = self.rnr_until {
            if until <= now {
                self.rnr_until = None;
            }
            return;
        }
        match self.timers.due(now) {
            Due::Nothing => {}
            Due::Timeout => {
                counters.timeouts += 1;
                self.timers.silent();
                self.retry();
            }
            Due::Probe => {
                counters.probes += 1;
                self.probe();
                self.timers.probed(now);
            }
        }
    }

    /// What is asked for when nothing has come for a while.
    pub fn probe(&mut self) {
        let Some(entry) = self.entry(self.oldest).copied() else {
            return;
        };
        let end = match entry.request.operation.has_response_data() {
            false => self.oldest + 1,
            true if self.peer_is_sluice => self.hole_end(self.oldest, entry.end()),
            true => entry.end(),
        };
        self.recovery.force(self.oldest, end);
        // Not counted as a retry: the program's timeout and count decide when the peer is given up.
        self.probed = Some(Probe {
            first: self.oldest,
            end,
            plain: !entry.request.operation.has_response_data(),
        });
    }

    /// Whether data of a response is here.
    pub fn arrived(&self, index: u64) -> bool {
        index - self.oldest < Arrived::SPAN && self.early.contains(index)
    }

    /// After the last packet from `index` on that is missing, of those before `end`.
    pub fn hole_end(&self, index: u64, end: u64) -> u64 {
        (index..end.min(self.oldest + Arrived::SPAN))
            .find(|index| self.early.contains(*index))
            .unwrap_or(end)
    }

    /// Sends everything from the oldest packet on again, if a retry is left (IBTA 9.9.2.4.1).
    pub fn retry(&mut self) {
        match self.retries.checked_sub(1) {
            Some(left) => {
                self.retries = left;
                self.window.cut(self.oldest, self.sent);
                self.go_back();
            }
            None => self.fail(Status::RetryExceeded),
        }
    }

    pub fn go_back(&mut self) {
        self.next = self.oldest;
        self.recovery.clear();
        self.probed = None;
        self.timers.stop();
        self.timers.repeats();
    }

    /// The receiver was not ready for the oldest packet (IBTA 9.7.5.2.8).
    pub fn receiver_not_ready(&mut self, until: Instant) {
        if self.rnr_retries_max < FOR_EVER {
            match self.rnr_retries.checked_sub(1) {
                Some(left) => self.rnr_retries = left,
                None => return self.fail(Status::RnrRetryExceeded),
            }
        }
        self.go_back();
        self.rnr_until = Some(until);
    }

    /// All before `to` is answered, except that READs and atomics need their own response: stops
    /// at the first that has none (IBTA 9.7.5.1.4). Whether `to` was reached.
    pub fn reach(&mut self, to: u64) -> bool {
        while self.oldest < to {
            let Some(front) = self.entries.front() else {
                return false;
            };
            if front.request.operation.has_response_data() {
                return false;
            }
            self.oldest = front.end().min(to);
            self.alive();
            self.complete_front();
        }
        true
    }

    /// The peer has done something new, so that all retries are left again (IBTA 9.9.2.4.1).
    pub fn alive(&mut self) {
        self.retries = self.retries_max;
        self.rnr_retries = self.rnr_retries_max;
        self.timers.heard();
    }

    /// Completes the first request if it is all answered.
    pub fn complete_front(&mut self) {
        if let Some(front) = self.entries.front()
            && self.oldest >= front.end()
        {
            let request = front.request;
            self.reads -= u8::from(request.operation.has_response_data());
            self.granted.done(&request);
            self.entries.pop_front();
            self.done.push_back(Completion {
                seq: request.seq,
                status: Status::Success,
                length: request.length,
            });
        }
    }

    /// To be called when `oldest` has moved on, from `before`. What came with that, a NAK say, has
    /// been dealt with and may have used up a retry: [`Requester::alive`] was before it.
    pub fn progressed(&mut self, before: u64, now: Instant) {
        self.next = self.next.max(self.oldest);
        self.recovery.answered(self.oldest);
        self.window.answered(self.oldest - before);
        self.timers.answered(self.oldest, now);
        let probed = self.probed.take_if(|probe| probe.end <= self.oldest);
        let answered = probed.filter(|probe| probe.end == self.oldest);
        let lonely = answered.is_some_and(|probe| probe.plain);
        if self.oldest == self.next {
            self.timers.stop();
        } else if lonely && self.recovery.is_empty() {
            // The probe was all that the peer lacked, or it dropped what came after. It asked
            // for an answer, so it would have said if it had more, or have reported what.
            self.go_back();
        } else {
            if answered.is_some() && self.recovery.awaits(self.oldest) {
                // What was asked for before it, and is missing next, is lost as well.
                self.probe();
            }
            self.timers.restart(now);
        }
        self.look_for_fault();
    }

    /// The memory of a request is not to be had: it fails when all before it is done, and nothing
    /// of it is sent from now on.
    pub fn fail_request(&mut self, seq: u64, status: Status) {
        let Some(entry) = self.entries.iter().find(|entry| entry.request.seq == seq) else {
            return;
        };
        let earlier = self.fault.is_some_and(|(first, _)| first <= entry.first);
        if !earlier {
            self.fault = Some((entry.first, status));
            self.look_for_fault();
        }
    }

    fn look_for_fault(&mut self) {
        if let Some((first, status)) = self.fault
            && self.oldest >= first
        {
            self.fault = None;
            // Unless it was done after all: its bytes were missing for a repetition only.
            if self
                .entries
                .front()
                .is_some_and(|front| front.first == first)
            {
                self.fail(status);
            }
        }
    }

    /// The oldest request fails, and all others are flushed (IBTA 10.8.6).
    pub fn fail(&mut self, status: Status) {
        let mut status = status;
        for entry in self.entries.drain(..) {
            self.done.push_back(Completion {
                seq: entry.request.seq,
                status,
                length: entry.request.length,
            });
            status = Status::Flushed;
        }
        self.failed = true;
        self.timers.stop();
        self.rnr_until = None;
        self.recovery.clear();
    }
}
