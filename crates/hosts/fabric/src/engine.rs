//! All lanes of a host that go to others.

use std::collections::BTreeSet;

use sluice_shmem::parking::ParkingTable;
use sluice_waiting::limits::LIMITS;

use crate::Violation;
use crate::ab_test::AbTest;
use crate::down::{AWAKE_NS, Down};
use crate::halves::{Far, Near};
use crate::lane::Lane;
use crate::message::{LaneNumber, Note, records};
use crate::outgoing::{Outbox, Outgoing};
use crate::oversubscribed::{Opinion, Oversubscribed};
use crate::up::After;
use crate::watched::{Waiter, WaitersId, Watch};
use crate::wire::{LinkId, Wire};

/// Rings that have been granted for so long, nanoseconds, have been found to pay by somebody.
const PAID_NS: u64 = 20_000_000;
/// Bytes of notes for one link that may wait for room, beyond which the less important ones are
/// said later.
const OUTBOX_BYTES_MAX: usize = 64 * 1024;

/// Lanes that ended unused without a link and are remembered. A far half of any other is taken for
/// one that may miss bytes.
const UNUSED_MAX: usize = 16 * 1024;

#[derive(Debug)]
struct Place {
    number: LaneNumber,
    lane: Option<Lane>,
    waiters: WaitersId,
    /// In the list of those to be pushed.
    is_hot: bool,
}

#[derive(Debug, Default)]
struct Link {
    outbox: Outbox,
    is_up: bool,
    /// Lanes that ended while there was no link, and were never used.
    unused: BTreeSet<LaneNumber>,
}

impl Link {
    /// The far daemon has this lane, and here it is over.
    fn answer_present(&mut self, number: LaneNumber, theirs: LaneNumber) {
        if self.unused.contains(&number) {
            // What it would have heard, had there been a link.
            for note in [Note::Closed, Note::Done, Note::Finished] {
                self.outbox.note(theirs, note);
            }
        } else {
            self.outbox.note(theirs, Note::Gone);
        }
    }
}

/// What the daemon does when there is nothing left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Polls on.
    Poll,
    /// Sleeps until something comes or this time is reached, nanoseconds; `u64::MAX`: no time.
    Sleep(u64),
}

/// Lanes and their links: all of a daemon, or the share of one of its threads.
#[derive(Debug)]
pub struct Engine<W> {
    /// Posts to the links.
    pub wire: W,
    /// Where the daemon announces its own sleep, to the programs that write.
    parking: ParkingTable,
    /// In that, and in the ready lines.
    slot: u32,
    oversubscribed: Oversubscribed,
    places: Vec<Place>,
    free: Vec<usize>,
    watch: Watch,
    /// By number of the link.
    links: Vec<Link>,
    hot: Vec<usize>,
    over: Vec<LaneNumber>,
    looked_ns: u64,
    busy_ns: u64,
    /// Polls until then in any case.
    awake_until_ns: u64,
    probe_at_ns: u64,
    probe_every_ns: u64,
    /// What connections move while the daemon sleeps is just being measured.
    is_measuring: bool,
    /// When a reader took something last, as of the last look.
    moved_ns: u64,
    standing: bool,
    /// Since when it was so, nanoseconds.
    standing_ns: u64,
    /// Rings are in use that pay, here or for a reader on another host, so that the daemon polls
    /// whatever else there is.
    is_paid: bool,
    is_eager: bool,
    is_oversubscribed: bool,
    /// What it has said of that.
    opinion: Opinion,
}

impl<W: Wire> Engine<W> {
    /// The only one of a daemon, without lanes. `parking` is the daemon's, which the programs get.
    pub fn new(wire: W, parking: ParkingTable) -> Self {
        Self::with_slot(wire, parking, 0, Oversubscribed::default())
    }

    /// One of several of a daemon, which have this parking table and this value in common, and each a slot of
    /// its own, below 32.
    pub fn with_slot(
        wire: W,
        parking: ParkingTable,
        slot: u32,
        oversubscribed: Oversubscribed,
    ) -> Self {
        Self {
            wire,
            parking,
            slot,
            oversubscribed,
            places: Vec::new(),
            free: Vec::new(),
            watch: Watch::new(slot),
            links: Vec::new(),
            hot: Vec::new(),
            over: Vec::new(),
            looked_ns: 0,
            busy_ns: 0,
            awake_until_ns: 0,
            probe_at_ns: 0,
            probe_every_ns: LIMITS.daemon_probe_every_ns,
            is_measuring: false,
            moved_ns: 0,
            standing: false,
            standing_ns: 0,
            is_paid: false,
            is_eager: false,
            is_oversubscribed: false,
            opinion: Opinion::default(),
        }
    }

    /// Grants to every reader that is awake, whether that pays or not, and polls as long as there
    /// are lanes with a link; for lanes that are opened from now on. For tests, which want bytes on the ring
    /// however busy the machine is.
    pub fn set_eager(&mut self) {
        self.is_eager = true;
    }

    /// A new lane, whose far half is not known yet. `None`: there are too many.
    pub fn open(&mut self, link: LinkId, near: Near) -> Option<LaneNumber> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < LaneNumber::LANES_MAX as usize => {
                self.places.push(Place {
                    number: LaneNumber::new(self.places.len() as u32, 0),
                    lane: None,
                    waiters: None,
                    is_hot: false,
                });
                self.places.len() - 1
            }
            None => return None,
        };
        let number = self.places[place].number;
        self.link_mut(link).unused.remove(&number);
        let waiters = self.watch.add(&near, place);
        let slot = &mut self.places[place];
        slot.waiters = waiters;
        slot.lane = Some(Lane::new(link, near, self.slot, self.is_eager));
        Some(slot.number)
    }

    /// The far daemon has said where the lane lies there.
    pub fn connect(&mut self, number: LaneNumber, far: Far, now_ns: u64) -> Result<(), Violation> {
        far.check()?;
        if let Some(lane) = self.lane_mut(number) {
            lane.set_far(far);
            let link = lane.link;
            if lane.is_resume_owed() && self.link_mut(link).is_up {
                self.resume(number.place());
            }
            // The far daemon may have spoken of the lane before, on the link, and wait for an
            // answer.
            self.heat(number.place());
            self.expect_traffic(now_ns);
        }
        Ok(())
    }

    /// The local program has closed this connection, or has ended.
    pub fn program_gone(&mut self, number: LaneNumber) {
        if let Some(lane) = self.lane_mut(number) {
            lane.program_gone();
            self.heat(number.place());
            self.looked_ns = 0;
            self.end_if_unused(number.place());
        }
    }

    /// A link can be used, for the first time or again. What its lanes had under way is sent again.
    pub fn link_up(&mut self, link: LinkId) {
        let state = self.link_mut(link);
        state.is_up = true;
        state.outbox.bytes.clear();
        for place in 0..self.places.len() {
            let lane = self.places[place].lane.as_ref();
            if lane.is_some_and(|lane| lane.link == link) {
                self.resume(place);
            }
        }
        self.looked_ns = 0;
    }

    /// Says where a lane is, and goes on from there.
    fn resume(&mut self, place: usize) {
        let Place { number, lane, .. } = &mut self.places[place];
        if let Some(lane) = lane
            && let Some(link) = self.links.get_mut(lane.link.0 as usize)
        {
            lane.resume(*number, &mut |to, note| link.outbox.note(to, note));
        }
        self.heat(place);
    }

    /// A link has failed; another one may come in its place ([`Engine::link_up`]).
    pub fn link_down(&mut self, link: LinkId) {
        let state = self.link_mut(link);
        state.is_up = false;
        state.outbox.bytes.clear();
        for lane in self.lanes_of(link) {
            lane.up.suspend();
        }
        for at in 0..self.places.len() {
            self.end_if_unused(at);
        }
    }

    /// A lane that nobody here uses and that was never used ends if it has no link.
    fn end_if_unused(&mut self, at: usize) {
        let Place { number, lane, .. } = &mut self.places[at];
        let Some(lane) = lane else {
            return;
        };
        let link = self.links.get_mut(lane.link.0 as usize);
        if let Some(link) = link.filter(|link| !link.is_up)
            && lane.end_if_unused()
        {
            link.unused.insert(*number);
            if link.unused.len() > UNUSED_MAX {
                link.unused.pop_first();
            }
            self.retire(at);
        }
    }

    /// The far daemon is gone, or broke the rules: its lanes end.
    pub fn link_lost(&mut self, link: LinkId) {
        self.link_down(link);
        for lane in self.lanes_of(link) {
            lane.abandon();
        }
        // The next daemon there knows none of them.
        self.link_mut(link).unused.clear();
        self.collect();
    }

    /// There never was a far half of this lane, and none will come: the connection goes on by TCP.
    pub fn decline(&mut self, number: LaneNumber) {
        if let Some(lane) = self.lane_mut(number) {
            lane.decline();
        }
        self.collect();
    }

    /// Payload has arrived for a lane.
    pub fn arrived(
        &mut self,
        link: LinkId,
        immediate: u32,
        bytes: u32,
        now_ns: u64,
    ) -> Result<(), Violation> {
        self.busy_ns = now_ns;
        let number = LaneNumber(immediate);
        let Some(lane) = self.lane_on(link, number)? else {
            return Err(Violation("wrote to a lane that is over"));
        };
        lane.down.arrive(bytes, now_ns)?;
        let watchers = lane.down.watchers();
        let waiters = self.places[number.place()].waiters;
        self.watch.note_busy(waiters, watchers, now_ns);
        Ok(())
    }

    /// A message has come.
    pub fn heard(&mut self, link: LinkId, message: &[u8], now_ns: u64) -> Result<(), Violation> {
        self.busy_ns = now_ns;
        for record in records(message) {
            let record = record.ok_or(Violation("sent a message that makes no sense"))?;
            // What was under way when the lane ended here means nothing any more.
            let Some(lane) = self.lane_on(link, record.lane)? else {
                if let Note::Present(theirs) = record.note {
                    self.link_mut(link).answer_present(record.lane, theirs);
                }
                continue;
            };
            lane.hear(record.note, now_ns)?;
            let far = lane.far().map(|far| far.number);
            let place = record.lane.place();
            if matches!(record.note, Note::Done | Note::Finished | Note::Gone) {
                self.looked_ns = 0;
            }
            match record.note {
                Note::Here => self.awake_until_ns = now_ns + AWAKE_NS,
                // Answered by a call when that is done.
                Note::Call if self.is_to_be_measured(place, now_ns) => self.measure(now_ns),
                Note::Call => {
                    self.awake_until_ns = now_ns + AWAKE_NS;
                    if let Some(number) = far {
                        self.link_mut(link).outbox.note(number, Note::Here);
                    }
                }
                Note::Revoke => self.join(place, now_ns),
                _ => {}
            }
            self.heat(place);
        }
        Ok(())
    }

    /// The far daemon calls, whose reader may get a ring. Whether the reader here takes bytes by TCP
    /// alone of which nobody knows how fast: once there are rings it cannot be measured.
    fn is_to_be_measured(&mut self, place: usize, now_ns: u64) -> bool {
        let Place { lane, waiters, .. } = &mut self.places[place];
        let Some(lane) = lane.as_mut().filter(|_| !self.is_eager && !self.standing) else {
            return false;
        };
        let waiter = self.watch.waiter(*waiters, lane.down.watchers());
        lane.down.is_moving(now_ns) && lane.down.ab_test(waiter).is_to_be_measured(now_ns)
    }

    /// The far daemon has taken a grant back.
    fn join(&mut self, place: usize, now_ns: u64) {
        let Place { lane, waiters, .. } = &mut self.places[place];
        if let Some(lane) = lane {
            let waiter = self.watch.waiter(*waiters, lane.down.watchers());
            if lane.down.is_busy(now_ns, waiter.as_deref()) {
                lane.down.ab_test(waiter).join();
            }
        }
    }

    /// Does what there is to do once.
    pub fn turn(&mut self, now_ns: u64) {
        self.take_ready();
        self.push_hot(now_ns);
        if now_ns.saturating_sub(self.looked_ns) >= self.look_every_ns() {
            self.looked_ns = now_ns;
            self.look(now_ns);
        }
        self.flush();
        self.wire.flush();
    }

    /// Numbers of lanes that nobody uses any more, here or there; their memory is free.
    pub fn take_over(&mut self) -> Vec<LaneNumber> {
        std::mem::take(&mut self.over)
    }

    fn is_up(&self, link: LinkId) -> bool {
        let link = self.links.get(link.0 as usize);
        link.is_some_and(|link| link.is_up)
    }

    /// How to go on after a turn.
    pub fn rest(&self, now_ns: u64) -> Rest {
        let is_busy = now_ns.saturating_sub(self.busy_ns) < LIMITS.daemon_busy_ns;
        let is_eager = self.is_eager && self.lanes().any(|lane| self.is_up(lane.link));
        if is_eager
            || self.standing
            || !self.hot.is_empty()
            || is_busy
            || now_ns < self.awake_until_ns
        {
            Rest::Poll
        } else if self.lanes().next().is_some() {
            Rest::Sleep(self.probe_at_ns)
        } else {
            Rest::Sleep(u64::MAX)
        }
    }

    /// Announces that the daemon is about to sleep. False: it must not, something came in between;
    /// either way [`Engine::withdraw_sleep`] follows.
    pub fn announce_sleep(&mut self) -> bool {
        self.publish_oversubscription();
        self.parking.announce_sleep(self.slot);
        self.take_ready();
        self.hot.is_empty()
    }

    /// The daemon is awake again.
    pub fn withdraw_sleep(&mut self, now_ns: u64) {
        self.parking.withdraw_sleep(self.slot);
        if now_ns >= self.probe_at_ns {
            self.probe_at_ns = now_ns + self.probe_every_ns;
            self.try_out(now_ns);
        }
    }

    /// Whether far more threads want to run than the machine has processors. Programs that wait for TCP
    /// heed that, as long as no ring is in use: whether that is worth its processor time is judged by what
    /// it moves.
    pub fn set_oversubscribed(&mut self, is_oversubscribed: bool) {
        self.is_oversubscribed = is_oversubscribed;
    }

    fn publish_oversubscription(&mut self) {
        let opinion = Opinion {
            is_oversubscribed: self.is_oversubscribed && self.lanes().next().is_some(),
            is_standing: self.standing,
        };
        if opinion != self.opinion {
            self.opinion = opinion;
            self.oversubscribed.say(self.slot, opinion, &self.parking);
        }
    }

    /// The lanes there are.
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.places.iter().filter_map(|place| place.lane.as_ref())
    }

    /// Looks whether readers moved since the last probe. If they did it polls for a moment, the next
    /// time: first it measures what they do by themselves. They may have begun just now.
    fn try_out(&mut self, now_ns: u64) {
        let before = self.moved_ns;
        self.looked_ns = now_ns;
        if std::mem::take(&mut self.is_measuring) {
            self.each_ab_test(|ab_test| ab_test.end_alone(now_ns));
            self.look(now_ns);
            if self.moved_ns > before {
                self.awake_until_ns = now_ns + LIMITS.daemon_probe_ns;
                // For the next one, should this lead to nothing.
                self.probe_every_ns =
                    (2 * self.probe_every_ns).min(LIMITS.daemon_probe_every_max_ns);
            }
            return;
        }
        self.look(now_ns);
        if self.moved_ns > before {
            self.measure(now_ns);
        } else if self.probe_every_ns < LIMITS.daemon_probe_every_max_ns {
            self.probe_every_ns = (self.probe_every_ns + LIMITS.daemon_probe_every_ns)
                .min(LIMITS.daemon_probe_every_max_ns);
        }
    }

    /// From here on what readers take by themselves is measured, for which the daemon sleeps.
    fn measure(&mut self, now_ns: u64) {
        if std::mem::replace(&mut self.is_measuring, true) {
            return;
        }
        self.probe_at_ns = now_ns + LIMITS.daemon_measured_ns;
        self.each_ab_test(|ab_test| ab_test.begin_alone(now_ns));
    }

    /// Calls `each` with what is known of every reader, for each of its lanes.
    fn each_ab_test(&mut self, each: impl Fn(&mut AbTest)) {
        // What all its lanes have taken is counted before.
        self.each_reader(|down, waiter| down.count(waiter));
        self.each_reader(|down, waiter| each(down.ab_test(waiter)));
    }

    fn each_reader(&mut self, each: impl Fn(&mut Down, Option<&mut Waiter>)) {
        for Place { lane, waiters, .. } in &mut self.places {
            if let Some(lane) = lane {
                let waiter = self.watch.waiter(*waiters, lane.down.watchers());
                each(&mut lane.down, waiter);
            }
        }
    }

    fn expect_traffic(&mut self, now_ns: u64) {
        self.probe_every_ns = LIMITS.daemon_probe_every_ns;
        self.probe_at_ns = self.probe_at_ns.min(now_ns + LIMITS.daemon_probe_every_ns);
    }

    fn look_every_ns(&self) -> u64 {
        // A look costs a few cache lines of each lane.
        LIMITS.daemon_look_ns * (1 + self.places.len() as u64 / 64)
    }

    fn link_mut(&mut self, link: LinkId) -> &mut Link {
        let at = link.0 as usize;
        if at >= self.links.len() {
            self.links.resize_with(at + 1, Link::default);
        }
        &mut self.links[at]
    }

    fn lane_mut(&mut self, number: LaneNumber) -> Option<&mut Lane> {
        let place = self.places.get_mut(number.place())?;
        (place.number == number)
            .then_some(place.lane.as_mut())
            .flatten()
    }

    /// A lane that the far daemon at this link may speak of; `None`: it is over.
    fn lane_on(
        &mut self,
        link: LinkId,
        number: LaneNumber,
    ) -> Result<Option<&mut Lane>, Violation> {
        match self.lane_mut(number) {
            Some(lane) if lane.link != link => {
                Err(Violation("speaks of a lane that is not its own"))
            }
            lane => Ok(lane),
        }
    }

    fn lanes_of(&mut self, link: LinkId) -> impl Iterator<Item = &mut Lane> {
        let lanes = self.places.iter_mut().filter_map(|p| p.lane.as_mut());
        lanes.filter(move |lane| lane.link == link)
    }

    /// The lane at this place is to be pushed.
    fn heat(&mut self, place: usize) {
        heat(&mut self.places, &mut self.hot, place);
    }

    fn take_ready(&mut self) {
        let Self {
            watch, places, hot, ..
        } = self;
        watch.take_ready(|place| heat(places, hot, place));
    }

    fn push_hot(&mut self, now_ns: u64) {
        let Self {
            wire,
            places,
            links,
            hot,
            busy_ns,
            ..
        } = self;
        hot.retain(|at| {
            let Some(place) = places.get_mut(*at) else {
                return false;
            };
            let Some(lane) = place.lane.as_mut() else {
                place.is_hot = false;
                return false;
            };
            let Some(link) = links.get_mut(lane.link.0 as usize).filter(|it| it.is_up) else {
                // Pushed when there is one again.
                place.is_hot = false;
                return false;
            };
            let mut out = Outgoing {
                wire,
                link: lane.link,
                outbox: &mut link.outbox,
            };
            let before = lane.up.placed();
            let after = lane.push(&mut out);
            if lane.up.placed() != before {
                *busy_ns = now_ns;
            }
            place.is_hot = after == After::Again;
            place.is_hot
        });
    }

    /// Looks at the readers, and at the writers who say nothing when they leave the ring.
    fn look(&mut self, now_ns: u64) {
        let (mut standing, mut worth) = (false, false);
        for at in 0..self.places.len() {
            let Place { lane, waiters, .. } = &mut self.places[at];
            let (Some(lane), waiters) = (lane, *waiters) else {
                continue;
            };
            let link = self.links.get_mut(lane.link.0 as usize);
            let link = link.filter(|link| link.is_up);
            // Nothing comes over a link that has failed, however much is missing.
            standing |= link.is_some() && lane.is_standing();
            let (Some(far), Some(link)) = (lane.far(), link) else {
                continue;
            };
            if link.outbox.bytes.len() > OUTBOX_BYTES_MAX {
                continue;
            }
            let number = far.number;
            let outbox = &mut link.outbox;
            let watchers = lane.down.watchers();
            let waiter = self.watch.waiter(waiters, watchers);
            lane.down
                .look(now_ns, waiter, &mut |note| outbox.note(number, note));
            let stands = lane.is_standing();
            standing |= stands;
            let ab_test = lane.down.ab_test(self.watch.waiter(waiters, watchers));
            worth |= stands && ab_test.are_worth_it();
            if self.is_paid {
                ab_test.measure_beside(now_ns);
            }
            if lane.down.moved_ns() == now_ns {
                self.moved_ns = now_ns;
                self.watch.note_busy(waiters, watchers, now_ns);
            }
            if lane.up.is_in_segment() {
                self.heat(at);
            }
        }
        self.collect();
        if worth {
            self.probe_every_ns = LIMITS.daemon_probe_every_ns;
        }
        if !self.standing {
            self.standing_ns = now_ns;
        }
        self.standing = standing;
        self.publish_oversubscription();
        self.is_paid = standing && (worth || now_ns.saturating_sub(self.standing_ns) >= PAID_NS);
        if standing && !self.is_paid && std::mem::take(&mut self.is_measuring) {
            self.each_ab_test(AbTest::disturb_alone);
        }
    }

    fn flush(&mut self) {
        let Self { wire, links, .. } = self;
        for (at, link) in links.iter_mut().enumerate() {
            if link.is_up && !link.outbox.bytes.is_empty() {
                let mut out = Outgoing {
                    wire,
                    link: LinkId(at as u32),
                    outbox: &mut link.outbox,
                };
                // What found no room goes with the next turn.
                let _ = out.flush();
            }
        }
    }

    /// Takes lanes out that are over.
    fn collect(&mut self) {
        for at in 0..self.places.len() {
            self.retire(at);
        }
    }

    fn retire(&mut self, at: usize) {
        let place = &mut self.places[at];
        let Some(lane) = place.lane.take_if(|lane| lane.is_over()) else {
            return;
        };
        self.over.push(place.number);
        place.number = place.number.next_life();
        self.free.push(at);
        self.watch.remove(lane.near(), place.waiters);
    }
}

fn heat(places: &mut [Place], hot: &mut Vec<usize>, place: usize) {
    if let Some(it) = places.get_mut(place)
        && !it.is_hot
    {
        it.is_hot = true;
        hot.push(place);
    }
}
