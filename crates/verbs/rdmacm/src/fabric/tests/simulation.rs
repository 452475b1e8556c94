//! Many connections between two machines over a network that loses, doubles, delays and so
//! reorders; both sides' programs decide at random moments.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::*;

const CONNECTIONS: u64 = 40;
/// Everything that was begun has ended by then, one way or the other.
const END: Duration = Duration::from_secs(3000);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn up_to(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.next() % (millis + 1))
    }
}

#[derive(Clone, Copy)]
struct Weather {
    loss: u64,
    double: u64,
    delay_ms: u64,
}

/// How far one side of a connection has come, as its program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Replied,
    Up,
    Down,
    Failed,
}

enum Act {
    Deliver {
        to: usize,
        mad: Box<Mad>,
    },
    Command {
        side: usize,
        id: u32,
        message: Message,
    },
    Disconnect {
        side: usize,
        key: Key,
    },
}

struct Simulation {
    random: Random,
    weather: Weather,
    start: Instant,
    now: Instant,
    machines: [Machine; 2],
    acts: BTreeMap<(Instant, u64), Act>,
    count: u64,
    /// By side and key.
    stages: HashMap<(usize, Key), Stage>,
    names: HashMap<(usize, Key), u32>,
    /// The active side's key by its queue pair, and the passive side's for it.
    passive_of: HashMap<u32, Key>,
    refusals: bool,
    disconnects: bool,
}

impl Simulation {
    fn new(seed: u64, weather: Weather, refusals: bool, disconnects: bool) -> Simulation {
        let start = Instant::now();
        Simulation {
            random: Random(seed),
            weather,
            start,
            now: start,
            machines: [
                Machine::new(0x0a01, 0x1111, MTU, seed),
                Machine::new(0x0b02, 0x2222, MTU, seed + 1),
            ],
            acts: BTreeMap::new(),
            count: 0,
            stages: HashMap::new(),
            names: HashMap::new(),
            passive_of: HashMap::new(),
            refusals,
            disconnects,
        }
    }

    fn later(&mut self, delay: Duration, act: Act) {
        self.count += 1;
        self.acts.insert((self.now + delay, self.count), act);
    }

    fn set(&mut self, side: usize, key: Key, from: &[Stage], to: Stage) {
        let old = self.stages.insert((side, key), to).expect("it is known");
        assert!(
            from.contains(&old),
            "side {side} key {key}: {old:?} to {to:?}"
        );
    }

    fn transmit(&mut self, to: usize, mad: Mad) {
        let copies = 1 + u64::from(self.random.percent(self.weather.double));
        for _ in 0..copies {
            if !self.random.percent(self.weather.loss) {
                let delay = self.random.up_to(self.weather.delay_ms);
                let mad = Box::new(mad);
                self.later(delay, Act::Deliver { to, mad });
            }
        }
    }

    fn flush(&mut self, side: usize) {
        let out = drain(&mut self.machines[side]);
        assert!(out.passed_on.is_empty());
        for (_, mad) in out.sent {
            self.transmit(1 - side, mad);
        }
        for (key, happening) in out.events {
            self.happened(side, key, happening);
        }
    }

    fn happened(&mut self, side: usize, key: Key, happening: Happening) {
        let id = self.names[&(side, key)];
        match happening {
            Happening::Message(Message::Reply { .. }) => {
                self.set(side, key, &[Stage::Asked], Stage::Replied);
                let delay = self.random.up_to(3000);
                let message = Message::ReadyToUse;
                self.later(delay, Act::Command { side, id, message });
            }
            Happening::Message(Message::ReadyToUse) => {
                self.set(side, key, &[Stage::Replied], Stage::Up);
            }
            Happening::Message(Message::Reject { .. }) | Happening::Unreachable => {
                self.set(side, key, &[Stage::Asked, Stage::Replied], Stage::Failed);
            }
            Happening::Message(Message::DisconnectRequest | Message::DisconnectReply)
            | Happening::DisconnectTimedOut => {
                self.set(side, key, &[Stage::Up, Stage::Replied], Stage::Down);
            }
            other => panic!("{other:?}"),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Deliver { to, mad } => {
                let path = if to == 1 { path(1, 2) } else { path(2, 1) };
                let incoming = self.machines[to].received(self.now, &path, &mad, false);
                if let Some(incoming) = incoming {
                    self.asked(to, &incoming);
                }
                self.flush(to);
            }
            Act::Command { side, id, message } => {
                self.machines[side].command(self.now, id, &message);
                if message == Message::ReadyToUse {
                    let named = |(_, name): &(&(usize, Key), &u32)| **name == id;
                    let (&(_, key), _) = self.names.iter().find(named).expect("known");
                    // The peer may have given up meanwhile.
                    if self.stages[&(side, key)] == Stage::Replied {
                        self.set(side, key, &[Stage::Replied], Stage::Up);
                    }
                }
                self.flush(side);
            }
            Act::Disconnect { side, key } => {
                if self.stages.get(&(side, key)) == Some(&Stage::Up) {
                    let id = self.names[&(side, key)];
                    let message = Message::DisconnectRequest;
                    self.machines[side].command(self.now, id, &message);
                    self.flush(side);
                }
            }
        }
    }

    /// The passive side's program gets a request.
    fn asked(&mut self, side: usize, incoming: &crate::fabric::machine::Incoming) {
        let Message::Request(request) = &incoming.message else {
            panic!("{incoming:?}");
        };
        let key = 1000 + self.passive_of.len() as Key;
        let earlier = self.passive_of.insert(request.params.qp_num, key);
        assert_eq!(earlier, None, "a request was shown twice");
        let id = self.machines[side].admit(incoming, key).unwrap();
        self.names.insert((side, key), id);
        self.stages.insert((side, key), Stage::Replied);
        let message = if self.refusals && self.random.percent(30) {
            reject(28)
        } else {
            reply(5000 + key as u32)
        };
        let delay = self.random.up_to(5000);
        if matches!(message, Message::Reject { .. }) {
            self.set(side, key, &[Stage::Replied], Stage::Failed);
        }
        self.later(delay, Act::Command { side, id, message });
        self.plan_end(side, key);
    }

    fn plan_end(&mut self, side: usize, key: Key) {
        if self.disconnects {
            let delay = Duration::from_secs(200) + self.random.up_to(100);
            self.later(delay, Act::Disconnect { side, key });
        }
    }

    fn run(&mut self) {
        for key in 0..CONNECTIONS {
            let id = self.machines[0].open(key, path(1, 2)).unwrap();
            self.names.insert((0, key), id);
            self.stages.insert((0, key), Stage::Asked);
            let message = request(100 + key as u32);
            let delay = self.random.up_to(1000);
            self.later(
                delay,
                Act::Command {
                    side: 0,
                    id,
                    message,
                },
            );
            self.plan_end(0, key);
        }
        while self.now < self.start + END {
            let timers = self.machines.iter().filter_map(Machine::deadline).min();
            let acts = self.acts.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = timers.into_iter().chain(acts).min() else {
                break;
            };
            self.now = self.now.max(next);
            if acts == Some(next)
                && let Some((_, act)) = self.acts.pop_first()
            {
                self.act(act);
            }
            for side in 0..2 {
                self.machines[side].tick(self.now);
                self.flush(side);
            }
        }
        assert!(self.now < self.start + END, "it goes on for ever");
    }

    /// The two sides of every connection, at the end.
    fn ends(&self) -> Vec<(Stage, Option<Stage>)> {
        (0..CONNECTIONS)
            .map(|key| {
                let passive = self.passive_of.get(&(100 + key as u32));
                let passive = passive.map(|passive| self.stages[&(1, *passive)]);
                (self.stages[&(0, key)], passive)
            })
            .collect()
    }

    /// Nothing is left when the programs let go.
    fn leave(mut self) {
        for machine in &mut self.machines {
            machine.release_all(self.now);
        }
        while let Some(deadline) = self.machines.iter().filter_map(Machine::deadline).min() {
            for machine in &mut self.machines {
                machine.tick(deadline);
                drain(machine);
            }
        }
        for machine in &self.machines {
            assert_eq!(machine.len(), 0);
            assert!(machine.tables_are_empty());
        }
    }
}

const WEATHERS: [Weather; 5] = [
    Weather {
        loss: 0,
        double: 0,
        delay_ms: 1,
    },
    Weather {
        loss: 0,
        double: 50,
        delay_ms: 4000,
    },
    Weather {
        loss: 10,
        double: 10,
        delay_ms: 100,
    },
    Weather {
        loss: 20,
        double: 20,
        delay_ms: 2000,
    },
    Weather {
        loss: 30,
        double: 0,
        delay_ms: 20,
    },
];

#[test]
fn both_sides_agree_that_they_are_connected() {
    for (seed, weather) in (0..30).zip(WEATHERS.into_iter().cycle()) {
        let mut simulation = Simulation::new(seed, weather, false, false);
        simulation.run();
        for ends in simulation.ends() {
            assert_eq!(ends, (Stage::Up, Some(Stage::Up)), "seed {seed}");
        }
        simulation.leave();
    }
}

#[test]
fn both_sides_agree_that_they_are_not() {
    for (seed, weather) in (100..130).zip(WEATHERS.into_iter().cycle()) {
        let mut simulation = Simulation::new(seed, weather, true, true);
        simulation.run();
        let mut refused = 0;
        for ends in simulation.ends() {
            refused += u32::from(ends == (Stage::Failed, Some(Stage::Failed)));
            let agreed = [
                (Stage::Down, Some(Stage::Down)),
                (Stage::Failed, Some(Stage::Failed)),
            ];
            assert!(agreed.contains(&ends), "seed {seed}: {ends:?}");
        }
        assert!(refused > 0);
        simulation.leave();
    }
}

#[test]
fn a_network_that_is_gone_ends_everything() {
    let gone = Weather {
        loss: 100,
        double: 0,
        delay_ms: 0,
    };
    let mut simulation = Simulation::new(7, gone, false, false);
    simulation.run();
    for ends in simulation.ends() {
        assert_eq!(ends, (Stage::Failed, None));
    }
    simulation.leave();
}
