//! One round of a shard: turns, and what leaves in them.
//!
//! The shard's holder tells what came and what was posted ([`Planner::came`], [`Planner::wake`]), begins a
//! round ([`Planner::begin`]) and does its steps until there is none ([`Planner::step`]). In a turn it asks
//! the queue pair for packets as long as [`Planner::may_put`] says so, and asks for each what goes beside it.

use alloc::vec::Vec;
use core::ops::Range;

use sluice_protocol::Instant;

use crate::answers::Answers;
use crate::turns::Scheduler;

/// The way by which packets go in batches that the kernel takes together.
pub const SOCKETS: usize = 0;

/// Bytes of a turn on the link.
const TURN_BYTES: u32 = 64 << 10;
/// Packets that one queue pair sends in a turn, at most.
const TURN_PACKETS: u32 = 32;
/// Turns in one round, so that what comes in is looked at in between.
const TURNS: u32 = 64;
/// Packets that are gathered at most.
const BURST_PACKETS: u32 = 32;
/// Packets of a poll whose answers wait for what the program does next: it may post one of its own,
/// and then both leave by one call of the kernel.
const PROMPT_PACKETS: usize = 4;
/// When a way that took nothing more is tried again.
const BLOCKED_NS: u64 = 100_000;

/// What a queue pair owes behind a packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owes {
    /// Nothing: no packet leaves, and no deadline is sooner than the shard knows.
    Nothing,
    /// An acknowledgement is to be sent, which may wait a little.
    Acknowledgement,
    /// It is to have a turn.
    Turn,
}

/// A program's thread that posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poster {
    /// Its packets wait for more.
    pub gathers: bool,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This queue pair sends, and [`Planner::ended`] says how its turn ended.
    Turn(usize),
    /// The kernel is told of what was put into this way: first what is kept back ([`Planner::take_kept`]),
    /// then the way's batch. [`Planner::flushed`] says what came of it.
    Flush(usize),
    /// The round is over.
    Rest,
}

/// How a queue pair's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has more.
    More,
    /// A way has no room.
    Blocked,
    /// It has nothing, until then.
    Nothing(Option<Instant>),
}

/// What leaves with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside<A> {
    /// Nothing.
    Nothing,
    /// This acknowledgement, in front of it.
    InFront(A),
    /// This one, so that who gets the one has the other.
    Together(A),
}

/// An acknowledgement that is kept back until the kernel is told, for a packet to go with.
#[derive(Debug)]
struct Kept<A> {
    flow: usize,
    acknowledgement: A,
}

/// A round under way.
#[derive(Debug, Default)]
struct Round {
    poster: Option<Poster>,
    /// Ways of the shard.
    ways: usize,
    turns: u32,
    /// Packets of the turn.
    packets: u32,
    /// It has had its bytes, and others wait.
    turn_is_over: bool,
    /// Ways that are to be flushed now.
    flush: Range<usize>,
    /// A turn found no room: the round goes on only if the ways take all that they have.
    needs_room: bool,
    /// One has not, since all were last to be flushed.
    has_failed: bool,
    /// All ways have been flushed, and nothing was put behind that.
    is_flushed: bool,
    is_over: bool,
}

/// Plans what leaves a shard. `A`: an acknowledgement that can be kept.
#[derive(Debug)]
pub struct Planner<A> {
    turns: Scheduler,
    answers: Answers,
    kept: Vec<Option<Kept<A>>>,
    /// Packets in the ways that the kernel has not been told of.
    gathered: u32,
    /// Of these, when the kernel was last told of those that need not wait.
    handed_on: u32,
    /// A poller has left answers to be sent.
    owes: bool,
    /// A way has not taken all.
    is_blocked: bool,
    round: Round,
}

impl<A> Default for Planner<A> {
    fn default() -> Self {
        Self {
            turns: Scheduler::new(TURN_BYTES),
            answers: Answers::default(),
            kept: Vec::new(),
            gathered: 0,
            handed_on: 0,
            owes: false,
            is_blocked: false,
            round: Round::default(),
        }
    }
}

/// What happens between rounds.
impl<A> Planner<A> {
    /// A packet came for a queue pair, which owes that now.
    pub fn came(&mut self, flow: usize, owes: Owes, now: Instant) {
        let waits = match owes {
            Owes::Nothing => true,
            Owes::Acknowledgement => self.answers.came(flow, now),
            Owes::Turn => false,
        };
        if !waits {
            self.turns.wake(flow);
        }
    }

    /// A queue pair may have something to send.
    pub fn wake(&mut self, flow: usize) {
        self.turns.wake(flow);
    }

    /// Acknowledgements that have waited long enough are to be sent now. `now` is asked for only if
    /// something waits.
    pub fn release_due(&mut self, now: impl FnOnce() -> Instant) {
        if self.answers.is_due(now) {
            self.release();
        }
    }

    /// All that wait are.
    pub fn release(&mut self) {
        for flow in self.answers.release() {
            self.turns.wake(flow);
            self.owes = true;
        }
    }

    /// A program's poll has found so many packets. Whether what is owed for them is left to what the
    /// program does next, or to the next poll.
    pub fn leaves_to_program(&mut self, came: usize) -> bool {
        let few = (1..=PROMPT_PACKETS).contains(&came);
        if few {
            self.owes = !self.turns.is_idle();
        }
        few
    }

    /// Something was left that whoever looks at the shard sends in front of all else.
    pub fn owes(&self) -> bool {
        self.owes || self.has_gathered()
    }

    /// Packets wait that the kernel has not been told of.
    pub fn has_gathered(&self) -> bool {
        self.gathered > 0
    }

    /// Nothing is to be sent before something comes, is posted or is due.
    pub fn is_idle(&self) -> bool {
        self.gathered == 0 && !self.is_blocked && self.turns.is_idle()
    }

    /// When somebody must look at the shard again: `Some(None)`, at once; None, no need. `now` is asked for
    /// only where that is so long from now.
    pub fn due(&self, now: impl FnOnce() -> Instant) -> Option<Option<Instant>> {
        if self.owes() {
            Some(None)
        } else if self.is_blocked {
            // Nobody says when there is room again.
            Some(Some(now().after_nanos(BLOCKED_NS)))
        } else if !self.turns.is_idle() {
            Some(None)
        } else {
            let first = [self.turns.deadline(), self.answers.until()];
            first.into_iter().flatten().min().map(Some)
        }
    }
}

/// A round.
impl<A> Planner<A> {
    /// Begins one, on a shard with so many ways. `poster`: it is one of a thread that posts, which is what
    /// held acknowledgements have waited for.
    pub fn begin(&mut self, ways: usize, poster: Option<Poster>, now: Instant) {
        self.is_blocked = false;
        self.owes = false;
        self.round = Round {
            poster,
            ways,
            ..Round::default()
        };
        if self.kept.len() < ways {
            self.kept.resize_with(ways, || None);
        }
        if poster.is_some() {
            self.answers.posted(now);
            self.release();
            self.owes = false;
        }
    }

    /// What is to be done next.
    pub fn step(&mut self, now: Instant) -> Step {
        if let Some(way) = self.flushes() {
            return Step::Flush(way);
        }
        let blocked = core::mem::take(&mut self.round.needs_room) && self.round.has_failed;
        if blocked || self.round.is_over {
            return Step::Rest;
        }
        if self.round.turns < TURNS
            && let Some(flow) = self.turns.turn(now)
        {
            self.round.turns += 1;
            self.round.packets = 0;
            self.round.turn_is_over = false;
            return Step::Turn(flow);
        }
        self.round.is_over = true;
        let is_last = match self.round.poster {
            // What the kernel did not take goes, and ports do what they put off.
            None => true,
            Some(_) if self.round.is_flushed => false,
            Some(poster) => !poster.gathers || self.gathered >= BURST_PACKETS,
        };
        if is_last {
            self.flush_all();
            return self.step(now);
        }
        Step::Rest
    }

    /// Whether the queue pair whose turn it is may be asked for a packet; else how its turn ended. `room`:
    /// packets that a way takes. `ways`: those by which the packet may leave.
    pub fn may_put(&self, ways: &[usize], room: impl Fn(usize) -> usize) -> Result<(), End> {
        if self.round.packets == TURN_PACKETS || self.round.turn_is_over {
            return Err(End::More);
        }
        let mut ways = ways.iter();
        match ways.all(|way| room(*way) > self.reserved(*way)) {
            true => Ok(()),
            false => Err(End::Blocked),
        }
    }

    /// Places in a way that are for what is kept back.
    fn reserved(&self, way: usize) -> usize {
        usize::from(self.kept.get(way).is_some_and(Option::is_some))
    }

    /// It has given a packet of so many bytes on the link.
    fn sent(&mut self, flow: usize, bytes: u32) {
        self.round.packets += 1;
        self.round.is_flushed = false;
        self.gathered += 1;
        self.round.turn_is_over = !self.turns.sent(flow, bytes);
    }

    /// It has given an acknowledgement of so many bytes on the link, which says nothing new when it comes
    /// twice. It is kept back; the one before is to be put into the way.
    #[must_use]
    pub fn keep(&mut self, flow: usize, way: usize, bytes: u32, acknowledgement: A) -> Option<A> {
        self.sent(flow, bytes);
        let kept = Kept {
            flow,
            acknowledgement,
        };
        let before = self.kept.get_mut(way)?.replace(kept);
        before.map(|before| before.acknowledgement)
    }

    /// It has given another packet, which is to be put into the way. `ends`: a message or an answer is
    /// complete with it.
    #[must_use]
    pub fn beside(&mut self, flow: usize, way: usize, bytes: u32, ends: bool) -> Beside<A> {
        self.sent(flow, bytes);
        let Some(kept) = self.kept.get_mut(way) else {
            return Beside::Nothing;
        };
        match kept.take_if(|kept| kept.flow != flow || ends) {
            None => Beside::Nothing,
            Some(kept) if kept.flow == flow => Beside::Together(kept.acknowledgement),
            Some(kept) => Beside::InFront(kept.acknowledgement),
        }
    }

    /// It has nothing more. Whether the kernel is told at once ([`Planner::flush_all`], [`Planner::flushes`]) and the rest of the
    /// turn is done while the peer looks at it: a program has posted one request, and this is all that leaves
    /// with it.
    pub fn is_prompt(&self) -> bool {
        let alone = self.round.poster.is_some_and(|poster| !poster.gathers);
        alone && self.round.packets > 0 && self.turns.is_last()
    }

    /// Its turn has ended.
    pub fn ended(&mut self, flow: usize, end: End) {
        // Who gets them works on them while the next ones are made. A batch of the sockets grows.
        if self.gathered - self.handed_on >= BURST_PACKETS {
            self.handed_on = self.gathered;
            self.round.flush = SOCKETS + 1..self.round.ways;
        }
        match end {
            End::More => {}
            End::Nothing(None) => self.turns.idle(flow),
            End::Nothing(Some(until)) => self.turns.wait(flow, until),
            End::Blocked => {
                self.flush_all();
                self.round.needs_room = true;
            }
        }
    }

    /// The next way that is to be flushed before anything else, as [`Step::Flush`].
    pub fn flushes(&mut self) -> Option<usize> {
        // Past the kernel first: an acknowledgement there is in front of bulk that answers.
        self.round.flush.next_back()
    }

    /// The kernel is told of everything, by [`Step::Flush`].
    pub fn flush_all(&mut self) {
        (self.gathered, self.handed_on) = (0, 0);
        self.round.is_flushed = true;
        self.round.has_failed = false;
        self.round.flush = 0..self.round.ways;
    }

    /// What is kept back in a way, which is to be put into it.
    #[must_use]
    pub fn take_kept(&mut self, way: usize) -> Option<A> {
        let kept = self.kept.get_mut(way)?.take()?;
        Some(kept.acknowledgement)
    }

    /// A way was flushed. `all`: it took everything.
    pub fn flushed(&mut self, all: bool) {
        self.is_blocked |= !all;
        self.round.has_failed |= !all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAST: usize = 1;
    const WAYS: usize = 2;
    const NOW: Instant = Instant::from_nanos(1_000);

    /// A planner whose flow 0 has something to send, in a round.
    fn begun(poster: Option<Poster>) -> Planner<u32> {
        let mut planner = Planner::default();
        planner.wake(0);
        planner.begin(WAYS, poster, NOW);
        assert_eq!(planner.step(NOW), Step::Turn(0));
        planner
    }

    /// So many short packets; how the turn ends.
    fn put(planner: &mut Planner<u32>, way: usize, packets: u32, more: End) -> End {
        for _ in 0..packets {
            if let Err(end) = planner.may_put(&[way], |_| 100) {
                return end;
            }
            assert_eq!(planner.beside(0, way, 100, true), Beside::Nothing);
        }
        more
    }

    fn steps(planner: &mut Planner<u32>) -> Vec<Step> {
        let mut all = Vec::new();
        loop {
            let step = planner.step(NOW);
            match step {
                Step::Rest => return all,
                Step::Turn(flow) => planner.ended(flow, End::Nothing(None)),
                Step::Flush(_) => planner.flushed(true),
            }
            all.push(step);
        }
    }

    #[test]
    fn a_burst_leaves_past_the_kernel_while_that_of_the_sockets_grows() {
        for way in [SOCKETS, PAST] {
            let mut planner = begun(None);
            let end = put(&mut planner, way, BURST_PACKETS + 1, End::Nothing(None));
            assert_eq!(end, End::More, "others may have something, too");
            planner.ended(0, end);
            let all = [PAST, PAST, SOCKETS].map(Step::Flush);
            assert_eq!(steps(&mut planner), [all[0], Step::Turn(0), all[1], all[2]]);
        }
    }

    #[test]
    fn a_turn_ends_with_its_bytes_where_others_wait() {
        let packets = |others: bool| {
            let mut planner = begun(None);
            if others {
                planner.wake(1);
            }
            let mut packets = 0;
            while planner.may_put(&[PAST], |_| 100).is_ok() {
                assert_eq!(planner.beside(0, PAST, 4096, true), Beside::Nothing);
                packets += 1;
            }
            planner.ended(0, End::More);
            assert_eq!(planner.flushes().is_some(), !others);
            while planner.flushes().is_some() {}
            assert_eq!(planner.step(NOW), Step::Turn(usize::from(others)));
            packets
        };
        assert_eq!(packets(true), TURN_BYTES / 4096);
        assert_eq!(packets(false), TURN_PACKETS);
    }

    #[test]
    fn what_a_poster_gathers_is_left() {
        let gathers = Some(Poster { gathers: true });
        let mut planner = begun(gathers);
        let end = put(&mut planner, PAST, 3, End::Nothing(None));
        assert!(!planner.is_prompt());
        planner.ended(0, end);
        assert_eq!(steps(&mut planner), []);
        assert!(planner.has_gathered() && !planner.is_idle());
        assert_eq!(planner.due(|| NOW), Some(None));
        // Whoever looks sends it, past the kernel first.
        planner.begin(WAYS, None, NOW);
        let all = [PAST, SOCKETS].map(Step::Flush);
        assert_eq!(steps(&mut planner), all);
        assert_eq!(planner.due(|| NOW), None);
    }

    #[test]
    fn one_request_leaves_before_the_rest_of_its_turn_is_done() {
        let mut planner = begun(Some(Poster { gathers: false }));
        let end = put(&mut planner, PAST, 1, End::Nothing(None));
        assert!(planner.is_prompt());
        planner.flush_all();
        assert_eq!(
            [planner.flushes(), planner.flushes()],
            [Some(PAST), Some(SOCKETS)]
        );
        planner.ended(0, end);
        assert_eq!(steps(&mut planner), [], "not twice");
    }

    #[test]
    fn who_finds_no_room_goes_on_when_there_is_some() {
        for all in [true, false] {
            let mut planner = begun(None);
            assert_eq!(
                planner.may_put(&[PAST, SOCKETS], |way| way),
                Err(End::Blocked)
            );
            planner.ended(0, End::Blocked);
            for way in [PAST, SOCKETS] {
                assert_eq!(planner.step(NOW), Step::Flush(way));
                planner.flushed(all || way == SOCKETS);
            }
            let goes_on = planner.step(NOW) == Step::Turn(0);
            assert_eq!((goes_on, planner.is_idle()), (all, false));
            if !all {
                let then = NOW.after_nanos(BLOCKED_NS);
                assert_eq!(planner.due(|| NOW), Some(Some(then)));
            }
        }
    }

    #[test]
    fn what_is_kept_back_has_a_place() {
        let mut planner = begun(None);
        assert_eq!(planner.keep(0, PAST, 80, 7), None);
        assert_eq!(planner.may_put(&[PAST], |_| 1), Err(End::Blocked));
        assert_eq!(planner.may_put(&[PAST], |_| 2), Ok(()));
        assert_eq!(planner.may_put(&[SOCKETS], |_| 1), Ok(()));
        // It waits for the end of a message, on its way.
        assert_eq!(planner.beside(0, PAST, 100, false), Beside::Nothing);
        assert_eq!(planner.beside(0, SOCKETS, 100, true), Beside::Nothing);
        assert_eq!(planner.beside(0, PAST, 100, true), Beside::Together(7));
        assert_eq!(planner.keep(0, PAST, 80, 8), None);
        assert_eq!(planner.keep(0, PAST, 80, 9), Some(8));
        assert_eq!(planner.beside(1, PAST, 100, false), Beside::InFront(9));
        assert_eq!(planner.keep(0, PAST, 80, 10), None);
        assert_eq!(
            (planner.take_kept(SOCKETS), planner.take_kept(PAST)),
            (None, Some(10))
        );
        assert_eq!(planner.take_kept(PAST), None);
    }
}
