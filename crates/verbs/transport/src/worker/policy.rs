//! When a transport's thread sleeps, when it only watches, and when it looks on.
//!
//! Work comes on *sides*, of which programs may poll some and leave others: a shard's ports are one,
//! the requests and the answers of shared rings are two.

use sluice_waiting::limits::LIMITS;
use sluice_waiting::window::Window;

/// How long a watching thread waits.
pub const WATCH_NS: u64 = LIMITS.watch_ns;
const QUIET_WATCHES: u32 = LIMITS.quiet_watches as u32;
/// What one look finds from which on more is expected soon ([`Stream`]).
pub(super) const BULK: usize = LIMITS.bulk_found as usize;

/// In what the threads of transports differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// How sure of it the thread has to be, in looks, that programs leave a side to it or take it over.
    certainty: i32,
    /// It takes sides for left to it in the beginning.
    starts_alone: bool,
    /// It looks on for a while where work comes soon after each other.
    pub(super) looks_on: bool,
    /// It does so before it says that it sleeps, and not behind that.
    pub(super) looks_on_first: bool,
    /// It naps in a stream of work.
    naps: bool,
    /// So many looks in a row are left to programs that poll.
    pub(super) watches_left_out: u32,
    /// The slice of a processor that the thread asks for, nanoseconds; `None`: the usual one.
    pub(super) slice_ns: Option<u64>,
}

impl Manner {
    /// Work is announced by who brings it, who looks whether the thread sleeps: every look tells the
    /// thread whose a side is.
    pub const RUNG: Self = Self {
        certainty: 1,
        starts_alone: false,
        looks_on: false,
        looks_on_first: false,
        naps: false,
        watches_left_out: 0,
        slice_ns: None,
    };

    /// The same, where work that waits for its answer comes from other hosts, and to ring and to be woken
    /// costs more than to look for the next.
    pub const RUNG_FROM_AFAR: Self = Self {
        looks_on: true,
        looks_on_first: true,
        ..Self::RUNG
    };

    /// Work makes a descriptor readable whoever looks. To be woken for each packet would cost more
    /// than the packet, and a look takes the packet away from a program that polls.
    pub const HEARD: Self = Self {
        certainty: 8,
        starts_alone: true,
        looks_on: true,
        looks_on_first: false,
        naps: true,
        watches_left_out: 64,
        // One batch takes less. The programs that it serves may spin on all processors, with
        // slices of 3 ms.
        slice_ns: Some(100_000),
    };
}

/// How sure the thread is that programs leave a side to it: above the middle it sleeps and is woken,
/// below it watches.
#[derive(Clone, Copy, Debug)]
struct Alone {
    sure: i32,
    most: i32,
}

impl Alone {
    /// Where work was left for long: what waits for the next look costs as much time as the
    /// thread takes that is woken some tens of times in vain.
    const LEFT: i32 = 64;

    /// It has looked, and found so much that nobody had taken.
    fn looked(&mut self, found: usize, polled: bool) {
        // What it finds has waited for it. Finding nothing says something only while others do.
        let step = match (found, polled) {
            (0, true) => -1,
            (0, false) => 0,
            _ => 2,
        };
        self.sure = (self.sure + step).clamp(0, self.most.max(self.sure));
    }

    /// It has found work after a watch in which programs took none: they poll until a request is
    /// complete, and leave what comes behind to it.
    fn was_left(&mut self) {
        self.sure = Self::LEFT;
    }

    fn sleeps(self) -> bool {
        self.sure > self.most / 2
    }
}

/// Whether much comes. The thread then does not listen for the next when it has taken all, but naps
/// and looks, so that senders need not wake it, which costs both more than the packets. When a nap was
/// in vain it sleeps.
#[derive(Debug, Default)]
struct Stream(bool);

impl Stream {
    /// It has looked, and found so much. Whether it is to look again soon.
    fn looked(&mut self, found: usize) -> bool {
        let before = core::mem::replace(&mut self.0, found >= BULK);
        before || self.0
    }
}

/// How the thread rests behind a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Whoever brings work wakes it.
    Sleep,
    /// The same, but it goes on looking until then first.
    LookOn { until_ns: u64 },
    /// It takes a nap if it has just looked in vain, and looks again in any case.
    Nap { in_vain: bool },
    /// Nobody wakes it for what programs that poll will take.
    Watch,
}

/// What a thread has learned, and what it does next. All times are nanoseconds of one clock.
pub struct Policy<const SIDES: usize> {
    alone: [Alone; SIDES],
    /// What programs had taken by polling when it was last asked.
    polled: [u64; SIDES],
    /// Rounds without anything; starts as if there had been none for long.
    quiet: u32,
    /// What the last look found; `None`: somebody else was at it.
    found: Option<usize>,
    /// When it last found something.
    found_at: u64,
    /// A watch has ended in which programs took nothing.
    unpolled: bool,
    stream: Stream,
    naps: bool,
    window: Option<Window>,
}

impl<const SIDES: usize> Policy<SIDES> {
    /// `call_ns`: what a system call takes that does nothing. `processors`: how many there are.
    pub fn new(manner: Manner, call_ns: u64, processors: u32) -> Self {
        let alone = Alone {
            sure: if manner.starts_alone {
                manner.certainty
            } else {
                0
            },
            most: manner.certainty,
        };
        Self {
            alone: [alone; SIDES],
            polled: [0; SIDES],
            quiet: QUIET_WATCHES,
            found: Some(0),
            found_at: 0,
            unpolled: false,
            stream: Stream::default(),
            naps: manner.naps,
            window: manner
                .looks_on
                .then(|| Window::new(&LIMITS, call_ns, processors)),
        }
    }

    /// A round begins. `polled`: what programs have taken by polling so far. On which sides they
    /// have since the last time.
    pub fn begins(&mut self, polled: [u64; SIDES]) -> [bool; SIDES] {
        let before = core::mem::replace(&mut self.polled, polled);
        core::array::from_fn(|side| polled[side] != before[side])
    }

    /// It has looked. `polled`: as [`Policy::begins`] said. `found`: how much on each side; `None`:
    /// somebody else is at it this very moment.
    pub fn looked(&mut self, now: u64, polled: [bool; SIDES], found: Option<[usize; SIDES]>) {
        let by_side = found.unwrap_or([0; SIDES]);
        let others = polled.contains(&true);
        self.found = found.map(|found| found.iter().sum());
        for (side, alone) in self.alone.iter_mut().enumerate() {
            alone.looked(by_side[side], polled[side] || found.is_none());
        }
        let some = self.found.is_some_and(|found| found > 0);
        if core::mem::take(&mut self.unpolled) && some {
            self.alone.iter_mut().for_each(Alone::was_left);
        }
        self.quiet = match self.found {
            Some(0) if !others => (self.quiet + 1).min(QUIET_WATCHES),
            _ => 0,
        };
        if some {
            self.found_at = now;
        }
    }

    /// Whether there was traffic lately.
    pub fn is_busy(&self) -> bool {
        self.quiet < QUIET_WATCHES
    }

    /// Whether it sleeps next, so that whoever brings work has to wake it. `armed`: somebody relies
    /// on that. `spared`: it would be woken for nothing, as all that is there waits for the program.
    pub fn sleeps(&self, armed: bool, spared: bool) -> bool {
        let left = self.alone.iter().any(|alone| alone.sleeps());
        armed || !spared && (left || !self.is_busy())
    }

    /// How it rests. `sleeps`: as [`Policy::sleeps`] said.
    pub fn rest(&mut self, now: u64, sleeps: bool) -> Rest {
        let Some(window) = self.window.as_ref().filter(|_| sleeps) else {
            return if sleeps { Rest::Sleep } else { Rest::Watch };
        };
        if self.naps && self.stream.looked(self.found.unwrap_or(0)) {
            return Rest::Nap {
                in_vain: self.found == Some(0),
            };
        }
        let until_ns = self.found_at + window.window_ns(now);
        if now < until_ns {
            return Rest::LookOn { until_ns };
        }
        Rest::Sleep
    }

    /// It has looked on, and found so much.
    pub fn found_more(&mut self, now: u64, found: [usize; SIDES]) {
        for (alone, found) in self.alone.iter_mut().zip(found) {
            alone.looked(found, false);
        }
        self.stream.looked(found.iter().sum());
        self.found_at = now;
        self.quiet = 0;
    }

    /// While it looked on it has yielded the processor from `before` to `now`. Whether it goes on
    /// looking: not where others want the processor, perhaps the one who waits for our answer, or who
    /// is to send the next packet. `moves`: takes the thread to another processor, if there is one.
    pub fn yielded(&mut self, before: u64, now: u64, moves: impl FnOnce() -> bool) -> bool {
        let Some(window) = &mut self.window else {
            return true;
        };
        if !window.yielded(&LIMITS, now.saturating_sub(before))
            || window.may_move(&LIMITS, before) && moves()
        {
            return true;
        }
        window.starved(&LIMITS, now);
        false
    }

    /// A watch is over, and nothing but time has ended it. `polled`: what programs have taken by
    /// polling so far. Whether the next look is left to them: those that have taken work meanwhile
    /// have done everything else, too, and a look would only be in their way.
    pub fn is_left_out(&mut self, polled: [u64; SIDES]) -> bool {
        self.unpolled = polled == self.polled;
        if self.unpolled {
            return false;
        }
        let since = self.begins(polled);
        for (alone, polled) in self.alone.iter_mut().zip(since) {
            alone.looked(0, polled);
        }
        self.quiet = 0;
        true
    }

    /// Something has ended a watch, or it has slept.
    pub fn is_wanted(&mut self) {
        self.unpolled = false;
    }

    /// Work has woken it.
    pub fn woken(&mut self, now: u64) {
        if let Some(window) = &mut self.window {
            window.woken(&LIMITS, now.saturating_sub(self.found_at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Alone = Alone { sure: 8, most: 8 };

    #[test]
    fn packets_that_were_left_are_listened_for() {
        let mut alone = ALONE;
        // A program takes everything.
        let vain = |alone: &mut Alone, count: i32| (0..count).for_each(|_| alone.looked(0, true));
        vain(&mut alone, ALONE.most / 2);
        assert!(!alone.sleeps());
        alone.was_left();
        vain(&mut alone, Alone::LEFT - ALONE.most);
        assert!(alone.sleeps());
        // What it finds while it listens is worth no more than ever.
        alone.looked(3, true);
        vain(&mut alone, ALONE.most / 2);
        assert!(!alone.sleeps());
    }

    #[test]
    fn a_stream_is_looked_for_until_a_nap_was_in_vain() {
        let mut stream = Stream::default();
        let again = [0, 3, BULK, 60, 0, 60, 5, 0, 0].map(|found| stream.looked(found));
        assert_eq!(
            again,
            [false, false, true, true, true, true, true, false, false]
        );
    }

    /// One round: what programs have taken so far, and what a look finds of what they left.
    fn round<const SIDES: usize>(
        policy: &mut Policy<SIDES>,
        polled: [u64; SIDES],
        found: [usize; SIDES],
    ) -> bool {
        let since = policy.begins(polled);
        policy.looked(0, since, Some(found));
        policy.sleeps(false, false)
    }

    #[test]
    fn a_side_that_rings_is_whose_it_was_last() {
        let mut policy = Policy::<2>::new(Manner::RUNG, 300, 2);
        assert!(round(&mut policy, [0, 0], [0, 0]), "nothing ever came");
        // A program polls one side, and the other has nothing.
        assert!(!round(&mut policy, [1, 0], [0, 0]));
        // Requests are left to the thread: it must be rung for them, whoever takes the answers.
        assert!(round(&mut policy, [2, 0], [0, 1]));
        assert!(round(&mut policy, [3, 0], [0, 0]));
        // Until the program takes these as well.
        assert!(!round(&mut policy, [4, 1], [0, 0]));
        // Without traffic it watches for some time and sleeps.
        let sleeps = [0; 5].map(|_| round(&mut policy, [4, 1], [0, 0]));
        assert_eq!(sleeps, [false, false, false, true, true]);
        assert_eq!(policy.rest(0, true), Rest::Sleep);
        assert_eq!(policy.rest(0, false), Rest::Watch);
    }

    #[test]
    fn what_waits_for_the_program_needs_no_ringing() {
        let mut policy = Policy::<2>::new(Manner::RUNG, 300, 2);
        assert!(round(&mut policy, [0, 0], [0, 3]));
        assert!(!policy.sleeps(false, true));
        // But somebody may rely on being rung for.
        assert!(policy.sleeps(true, true));
    }

    #[test]
    fn programs_that_poll_are_watched_and_one_that_stops_is_stood_in_for() {
        let mut policy = Policy::<1>::new(Manner::HEARD, 300, 2);
        let mut polled = 0;
        let mut polls = |policy: &mut Policy<1>| {
            polled += 1;
            round(policy, [polled], [0])
        };
        let sleeps = [0; 5].map(|_| polls(&mut policy));
        assert_eq!(sleeps, [true, true, true, false, false]);
        // The next watches are left to it.
        assert!(policy.is_left_out([6]) && policy.is_left_out([7]));
        // It has taken nothing, but left something.
        assert!(!policy.is_left_out([7]));
        assert!(round(&mut policy, [7], [1]));
        // For which the thread now listens for long, though the program polls.
        for taken in 0..Alone::LEFT as u64 - 5 {
            assert!(round(&mut policy, [8 + taken], [0]), "{taken}");
        }
        for taken in 0..5 {
            assert!(!round(&mut policy, [100 + taken], [0]));
        }
        // What something else has ended is no watch in which it took nothing.
        assert!(!policy.is_left_out([104]));
        policy.is_wanted();
        assert!(!round(&mut policy, [104], [1]));
    }

    #[test]
    fn who_is_at_it_is_a_program_that_polls() {
        let mut policy = Policy::<1>::new(Manner::HEARD, 300, 2);
        for _ in 0..4 {
            policy.looked(0, [false], None);
        }
        assert!(!policy.sleeps(false, false));
    }

    #[test]
    fn it_looks_on_where_packets_come_soon_after_each_other() {
        let mut policy = Policy::<1>::new(Manner::HEARD, 300, 2);
        let finds = |policy: &mut Policy<1>, now: u64, found: usize| {
            policy.looked(now, [false], Some([found]));
            policy.rest(now, true)
        };
        assert_eq!(finds(&mut policy, 1_000_000, 1), Rest::Sleep);
        policy.woken(1_010_000);
        let looks = finds(&mut policy, 1_010_000, 1);
        let Rest::LookOn { until_ns } = looks else {
            panic!("{looks:?}");
        };
        assert!(until_ns > 1_010_000);
        // From where it found something on.
        policy.found_more(1_015_000, [1]);
        assert_eq!(
            policy.rest(1_015_000, true),
            Rest::LookOn {
                until_ns: until_ns + 5_000
            }
        );
        assert_eq!(policy.rest(until_ns + 5_000, true), Rest::Sleep);
        // Who watches does not look on, and a stream has naps.
        assert_eq!(policy.rest(1_015_000, false), Rest::Watch);
        let nap = |in_vain| Rest::Nap { in_vain };
        assert_eq!(finds(&mut policy, 1_020_000, BULK), nap(false));
        assert_eq!(finds(&mut policy, 1_040_000, 0), nap(true));
        // Where the processor is wanted and there is no other, it stops looking.
        assert_ne!(finds(&mut policy, 1_041_000, 1), Rest::Sleep);
        assert!(policy.yielded(0, 1_000, || panic!("nobody wants it")));
        assert!(policy.yielded(0, 1_000_000, || panic!("once is an accident")));
        assert!(policy.yielded(9_000_000, 19_000_000, || true));
        assert!(policy.yielded(19_000_000, 29_000_000, || true));
        assert!(!policy.yielded(19_000_000, 29_000_000, || false));
        assert_eq!(policy.rest(1_041_000, true), Rest::Sleep);
    }
}
