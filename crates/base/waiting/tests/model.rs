//! What the policy costs, in worlds whose clock the model moves: waits whose ends come after given times, wakes, looks and
//! yields that take given times, other threads that want the processor. It is compared with the best choice that
//! could have been made once for all waits of a run: to sleep at once, or to poll for so long and then sleep.
//!
//! The cost of a wait is the processor time that it polls away and the delay of what it waited for. A wake-up delays that,
//! and takes processor time at both ends, of which `World::wake_ns` is the sum.

use sluice_waiting::gaps::Gaps;
use sluice_waiting::limits::{LIMITS, Limits, TABLE};
use sluice_waiting::oversubscription::{Off, Oversubscription};
use sluice_waiting::polling::{Pass, Polling, Yielded};
use sluice_waiting::window::Window;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Who else is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Nobody: what is waited for comes from elsewhere.
    Nobody,
    /// Threads that compute. Whoever yields to them is back after their slices, and whoever is woken runs at once.
    Computing { slices_ns: u64 },
    /// The one that is waited for shares the processor, and needs as long for it as the gap is.
    Peer,
}

#[derive(Clone, Copy, Debug)]
struct World {
    wake_ns: u64,
    others: Others,
}

/// A look at an epoll instance with some connections; one at a ring takes half of it.
const LOOK_NS: u64 = 150;
const CLOCK_NS: u64 = 25;
const YIELD_NS: u64 = 300;
/// A yield that lets a peer on the same processor run and is back.
const SWITCH_NS: u64 = 1_700;
/// What a program does between two waits.
const WORK_NS: u64 = 500;

/// A development machine with nobody else on it (decision 0004).
const IDLE: World = World {
    wake_ns: 50 * US,
    others: Others::Nobody,
};
/// The same where processor time is what counts, as behind a quota: a sleep costs both ends together so much.
const METERED: World = World {
    wake_ns: 10 * US,
    others: Others::Nobody,
};
const SAME_PROCESSOR: World = World {
    wake_ns: 10 * US,
    others: Others::Peer,
};
const BUSY: World = World {
    wake_ns: 50 * US,
    others: Others::Computing { slices_ns: 3 * MS },
};

/// A process with one thread that waits.
struct Waiter<'a> {
    limits: &'a Limits,
    ceiling_ns: u64,
    world: World,
    gaps: Gaps,
    oversubscription: Oversubscription,
    off: Off,
    now_ns: u64,
    cost_ns: u64,
}

impl<'a> Waiter<'a> {
    fn new(limits: &'a Limits, ceiling_ns: u64, world: World) -> Self {
        Self {
            limits,
            ceiling_ns,
            world,
            gaps: Gaps::default(),
            oversubscription: Oversubscription::default(),
            off: Off::default(),
            now_ns: 3_600_000 * MS,
            cost_ns: 0,
        }
    }

    fn is_oversubscribed(&self) -> bool {
        self.oversubscription.is_oversubscribed(self.limits)
    }

    /// Waits for what comes `gap_ns` after the wait began.
    fn wait(&mut self, gap_ns: u64) {
        self.now_ns += WORK_NS;
        let began_ns = self.now_ns;
        let polls = self.gaps.may_poll(self.limits, self.ceiling_ns);
        self.gaps = self.gaps.begins(self.limits, polls, self.ceiling_ns);
        let budget_ns = if polls && !self.off.is_off(self.now_ns) {
            self.ceiling_ns
        } else {
            0
        };
        let mut polling = Polling::start(self.now_ns, budget_ns);
        let (mut own_ns, mut peer_ns) = (0, 0);
        let gap_ns = loop {
            let has_come = match self.world.others {
                Others::Peer => peer_ns >= gap_ns,
                _ => self.now_ns >= began_ns + gap_ns,
            };
            if has_come {
                if self.world.others != Others::Peer {
                    self.cost_ns += self.now_ns - (began_ns + gap_ns).max(self.now_ns - own_ns);
                }
                self.cost_ns += own_ns;
                break polling.gap_ns();
            }
            let before_ns = self.now_ns;
            match polling.next(self.limits, self.is_oversubscribed()) {
                Pass::Look => self.now_ns += LOOK_NS,
                Pass::LookAtClock => {
                    self.now_ns += LOOK_NS + CLOCK_NS;
                    polling.looked(self.now_ns);
                }
                Pass::Yield => {
                    match self.world.others {
                        Others::Nobody => self.now_ns += YIELD_NS,
                        Others::Peer => {
                            self.now_ns += SWITCH_NS + gap_ns - peer_ns;
                            peer_ns = gap_ns;
                        }
                        Others::Computing { slices_ns } => self.now_ns += slices_ns,
                    }
                    let yielded = polling.yielded(self.limits, self.now_ns);
                    self.oversubscription = self.oversubscription.after(self.limits, yielded);
                    if yielded == Yielded::Starved {
                        self.off = self.off.starved(self.limits, self.now_ns);
                    }
                    // What others have run in is not this thread's time.
                    own_ns += match self.world.others {
                        Others::Nobody => 0,
                        Others::Peer => SWITCH_NS,
                        Others::Computing { .. } => LIMITS.switch_cost_ns,
                    };
                    if self.world.others != Others::Nobody {
                        if let Others::Computing { .. } = self.world.others {
                            let came_ns = began_ns + gap_ns;
                            self.cost_ns += self.now_ns.saturating_sub(came_ns.max(before_ns));
                        }
                        continue;
                    }
                }
                Pass::Over => {
                    let asleep_ns = self.now_ns;
                    let came_ns = match self.world.others {
                        Others::Peer => self.now_ns + gap_ns - peer_ns,
                        _ => (began_ns + gap_ns).max(self.now_ns),
                    };
                    polling.ended(asleep_ns);
                    self.now_ns = came_ns + self.world.wake_ns;
                    self.cost_ns += own_ns + self.world.wake_ns;
                    let slept_ns = self.now_ns - asleep_ns;
                    break polling.gap_with_sleep_ns(slept_ns, self.is_oversubscribed());
                }
            }
            own_ns += self.now_ns - before_ns;
        };
        self.gaps = self.gaps.record(self.limits, gap_ns, self.ceiling_ns);
    }
}

/// What the best fixed choice costs.
fn best_ns(world: World, gaps: &[u64]) -> u64 {
    let choices = [0, 1, 2, 5, 10, 20, 50, 100, 200, 1_000, 10_000].map(|us| us * US);
    let costs = choices.map(|polls_ns| {
        let cost = |gap_ns: &u64| match (*gap_ns <= polls_ns, world.others) {
            (true, Others::Nobody) => *gap_ns,
            (false, Others::Nobody) => polls_ns + world.wake_ns,
            (_, Others::Peer) => SWITCH_NS,
            (_, Others::Computing { .. }) => world.wake_ns,
        };
        gaps.iter().map(cost).sum::<u64>()
    });
    costs.into_iter().min().expect("there are choices")
}

/// Numbers that are the same in every run (the multiplier is Knuth's for MMIX).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Waits of one run. The first of them, in which a process learns what is usual, are not counted.
const WAITS: usize = 400;
const LEARNING: usize = 150;

/// Arrivals that know nothing of who waits, and what they are.
fn arrivals() -> Vec<(String, Vec<u64>)> {
    let mut all = Vec::new();
    for gap in [
        500, 5_000, 9_000, 20_000, 45_000, 90_000, 120_000, 500_000, 10_000_000,
    ] {
        all.push((format!("each after {gap} ns"), vec![gap; WAITS]));
    }
    let mut random = Random(1);
    for short in [500, 9_000, 45_000] {
        for long in [120_000, 500_000, 10_000_000] {
            for of_8 in [1, 4, 7] {
                let gap = |_| {
                    if random.next() % 8 < of_8 {
                        short
                    } else {
                        long
                    }
                };
                let gaps = (0..WAITS).map(gap).collect();
                let what = format!("{of_8} of 8 after {short} ns, the others after {long} ns");
                all.push((what, gaps));
            }
            for (many, few) in [(50, 50), (20, 120)] {
                let gap = |at| {
                    if at % (many + few) < many {
                        short
                    } else {
                        long
                    }
                };
                let gaps = (0..WAITS).map(gap).collect();
                all.push((
                    format!("{many} after {short} ns, {few} after {long} ns"),
                    gaps,
                ));
            }
        }
    }
    all
}

/// What is promised in a world: the waits of a run take at most so many times what they take with the best fixed choice.
struct Promise {
    what: &'static str,
    world: World,
    ceiling_ns: fn(&Limits) -> u64,
    /// Whether the time in which the one that is waited for works is in both: where it cannot work and be waited for at
    /// the same time, how long a round takes is what counts.
    with_gaps: bool,
    at_most: f64,
}

/// A wait that polls for the ceiling in vain costs the ceiling and a wake-up, and a wake-up is what it costs to sleep at
/// once: so 3 where the ceiling is two wake-ups, and 2 where it is one.
const PROMISES: [Promise; 4] = [
    Promise {
        what: "an idle processor",
        world: IDLE,
        ceiling_ns: |limits| limits.ceiling_ns,
        with_gaps: false,
        at_most: 3.0,
    },
    Promise {
        what: "processor time behind a quota",
        world: METERED,
        ceiling_ns: |limits| limits.oversubscribed_ns,
        with_gaps: false,
        at_most: 2.0,
    },
    Promise {
        what: "a peer on the same processor",
        world: SAME_PROCESSOR,
        ceiling_ns: |limits| limits.ceiling_ns,
        with_gaps: true,
        at_most: 1.5,
    },
    Promise {
        what: "others that compute",
        world: BUSY,
        ceiling_ns: |limits| limits.ceiling_ns,
        with_gaps: false,
        at_most: 1.5,
    },
];

impl Promise {
    /// How many times it is with these arrivals.
    fn ratio(&self, limits: &Limits, gaps: &[u64]) -> f64 {
        let mut waiter = Waiter::new(limits, (self.ceiling_ns)(limits), self.world);
        let (learning, gaps) = gaps.split_at(LEARNING);
        learning.iter().for_each(|gap| waiter.wait(*gap));
        waiter.cost_ns = 0;
        gaps.iter().for_each(|gap| waiter.wait(*gap));
        let both = if self.with_gaps { gaps.iter().sum() } else { 0 };
        (waiter.cost_ns + both) as f64 / (best_ns(self.world, gaps) + both) as f64
    }

    /// The worst of all arrivals.
    fn worst(&self, limits: &Limits) -> (f64, String) {
        let all = arrivals().into_iter();
        let ratios = all.map(|(what, gaps)| (self.ratio(limits, &gaps), what));
        ratios
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("there are arrivals")
    }
}

/// The cost of a thread that is woken for packets which come so long after each other ([`Window`]), on an idle processor.
fn window_cost_ns(limits: &Limits, gaps: &[u64]) -> u64 {
    let mut window = Window::new(limits, 100, 2);
    let (mut now_ns, mut cost_ns) = (0, 0);
    for (at, gap_ns) in gaps.iter().enumerate() {
        let looks_ns = window.window_ns(now_ns);
        let mut wait_ns = *gap_ns;
        if *gap_ns > looks_ns {
            wait_ns = looks_ns + IDLE.wake_ns;
            window.woken(limits, *gap_ns);
        }
        now_ns += gap_ns;
        cost_ns += if at < LEARNING { 0 } else { wait_ns };
    }
    cost_ns
}

/// The same bound for it: its longest window is one wake-up of that machine.
const WINDOW_AT_MOST: f64 = 2.5;

fn worst_window(limits: &Limits) -> (f64, String) {
    let ratio = |gaps: &[u64]| {
        window_cost_ns(limits, gaps) as f64 / best_ns(IDLE, &gaps[LEARNING..]) as f64
    };
    let all = arrivals().into_iter();
    let ratios = all.map(|(what, gaps)| (ratio(&gaps), what));
    ratios
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .expect("there are arrivals")
}

/// What these limits break, and with which arrivals.
fn broken(limits: &Limits) -> Vec<String> {
    let promised = PROMISES
        .iter()
        .map(|it| (it.what, it.at_most, it.worst(limits)));
    let window = (
        "a thread that packets wake",
        WINDOW_AT_MOST,
        worst_window(limits),
    );
    let all = promised.chain([window]);
    all.filter(|(_, at_most, (ratio, _))| ratio > at_most)
        .map(|(what, _, (ratio, arrivals))| format!("{what}: {ratio:.3} with {arrivals}"))
        .collect()
}

fn with(name: &str, value: u64) -> Limits {
    let row = TABLE.iter().find(|row| row.name == name);
    let mut limits = LIMITS;
    (row.expect("the table has it").set)(&mut limits, value);
    limits
}

#[test]
fn it_costs_at_most_a_few_times_what_the_best_fixed_choice_does() {
    for promise in &PROMISES {
        println!("{}: {:?}", promise.what, promise.worst(&LIMITS));
    }
    println!("a thread that packets wake: {:?}", worst_window(&LIMITS));
    assert_eq!(broken(&LIMITS), [""; 0]);
}

#[test]
fn at_both_ends_of_the_ranges_in_the_table_it_does_so_too() {
    for row in TABLE {
        for value in row
            .modelled
            .iter()
            .flat_map(|range| [*range.start(), *range.end()])
        {
            let broken = broken(&with(row.name, value));
            assert_eq!(broken, [""; 0], "{} = {value}", row.name);
        }
    }
}

/// Not far outside it does not, so that the ranges say something. One value for each number that has a range.
#[test]
fn outside_of_them_it_does_not() {
    let outside = [
        ("ceiling_ns", 200_000),
        ("hard_ns", 240_000),
        ("looks_per_clock", 240),
        ("yield_switch_ns", 3_000),
        ("lost_max", 0),
        ("yield_starved_ns", 4_000_000),
        ("oversubscribed_ns", 20_000),
        ("gap_ceilings", 1),
        ("gap_waits", 400),
        ("short_part", 1),
        ("pause_min", 0),
        ("oversubscribed_step", 0),
        ("oversubscribed_from", 16),
        ("oversubscribed_max", 2),
        ("off_min_ns", 2_500_000),
        ("off_max_ns", 256_000_000),
        ("off_soon", 1),
        ("window_min_ns", 400_000),
    ];
    for (name, value) in outside {
        let broken = broken(&with(name, value));
        assert!(!broken.is_empty(), "{name} = {value} breaks nothing");
    }
    let with_range = TABLE.iter().filter(|row| row.modelled.is_some());
    let names: Vec<_> = with_range.map(|row| row.name).collect();
    assert_eq!(names, outside.map(|(name, _)| name));
}

/// Whoever sees what the policy knows, and has the next thing come when that costs most, makes it cost more than arrivals do that
/// know nothing, but not without a bound.
#[test]
fn who_knows_the_policy_makes_it_cost_no_more_than_four_times_as_much() {
    let mut waiter = Waiter::new(&LIMITS, LIMITS.ceiling_ns, IDLE);
    let gaps: Vec<u64> = (0..WAITS)
        .map(|_| {
            let polls = waiter.gaps.may_poll(&LIMITS, LIMITS.ceiling_ns);
            let gap_ns = if polls {
                10 * LIMITS.ceiling_ns
            } else {
                LOOK_NS
            };
            waiter.wait(gap_ns);
            gap_ns
        })
        .collect();
    let ratio = waiter.cost_ns as f64 / best_ns(IDLE, &gaps) as f64;
    assert!((3.0..4.0).contains(&ratio), "{ratio}");
}
