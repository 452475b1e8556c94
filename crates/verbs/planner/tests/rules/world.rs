//! Two hosts with a shard each, programs on them, and a network with two ways in each direction. Whatever
//! breaks a rule is noted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;

use sluice_planner::{Answers, Beside, End, Owes, Planner, Poster, SOCKETS, Step, posts};
use sluice_protocol::Instant;

use super::flow::{Flow, MTU, Post, What};
use super::random::Random;

/// The way past the kernel.
const PAST: usize = 1;
const WAYS: usize = 2;
/// Bytes that a packet has on the link beside its payload.
const AROUND: u64 = 82;
/// Bytes of a turn on the link, and the packet with which it ends.
const TURN_BYTES: u64 = (64 << 10) + MTU + AROUND;
/// A look that is due at once comes so much later, at most.
const LOOK_NS: u64 = 2_000;
/// The same where others want the processor, for less time than answers stay where bulk was.
const AWAY_NS: u64 = 100_000;
/// Events of a run, at most.
const EVENTS_MAX: u32 = 100_000;
/// Rules that are broken in a run before it ends.
const BROKEN_MAX: usize = 20;
/// Units that the sockets give in one batch.
const BATCH: usize = 32;

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bend {
    Nothing,
    /// What goes beside a packet, or in front, goes behind it.
    Behind,
    /// What is kept back leaves only when the next one is.
    LeavesKept,
    /// Acknowledgements take the sockets and answers do not.
    TwoWays,
    /// Requests change their way whatever is under way.
    AtOnce,
    /// Data that is asked for does not stay where bulk was.
    NoLinger,
    /// The last that was put leaves first.
    Backwards,
    /// Nobody looks whether a held acknowledgement is due.
    Forgotten,
    /// Nothing is told to the kernel at the end of a round.
    Unflushed,
    /// Places for what is kept back are given away.
    Overbooked,
    /// Whoever had a turn has the next.
    Greedy,
    /// The sockets' packets are taken in before those that came past them.
    SocketsFirst,
}

/// What has happened in a run, so that it is known what the rules were held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Acknowledgements that left with what they were beside, by the sockets and past them.
    pub together: [u64; WAYS],
    /// That left in front of another flow's packet.
    pub in_front: u64,
    /// That were held for what the program posts.
    pub held: u64,
    /// Request packets by the sockets and past them.
    pub requests: [u64; WAYS],
    /// Packets of READ data by the sockets and past them.
    pub data: [u64; WAYS],
    /// Turns that ended for want of room.
    pub blocked: u64,
    /// Posts that left something for whoever comes next.
    pub gathered: u64,
}

impl Happened {
    fn each(&mut self) -> [&mut u64; 10] {
        let Self {
            together: [a, b],
            in_front,
            held,
            requests: [c, d],
            data: [e, f],
            blocked,
            gathered,
        } = self;
        [a, b, in_front, held, c, d, e, f, blocked, gathered]
    }

    /// Of what has happened least often, how often.
    pub fn least(mut self) -> u64 {
        self.each()
            .into_iter()
            .map(|count| *count)
            .min()
            .unwrap_or(0)
    }
}

impl AddAssign for Happened {
    fn add_assign(&mut self, mut other: Self) {
        for (count, other) in self.each().into_iter().zip(other.each()) {
            *count += *other;
        }
    }
}

/// A rule of the planner's, by its number there, and what broke it.
pub type Broken = (u32, String);

#[derive(Clone, Copy, Debug)]
struct Made {
    flow: usize,
    /// A host's packets in the order in which they were made.
    number: u64,
    what: What,
}

/// What goes as one: a packet, and what the peer has no later.
struct Unit {
    beside: Option<Made>,
    packet: Made,
}

#[derive(Default)]
struct Way {
    room: usize,
    delay_ns: u64,
    staged: VecDeque<Unit>,
    /// On their way, with when they come.
    under_way: VecDeque<(u64, Unit)>,
    /// Of each flow: the last packet that left and is no acknowledgement, that ended something, and the last
    /// acknowledgement.
    left: BTreeMap<usize, [u64; 3]>,
}

impl Way {
    fn places(&self) -> usize {
        let places = |unit: &Unit| 1 + usize::from(unit.beside.is_some());
        self.staged.iter().map(places).sum()
    }
}

struct Host {
    planner: Planner<Made>,
    ways: [Way; WAYS],
    flows: Vec<Flow>,
    /// Flows that were posted to and nobody has looked at.
    notes: Vec<usize>,
    posts: u32,
    in_full_flow: bool,
    polls: bool,
    made: u64,
    look_at: u64,
    /// Of each flow: bulk that was made and has not come.
    data: Vec<BTreeSet<u64>>,
    /// Since when an acknowledgement is owed.
    owes_since: Vec<Option<u64>>,
    /// Bytes of others since the flow was ready and had no packet.
    waited: Vec<Option<u64>>,
    /// Who had the last turn.
    greedy: Option<usize>,
}

pub struct World {
    random: Random,
    bend: Bend,
    now: u64,
    hosts: [Host; 2],
    /// What programs will post: when, by which host, to which flow.
    programs: BTreeSet<(u64, usize, usize, u64)>,
    planned: Vec<Post>,
    left_to_answer: u32,
    /// Ways may refuse what they are given, for a while.
    stuck: bool,
    /// Others want the processors.
    away: bool,
    happened: Happened,
    broken: Vec<Broken>,
}

impl World {
    pub fn new(seed: u64, bend: Bend) -> Self {
        let mut random = Random::new(seed);
        let flows = random.between(1, 5) as usize;
        let past = random.between(1_000, 20_000);
        // By the sockets a packet is never sooner.
        let delays = [past + random.between(0, 200_000), past];
        let mut host = || Host {
            planner: Planner::default(),
            ways: [(16, 128), (4, 64)].map(|(least, most)| Way {
                room: random.between(least, most) as usize,
                ..Way::default()
            }),
            flows: (0..flows).map(|_| Flow::default()).collect(),
            notes: Vec::new(),
            posts: 0,
            in_full_flow: false,
            polls: !random.once_in(3),
            made: 0,
            look_at: u64::MAX,
            data: vec![BTreeSet::new(); flows],
            owes_since: vec![None; flows],
            waited: vec![None; flows],
            greedy: None,
        };
        let mut hosts = [host(), host()];
        for host in &mut hosts {
            for (way, delay) in host.ways.iter_mut().zip(delays) {
                way.delay_ns = delay;
            }
        }
        let (stuck, away) = (random.once_in(4), random.once_in(3));
        let mut world = Self {
            random,
            bend,
            now: 0,
            hosts,
            programs: BTreeSet::new(),
            planned: Vec::new(),
            left_to_answer: 0,
            stuck,
            away,
            happened: Happened::default(),
            broken: Vec::new(),
        };
        world.plan(flows);
        world
    }

    /// What the programs do by themselves. Some do little and answer each other.
    fn plan(&mut self, flows: usize) {
        let bursts = self.random.between(1, 12);
        self.left_to_answer = self.random.between(0, 60) as u32;
        let mut at = 0;
        for _ in 0..bursts {
            at += self.random.between(0, 300_000);
            let host = self.random.between(0, 1) as usize;
            let posts = match self.random.once_in(3) {
                true => self.random.between(5, 80),
                false => self.random.between(1, 3),
            };
            for _ in 0..posts {
                let flow = self.random.between(0, flows as u64 - 1) as usize;
                let packets = match self.random.once_in(6) {
                    true => self.random.between(5, 100),
                    false => self.random.between(1, 3),
                };
                let post = match self.random.once_in(4) {
                    true => Post::Read { packets },
                    false => Post::Send {
                        packets,
                        answers: None,
                    },
                };
                self.will_post(at, host, flow, post);
                at += self.random.between(0, 500);
            }
        }
    }

    fn will_post(&mut self, at: u64, host: usize, flow: usize, post: Post) {
        let number = self.planned.len() as u64;
        self.planned.push(post);
        self.programs.insert((at, host, flow, number));
    }

    /// Runs to the end. What was broken, and what has happened.
    pub fn run(mut self) -> (Vec<Broken>, Happened) {
        for _ in 0..EVENTS_MAX {
            let posts = self.programs.first().map_or(u64::MAX, |first| first.0);
            let looks = self.hosts.iter().map(|host| host.look_at).min();
            let next = posts.min(looks.unwrap_or(u64::MAX));
            if next == u64::MAX || self.broken.len() >= BROKEN_MAX {
                break;
            }
            self.now = self.now.max(next);
            if posts == next {
                if let Some((_, host, flow, number)) = self.programs.pop_first() {
                    self.post(host, flow, self.planned[number as usize]);
                }
            } else {
                let host = usize::from(self.hosts[0].look_at != next);
                self.hosts[host].look_at = u64::MAX;
                self.look(host);
            }
        }
        let is_done = |host: &Host| {
            let nothing = |way: &Way| way.staged.is_empty() && way.under_way.is_empty();
            host.flows.iter().all(Flow::is_done) && host.ways.iter().all(nothing)
        };
        if self.broken.is_empty() && !self.hosts.iter().all(is_done) {
            self.broke(4, "something waits for ever".to_owned());
        }
        (self.broken, self.happened)
    }

    fn broke(&mut self, rule: u32, how: String) {
        self.broken
            .push((rule, format!("{how} at {} ns", self.now)));
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn look_soon(&mut self, host: usize, at: u64) {
        let late = match self.away && self.random.once_in(8) {
            true => AWAY_NS,
            false => LOOK_NS,
        };
        let at = at.max(self.now) + self.random.between(0, late);
        let look_at = &mut self.hosts[host].look_at;
        *look_at = at.min(*look_at);
    }

    /// When somebody must look, as whoever has worked on the shard says.
    fn set_deadline(&mut self, host: usize) {
        let now = self.instant();
        let own = &self.hosts[host];
        let due = match own.planner.due(|| now) {
            Some(None) => self.now,
            Some(Some(then)) => then.nanos(),
            None => u64::MAX,
        };
        let forgotten = self.bend == Bend::Forgotten && !own.planner.owes();
        let due = if own.notes.is_empty() { due } else { self.now };
        if due != u64::MAX && !forgotten {
            self.look_soon(host, due);
        }
    }

    /// A program posts.
    fn post(&mut self, host: usize, flow: usize, post: Post) {
        let is_small = matches!(post, Post::Send { packets: 1, .. } | Post::Read { .. });
        let own = &mut self.hosts[host];
        own.flows[flow].post(post);
        own.posts += 1;
        let flows = own.in_full_flow;
        if is_small && posts::gathers(own.posts, flows) {
            own.notes.push(flow);
            if posts::begins(own.posts) {
                self.look_soon(host, self.now);
            }
            return;
        }
        let gathers = !is_small && posts::is_flowing(own.posts, flows);
        self.wake(host, flow);
        self.send(host, Some(Poster { gathers }));
        self.happened.gathered += u64::from(self.hosts[host].planner.has_gathered());
        self.set_deadline(host);
    }

    fn wake(&mut self, host: usize, flow: usize) {
        let own = &mut self.hosts[host];
        own.planner.wake(flow);
        if own.flows[flow].owes() != Owes::Nothing {
            own.waited[flow].get_or_insert(0);
        }
    }

    /// Whoever polls, or the shard's thread, works on it.
    fn look(&mut self, host: usize) {
        let now = self.instant();
        let own = &mut self.hosts[host];
        if own.posts > 0 {
            own.in_full_flow = posts::is_long(own.posts);
            own.posts = 0;
        }
        if self.bend != Bend::Forgotten {
            own.planner.release_due(|| now);
        }
        if own.planner.owes() {
            self.send(host, None);
        }
        let came = self.receive(host);
        let own = &mut self.hosts[host];
        if !(own.polls && own.planner.leaves_to_program(came)) {
            self.send(host, None);
        }
        self.set_deadline(host);
        // What was not taken in, and what comes later.
        let peer = &self.hosts[1 - host];
        let next = peer.ways.iter().filter_map(|way| way.under_way.front());
        if let Some(next) = next.map(|(at, _)| *at).min() {
            self.look_soon(host, next);
        }
    }

    fn receive(&mut self, host: usize) -> usize {
        let now = self.now;
        let mut order = [PAST, SOCKETS];
        if self.bend == Bend::SocketsFirst {
            order.reverse();
        }
        let mut units = Vec::new();
        for way in order {
            let under_way = &mut self.hosts[1 - host].ways[way].under_way;
            let came = under_way.iter().take_while(|(at, _)| *at <= now).count();
            let most = if way == SOCKETS { BATCH } else { usize::MAX };
            units.extend(under_way.drain(..came.min(most)));
        }
        let came = units.len();
        for (_, unit) in units {
            if let Some(beside) = unit.beside {
                self.take(host, beside);
            }
            self.take(host, unit.packet);
        }
        came
    }

    /// A packet came for a flow.
    fn take(&mut self, host: usize, made: Made) {
        let Made { flow, number, what } = made;
        if what.is_response() {
            let data = &mut self.hosts[1 - host].data[flow];
            if data.first().is_some_and(|first| *first < number) {
                self.broke(2, format!("{what:?} came before data in front of it"));
            } else {
                data.remove(&number);
            }
        }
        let own = &self.hosts[host].flows[flow];
        if let What::Part { number, .. } | What::Read { number, .. } = what
            && number != own.came + 1
        {
            let came = own.came;
            self.broke(2, format!("{what:?} came behind number {came}"));
            return;
        }
        if let What::Part {
            last: Some(Some(answers)),
            ..
        } = what
            && own.answered < answers
            && self.hosts[1 - host].flows[flow].acknowledges(answers)
            && !self.stuck
        {
            self.broke(
                1,
                format!("an answer came before {answers} was acknowledged"),
            );
        }
        let own = &mut self.hosts[host].flows[flow];
        own.receive(what);
        let (owes, is_owing) = (own.owes(), own.is_owing());
        if let What::Part {
            number,
            last: Some(_),
        } = what
            && self.left_to_answer > 0
            && !self.random.once_in(8)
        {
            // The program sees it, and answers.
            self.left_to_answer -= 1;
            let thinks = match self.random.once_in(10) {
                true => self.random.between(50_000, 500_000),
                false => self.random.between(500, 15_000),
            };
            let post = Post::Send {
                packets: match self.random.once_in(3) {
                    true => self.random.between(2, 30),
                    false => 1,
                },
                answers: Some(number),
            };
            self.will_post(self.now + thinks, host, flow, post);
        }
        let now = self.instant();
        let own = &mut self.hosts[host];
        if is_owing {
            own.owes_since[flow].get_or_insert(self.now);
        } else {
            own.owes_since[flow] = None;
        }
        let was_idle = own.planner.is_idle();
        own.planner.came(flow, owes, now);
        let is_held = owes == Owes::Acknowledgement && was_idle && own.planner.is_idle();
        self.happened.held += u64::from(is_held);
        if owes == Owes::Turn {
            own.waited[flow].get_or_insert(0);
        }
    }

    /// A round, as the shard's holder does it.
    fn send(&mut self, host: usize, poster: Option<Poster>) {
        let now = self.instant();
        for flow in core::mem::take(&mut self.hosts[host].notes) {
            self.wake(host, flow);
        }
        self.hosts[host].planner.begin(WAYS, poster, now);
        loop {
            match self.hosts[host].planner.step(now) {
                Step::Turn(flow) => {
                    let flow = self.whose(host, flow);
                    let end = self.turn(host, flow);
                    self.hosts[host].planner.ended(flow, end);
                }
                Step::Flush(way) => self.flush(host, way),
                Step::Rest => break,
            }
        }
    }

    fn whose(&mut self, host: usize, flow: usize) -> usize {
        let own = &mut self.hosts[host];
        let greedy = own.greedy.filter(|greedy| {
            let owes = own.flows[*greedy].owes();
            self.bend == Bend::Greedy && owes == Owes::Turn
        });
        *own.greedy.insert(greedy.unwrap_or(flow))
    }

    fn turn(&mut self, host: usize, flow: usize) -> End {
        let now = self.instant();
        let bend = self.bend;
        loop {
            let own = &mut self.hosts[host];
            let ways = &own.ways;
            let more = usize::from(bend == Bend::Overbooked);
            let room = |way: usize| (ways[way].room + more).saturating_sub(ways[way].places());
            if let Err(end) = own.planner.may_put(&[PAST, SOCKETS], room) {
                self.happened.blocked += u64::from(end == End::Blocked);
                return end;
            }
            let mut seen = own.flows[flow].seen(own.in_full_flow);
            seen.is_quiet |= bend == Bend::AtOnce;
            if let Some(holds) = own.flows[flow].ways.look(&seen, now) {
                own.flows[flow].hold(holds);
            }
            let Some(what) = own.flows[flow].transmit() else {
                own.waited[flow] = None;
                if own.planner.is_prompt() {
                    own.planner.flush_all();
                    while let Some(way) = self.hosts[host].planner.flushes() {
                        self.flush(host, way);
                    }
                }
                return End::Nothing(None);
            };
            self.put(host, flow, what);
        }
    }

    fn put(&mut self, host: usize, flow: usize, what: What) {
        let own = &mut self.hosts[host];
        own.made += 1;
        let made = Made {
            flow,
            number: own.made,
            what,
        };
        let acknowledges = matches!(what, What::Acknowledgement { .. });
        let is_data = matches!(what, What::Data { .. });
        let by_sockets = match what.is_response() {
            true if self.bend == Bend::TwoWays && acknowledges => true,
            true if self.bend == Bend::NoLinger && is_data => false,
            true => own.flows[flow].ways.reply(acknowledges),
            false if self.bend == Bend::TwoWays => false,
            false => own.flows[flow].ways.request(),
        };
        let way = if by_sockets { SOCKETS } else { PAST };
        let count = match what {
            What::Acknowledgement { .. } => &mut 0,
            What::Data { .. } => &mut self.happened.data[way],
            What::Part { .. } | What::Read { .. } => &mut self.happened.requests[way],
        };
        *count += 1;
        let bytes = AROUND + if acknowledges { 0 } else { MTU };
        self.waits(host, flow, bytes);
        let own = &mut self.hosts[host];
        if matches!(what, What::Data { is_bulk: true, .. }) {
            own.data[flow].insert(made.number);
        }
        if acknowledges {
            if let Some(before) = own.planner.keep(flow, way, bytes as u32, made) {
                self.stage(host, way, before, None);
            }
            return;
        }
        let beside = own.planner.beside(flow, way, bytes as u32, what.ends());
        self.happened.in_front += u64::from(matches!(beside, Beside::InFront(_)));
        self.happened.together[way] += u64::from(matches!(beside, Beside::Together(_)));
        match (beside, self.bend) {
            (Beside::Nothing, _) => self.stage(host, way, made, None),
            (Beside::InFront(kept) | Beside::Together(kept), Bend::Behind) => {
                self.stage(host, way, made, None);
                self.stage(host, way, kept, None);
            }
            (Beside::InFront(kept), _) => {
                self.stage(host, way, kept, None);
                self.stage(host, way, made, None);
            }
            (Beside::Together(kept), _) => self.stage(host, way, made, Some(kept)),
        }
    }

    /// A flow sends so many bytes while others wait.
    fn waits(&mut self, host: usize, flow: usize, bytes: u64) {
        let own = &mut self.hosts[host];
        let flows = own.flows.len() as u64;
        own.waited[flow] = Some(0);
        let others = own.waited.iter_mut().enumerate();
        let mut most = 0;
        for (_, waited) in others.filter(|(other, _)| *other != flow) {
            if let Some(waited) = waited {
                *waited += bytes;
                most = most.max(*waited);
            }
        }
        // Those in front have a turn each, and whoever has one may be at its beginning.
        if most > flows * TURN_BYTES {
            self.broke(6, format!("{most} bytes of others went first"));
        }
    }

    fn stage(&mut self, host: usize, way: usize, packet: Made, beside: Option<Made>) {
        let backwards = self.bend == Bend::Backwards;
        let own = &mut self.hosts[host].ways[way];
        match own.staged.len() {
            0 => own.staged.push_back(Unit { beside, packet }),
            _ if backwards => own.staged.push_front(Unit { beside, packet }),
            _ => own.staged.push_back(Unit { beside, packet }),
        }
        if own.places() > own.room {
            let (places, room) = (own.places(), own.room);
            self.broke(5, format!("{places} packets where {room} have room"));
        }
    }

    fn flush(&mut self, host: usize, way: usize) {
        let takes_kept = self.bend != Bend::LeavesKept;
        if takes_kept && let Some(kept) = self.hosts[host].planner.take_kept(way) {
            self.stage(host, way, kept, None);
        }
        let staged = self.hosts[host].ways[way].staged.len();
        let taken = match self.stuck && self.random.once_in(6) {
            true => self.random.between(0, staged as u64) as usize,
            false if self.bend == Bend::Unflushed => 0,
            false => staged,
        };
        for _ in 0..taken {
            self.depart(host, way);
        }
        let all = taken == staged || self.bend == Bend::Unflushed;
        self.hosts[host].planner.flushed(all);
    }

    /// The kernel takes the next unit of a way.
    fn depart(&mut self, host: usize, way: usize) {
        let own = &mut self.hosts[host].ways[way];
        let Some(unit) = own.staged.pop_front() else {
            return;
        };
        let at = self.now + own.delay_ns;
        for made in unit.beside.iter().chain([&unit.packet]) {
            self.check_order(host, way, made);
        }
        self.hosts[host].ways[way].under_way.push_back((at, unit));
        self.look_soon(1 - host, at);
    }

    fn check_order(&mut self, host: usize, way: usize, made: &Made) {
        let Made { flow, number, what } = *made;
        let left = self.hosts[host].ways[way].left.entry(flow).or_default();
        let [packet, ended, acknowledgement] = *left;
        if matches!(what, What::Acknowledgement { .. }) {
            left[2] = number;
            if acknowledgement > number || ended > number {
                self.broke(3, format!("{what:?} left behind what ended later"));
            }
            self.check_time(host, flow);
            return;
        }
        left[0] = number;
        left[1] = if what.ends() { number } else { ended };
        if packet > number {
            self.broke(3, format!("{what:?} left behind one that was made later"));
        }
    }

    /// An acknowledgement leaves no later than its deadline and two looks, if the ways take what they get.
    fn check_time(&mut self, host: usize, flow: usize) {
        let Some(since) = self.hosts[host].owes_since[flow].take() else {
            return;
        };
        let most = Answers::WAIT.as_nanos() as u64 + 3 * LOOK_NS;
        if !self.stuck && !self.away && self.now > since + most {
            let waited = self.now - since;
            self.broke(4, format!("an acknowledgement has waited for {waited} ns"));
        }
    }
}
